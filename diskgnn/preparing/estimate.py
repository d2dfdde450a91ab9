"""`estimate`: what `prepare` with the same arguments would cost, and with others that would cost less."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from diskgnn._native import READ_AHEAD_BYTES
from diskgnn.files.destination import scratch_of
from diskgnn.files.disk_space import free_bytes
from diskgnn.files.read_engine import warn_if_no_io_uring
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.graph import Graph
from diskgnn.packing.row_sets import RowSet, only_features, row_sets_of
from diskgnn.packing.space import RowForecast, extents_bytes, most_disk_bytes, packed_bytes, scratch_bytes
from diskgnn.packing.tiers import TierBudgets
from diskgnn.paths import PathLike
from diskgnn.preparing.alternatives import (
    RowSetEstimate,
    SettingEstimate,
    Width,
    accuracy_held,
    alternatives,
    recommended,
    widths,
)
from diskgnn.preparing.prepare_request import PrepareRequest
from diskgnn.preparing.preparing_need import least_memory_bytes
from diskgnn.preparing.row_forecast import predict_rows, predict_static_rows
from diskgnn.preparing.sequence_samples import LEAST_MINIBATCHES, SequenceSample, sample_sequences
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.sampling.fanout_sizes import UNBOUNDED, most_minibatch_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.caches import DEFAULT_CPU_CACHE, CacheSpec
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.sampling import SamplingOptions, SamplingSpec
from diskgnn.stores.locations import AnyPath, StoredPath, located
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
    """Says what `prepare` would take, and what other settings would. Rows are predicted from sampled minibatches."""

    minibatches: int  # of all splits and epochs
    sampled_minibatches: int  # of those, of the settings given
    rows_per_minibatch: float  # of the train split
    edges_per_minibatch: float
    train_disk_row_share: float  # rows that must come from disk, of those requested
    packed_bytes: int
    scratch_bytes: int  # needed beside that while preparing
    free_disk_bytes: int  # or the disk space given
    missing_disk_bytes: int  # of packed and scratch bytes together; 0 when they fit
    prepare_memory_bytes: int  # the smallest `memory` with which `prepare` starts, of a process that is as this one
    missing_memory_bytes: int  # of these, beyond the `memory` given: `prepare` refuses that; 0 when it is enough
    training_memory_bytes: int  # of the loader; see `estimate`
    sample_seconds: float
    place_seconds: float
    pack_seconds: float
    epoch_seconds: float  # to load an epoch of training: of reading and of assembling, what takes longer
    disk_bytes_per_second: float  # at which this disk is read front to back
    settings: tuple[SettingEstimate, ...]  # those given, then each way of drawing with each width of rows
    recommended: SettingEstimate | None  # the fewest bytes read, of those that fit and whose accuracy was shown to hold


@takes_options(SamplingOptions, SamplingSpec)
def estimate(
    graph: PathLike | Graph,
    out: AnyPath | None = None,
    *,
    cpu_cache: int | str = DEFAULT_CPU_CACHE,
    static_cache: int | str = "auto",
    eval_cpu_cache: int | str | None = None,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    samples: PathLike | None = None,
    prefetch: int = 1,
    disk: int | str | None = None,
    max_seconds: float = MAX_SECONDS,
    progress: bool = True,
    reporter: Reporter | None = None,
    **sampling: Unpack[SamplingOptions],
) -> Estimate:
    """Predict what `prepare` with the same arguments would take, and with other draws and narrower rows.

    Nothing is written where `out` is, and no features are read. For each way of drawing, minibatches are sampled until
    `max_seconds` are over, but at least 8 of each split. Where that is all of them, rows are placed as `prepare` does
    it, and the counts are those of the packed directory, of each type of nodes and edges. Otherwise rows from disk are
    predicted from how soon rows are needed again in a run of minibatches (`diskgnn.preparing.reuse_model`), and
    `disk_rows_error` says how far off that may be. The disk's rate is measured with a file that has no name, of the
    size of the features but at most 128 MiB.

    `prepare_memory_bytes` is what `prepare` checks before it starts: with more memory it may be faster, with less it
    refuses. `training_memory_bytes` is the loader's: static rows (in GPU memory as far as `device_cache` goes), the
    cpu tiers of training and of evaluation, the minibatches in flight and the read ring. The model, its optimizer and
    activations, and the interpreter with torch come on top.

    Args:
        graph: graph directory, or an opened one.
        out: the packed directory that `prepare` would write, which names the disk to measure; by default one in the
            folder where this runs.
        sampling: `fanouts`, `batch_size`, `epochs` and what else `SamplingSpec` says of minibatches.
        cpu_cache, static_cache, eval_cpu_cache, memory, threads, keep_input_nodes: as `prepare` takes them.
        samples: where `prepare` would keep the samples.
        prefetch: minibatches read ahead while training.
        disk: space that packed and scratch bytes may take, as 100GiB; what is free by default.
        max_seconds: how long to sample.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told of the sampling of minibatches, in place of the bars; see `diskgnn.progress`.

    Raises:
        ConfigError, InputError, ArtifactError: as `prepare`.

    Example:
        >>> found = diskgnn.estimate("graph", fanouts=[10, 10], cpu_cache="10%")
        >>> print(found.packed_bytes, found.missing_disk_bytes, found.recommended)
    """
    place = located("packed" if out is None else out)
    plan = SamplingPlan(graph if isinstance(graph, Graph) else Graph.open(graph), SamplingSpec.of(**sampling))
    request = PrepareRequest.of(
        plan,
        CacheSpec(cpu_cache, static_cache, eval_cpu_cache),
        Resources.of(memory, threads, reporter_for(reporter, progress)),  # of a process as `prepare` has it then
        scratch_of(place) if isinstance(place, StoredPath) else place,
        samples=None if samples is None else Path(samples).absolute(),
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
    """Estimates with arguments that `estimate` checked."""
    graph, plan, resources = request.graph, request.plan, request.resources
    row_sets = row_sets_of(graph, plan.config())
    train_split = _train_split(plan)
    plan.hold_out(resources.reporter)
    plans = alternatives(plan)
    samples, sample_seconds = sample_sequences(
        plans, resources, keep_input_nodes=request.keep_input_nodes, max_seconds=max_seconds
    )
    warn_if_no_io_uring()
    feature_bytes = sum(each.num_rows * each.features.file_row_bytes for each in row_sets)
    rates = _Rates(
        sequential_bytes_per_second(_existing(request.out.parent), file_bytes=min(feature_bytes, _RATE_FILE_BYTES)),
        {width: row_copy_bytes_per_second(width) for width in {each.features.x_row_bytes for each in row_sets}},
    )
    free = free_bytes(request.out.parent) if disk_bytes is None else disk_bytes
    tried = [(width, _tiers(request, width)) for width in widths(row_sets)]  # tiers ask the machine what it has
    settings = [
        _setting(request, each.spec, sampled, width, tiers, row_sets, free, rates)
        for width, tiers in tried
        for each, sampled in zip(plans, samples, strict=True)
    ]
    given, sampled = settings[0], samples[0]
    train = sampled[train_split]
    accesses = sum(each.requested for each in sampled.values())
    needed_bytes = given.packed_bytes + given.scratch_bytes
    least_memory = least_memory_bytes(plan, resources)
    return Estimate(
        minibatches=sum(each.size.num_batches for each in sampled.values()),
        sampled_minibatches=sum(each.sampled for each in sampled.values()),
        rows_per_minibatch=given.rows_per_minibatch,
        edges_per_minibatch=train.edges,
        train_disk_row_share=given.disk_rows * train.size.epochs / max(1, train.requested),
        packed_bytes=given.packed_bytes,
        scratch_bytes=given.scratch_bytes,
        free_disk_bytes=free,
        missing_disk_bytes=max(0, needed_bytes - free),
        prepare_memory_bytes=least_memory,
        missing_memory_bytes=max(0, least_memory - resources.held_bytes - resources.memory_bytes),
        training_memory_bytes=_training_memory_bytes(sampled, row_sets, request.tiers, prefetch),
        sample_seconds=sum(each.size.num_batches for each in sampled.values()) * sample_seconds,
        place_seconds=accesses * _PLACE_SECONDS_PER_ACCESS,
        pack_seconds=(feature_bytes + given.packed_bytes) / rates.disk_bytes_per_second,
        epoch_seconds=given.epoch_seconds,
        disk_bytes_per_second=rates.disk_bytes_per_second,
        settings=tuple(settings),
        recommended=recommended(settings),
    )


def disk_forecast(request: PrepareRequest) -> str:
    """Returns what preparing will write, in words; nothing where that would take long to know.

    A few minibatches say it, where sampling them takes no more than a second or so; otherwise, of one type, the fanouts
    bound it.
    """
    plan = request.plan
    if not any(size.num_batches for size in plan.sizes.values()):  # one of too many ranks
        return ""
    row_sets = row_sets_of(request.graph, plan.config())
    probe_bytes = LEAST_MINIBATCHES * len(plan.splits) * most_minibatch_bytes(plan)
    probe_bytes += plan.sampler_bytes + plan.held_out_bytes
    probe_bytes += 16 * (sum(each.num_rows for each in row_sets) + _CHEAP_ACCESSES)  # counted, and in which order
    cheap_bytes = request.resources.divided(1, part=4, most_bytes=_CHEAP_BYTES)
    if plan.spec.sampler is not None or probe_bytes > cheap_bytes:
        if (features := only_features(request.graph, plan.config())) is None:
            return ""
        most = most_disk_bytes(plan, request.tiers.rows_of(features), request.keep_input_nodes)
        return "" if most == UNBOUNDED else f"{request.out} and its samples will take at most {format_size(most)}"
    resources = replace(request.resources, reporter=SILENT)
    (samples,), _ = sample_sequences(
        [plan], resources, keep_input_nodes=request.keep_input_nodes, max_seconds=0, max_accesses=_CHEAP_ACCESSES
    )
    width = widths(row_sets)[0]
    found = _setting(request, plan.spec, samples, width, _tiers(request, width), row_sets, 0, None)
    return (
        f"{request.out} will take about {format_size(found.packed_bytes)}, and samples and scratch beside it about "
        f"{format_size(found.scratch_bytes)} until it is done"
    )


def _train_split(plan: SamplingPlan) -> str:
    """Returns the split whose epochs are loaded while training, or the first one."""
    return "train" if "train" in plan.splits else plan.splits[0]


@dataclass(frozen=True)
class _Rates:
    disk_bytes_per_second: float
    copy_bytes_per_second: Mapping[int, float]  # of rows of x to their minibatch, by one thread; by their bytes

    def epoch_seconds(self, read_bytes: int, x_rows: Sequence[tuple[float, int]]) -> float:
        """Returns what takes longer, reading or assembling `x_rows` (how many, stored x_row_bytes)."""
        assembling = sum(rows * width / self.copy_bytes_per_second[width] for rows, width in x_rows)
        return max(read_bytes / self.disk_bytes_per_second, assembling)


def _tiers(request: PrepareRequest, width: Width) -> TierBudgets:
    return TierBudgets.of(request.cache, width.features, request.resources)


@dataclass(frozen=True)
class _Predicted:
    """Says what placing will find for one width of features."""

    static: Sequence[int]  # [K] static rows
    rows: Mapping[str, Sequence[RowForecast]]  # by split, [K]
    read_bytes: Mapping[str, int]  # by split, in all prepared epochs
    packed_bytes: int
    scratch_bytes: int

    @staticmethod
    def of(
        samples: Mapping[str, SequenceSample], width: Width, tiers: TierBudgets, row_sets: Sequence[RowSet],
        threads: int,
    ) -> _Predicted:  # fmt: skip
        """Predicts it from the minibatches that were sampled of each split."""
        forecasts, id_bytes = next(iter(samples.values())).forecasts, [each.id_dtype.itemsize for each in row_sets]
        static_rows = predict_static_rows(forecasts, width.features, tiers.static)
        static_nodes = [each.hottest(rows) for each, rows in zip(forecasts, static_rows, strict=True)]
        row_bytes = [file.row_bytes for file in width.features]
        packed = sum(rows * each for rows, each in zip(static_rows, row_bytes, strict=True))
        scratch, found, read = 0, dict[str, list[RowForecast]](), dict[str, int]()
        for split, sample in samples.items():
            left = [each.without(nodes) for each, nodes in zip(sample.forecasts, static_nodes, strict=True)]
            found[split] = rows = predict_rows(left, width.features, tiers.cpu(split), threads=threads)
            num_batches = sample.size.num_batches
            read[split] = extents_bytes(rows, row_bytes, num_batches, sample.header_bytes * num_batches)
            packed += packed_bytes(rows, row_bytes, num_batches, read[split])
            scratch += scratch_bytes(rows, id_bytes, sample.samples_bytes * num_batches)
        return _Predicted(static_rows, found, read, packed, scratch)


def _setting(
    request: PrepareRequest,
    spec: SamplingSpec,
    samples: Mapping[str, SequenceSample],
    width: Width,
    tiers: TierBudgets,
    row_sets: Sequence[RowSet],
    free: int,
    rates: _Rates | None,
) -> SettingEstimate:
    """Returns one way of preparing; without `rates`, of 0 seconds."""
    predicted = _Predicted.of(samples, width, tiers, row_sets, request.resources.threads)
    train_split = _train_split(request.plan)
    found, size = predicted.rows[train_split], samples[train_split].size
    sets = [
        RowSetEstimate(
            name=row_set.config.name,
            feature_dtype=file.rows.dtype,
            row_bytes=file.row_bytes,
            static_rows=static,
            cpu_rows=rows.cpu,
            rows_per_minibatch=rows.requested / size.num_batches,
            disk_rows=rows.disk // size.epochs,
            disk_rows_error=rows.disk_error,
            read_bytes=rows.disk * file.row_bytes // size.epochs,
        )
        for row_set, file, static, rows in zip(row_sets, width.features, predicted.static, found, strict=True)
    ]
    disk_rows, read_bytes = sum(each.disk for each in found), predicted.read_bytes[train_split] // size.epochs
    x_rows = [
        (each.rows_per_minibatch * size.batches_per_epoch * _widening(file, row_set.features), row_set.features)
        for each, file, row_set in zip(sets, width.features, row_sets, strict=True)
    ]
    return SettingEstimate(
        draws=spec.draws,
        draw_period=spec.draw_period,
        group_seeds=spec.group_seeds,
        feature_dtype=width.dtype,
        row_sets=tuple(sets),
        rows_per_minibatch=sum(each.rows_per_minibatch for each in sets),
        disk_rows=disk_rows // size.epochs,
        disk_rows_error=math.hypot(*(each.disk * each.disk_error for each in found)) / max(1, disk_rows),
        read_bytes=read_bytes,
        packed_bytes=predicted.packed_bytes,
        scratch_bytes=predicted.scratch_bytes,
        epoch_seconds=0.0
        if rates is None
        else rates.epoch_seconds(read_bytes, [(rows, file.x_row_bytes) for rows, file in x_rows]),
        fits=predicted.packed_bytes + predicted.scratch_bytes <= free,
        accuracy_held=accuracy_held(spec, width),
    )


def _widening(file: FeatureFile, stored: FeatureFile) -> float:
    """Returns the bytes of a row of x, as a part of those of a stored one: codes that are not made yet become
    float32."""
    widened = file.rows.exponent_bits is None and file.rows != stored.rows
    return (4 * file.rows.num_features if widened else file.x_row_bytes) / stored.x_row_bytes


def _training_memory_bytes(
    samples: Mapping[str, SequenceSample], row_sets: Sequence[RowSet], tiers: TierBudgets, prefetch: int
) -> int:
    """Counts static rows, slots, minibatches in flight, and the read ring."""
    files = [each.features for each in row_sets]
    # A minibatch ahead lies there as it is stored; widening takes x for the user's, and for the next one.
    widened = [2 * file.x_row_bytes if file.quantisation is not None else 0 for file in files]
    x_bytes: int = max(sum(map(operator.mul, each.max_rows, widened)) for each in samples.values())
    stored = [file.row_bytes for file in files]
    largest_bytes: int = max(
        int(sum(map(operator.mul, each.max_rows, stored)) + each.header_bytes) for each in samples.values()
    )
    evaluated_bytes = tiers.evaluation if set(samples) - {"train"} else 0
    kept_bytes = min(tiers.static, sum(file.num_bytes for file in files)) + tiers.train + evaluated_bytes
    return kept_bytes + (prefetch + 1) * largest_bytes + x_bytes + READ_AHEAD_BYTES


def _existing(folder: Path) -> Path:
    """Returns `folder`, or the one above it that is there."""
    while not folder.is_dir():
        folder = folder.parent
    return folder
