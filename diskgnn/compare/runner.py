"""`compare`: every loader in processes of its own, under one memory cap, on the same minibatches."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from diskgnn.compare import page_cache
from diskgnn.compare.loaders import MEMORY, SEQUENTIAL, Setting, Variant, select
from diskgnn.compare.processes import Outcome, run_in_process
from diskgnn.compare.results import Comparison, EpochCost, EpochPoint, LoaderResult, SweepPoint, disk_bytes
from diskgnn.compare.scratch import scratch_folder
from diskgnn.compare.steps import excerpt
from diskgnn.compare.training_graph import make_training_graph
from diskgnn.errors import ConfigError, DiskGNNError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike, cache_rows
from diskgnn.storage import artifacts
from diskgnn.storage.manifest import Manifest
from diskgnn.system.disk_rates import ReadRates, measure_read_rates
from diskgnn.system.memory import available_cores
from diskgnn.system.memory_cgroup import refusal
from diskgnn.tracing import read_trace
from diskgnn.units import format_size, parse_size
from diskgnn.version import VERSION

DEFAULT_CACHE_SHARE = 0.1  # of the features, as far as that leaves most of the cap to everything else
DEFAULT_CACHE_CAP_SHARE = 0.2
PAGE_BYTES = 4096
COPY_BYTES = 64 << 20
_BUSY_LOAD = 0.75  # of the cores: seconds measured beside that are worth little
_UNCAPPED_SHARE = 0.8  # of the memory that is free: what a loader without a cap may hold


@dataclass(frozen=True)
class Rates:
    """The limits of this machine, measured in the same run."""

    sequential_bytes_per_second: float  # of the disk
    random_reads_per_second: float  # of 4 KiB
    memory_bytes_per_second: float  # a copy by all cores

    def bound_seconds(self, bound: str, cost: EpochCost, row_bytes: int) -> float:
        """The least that an epoch of `cost` can take where `bound` is the limit."""
        if bound == MEMORY:
            return cost.requested_rows * row_bytes / self.memory_bytes_per_second
        read_bytes = disk_bytes(cost)
        # Bytes written, too: no disk is faster at both than at reading alone.
        seconds = (read_bytes + (cost.device_write_bytes or 0)) / self.sequential_bytes_per_second
        if bound == SEQUENTIAL:
            return seconds
        # Where the kernel sent the requests (page faults), they were of a page each at least.
        requests = read_bytes / PAGE_BYTES if cost.read_requests is None else cost.read_requests
        return max(seconds, requests / self.random_reads_per_second)


def compare(
    graph: PathLike,
    *,
    memory: int | str,
    loaders: str | Sequence[str] = "all",
    fanouts: Sequence[int],
    batch_size: int = 1024,
    epochs: int = 1,
    max_batches: int | None = None,
    seeds: int = 1,
    cpu_cache: int | str | None = None,
    sweep: Sequence[str] = (),
    model: str = "sage",
    hidden: int = 256,
    heads: int = 4,
    dropout: float = 0.5,
    lr: float = 0.003,
    device: str = "cpu",
    evaluate: bool = True,
    scratch: PathLike | None = None,
    timeout_seconds: float = 3600.0,
    rate_file_bytes: int = 1 << 30,
    command: str | None = None,
    on_result: Callable[[Comparison], None] = lambda comparison: None,
    reporter: Reporter = SILENT,
) -> Comparison:
    """Measure loaders on one graph, each in fresh processes under the same memory cap, page cache included.

    What may run without the cap comes last: giving back that much memory slows down whoever comes next.

    A loader that fails, is killed for memory, takes too long, or needs a library that is not there becomes a row that
    says so. Everything written lies in one hidden directory that goes in the end, whatever the end is.

    Args:
        graph: graph directory; features that are larger than `memory` are what it is about.
        memory: the cap of each process: a cgroup's limit, where this process may make one; otherwise it is warned that
            nothing caps the page cache. Preparing may use half of it.
        loaders: see `loaders.select`.
        fanouts, batch_size: of the minibatches, which are the same for all loaders with the same seed.
        epochs: to train.
        max_batches: minibatches per epoch; the rest of the train split is left out, for preparing, too.
        seeds: train with so many seeds (of minibatches, weights and dropout), from 0. All but the first are for
            accuracy only.
        cpu_cache: rows in main memory for those that cache: bytes, '512MiB', or '10%' of all rows; by default 10 %, but
            at most 20 % of `memory`.
        sweep: cache sizes at which to count the rows that caches would read.
        model, hidden, heads, dropout, lr: as `train` takes them.
        device: where the model is.
        evaluate: measure validation and test accuracy after every epoch, outside the clock.
        scratch: folder for what is prepared, by default the graph's parent; on the disk that is to be measured.
        timeout_seconds: of each process.
        rate_file_bytes: size of the file that the disk's rates are measured with.
        command: what to type to run it again.
        on_result: called with all that is known after each loader, so that a long comparison loses nothing.

    Raises:
        ConfigError: arguments that make no sense.
        ArtifactError, InputError: the graph is none, or has no training nodes.
        DiskGNNError: what all need (the training graph, packed evaluation splits) could not be made.
        KeyboardInterrupt: processes, cgroups and files are gone by then.
    """
    variants = sorted(select(loaders, epochs), key=lambda variant: variant.uncapped)
    if device != "cpu":
        from diskgnn.loading.transfer import available_device  # with torch, which this process does without otherwise

        available_device(device)
    opened = Graph.open(graph)
    for name, value in (("epochs", epochs), ("max_batches (--max-batches)", max_batches), ("seeds", seeds),
                        ("batch_size", batch_size), ("hidden", hidden)):  # fmt: skip
        at_least_one(name, value)
    memory_bytes, features, manifest = parse_size(memory), opened.feature_file, opened.manifest
    if memory_bytes == 0:
        raise ConfigError("--memory: expected the cap that all loaders run under, such as 2GiB, found 0")
    cached_rows = _cached_rows(cpu_cache, features.row_bytes, opened.num_nodes, memory_bytes)
    caches = [(size, cache_rows(size, features.row_bytes, opened.num_nodes)) for size in sweep]
    splits = [split for split in ("valid", "test") if evaluate and len(opened.splits.get(split, ()))]
    training = {"name": model, "hidden": hidden, "heads": heads, "dropout": dropout, "lr": lr}
    settings = {
        "memory_bytes": memory_bytes, "fanouts": list(fanouts), "batch_size": batch_size, "epochs": epochs,
        "max_batches": max_batches, "seeds": seeds, "cpu_cache": cpu_cache,
        "cpu_cache_bytes": cached_rows * features.row_bytes, "model": model, "hidden": hidden, "dropout": dropout,
        "lr": lr, "device": device, "evaluate": evaluate,
    }  # fmt: skip
    with scratch_folder(Path(graph).absolute().parent if scratch is None else Path(scratch)) as folder, \
            warnings.catch_warnings(record=True) as caught:  # fmt: skip
        warnings.simplefilter("always")
        total = 2 + bool(splits) + len(variants) * seeds
        with reporter.stage("compare", total, "steps") as advance:
            no_cgroup = refusal()
            load, cores = os.getloadavg()[0], available_cores()
            if load > _BUSY_LOAD * cores:
                warnings.warn(
                    f"the machine was busy when the comparison began (load average {load:.1f} on {cores} cores): "
                    "seconds can't be relied on; run it again when nothing else runs",
                    stacklevel=2,
                )
            if no_cgroup:
                warnings.warn(f"no memory cgroup ({no_cgroup}): nothing caps memory and page cache", stacklevel=2)
            if device.startswith("cuda"):
                warnings.warn(
                    "on a GPU only diskgnn and static-packed:plain copy minibatches ahead from page-locked memory; "
                    "those of other loaders are copied when they are needed, so they look slower than they could be",
                    stacklevel=2,
                )
            small = make_training_graph(opened, folder / "graph", batch_size=batch_size, max_batches=max_batches)
            setting = Setting(str(small.manifest.path), "", tuple(fanouts), batch_size, 0, epochs,
                              cached_rows * features.row_bytes, memory_bytes, device)  # fmt: skip
            described = describe_graph(opened, small)
            del opened, small  # what this process has mapped and looked at would stay in the page cache
            run = _Run(setting, training, manifest, features.row_bytes, folder, not no_cgroup, timeout_seconds)
            disk = measure_read_rates(folder, file_bytes=rate_file_bytes)
            rates = Rates(disk.sequential_bytes_per_second, disk.random_reads_per_second, memory_bytes_per_second())
            advance(1)
            belady_rows, points = run.count(cached_rows, caches)
            advance(1)
            if splits:
                run.prepare_evaluation(splits)
                advance(1)
            started = datetime.now().astimezone().isoformat(timespec="seconds")
            comparison = Comparison(
                command=command or shlex.join(sys.argv), started=started, diskgnn_version=VERSION,
                machine=describe_machine(folder, disk), graph=described, settings=settings,
                memory_capped=not no_cgroup, cache_dropped=True,
                sequential_bytes_per_second=rates.sequential_bytes_per_second,
                random_reads_per_second=rates.random_reads_per_second,
                sweep=points, memory_bytes_per_second=rates.memory_bytes_per_second,
            )  # fmt: skip
            for variant in variants:
                for result in run.measure(variant, seeds, advance):
                    comparison = replace(
                        comparison,
                        results=(*comparison.results, _with_bounds(result, variant, belady_rows, rates)),
                        cache_dropped=run.cache_dropped,
                        warnings=tuple(dict.fromkeys([*run.warnings, *(str(each.message) for each in caught)])),
                    )
                    on_result(comparison)
    for message in comparison.warnings:
        warnings.warn(message, stacklevel=2)
    return comparison


class _Run:
    """Runs steps one after the other; keeps what they warned of."""

    def __init__(
        self, setting: Setting, model: Mapping[str, Any], graph: Manifest, row_bytes: int, folder: Path, capped: bool,
        timeout: float,
    ) -> None:  # fmt: skip
        self._setting, self._model, self._folder = setting, model, folder
        self._graph, self._row_bytes = graph, row_bytes
        self._capped, self._timeout = capped, timeout
        self._splits: Sequence[str] = ()
        self.cache_dropped = True  # before every step so far
        self.warnings: list[str] = []

    def _step(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        capped: bool = True,
        watched: Path | None = None,
        about: str | None = None,
    ) -> Outcome:
        self.cache_dropped &= page_cache.drop(self._files())
        limit_bytes = self._setting.memory_bytes if self._capped and capped else None
        outcome = run_in_process(
            name, arguments, self._folder, limit_bytes=limit_bytes, timeout_seconds=self._timeout, watched=watched
        )
        told = [message if about is None else f"{about}: {message}" for message in outcome.warnings]
        self.warnings += [message for message in told if message not in self.warnings]
        return outcome

    def _files(self) -> Iterator[Path]:
        """What loaders read: the graph's files and all that was prepared."""
        yield from (self._graph.file(name) for name in self._graph.files)
        yield from (file for file in self._folder.rglob("*") if file.is_file())

    def _needed(self, name: str, arguments: Mapping[str, Any]) -> Any:
        outcome = self._step(name, arguments)
        if outcome.status == "out of memory":
            raise ConfigError(
                f"--memory: {format_size(self._setting.memory_bytes)} is not even enough for Python, PyTorch and what "
                f"is prepared with half of it ({outcome.message}); try 1GiB or more"
            )
        if outcome.status != "ok":
            raise DiskGNNError(f"{outcome.status}: {outcome.message}")
        return outcome.result

    def count(self, cached_rows: int, sweep: Sequence[tuple[str, int]]) -> tuple[int, tuple[SweepPoint, ...]]:
        """Belady's bound at `cached_rows`, and the sweep."""
        with _subfolder(self._folder, "counting") as folder:
            found = self._needed("count", {
                "graph": self._setting.graph, "folder": str(folder), "sampling": self._setting.sampling,
                "cache_rows": cached_rows, "sweep": list(sweep), "memory_bytes": self._setting.memory_bytes // 2,
            })  # fmt: skip
        return found["belady_rows"], tuple(SweepPoint(**point) for point in found["sweep"])

    def prepare_evaluation(self, splits: Sequence[str]) -> None:
        """Pack what all loaders' models will be evaluated on."""
        folder = self._folder / "evaluation"
        folder.mkdir()
        self._splits = splits
        self._needed("prepare_evaluation", {
            "graph": str(self._graph.path), "folder": str(folder), "fanouts": self._setting.fanouts,
            "batch_size": self._setting.batch_size, "cache_bytes": self._setting.cache_bytes // 4,
            "memory_bytes": self._setting.memory_bytes // 2,
        })  # fmt: skip

    def measure(self, variant: Variant, seeds: int, advance: Callable[[int], None]) -> Iterator[LoaderResult]:
        """One result per seed; one alone where there is nothing to measure."""
        nothing = LoaderResult(variant.name, variant.loader, variant.variant, "ok", row_bytes=self._row_bytes)
        for seed in range(seeds):
            result = self._measure_seed(variant, replace(nothing, seed=seed), capped=True)
            advance(1)
            yield result
            if result.status != "ok":
                advance(seeds - seed - 1)
                break
        if result.status == "out of memory" and variant.uncapped and self._fits_without_cap():
            yield self._measure_seed(
                variant, replace(nothing, name=f"{variant.name}, without the cap", capped=False), capped=False
            )

    def _fits_without_cap(self) -> bool:
        total_bytes = self._graph.total_bytes
        return self._capped and total_bytes < _UNCAPPED_SHARE * psutil.virtual_memory().available

    def _measure_seed(self, variant: Variant, result: LoaderResult, *, capped: bool) -> LoaderResult:
        with _subfolder(self._folder, "loader") as folder, _subfolder(self._folder, "weights") as weights:
            setting = replace(self._setting, folder=str(folder), seed=result.seed)
            what = {"setting": asdict(setting), "loader": variant.loader, "variant": variant.variant}
            if variant.prepare is not None:
                prepared = self._step("prepare", what, capped=capped, watched=folder, about=variant.name)
                result = replace(result, prepare_peak_bytes=prepared.peak_process_bytes,
                                 prepare_peak_cgroup_bytes=prepared.peak_cgroup_bytes,
                                 peak_disk_bytes=prepared.peak_disk_bytes)  # fmt: skip
                if prepared.status != "ok":
                    return _failed(result, prepared)
                result = replace(result, prepare_seconds=prepared.result["seconds"],
                                 prepared_bytes=prepared.result["bytes"])  # fmt: skip
            if result.seed == 0:
                loaded = self._step("load", what, capped=capped, watched=folder, about=variant.name)
                result = _with_peaks(result, loaded)
                if loaded.status != "ok":
                    return _failed(result, loaded)
                result = replace(result, loading=EpochCost(**loaded.result["cost"]))
            trace = str(weights / "trace.json") if result.seed == 0 else None
            trained = self._step("train", {
                **what, "model": self._model, "weights": str(weights) if self._splits else None, "trace": trace,
            }, capped=capped, watched=folder, about=variant.name)  # fmt: skip
            result = _with_peaks(result, trained)
            if trained.status != "ok":
                return _failed(result, trained)
            if trace is not None:  # read here: it is not the measured process's memory that it takes
                result = replace(result, trace=tuple(excerpt(read_trace(trace))))
            accuracies: list[dict[str, float]] = [{}] * setting.epochs
            if self._splits:
                evaluated = self._step("evaluate", {
                    "packed": str(self._folder / "evaluation" / "packed"), "splits": self._splits,
                    "weights": str(weights), "epochs": setting.epochs, "model": self._model, "device": setting.device,
                })  # fmt: skip
                if evaluated.status != "ok":
                    return _failed(result, evaluated)
                accuracies = evaluated.result
            return _with_training(result, trained.result, accuracies)


def _failed(result: LoaderResult, outcome: Outcome) -> LoaderResult:
    return replace(result, status=outcome.status, message=outcome.message)


def _with_peaks(result: LoaderResult, outcome: Outcome) -> LoaderResult:
    cgroup_peaks = [peak for peak in (result.peak_cgroup_bytes, outcome.peak_cgroup_bytes) if peak is not None]
    return replace(
        result,
        peak_process_bytes=max(result.peak_process_bytes, outcome.peak_process_bytes),
        peak_cgroup_bytes=max(cgroup_peaks, default=None),
        peak_disk_bytes=max(result.peak_disk_bytes, outcome.peak_disk_bytes),
    )


def _with_training(
    result: LoaderResult, trained: Mapping[str, Any], accuracies: Sequence[Mapping[str, float]]
) -> LoaderResult:
    seconds, points = result.prepare_seconds + trained["open_seconds"], []
    for epoch, found in zip(trained["epochs"], accuracies, strict=True):
        seconds += epoch["train_seconds"]
        points.append(EpochPoint(epoch["epoch"], seconds, epoch["loss"], found.get("valid"), found.get("test")))
    return replace(
        result,
        training=EpochCost(**trained["cost"]),
        open_seconds=trained["open_seconds"],
        epochs=tuple(points),
    )


def _with_bounds(result: LoaderResult, variant: Variant, belady_rows: int, rates: Rates) -> LoaderResult:
    """With what cannot be beaten: in rows for those that cache, in seconds for all."""
    if result.loading is None:
        return result
    return replace(
        result,
        belady_rows=belady_rows if variant.cached else None,
        bound=variant.bound,
        bound_seconds=rates.bound_seconds(variant.bound, result.loading, result.row_bytes),
    )


def _cached_rows(cpu_cache: int | str | None, row_bytes: int, num_nodes: int, memory_bytes: int) -> int:
    if cpu_cache is None:
        return min(int(num_nodes * DEFAULT_CACHE_SHARE), int(memory_bytes * DEFAULT_CACHE_CAP_SHARE) // row_bytes)
    rows = cache_rows(cpu_cache, row_bytes, num_nodes)
    if rows * row_bytes > memory_bytes:
        raise ConfigError(
            f"--cpu-cache {cpu_cache} is {format_size(rows * row_bytes)}, more than --memory "
            f"{format_size(memory_bytes)}: take less of the one or more of the other"
        )
    return rows


@contextmanager
def _subfolder(folder: Path, name: str) -> Iterator[Path]:
    path = folder / name
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


def memory_bytes_per_second() -> float:
    """How fast all cores together copy memory that no cache of the processor holds: the best of five."""
    cores, best = available_cores(), float("inf")
    pairs = [(np.zeros(COPY_BYTES, np.uint8), np.ones(COPY_BYTES, np.uint8)) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(*pair), pairs))  # without Python's lock
            best = min(best, time.perf_counter() - started)
    return cores * COPY_BYTES / best


def describe_machine(folder: Path, disk: ReadRates) -> dict[str, Any]:
    """What the figures depend on beside the graph."""
    from diskgnn.system.doctor import diagnose

    found = diagnose(folder, measure=False)
    machine = found.machine
    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "",
    )  # fmt: skip
    return {
        "cores": machine.usable_cores, "memory_bytes": machine.memory_bytes, "cpu": cpu,
        "gpu": ", ".join(gpu.name for gpu in machine.gpus), "kernel": machine.kernel, "python": machine.python,
        "torch": machine.torch, "disk": f"{found.folder.filesystem} on {found.folder.device}", "engine": disk.engine,
        "load_average": os.getloadavg()[0],
    }  # fmt: skip


def describe_graph(graph: Graph, training: Graph) -> dict[str, Any]:
    """What is trained on."""
    features, path = graph.feature_file, graph.manifest.path.absolute()
    return {
        "name": f"{path.parent.name}/{path.name}", "num_nodes": graph.num_nodes, "num_edges": graph.num_edges,
        "feature_width": features.width, "feature_dtype": features.dtype,
        "feature_bytes": features.num_bytes, "num_classes": graph.num_classes,
        "num_train": len(training.splits["train"]), "num_train_in_all": len(graph.splits["train"]),
    } | {f"num_{split}": len(graph.splits.get(split, ())) for split in artifacts.SPLITS[1:]}  # fmt: skip
