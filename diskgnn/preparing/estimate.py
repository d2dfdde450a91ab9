"""`estimate`: what `prepare` with the same arguments would cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.graph.graph import Graph
from diskgnn.packing.probes import probe_by_sampling
from diskgnn.packing.space import disk_need
from diskgnn.preparing.request import PrepareRequest
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import CacheSpec, PathLike, SamplingSpec
from diskgnn.storage.disk_space import free_bytes
from diskgnn.storage.read_engine import warn_if_no_io_uring
from diskgnn.storage.row_format import FeatureFile
from diskgnn.storage.row_reading import read_rows, row_buffer
from diskgnn.system.resources import Resources

_PROBE_READ_BYTES = 128 << 20
# Measured on one core: placing costs about this much per access, all passes and the headers together.
_PLACE_SECONDS_PER_ACCESS = 0.25e-6


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
    draws: str = "independent",
    draw_period: int = 1,
    group_seeds: int = 1,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
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

    Args:
        graph: graph directory, or an opened one.
        out: the packed directory that `prepare` would write.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        epochs: epochs of the train split to prepare; other splits are prepared once.
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows.
        static_cache: rows for the device and pinned tiers together, alike; 'auto' is nothing without a GPU, and with
            one the least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence; a quarter of `cpu_cache` by default.
        eval_fanouts: of the splits other than train; `fanouts` by default.
        draws: 'independent', or 'coordinated': all nodes of a minibatch agree on which neighbours to draw.
        draw_period: minibatches in which coordinated draws move round all neighbours once, so that consecutive ones
            draw nearly the same; 1 draws anew for every minibatch.
        group_seeds: train on seeds in groups of so many that are near each other, the groups shuffled.
        seed: same seed, same bytes.
        memory: budget in bytes or as '2GiB'; 'auto' means half of what is available.
        threads: all cores by default.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`.
        samples: where `prepare` would keep the samples.
        prefetch: minibatches read ahead while training.
        reporter: told of the sampling of a few minibatches.

    Raises:
        ConfigError, InputError, ArtifactError: as `prepare`.

    Example:
        >>> found = diskgnn.estimate("graph", "packed", fanouts=[10, 10], batch_size=1024, cpu_cache="10%")
        >>> print(found.packed_bytes, found.missing_disk_bytes)
    """
    request = PrepareRequest.of(
        graph,
        SamplingSpec(
            fanouts,
            batch_size,
            epochs,
            eval_fanouts,
            seed,
            draws=draws,
            draw_period=draw_period,
            group_seeds=group_seeds,
        ),
        CacheSpec(cpu_cache, static_cache, eval_cpu_cache),
        Resources.of(memory, threads, reporter),
        out,
        samples=samples,
        keep_input_nodes=keep_input_nodes,
    )
    return estimate_of(request, prefetch)


def estimate_of(request: PrepareRequest, prefetch: int = 1) -> Estimate:
    """`estimate`, once its arguments are checked."""
    features, tiers = request.graph.feature_file, request.tiers
    num_nodes, memory_bytes = request.graph.num_nodes, request.resources.memory_bytes
    probes = probe_by_sampling(request.plan, request.resources)
    need = disk_need(probes, tiers, features.row_bytes, request.keep_input_nodes)
    scratch_bytes = need.samples + need.placing
    free_disk_bytes = free_bytes(request.out.parent)
    train = probes.get("train") or next(iter(probes.values()))
    warn_if_no_io_uring()
    # A minibatch ahead lies there as it is stored; widening takes x for the user's, and for the next one.
    widened_bytes = 2 * features.x_row_bytes if features.quantisation is not None else 0
    x_bytes = int(max(probe.max_rows for probe in probes.values()) * widened_bytes)
    largest_bytes = max(int(probe.max_rows * features.row_bytes + probe.structure_bytes) for probe in probes.values())
    evaluated_rows = tiers.evaluation if set(probes) - {"train"} else 0
    # Sampling holds the topology if it fits, packing two windows of the features, of a quarter of the budget each.
    used_bytes = max(request.graph.topology_bytes, 2 * features.num_bytes)
    return Estimate(
        minibatches=sum(probe.num_batches for probe in probes.values()),
        rows_per_minibatch=train.rows,
        edges_per_minibatch=train.edges,
        train_disk_row_share=train.disk_share(tiers.static + tiers.train),
        packed_bytes=need.packed,
        scratch_bytes=scratch_bytes,
        free_disk_bytes=free_disk_bytes,
        missing_disk_bytes=max(0, need.packed + scratch_bytes - free_disk_bytes),
        prepare_memory_bytes=max(min(memory_bytes, used_bytes), 5 * num_nodes + num_nodes // 8),
        training_memory_bytes=(tiers.static + tiers.train + evaluated_rows) * features.row_bytes
        + (prefetch + 1) * largest_bytes
        + x_bytes
        + READ_AHEAD_BYTES,
        sample_seconds=sum(probe.num_batches * probe.seconds for probe in probes.values()),
        place_seconds=sum(probe.num_batches * probe.rows for probe in probes.values()) * _PLACE_SECONDS_PER_ACCESS,
        pack_seconds=(features.num_bytes + need.packed) / _read_rate(features),
    )


def _read_rate(features: FeatureFile) -> float:
    """Bytes per second at which the feature file is read front to back."""
    num_rows = min(features.num_rows, max(1, _PROBE_READ_BYTES // features.row_bytes))
    buffer = row_buffer(num_rows, features.row_bytes)
    started = time.perf_counter()
    _, read_bytes = read_rows(
        features.path, features.data_offset_bytes, features.row_bytes, np.arange(num_rows), buffer
    )
    return read_bytes / max(time.perf_counter() - started, 1e-9)
