"""The answer of a comparison in one sentence, and the reason where it is not the one hoped for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from diskgnn.compare.results import Comparison
from diskgnn.compare.summary import (
    OURS,
    LoaderSummary,
    best_disk_baseline,
    busiest_stage,
    duration,
    fastest,
    ours,
    reference,
    times,
)

_CLOSE = 1.05  # two times no further apart are told as equal: runs differ by more
_NEAR_REFERENCE = 1.10  # of in-memory: further away, the reason is told
_NEAR_BOUND = 1.15  # a loader no further from its bound is limited by it


def headline(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> str:
    """How long our epoch takes, against the fastest baseline on disk and against in-memory."""
    mine, best, memory = ours(summaries), best_disk_baseline(summaries), reference(summaries)
    if mine is None or mine.epoch_seconds is None:
        return _headline_without_ours(summaries)
    sentence = f"{_titled(mine)} {_verb(mine)} {_unit(comparison, mine)} in {duration(mine.epoch_seconds)}"
    if best and best.epoch_seconds and _comparable(mine, best):
        sentence += f", {_against(best.epoch_seconds / mine.epoch_seconds)} the fastest baseline on disk ({best.name}, "
        sentence += f"{duration(best.epoch_seconds)})"
    if memory and memory.epoch_seconds and _comparable(mine, memory):
        sentence += f"{';' if best else ','} that is {_against(memory.epoch_seconds / mine.epoch_seconds)} in-memory"
    return sentence + "."


def reasons(summaries: Sequence[LoaderSummary]) -> list[str]:
    """What preparing costs, and which stage is the reason where our loader is not as fast as it should be."""
    mine = ours(summaries)
    if mine is None or not mine.epoch_seconds:
        return []
    best, memory = best_disk_baseline(summaries), reference(summaries)
    found = []
    if best and best.epoch_seconds and _comparable(mine, best):
        found.append(_break_even(mine, best))
    found += _without_reuse(summaries)
    winner = memory if _slower(mine, memory, _NEAR_REFERENCE) else None
    if _slower(mine, best, _CLOSE):
        winner = best
    if winner:
        found.append(f"Why it is slower than {winner.name}: {_reason(mine, winner)}.")
    return found


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
    return f"{summary.minibatches} minibatches" if comparison.settings.get("max_batches") else "an epoch"


def _comparable(one: LoaderSummary, other: LoaderSummary) -> bool:
    return (one.training_seconds is None) == (other.training_seconds is None)


def _against(ratio: float) -> str:
    """`ratio`: the other's time by ours."""
    if 1 / _CLOSE <= ratio <= _CLOSE:
        return "as fast as"
    return f"{times(ratio)} faster than" if ratio > 1 else f"{times(1 / ratio)} slower than"


def _slower(one: LoaderSummary, other: LoaderSummary | None, factor: float) -> bool:
    if other is None or not other.epoch_seconds or not one.epoch_seconds or not _comparable(one, other):
        return False
    return one.epoch_seconds > factor * other.epoch_seconds


def _break_even(mine: LoaderSummary, best: LoaderSummary) -> str:
    """After how many epochs our preparation is repaid."""
    assert mine.epoch_seconds
    assert best.epoch_seconds
    ahead = mine.prepare_seconds + mine.open_seconds - best.prepare_seconds - best.open_seconds
    gain = best.epoch_seconds - mine.epoch_seconds
    cost = f"Preparing takes {duration(mine.prepare_seconds)}"
    if gain <= 0:
        return f"{cost}." if ahead > 0 else f"{cost}; {best.name} needs {duration(-ahead)} more before its first epoch."
    if ahead <= 0:
        return f"{cost}, no longer than {best.name} needs before its first epoch."
    epochs = math.floor(ahead / gain) + 1
    return f"{cost}, repaid in the {_ordinal(epochs)} epoch against {best.name}."


def _without_reuse(summaries: Sequence[LoaderSummary]) -> Iterator[str]:
    """What an epoch costs that is sampled and packed for itself alone, against those that prepare nothing."""
    fresh = next((one for one in summaries if (one.loader, one.variant) == (OURS, "fresh") and one.ok), None)
    if fresh is None or not fresh.total_seconds:
        return
    told = [
        f"{_against(other.total_seconds / fresh.total_seconds)} {other.name} ({duration(other.total_seconds)})"
        for loader in ("cached-reads", "ginex", "mmap")
        for other in [fastest(one for one in summaries if one.loader == loader)]
        if other and other.total_seconds
    ]
    if told:
        yield (
            f"Without any reuse, every epoch sampled and packed anew, an epoch takes {duration(fresh.total_seconds)} "
            f"with its preparation: {', '.join(told)}."
        )


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


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
        f"training waited only {waited / total:.0%} of the time, but computing took {duration(computing)} against "
        f"{duration(others_computing)}: loader and model share the cores and the memory's bandwidth"
    )


def _loader_limit(mine: LoaderSummary) -> str:
    text = ""
    if mine.loading and mine.bound_seconds and mine.bound:
        ratio = mine.loading.seconds / mine.bound_seconds
        if ratio <= _NEAR_BOUND:
            return f"the loader is at its own bound, {mine.bound} ({duration(mine.bound_seconds)} an epoch)"
        text = f"the loader alone takes {times(ratio)} of its own bound, {mine.bound} ({duration(mine.bound_seconds)})"
    busiest = busiest_stage(mine.trace)
    if busiest:
        track, stage, share = busiest
        text += f"{', and ' if text else ''}its busiest stage is '{stage}' on '{track}' ({share:.0%} of the timeline)"
    return text or "the records do not tell which stage"
