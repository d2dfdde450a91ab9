"""`prepare`: sample + place + pack in one call, and an estimate of what that would cost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn import _native, artifacts
from diskgnn.artifacts import ArtifactWriter, PathLike
from diskgnn.errors import ArtifactError
from diskgnn.graph import Graph
from diskgnn.memory import available_cores, memory_budget
from diskgnn.packing import pack, tier_rows
from diskgnn.placement import hottest_nodes
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.row_reading import read_rows, row_buffer
from diskgnn.sampling import Samples, batch_key, epoch_seeds, sample, samples_config

_PROBE_MINIBATCHES = 16
_PROBE_READ_BYTES = 128 << 20
_STREAM_BYTES = 24 << 20  # what the online reader has in flight
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

    Args are theirs. The samples are scratch, beside `out`, unless `samples` names a directory to keep them in. A killed
    run with the same arguments goes on with what was sampled.

    Returns:
        The reports of both stages.

    Raises:
        ConfigError, InputError, ArtifactError, OutputExistsError, DiskFullError: see both.
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    final = Path(out).absolute()
    # Refuse before hours of sampling, not after.
    ArtifactWriter(final, artifacts.PACKED, config={}, overwrite=overwrite)
    tier_rows(graph.feature_file.row_bytes, graph.num_nodes, static_cache, cpu_cache, eval_cpu_cache)
    memory_budget(memory)
    sampling: dict[str, Any] = {
        "fanouts": fanouts, "batch_size": batch_size, "epochs": epochs, "eval_fanouts": eval_fanouts, "seed": seed,
    }  # fmt: skip
    config = samples_config(graph, **sampling, splits=artifacts.SPLITS)
    scratch = final.with_name(f".{final.name}.samples")
    samples_path = scratch if samples is None else Path(samples)
    reports = []
    if not _is_sampled(samples_path, graph, config):
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


def _is_sampled(path: Path, graph: Graph, config: dict[str, Any]) -> bool:
    """Whether `path` holds just the samples that would be made: those of a run that was killed while packing."""
    try:
        manifest = Samples.open(path).manifest
    except ArtifactError:
        return False
    return manifest.config == config and (manifest.source or {}).get("digest") == graph.manifest.digest


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
    prepare_memory_bytes: int
    training_memory_bytes: int  # of the loader: cpu tier, minibatches in flight, read buffers
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

    Up to 16 minibatches of each split are sampled. Hits are predicted as those of a cache that holds the rows that
    half of them need most, measured on the other half: Belady's schedule does better, so disk bytes and pack seconds
    are upper bounds in general. The disk's rate is measured by reading 128 MiB of the features.

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
    num_threads = available_cores() if threads is None else threads
    num_static, train_rows, eval_rows = tier_rows(
        features.row_bytes, graph.num_nodes, static_cache, cpu_cache, eval_cpu_cache
    )
    probes = {split: _probe(graph, split, config, reporter) for split in config["splits"]}
    packed_bytes = (num_static + train_rows + eval_rows * (len(probes) - 1)) * features.row_bytes
    scratch_bytes = 0
    sample_seconds = accesses = 0.0
    for split, probe in probes.items():
        batches = config["splits"][split]["epochs"] * config["splits"][split]["batches_per_epoch"]
        kept = num_static + (train_rows if split == "train" else eval_rows)
        header_bytes = 4 * (probe.edges + 2 * probe.rows) + (4 * probe.rows if keep_input_nodes else 0)
        packed_bytes += int(batches * (header_bytes + probe.disk_share(kept) * probe.rows * features.row_bytes))
        scratch_bytes += int(batches * (4 * probe.edges + 4 * probe.rows + 12 * probe.rows))
        sample_seconds += batches * probe.seconds / num_threads
        accesses += batches * probe.rows
    train = probes.get("train") or next(iter(probes.values()))
    rate = _read_rate(graph)
    in_flight = (prefetch + 1) * max(int(p.max_rows * features.row_bytes + 4 * p.edges) for p in probes.values())
    return Estimate(
        minibatches=sum(s["epochs"] * s["batches_per_epoch"] for s in config["splits"].values()),
        rows_per_minibatch=train.rows,
        edges_per_minibatch=train.edges,
        train_disk_row_share=train.disk_share(num_static + train_rows),
        packed_bytes=packed_bytes,
        scratch_bytes=scratch_bytes,
        free_disk_bytes=artifacts.free_bytes(Path(out).absolute().parent),
        prepare_memory_bytes=max(memory_budget(memory), 5 * graph.num_nodes),
        training_memory_bytes=train_rows * features.row_bytes + in_flight + _STREAM_BYTES,
        sample_seconds=sample_seconds,
        place_seconds=accesses * _PLACE_SECONDS_PER_ACCESS,
        pack_seconds=(graph.num_nodes * features.row_bytes + packed_bytes) / rate,
    )


@dataclass(frozen=True)
class _Probe:
    """A few minibatches of one split, sampled."""

    rows: float  # mean per minibatch
    max_rows: int
    edges: float  # mean per minibatch
    seconds: float  # mean per minibatch, on one thread
    minibatches: tuple[npt.NDArray[Any], ...]  # input nodes
    num_nodes: int

    def disk_share(self, kept_rows: int) -> float:
        """Share of accesses that a cache of the `kept_rows` hottest rows does not serve."""
        if kept_rows >= self.num_nodes:
            return 0.0
        chosen, measured = self.minibatches[::2], self.minibatches[1::2] or self.minibatches
        counts = np.zeros(self.num_nodes, np.int32)
        for nodes in chosen:
            counts[nodes] += 1
        hot = np.zeros(self.num_nodes, np.bool_)
        hot[hottest_nodes(counts, kept_rows)] = True
        return 1 - sum(int(np.count_nonzero(hot[nodes])) for nodes in measured) / sum(map(len, measured))


def _probe(graph: Graph, split: str, config: dict[str, Any], reporter: Reporter) -> _Probe:
    seeds = epoch_seeds(graph.splits[split], split=split, epoch=0, seed=config["seed"], batch_size=config["batch_size"])
    numbers = np.unique(np.linspace(0, len(seeds) - 1, _PROBE_MINIBATCHES).astype(int))
    fanouts = np.array(config["fanouts" if split == "train" else "eval_fanouts"], np.int32)
    key = batch_key(config["seed"], split, 0)
    sampler = _native.NeighborSampler(graph.indptr, graph.indices)
    nodes, edges = [], 0
    started = time.perf_counter()
    with reporter.stage(f"sample a few of {split}", len(numbers), "minibatches") as advance:
        for number in numbers:
            input_nodes, blocks = sampler.sample(seeds[number], fanouts, key, int(number))
            nodes.append(input_nodes)
            edges += sum(len(indices) for _, indices in blocks)
            advance(1)
    seconds = time.perf_counter() - started
    count = len(numbers)
    rows = [len(found) for found in nodes]
    return _Probe(sum(rows) / count, max(rows), edges / count, seconds / count, tuple(nodes), graph.num_nodes)


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
