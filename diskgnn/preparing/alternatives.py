"""Other settings that `prepare` could be told, and what is known of their accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import FeatureFile, RowFormat
from diskgnn.packing.row_sets import RowSet
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget

DRAW_PERIODS = (1, 16, 64)  # compared beside that of a whole epoch, which is the longest
GROUPS = (32, 128)  # seeds that stay together, compared beside none
MAX_GROUPED_EDGES = 50_000_000  # of a larger graph, finding groups takes longer than everything else
NARROWER_DTYPES = ("float16", "int8", "int4")
AS_STORED = "as stored"
# (draws, longest period, rows) that lost no more than a deviation of accuracy, over five seeds: the table is in
# docs/guide/accuracy.md. Coordinated draws lost about 0.2 points in each of four comparisons, and in one of them that
# was more.
ACCURACY_HELD = (
    ("independent", 1, AS_STORED),
    ("independent", 1, "int8"),
    ("independent", 1, "int4"),
)


@dataclass(frozen=True)
class RowSetEstimate:
    """Says what a setting is predicted to do with the feature rows of one type of nodes or edges, while training."""

    name: str  # of the type
    feature_dtype: str
    row_bytes: int
    static_rows: int
    cpu_rows: int  # of the cpu tier, whose bytes are divided among all types
    rows_per_minibatch: float
    disk_rows: int  # from disk in an epoch, of all rows needed
    disk_rows_error: float  # as a share: about one deviation; 0 where every minibatch was sampled
    read_bytes: int  # of these rows, from disk in an epoch


@dataclass(frozen=True)
class SettingEstimate:
    """Says what one way of preparing is predicted to come to."""

    draws: str
    draw_period: int
    group_seeds: int
    feature_dtype: str  # 'convert --quantise' makes narrower rows; 'as stored' where types have several
    row_sets: tuple[RowSetEstimate, ...]  # of each type that has features
    # Of all types together:
    rows_per_minibatch: float  # of the train split
    disk_rows: int  # from disk in an epoch of training, of all rows needed
    disk_rows_error: float  # as a share: about one deviation; 0 where every minibatch was sampled
    read_bytes: int  # from disk in an epoch of training
    packed_bytes: int
    scratch_bytes: int  # needed beside that while preparing: samples, and what placing writes
    epoch_seconds: float  # to load an epoch: of reading and of assembling, what takes longer
    fits: bool  # whether packed and scratch bytes fit the disk space given
    accuracy_held: bool  # whether a measurement showed that training loses nothing by it


def alternatives(plan: SamplingPlan) -> list[SamplingPlan]:
    """Returns `plan`, and then every other way of drawing and of grouping seeds; none where the user draws."""
    if plan.spec.sampler is not None:
        return [plan]
    most = max(size.batches_per_epoch for split, size in plan.sizes.items() if split == "train" or len(plan.sizes) == 1)
    periods = sorted({min(period, most) for period in (*DRAW_PERIODS, most)})
    groups = {plan.spec.group_seeds, 1}
    if _may_group(plan):
        groups |= set(GROUPS)
    plans = {plan.spec: plan}
    for group_seeds in sorted(groups):
        grouped = SamplingPlan(plan.graph, replace(plan.spec, group_seeds=group_seeds))
        for draws, period in [("independent", 1), *(("coordinated", period) for period in periods)]:
            other = grouped.redrawn(draws, period)
            plans.setdefault(other.spec, other)
    return list(plans.values())


def _may_group(plan: SamplingPlan) -> bool:
    """Returns True if groups can be found in little time, and leave alone what is learned."""
    spec, num_edges = plan.spec, sum(edges.num_edges for edges in plan.graph.edges.values())
    in_batch = isinstance(spec.target, LinkTarget) and spec.target.is_own_negatives
    return num_edges <= MAX_GROUPED_EDGES and spec.shuffle and not in_batch and "train" in plan.splits


@dataclass(frozen=True)
class Width:
    """The features of all types, as they are stored or as `convert --quantise` would make those of nodes."""

    dtype: str  # of those that it is about; AS_STORED where types have several
    is_stored: bool
    features: tuple[FeatureFile, ...]  # [K] of each row set; those that are not made yet have no codes


def widths(row_sets: Sequence[RowSet]) -> list[Width]:
    """Returns the features as stored, then with each narrower dtype; types keep theirs where it is no narrower."""
    stored = tuple(each.features for each in row_sets)
    dtypes = {file.rows.dtype for file in stored}
    found = [Width(dtypes.pop() if len(dtypes) == 1 else AS_STORED, True, stored)]
    if any(isinstance(each.rows, RecordFormat) for each in stored):  # only their embeddings would be, unmeasured
        return found
    for dtype in NARROWER_DTYPES:
        narrowed = tuple(_narrowed(each, dtype) for each in row_sets)
        if narrowed != stored:
            found.append(Width(dtype, False, narrowed))
    return found


def _narrowed(row_set: RowSet, dtype: str) -> FeatureFile:
    stored = row_set.features
    rows = RowFormat(dtype, stored.rows.num_features)
    if row_set.is_edges or rows.row_bytes >= stored.row_bytes:
        return stored
    return replace(stored, rows=rows, quantisation=None)


def accuracy_held(spec: SamplingSpec, width: Width) -> bool:
    """Returns True if a measurement showed that training loses nothing by these settings."""
    dtype = AS_STORED if width.is_stored else width.dtype
    return spec.group_seeds == 1 and any(
        (spec.draws, dtype) == (draws, narrowed) and spec.draw_period <= period
        for draws, period, narrowed in ACCURACY_HELD
    )


def recommended(settings: Sequence[SettingEstimate]) -> SettingEstimate | None:
    """Returns the one that reads the fewest bytes of those that fit and whose accuracy held; None if there is none."""
    possible = [setting for setting in settings if setting.fits and setting.accuracy_held]
    return min(possible, key=lambda setting: (setting.read_bytes, setting.packed_bytes), default=None)
