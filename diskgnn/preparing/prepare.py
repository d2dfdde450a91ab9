"""`prepare`: sample + place + pack in one call, and an estimate of what that would cost."""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack, tier_rows
from diskgnn.packing.space import disk_need, most_disk_bytes, probe_by_sampling
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.sampling.sample import sample, samples_config
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.row_reading import read_rows, row_buffer, warn_if_no_io_uring
from diskgnn.storage.samples import Samples
from diskgnn.system.memory import memory_budget, thread_count
from diskgnn.units import format_size

_PROBE_READ_BYTES = 128 << 20
# Measured on one core: placing costs about this much per access, all passes and the headers together.
_PLACE_SECONDS_PER_ACCESS = 0.25e-6


def prepare(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    epochs: int = 1,
    cpu_cache: int | str,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    eval_fanouts: Sequence[int] | None = None,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> list[StageReport]:
    """Make the packed directory `out`, ready to train from: `sampling.sample`, then `packing.pack`.

    Args are theirs; without `static_cache` the device and pinned tiers get what `pack` calls 'auto': nothing without a
    GPU, and with one the least of half of its free memory, a quarter of the `memory` budget and 4 GiB. The samples are
    scratch, beside `out`, unless `samples` names a directory to keep them in. A run that fails or is interrupted keeps
    what was sampled and warns where; the same arguments go on with it.

    Returns:
        The reports of both stages.

    Raises:
        ConfigError, InputError, ArtifactError, OutputExistsError, DiskFullError: see both. A disk that samples and
            packed data surely do not fit is refused before sampling, by the prediction that `estimate` makes.
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    final = Path(out).absolute()
    num_threads = thread_count(threads)
    # Refuse before hours of sampling, not after.
    ArtifactWriter(final, artifacts.PACKED, config={}, overwrite=overwrite)
    memory_bytes = memory_budget(memory)
    tiers = tier_rows(
        graph.feature_file.row_bytes, graph.num_nodes, static_cache, cpu_cache, eval_cpu_cache, memory_bytes
    )
    sampling: dict[str, Any] = {
        "fanouts": fanouts, "batch_size": batch_size, "epochs": epochs, "eval_fanouts": eval_fanouts, "seed": seed,
    }  # fmt: skip
    config = samples_config(graph, **sampling, splits=artifacts.SPLITS)
    scratch = final.with_name(f".{final.name}.samples")
    samples_path = scratch if samples is None else Path(samples)
    reports = []
    sampled = _is_sampled(samples_path, graph, config)
    with _saying_what_is_kept(samples_path, scratch=samples is None):
        if not sampled:
            _require_space(
                graph, config, tiers, keep_input_nodes, memory_bytes, num_threads, final, samples_path, reporter
            )
            reports.append(
                sample(
                    graph,
                    samples_path,
                    **sampling,
                    memory=memory,
                    threads=threads,
                    overwrite=overwrite or samples is None,
                    reporter=reporter,
                )
            )
        reports.append(
            pack(
                graph,
                samples_path,
                final,
                cpu_cache=cpu_cache,
                static_cache=static_cache,
                eval_cpu_cache=eval_cpu_cache,
                memory=memory,
                keep_input_nodes=keep_input_nodes,
                threads=threads,
                overwrite=overwrite,
                reporter=reporter,
            )
        )
    if samples is None:
        shutil.rmtree(scratch)
    return reports


@contextmanager
def _saying_what_is_kept(samples: Path, scratch: bool) -> Iterator[None]:
    """When preparing ends early, warn of the hidden directories that hold what was sampled."""
    try:
        yield
    except BaseException:
        hidden = [samples.with_name(f".{samples.name}.partial"), *([samples] if scratch else [])]
        for kept in hidden:
            if (size := _bytes_in(kept)) > 0:
                warnings.warn(
                    f"what was sampled is kept in {kept} ({format_size(size)}): the same command goes on with it; "
                    f"to give it up, remove that directory",
                    stacklevel=4,
                )
        raise


def _is_sampled(path: Path, graph: Graph, config: dict[str, Any]) -> bool:
    """Whether `path` holds just the samples that would be made: those of a run that was killed while packing."""
    try:
        manifest = Samples.open(path).manifest
    except ArtifactError:
        return False
    return manifest.config == config and (manifest.source or {}).get("digest") == graph.manifest.digest


def _require_space(
    graph: Graph,
    config: dict[str, Any],
    tiers: tuple[int, int, int],
    keep_input_nodes: bool,
    memory_bytes: int,
    threads: int,
    final: Path,
    samples: Path,
    reporter: Reporter,
) -> None:
    """Refuse what surely does not fit. Only where the fanouts leave that open, a few minibatches are asked.

    What an earlier run left half-done is reused or replaced, so it counts as free.

    Raises:
        DiskFullError: names the bytes missing.
    """
    num_static, cpu_rows = tiers[0], _cpu_rows(config, tiers)
    most_bytes = most_disk_bytes(graph, config, num_static, cpu_rows, keep_input_nodes)
    if most_bytes <= min(artifacts.free_bytes(final.parent), artifacts.free_bytes(samples.absolute().parent)):
        return
    probes = probe_by_sampling(graph, config, memory_bytes, threads, reporter)
    need = disk_need(probes, graph.feature_file.row_bytes, num_static, cpu_rows, keep_input_nodes)
    packed_bytes = max(0, need.certain_packed - _bytes_in(final.with_name(f".{final.name}.partial")))
    samples_bytes = max(0, need.certain_samples - _bytes_in(samples.with_name(f".{samples.name}.partial")))
    if _device(final) == _device(samples):
        artifacts.require_free_bytes(
            final.parent, packed_bytes + samples_bytes, f"preparing {final}, samples included,"
        )
    else:
        artifacts.require_free_bytes(samples.parent, samples_bytes, f"sampling {samples}")
        artifacts.require_free_bytes(final.parent, packed_bytes, f"packing {final}")


def _cpu_rows(config: dict[str, Any], tiers: tuple[int, int, int]) -> dict[str, int]:
    """Slots of each split's cpu tier; `tiers` are those of `packing.tier_rows`."""
    return {split: tiers[1] if split == "train" else tiers[2] for split in config["splits"]}


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*") if path.is_file())


def _device(path: Path) -> int:
    """The file system that `path` is on, or will be."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path.stat().st_dev


@dataclass(frozen=True)
class Estimate:
    """What `prepare` would take. Reads and caches are estimated from a few minibatches of each split."""

    minibatches: int  # of all splits and epochs
    rows_per_minibatch: float  # of the train split
    edges_per_minibatch: float
    train_disk_row_share: float  # rows that must come from disk, of those requested; at most, see `estimate`
    packed_bytes: int
    scratch_bytes: int  # needed beside that while preparing
    free_disk_bytes: int
    missing_disk_bytes: int  # of packed and scratch bytes together; 0 when they fit
    prepare_memory_bytes: int  # of arrays and buffers; within the budget, but for 5 bytes per node
    training_memory_bytes: int  # of the loader; see `estimate`
    sample_seconds: float
    place_seconds: float
    pack_seconds: float


def estimate(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    epochs: int = 1,
    cpu_cache: int | str,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    eval_fanouts: Sequence[int] | None = None,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
    overwrite: bool = False,
    prefetch: int = 1,
    reporter: Reporter = SILENT,
) -> Estimate:
    """Predict what `prepare` with the same arguments would take; nothing is written where `out` is.

    Up to 8 minibatches of each split are sampled. Hits are predicted as those of a cache that holds the rows that
    half of them need most, measured on the other half: Belady's schedule does better, so disk bytes and pack seconds
    are upper bounds in general. The disk's rate is measured by reading 128 MiB of the features.

    `training_memory_bytes` is the loader's: static rows (in GPU memory as far as `device_cache` goes), the cpu tiers
    of training and of evaluation, the minibatches in flight and the read ring. The model, its optimizer and
    activations, and the interpreter with torch come on top.

    Raises:
        ConfigError, InputError, ArtifactError: as `prepare`.
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    features = graph.feature_file
    config = samples_config(
        graph,
        fanouts=fanouts,
        batch_size=batch_size,
        epochs=epochs,
        eval_fanouts=eval_fanouts,
        splits=artifacts.SPLITS,
        seed=seed,
    )
    num_threads = thread_count(threads)
    memory_bytes = memory_budget(memory)
    tiers = tier_rows(features.row_bytes, graph.num_nodes, static_cache, cpu_cache, eval_cpu_cache, memory_bytes)
    num_static, train_rows, eval_rows = tiers
    probes = probe_by_sampling(graph, config, memory_bytes, num_threads, reporter)
    need = disk_need(probes, features.row_bytes, num_static, _cpu_rows(config, tiers), keep_input_nodes)
    scratch_bytes = need.samples + need.placing
    free_disk_bytes = artifacts.free_bytes(Path(out).absolute().parent)
    train = probes.get("train") or next(iter(probes.values()))
    warn_if_no_io_uring()
    rate = _read_rate(graph)
    largest_bytes = max(int(probe.max_rows * features.row_bytes + probe.structure_bytes) for probe in probes.values())
    evaluated_rows = eval_rows if set(probes) - {"train"} else 0
    # Sampling holds the topology if it fits, packing two partitions of the features, of a quarter of the budget each.
    used_bytes = max(graph.topology_bytes, 2 * features.num_bytes)
    return Estimate(
        minibatches=sum(probe.num_batches for probe in probes.values()),
        rows_per_minibatch=train.rows,
        edges_per_minibatch=train.edges,
        train_disk_row_share=train.disk_share(num_static + train_rows),
        packed_bytes=need.packed,
        scratch_bytes=scratch_bytes,
        free_disk_bytes=free_disk_bytes,
        missing_disk_bytes=max(0, need.packed + scratch_bytes - free_disk_bytes),
        prepare_memory_bytes=max(min(memory_bytes, used_bytes), 5 * graph.num_nodes + graph.num_nodes // 8),
        training_memory_bytes=(num_static + train_rows + evaluated_rows) * features.row_bytes
        + (prefetch + 1) * largest_bytes
        + READ_AHEAD_BYTES,
        sample_seconds=sum(probe.num_batches * probe.seconds for probe in probes.values()),
        place_seconds=sum(probe.num_batches * probe.rows for probe in probes.values()) * _PLACE_SECONDS_PER_ACCESS,
        pack_seconds=(graph.num_nodes * features.row_bytes + need.packed) / rate,
    )


def _read_rate(graph: Graph) -> float:
    """Bytes per second at which the feature file is read front to back."""
    features = graph.feature_file
    num_rows = min(features.num_rows, max(1, _PROBE_READ_BYTES // features.row_bytes))
    buffer = row_buffer(num_rows, features.row_bytes)
    started = time.perf_counter()
    _, read_bytes = read_rows(
        features.path, features.data_offset_bytes, features.row_bytes, np.arange(num_rows), buffer
    )
    return read_bytes / max(time.perf_counter() - started, 1e-9)
