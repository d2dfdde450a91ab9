"""`estimate`: what `prepare` with the same arguments would cost, and with others that would cost less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.caches import CacheSpec
from diskgnn.graph.graph import Graph
from diskgnn.packing.row_forecast import RowForecast
from diskgnn.packing.row_sets import only_features
from diskgnn.packing.space import most_disk_bytes, packed_bytes, read_bytes, scratch_bytes
from diskgnn.packing.tiers import TierBudgets, TierRows
from diskgnn.preparing.alternatives import SettingEstimate, accuracy_held, alternatives, recommended, row_formats
from diskgnn.preparing.request import PrepareRequest
from diskgnn.preparing.sequence_samples import LEAST_MINIBATCHES, SequenceSample, sample_sequences
from diskgnn.progress import SILENT, Reporter
from diskgnn.sampling.memory_division import most_minibatch_bytes
from diskgnn.specs import PathLike, SamplingOptions, SamplingSpec, takes_options
from diskgnn.storage.disk_space import free_bytes
from diskgnn.storage.object_stores import AnyPath, StoredPath, located
from diskgnn.storage.read_engine import warn_if_no_io_uring
from diskgnn.storage.row_format import FeatureFile, RowFormat
from diskgnn.system.disk_rates import sequential_bytes_per_second
from diskgnn.system.memory_rates import row_copy_bytes_per_second
from diskgnn.system.resources import Resources
from diskgnn.units import format_size, parse_size

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CHEAP_BYTES = 256 << 20  # of topology and minibatches, to say in a second what will be written
_CHEAP_ACCESSES = 1_000_000
MAX_SECONDS = 20.0  # of sampling
_RATE_FILE_BYTES = 128 << 20
# Measured on one core: placing costs about this much per access, all passes and the headers together.
_PLACE_SECONDS_PER_ACCESS = 0.25e-6


@dataclass(frozen=True)
class Estimate:
    """What `prepare` would take, and what other settings would. Rows are predicted from sampled minibatches."""

    minibatches: int  # of all splits and epochs
    sampled_minibatches: int  # of those, of the settings given
    rows_per_minibatch: float  # of the train split
    edges_per_minibatch: float
    train_disk_row_share: float  # rows that must come from disk, of those requested
    packed_bytes: int
    scratch_bytes: int  # needed beside that while preparing
    free_disk_bytes: int  # or the disk space given
    missing_disk_bytes: int  # of packed and scratch bytes together; 0 when they fit
    prepare_memory_bytes: int  # of arrays and buffers; within the budget, but for 5 bytes per node
    training_memory_bytes: int  # of the loader; see `estimate`
    sample_seconds: float
    place_seconds: float
    pack_seconds: float
    epoch_seconds: float  # to load an epoch of training: of reading and of assembling, what takes longer
    disk_bytes_per_second: float  # at which this disk is read front to back
    settings: tuple[SettingEstimate, ...]  # those given, then each way of drawing with each width of rows
    recommended: SettingEstimate | None  # the fewest bytes read, of those that fit and whose accuracy was shown to hold


@takes_options(SamplingOptions)
def estimate(
    graph: PathLike | Graph,
    out: AnyPath,
    *,
    cpu_cache: int | str,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
    prefetch: int = 1,
    disk: int | str | None = None,
    max_seconds: float = MAX_SECONDS,
    reporter: Reporter = SILENT,
    **sampling: Unpack[SamplingOptions],
) -> Estimate:
    """Predict what `prepare` with the same arguments would take, and with other draws and narrower rows.

    Nothing is written where `out` is, and no features are read. For each way of drawing, minibatches are sampled until
    `max_seconds` are over, but at least 8 of each split. Where that is all of them, rows are placed as `prepare` does
    it, and the counts are those of the packed directory. Otherwise rows from disk are predicted from how soon rows are
    needed again in a run of minibatches (`diskgnn.packing.reuse_model`), and `disk_rows_error` says how far off that
    may be. The disk's rate is measured with a file that has no name, of the size
    of the features but at most 128 MiB.

    `training_memory_bytes` is the loader's: static rows (in GPU memory as far as `device_cache` goes), the cpu tiers
    of training and of evaluation, the minibatches in flight and the read ring. The model, its optimizer and
    activations, and the interpreter with torch come on top.

    Args:
        graph: graph directory, or an opened one.
        out: the packed directory that `prepare` would write.
        sampling: `fanouts`, `batch_size`, `epochs` and what else `SamplingSpec` says of minibatches.
        cpu_cache: the cpu tier of the train sequence: bytes, '2GiB', or '10%' of all rows.
        static_cache: rows for the device and pinned tiers together, alike; 'auto' is nothing without a GPU, and with
            one the least of half of its free memory, a quarter of the `memory` budget and 4 GiB.
        eval_cpu_cache: the cpu tier of each other sequence; a quarter of `cpu_cache` by default.
        memory: budget in bytes or as '2GiB'; 'auto' means half of what is available.
        threads: all cores by default.
        keep_input_nodes: store each minibatch's node ids too, for `MiniBatch.input_nodes`.
        samples: where `prepare` would keep the samples.
        prefetch: minibatches read ahead while training.
        disk: space that packed and scratch bytes may take, as 100GiB; what is free by default.
        max_seconds: how long to sample.
        reporter: told of the sampling of minibatches.

    Raises:
        ConfigError, InputError, ArtifactError: as `prepare`; a graph with several types, too, is a ConfigError.

    Example:
        >>> found = diskgnn.estimate("graph", "packed", fanouts=[10, 10], batch_size=1024, cpu_cache="10%")
        >>> print(found.packed_bytes, found.missing_disk_bytes, found.recommended)
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    graph.only_nodes("estimate")
    place = located(out)
    request = PrepareRequest.of(
        graph,
        SamplingSpec.of(**sampling),
        CacheSpec(cpu_cache, static_cache, eval_cpu_cache),
        Resources.of(memory, threads, reporter),
        place.scratch if isinstance(place, StoredPath) else place,
        samples=samples,
        keep_input_nodes=keep_input_nodes,
    )
    disk_bytes = None if disk is None else parse_size(disk)
    return estimate_of(request, prefetch=prefetch, disk_bytes=disk_bytes, max_seconds=max_seconds)


def estimate_of(
    request: PrepareRequest,
    *,
    prefetch: int = 1,
    disk_bytes: int | None = None,
    max_seconds: float = MAX_SECONDS,
) -> Estimate:
    """`estimate`, once its arguments are checked."""
    graph, plan, resources = request.graph, request.plan, request.resources
    features = graph.feature_file
    tiers = request.tiers.rows_of(features)
    train_split = "train" if "train" in plan.splits else plan.splits[0]
    plans = alternatives(plan)
    samples, sample_seconds = sample_sequences(plans, resources, max_seconds=max_seconds)
    warn_if_no_io_uring()
    rates = _Rates(
        sequential_bytes_per_second(
            _existing(request.out.parent), file_bytes=min(features.num_bytes, _RATE_FILE_BYTES)
        ),
        row_copy_bytes_per_second(features.x_row_bytes),
    )
    free = free_bytes(request.out.parent) if disk_bytes is None else disk_bytes
    settings = [
        _setting(request, each.spec, sampled, rows, train_split, free, rates)
        for rows in row_formats(features.rows)
        for each, sampled in zip(plans, samples, strict=True)
    ]
    given, sampled = settings[0], samples[0]
    train = sampled[train_split]
    accesses = sum(each.forecast.requested for each in sampled.values())
    needed_bytes = given.packed_bytes + given.scratch_bytes
    # Sampling holds the topology if it fits, packing some windows of the features, of half of the budget together.
    used_bytes = max(graph.topology_bytes, 2 * features.num_bytes)
    return Estimate(
        minibatches=sum(each.size.num_batches for each in sampled.values()),
        sampled_minibatches=sum(each.sampled for each in sampled.values()),
        rows_per_minibatch=given.rows_per_minibatch,
        edges_per_minibatch=train.edges,
        train_disk_row_share=given.disk_rows * train.size.epochs / max(1, train.forecast.requested),
        packed_bytes=given.packed_bytes,
        scratch_bytes=given.scratch_bytes,
        free_disk_bytes=free,
        missing_disk_bytes=max(0, needed_bytes - free),
        prepare_memory_bytes=max(min(resources.memory_bytes, used_bytes), 5 * graph.num_nodes + graph.num_nodes // 8),
        training_memory_bytes=_training_memory_bytes(sampled, features, tiers, prefetch),
        sample_seconds=sum(each.size.num_batches for each in sampled.values()) * sample_seconds,
        place_seconds=accesses * _PLACE_SECONDS_PER_ACCESS,
        pack_seconds=(features.num_bytes + given.packed_bytes) / rates.disk_bytes_per_second,
        epoch_seconds=given.epoch_seconds,
        disk_bytes_per_second=rates.disk_bytes_per_second,
        settings=tuple(settings),
        recommended=recommended(settings),
    )


def disk_forecast(request: PrepareRequest) -> str:
    """What preparing will write, in words; nothing where that is not known, as of several types.

    A few minibatches say it, where sampling them takes no more than a second or so; otherwise the fanouts bound it.
    """
    plan, features = request.plan, only_features(request.graph, request.plan.config())
    if features is None:
        return ""
    probe_bytes = plan.sampler_bytes + LEAST_MINIBATCHES * len(plan.splits) * most_minibatch_bytes(plan)
    probe_bytes += 16 * (request.graph.num_nodes + _CHEAP_ACCESSES)  # counted, and in which order
    if plan.spec.sampler is not None or probe_bytes > min(_CHEAP_BYTES, request.resources.memory_bytes // 4):
        most = most_disk_bytes(plan, request.tiers.rows_of(features), request.keep_input_nodes)
        return f"{request.out} and its samples will take at most {format_size(most)}"
    resources = replace(request.resources, reporter=SILENT)
    (samples,), _ = sample_sequences([plan], resources, max_seconds=0, max_accesses=_CHEAP_ACCESSES)
    split = "train" if "train" in plan.splits else plan.splits[0]
    found = _setting(request, plan.spec, samples, features.rows, split, 0, _Rates(1, 1))
    return (
        f"{request.out} will take about {format_size(found.packed_bytes)}, and samples and scratch beside it about "
        f"{format_size(found.scratch_bytes)} until it is done"
    )


@dataclass(frozen=True)
class _Rates:
    disk_bytes_per_second: float
    copy_bytes_per_second: float  # of rows of x to their minibatch, by one thread


def _setting(
    request: PrepareRequest,
    spec: SamplingSpec,
    samples: Mapping[str, SequenceSample],
    rows: RowFormat,
    train_split: str,
    free: int,
    rates: _Rates,
) -> SettingEstimate:
    stored = request.graph.feature_file
    features = stored if rows == stored.rows else replace(stored, rows=rows, quantisation=None)  # not made yet
    tiers = TierBudgets.of(request.cache, [features], request.resources.memory_bytes).rows_of(features)
    first = next(iter(samples.values())).forecast
    static_nodes = first.hottest(tiers.static)
    node_bytes = request.graph.id_dtype.itemsize
    found: dict[str, RowForecast] = {}
    packed = tiers.static * rows.row_bytes
    scratch = read = 0
    for split, sample in samples.items():
        found[split] = forecast = sample.forecast.rows(static_nodes, tiers.cpu(split))
        header_bytes = sample.structure_bytes * sample.size.num_batches
        sequence_bytes = read_bytes(
            forecast, sample.size.num_batches, header_bytes, rows.row_bytes, node_bytes * request.keep_input_nodes
        )
        packed += packed_bytes(forecast, sequence_bytes, rows.row_bytes)
        scratch += scratch_bytes(forecast, sample.size.num_batches, header_bytes, node_bytes)
        if split == train_split:
            read = sequence_bytes // sample.size.epochs
    train, epochs = found[train_split], samples[train_split].size.epochs
    widened = rows.exponent_bits is None and rows != stored.rows  # codes of `convert --quantise`, to float32
    assembled = train.requested / epochs * (4 * rows.num_features if widened else features.x_row_bytes)
    return SettingEstimate(
        draws=spec.draws,
        draw_period=spec.draw_period,
        group_seeds=spec.group_seeds,
        feature_dtype=rows.dtype,
        rows_per_minibatch=train.requested / samples[train_split].size.num_batches,
        disk_rows=train.disk // epochs,
        disk_rows_error=train.disk_error,
        read_bytes=read,
        packed_bytes=packed,
        scratch_bytes=scratch,
        epoch_seconds=max(read / rates.disk_bytes_per_second, assembled / rates.copy_bytes_per_second),
        fits=packed + scratch <= free,
        accuracy_held=accuracy_held(spec, rows, stored.rows),
    )


def _training_memory_bytes(
    samples: Mapping[str, SequenceSample], features: FeatureFile, tiers: TierRows, prefetch: int
) -> int:
    """Static rows, slots, minibatches in flight, and the read ring."""
    # A minibatch ahead lies there as it is stored; widening takes x for the user's, and for the next one.
    widened_bytes = 2 * features.x_row_bytes if features.quantisation is not None else 0
    x_bytes = max(each.max_rows for each in samples.values()) * widened_bytes
    largest_bytes = max(int(each.max_rows * features.row_bytes + each.structure_bytes) for each in samples.values())
    evaluated_rows = tiers.valid if set(samples) - {"train"} else 0
    kept_bytes = (tiers.static + tiers.train + evaluated_rows) * features.row_bytes
    return kept_bytes + (prefetch + 1) * largest_bytes + x_bytes + READ_AHEAD_BYTES


def _existing(folder: Path) -> Path:
    """`folder`, or the one above it that is there."""
    while not folder.is_dir():
        folder = folder.parent
    return folder
