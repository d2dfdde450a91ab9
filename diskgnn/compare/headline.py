"""The answer of a comparison in one sentence, and the reason where it is not the one hoped for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from diskgnn.compare.comparability import (
    OURS,
    best_disk_baseline,
    comparable,
    fastest,
    fits_in_memory,
    ordered,
    ours,
    reference,
    within_noise,
)
from diskgnn.compare.loader_summary import LoaderSummary
from diskgnn.compare.number_format import duration, ordinal, times
from diskgnn.compare.results import Comparison
from diskgnn.compare.timeline_words import busiest_stage, stage_words
from diskgnn.units import format_size

_NEAR_REFERENCE = 1.10  # of in-memory: further away, the reason is told
_NEAR_BOUND = 1.15  # a loader no further from its bound is limited by it


def headline(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> str:
    """How long our epoch takes, against the fastest baseline on disk and against in-memory."""
    mine, best, memory = ours(summaries), best_disk_baseline(summaries), reference(summaries)
    if mine is None or mine.epoch_seconds is None:
        return _headline_without_ours(summaries)
    sentence = f"{_titled(mine)} {_verb(mine)} {_unit(comparison, mine)} in {duration(mine.epoch_seconds)}"
    if best and best.epoch_seconds and comparable(mine, best):
        sentence += f", {_against(mine, best)} the fastest baseline on disk ({best.name}, "
        sentence += f"{duration(best.epoch_seconds)})"
    if memory and memory.epoch_seconds and comparable(mine, memory):
        sentence += f"{';' if best else ','} that is {_against(mine, memory)} in-memory"
    return sentence + "."


def reasons(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> list[str]:
    """What else a reader must know: that no disk is needed, what preparing costs, why ours is slower than another."""
    found = []
    if fits_in_memory(comparison, summaries):
        found.append(_not_needed(comparison))
    mine = ours(summaries)
    if mine is None or not mine.epoch_seconds:
        return found
    best, memory = best_disk_baseline(summaries), reference(summaries)
    if mine.prepare_seconds and best and best.epoch_seconds and comparable(mine, best):
        found.append(_break_even(mine, best))
    found += _without_reuse(summaries)
    winner = memory if _slower(mine, memory, _NEAR_REFERENCE) else None
    if _slower(mine, best, 1.0):
        winner = best
    if winner:
        found.append(f"Why it is slower than {winner.name}: {_reason(mine, winner)}.")
    return found


def other_work(summaries: Sequence[LoaderSummary]) -> list[str]:
    """Whose times can't be compared with ours, and why."""
    mine = ours(summaries)
    return [
        f"{one.name} does other work: {one.minibatches:,} minibatches of {one.requested_rows:,} rows in all, "
        f"where diskgnn has {mine.minibatches:,} of {mine.requested_rows:,}."
        for one in ordered(summaries)[1]
        if mine and one.ok
    ]


def _not_needed(comparison: Comparison) -> str:
    graph, settings = comparison.graph, comparison.settings
    needed = format_size(graph["feature_bytes"] + graph.get("topology_bytes", 0))
    return (
        f"You do not need this tool for this graph: its features and edges ({needed}) fit the memory given "
        f"({format_size(settings['memory_bytes'])}), so any loader that keeps them in memory will do."
    )


def _headline_without_ours(summaries: Sequence[LoaderSummary]) -> str:
    tried = next((one for one in summaries if one.loader == OURS), None)
    winner = fastest(summaries)
    missing = "diskgnn was not compared" if tried is None else f"diskgnn has no result ({tried.status})"
    if winner is None or winner.epoch_seconds is None:
        return f"{missing}, and no other loader finished an epoch." if summaries else "Nothing was compared."
    return f"{missing}; of the others {winner.name} is the fastest: {duration(winner.epoch_seconds)}."


def _titled(summary: LoaderSummary) -> str:
    loader, _, variant = summary.name.partition(", ")
    return f"{loader} ({variant})" if variant else loader


def _verb(summary: LoaderSummary) -> str:
    return "loads" if summary.training_seconds is None else "trains"


def _unit(comparison: Comparison, summary: LoaderSummary) -> str:
    noun = "minibatch" if summary.minibatches == 1 else "minibatches"
    return f"{summary.minibatches} {noun}" if comparison.settings.get("max_batches") else "an epoch"


def _against(mine: LoaderSummary, other: LoaderSummary) -> str:
    assert mine.epoch_seconds
    assert other.epoch_seconds
    return "within noise of" if within_noise(mine, other) else _by_factor(other.epoch_seconds / mine.epoch_seconds)


def _by_factor(ratio: float) -> str:
    """`ratio`: the other's time by ours."""
    return f"{times(ratio)} faster than" if ratio > 1 else f"{times(1 / ratio)} slower than"


def _slower(one: LoaderSummary, other: LoaderSummary | None, factor: float) -> bool:
    """Whether by more than `factor`, and than noise."""
    if other is None or not other.epoch_seconds or not one.epoch_seconds or not comparable(one, other):
        return False
    return one.epoch_seconds > factor * other.epoch_seconds and not within_noise(one, other)


def _break_even(mine: LoaderSummary, best: LoaderSummary) -> str:
    """After how many epochs our preparation is repaid."""
    assert mine.epoch_seconds
    assert best.epoch_seconds
    ahead = mine.prepare_seconds + mine.open_seconds - best.prepare_seconds - best.open_seconds
    gain = best.epoch_seconds - mine.epoch_seconds
    cost = f"Preparing takes {duration(mine.prepare_seconds)}"
    if gain > 0 and ahead > 0 and within_noise(mine, best):
        return f"{cost}, which nothing repays: an epoch takes as long as {best.name}'s within noise."
    if gain <= 0:
        return f"{cost}." if ahead > 0 else f"{cost}; {best.name} needs {duration(-ahead)} more before its first epoch."
    if ahead <= 0:
        return f"{cost}, no longer than {best.name} needs before its first epoch."
    epochs = math.floor(ahead / gain) + 1
    return f"{cost}, repaid in the {ordinal(epochs)} epoch against {best.name}."


def _without_reuse(summaries: Sequence[LoaderSummary]) -> Iterator[str]:
    """What an epoch costs that is sampled and packed for itself alone, against those that prepare nothing."""
    fresh = next((one for one in summaries if (one.loader, one.variant) == (OURS, "fresh") and one.ok), None)
    if fresh is None or not fresh.total_seconds:
        return
    told = [
        f"{_in_all(fresh, other)} {other.name} ({duration(other.total_seconds)})"
        for loader in ("cached-reads", "ginex", "mmap")
        for other in [fastest(one for one in summaries if one.loader == loader)]
        if other and other.total_seconds
    ]
    if told:
        yield (
            f"Without any reuse, every epoch sampled and packed anew, an epoch takes {duration(fresh.total_seconds)} "
            f"with its preparation: {', '.join(told)}."
        )


def _in_all(mine: LoaderSummary, other: LoaderSummary) -> str:
    """As `_against`, with preparing."""
    assert mine.total_seconds
    assert other.total_seconds
    if mine.total_spread and other.total_spread and mine.total_spread.overlaps(other.total_spread):
        return "within noise of"
    return _by_factor(other.total_seconds / mine.total_seconds)


def _reason(mine: LoaderSummary, other: LoaderSummary) -> str:
    """Which stage took the time that `mine` needs more than `other`, as far as the records tell."""
    waited, total = mine.training_wait_seconds, mine.training_seconds
    if waited is None or total is None or other.training_wait_seconds is None or other.training_seconds is None:
        return _loader_limit(mine)
    computing, others_computing = total - waited, other.training_seconds - other.training_wait_seconds
    if waited - other.training_wait_seconds >= computing - others_computing:
        share = f"training waited {duration(waited)} of {duration(total)} for minibatches ({waited / total:.0%})"
        return f"{share}; {_loader_limit(mine)}"
    return (
        f"training waited for minibatches only {waited / total:.0%} of the time, but computing took "
        f"{duration(computing)} against {duration(others_computing)}: the loader's threads take processor cores and "
        "memory bandwidth from the model"
    )


def _loader_limit(mine: LoaderSummary) -> str:
    text = ""
    if mine.loading and mine.bound_seconds and mine.bound:
        ratio = mine.loading.seconds / mine.bound_seconds
        limit = f"{least_words(mine.bound)} ({duration(mine.bound_seconds)} an epoch)"
        if ratio <= _NEAR_BOUND:
            return f"loading takes no longer than {limit}"
        text = f"loading alone takes {times(ratio)} as long as {limit}"
    busiest = busiest_stage(mine.trace)
    if busiest:
        track, stage, share = busiest
        text += "; " if text else ""
        text += f"what keeps it busy longest is {stage_words(track, stage)} ({share:.0%} of the time)"
    return text or "the records do not tell which stage"


def least_words(bound: str) -> str:
    """What a loader's bound is the time of: its `bound` in words."""
    if bound == "memory":
        return "copying the same rows within memory at its full speed"
    if bound in ("sequential reads", "random reads"):
        kind = "in one go" if bound == "sequential reads" else "in as many separate requests"
        return f"reading the same bytes {kind} at the disk's full speed"
    return bound
