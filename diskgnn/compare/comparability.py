"""Which loaders of a comparison are compared with which, and whether two of them differ by more than noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from diskgnn.compare.comparison_record import Comparison
from diskgnn.compare.loader_summary import CurvePoint, LoaderSummary
from diskgnn.compare.metric import ACCURACY, Metric

OURS, REFERENCE = "diskgnn", "in-memory"  # keys of loaders
PROPAGATED = "propagated"  # has a model of its own
OTHER_WORK = "These do other work:"  # above loaders whose times can't be compared with ours
_ALIKE = 1.1  # loaders whose rows or minibatches differ by a larger factor do not do the same work
_SAFE_SHARE = 0.5  # of the cap: what takes less of it fits, whatever Python and torch take


def fastest(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Returns the finished loader whose epoch is shortest; trained ones go before those that only loaded.

    Among those within noise of it, the one that takes least in all: or chance would choose, and the next run otherwise.
    """
    timed = [one for one in summaries if one.ok and one.epoch_seconds]
    shortest = min(timed, key=_speed, default=None)
    if shortest is None:
        return None
    alike = [one for one in timed if comparable(one, shortest) and within_noise(one, shortest)]
    return min(alike, key=lambda one: (one.total_seconds is None, one.total_seconds or 0.0, _speed(one)))


def _speed(one: LoaderSummary) -> tuple[bool, bool, float]:
    """Orders by speed: less is faster; what did not finish comes last."""
    return not one.ok or one.epoch_seconds is None, one.training_seconds is None, one.epoch_seconds or 0.0


def ordered(
    summaries: Iterable[LoaderSummary], by: Callable[[LoaderSummary], Any] = _speed
) -> tuple[list[LoaderSummary], list[LoaderSummary]]:
    """Returns loaders that do the same work as ours, and those that do other work; each fastest first, or sorted
    `by`."""
    found = sorted(summaries, key=by)
    mine = ours(found)
    return [one for one in found if same_work(one, mine)], [one for one in found if not same_work(one, mine)]


def ours(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Returns our fastest variant; see `fastest`. One with draws of its own only where there is no other."""
    mine = [one for one in summaries if one.loader == OURS]
    return fastest(one for one in mine if not draws_otherwise(one)) or fastest(mine)


def reference(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Returns training with all features in memory."""
    return fastest(one for one in summaries if one.loader == REFERENCE)


def best_disk_baseline(summaries: Iterable[LoaderSummary]) -> LoaderSummary | None:
    """Returns the fastest loader that does the same work as ours, is not ours, and is not limited by memory alone."""
    found = list(summaries)
    mine = ours(found)
    return fastest(
        one for one in found
        if one.loader not in (OURS, REFERENCE) and one.bound != "memory" and same_work(one, mine)
    )  # fmt: skip


def draws_otherwise(one: LoaderSummary) -> bool:
    """Returns True if its minibatches differ because it was told to draw otherwise, see `compare.variant_draws`."""
    return ":" in one.variant


def same_work(one: LoaderSummary, other: LoaderSummary | None) -> bool:
    """Returns True if both have the same number of minibatches and rows per epoch, if known, and the same model.

    A partition buffer has fewer rows.
    """
    if draws_otherwise(one) and other is not None and not draws_otherwise(other):
        return False
    if other is not None and (one.loader == PROPAGATED) != (other.loader == PROPAGATED):
        return False
    return same_steps(one, other) and (other is None or _alike(one.requested_rows, other.requested_rows))


def same_steps(one: LoaderSummary, other: LoaderSummary | None) -> bool:
    """Returns True if their epochs have as many minibatches, as far as is known."""
    return other is None or _alike(one.minibatches, other.minibatches)


def _alike(one: int | None, other: int | None) -> bool:
    return not one or not other or max(one, other) <= _ALIKE * min(one, other)


def comparable(one: LoaderSummary, other: LoaderSummary) -> bool:
    """Returns True if both were trained, or both only loaded."""
    return (one.training_seconds is None) == (other.training_seconds is None)


def within_noise(one: LoaderSummary, other: LoaderSummary) -> bool:
    """Returns True if measuring again could as well find the other one's epoch faster."""
    return bool(one.epoch_spread and other.epoch_spread and one.epoch_spread.overlaps(other.epoch_spread))


def fits_in_memory(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> bool:
    """Returns True if the graph needs no disk: features and topology fit the memory that the loaders were given.

    in-memory shows it where it was run; otherwise they must leave half of the memory to everything else.
    """
    memory_bytes, feature_bytes = comparison.settings.get("memory_bytes"), comparison.graph.get("feature_bytes")
    if not memory_bytes or feature_bytes is None:
        return False
    needed_bytes = feature_bytes + comparison.graph.get("topology_bytes", 0)
    if comparison.memory_capped and any(one.loader == REFERENCE for one in summaries):
        return any(one.loader == REFERENCE and one.ok and one.capped for one in summaries)
    return bool(needed_bytes <= _SAFE_SHARE * memory_bytes)


def target_score(summaries: Iterable[LoaderSummary]) -> float | None:
    """Returns the best baseline's score, worse by one standard deviation of its seeds.

    The best of many is so by luck, too; without the deviation its equals would seldom be told to reach it. Baselines
    of another number of minibatches than ours do not count: they take other numbers of steps in an epoch. Nor does one
    with a model of its own.
    """
    found = list(summaries)
    mine = ours(found)
    others = [one for one in found if one.loader not in (OURS, PROPAGATED)]
    baselines = [one for one in others if one.score is not None and same_steps(one, mine)]
    best = max(baselines, key=lambda one: one.metric.rank(one.score or 0.0), default=None)
    if best is None:
        return None
    return (best.score or 0.0) - best.metric.rank(best.deviation)


def seconds_to(score: float, curve: Iterable[CurvePoint], metric: Metric = ACCURACY) -> float | None:
    """Returns when `curve` was first as good as `score`; None if it never was."""
    return next((point.seconds for point in curve if metric.rank(point.score) >= metric.rank(score)), None)


def reached(summaries: Iterable[LoaderSummary]) -> tuple[float, dict[str, float | None]] | None:
    """Returns the target score, and by loader when it reached it; None unless at least half of those trained did.

    With few seeds only the best one reaches its own score, which tells nothing of the others' speed.
    """
    trained = [one for one in summaries if one.curve]
    target = target_score(trained)
    if target is None:
        return None
    seconds = {one.name: seconds_to(target, one.curve, one.metric) for one in trained}
    found = [value for value in seconds.values() if value]
    return (target, seconds) if len(found) >= max(2, len(seconds) / 2) else None
