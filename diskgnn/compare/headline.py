"""The answer of a comparison in two sentences; its tables have the rest."""

from __future__ import annotations

from collections.abc import Sequence

from diskgnn.compare.comparability import (
    OURS,
    best_disk_baseline,
    comparable,
    fastest,
    fits_in_memory,
    ours,
    reference,
    within_noise,
)
from diskgnn.compare.comparison_record import Comparison
from diskgnn.compare.loader_summary import LoaderSummary, Spread, is_run_to_run
from diskgnn.compare.number_format import duration, times
from diskgnn.units import format_size


def headline(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> str:
    """Returns how long our epoch takes, against the fastest baseline on disk and against in-memory."""
    mine, best, memory = ours(summaries), best_disk_baseline(summaries), reference(summaries)
    if mine is None or mine.epoch_seconds is None:
        return _headline_without_ours(summaries)
    loader, _, variant = mine.name.partition(", ")
    verb = "loads" if mine.training_seconds is None else "trains"
    noun = "minibatch" if mine.minibatches == 1 else "minibatches"
    unit = f"{mine.minibatches} {noun}" if comparison.settings.get("max_batches") else "an epoch"
    sentence = f"{f'{loader} ({variant})' if variant else loader} {verb} {unit} in {duration(mine.epoch_seconds)}"
    if best and best.epoch_seconds and comparable(mine, best):
        sentence += f", {_against(mine, best)} the fastest baseline on disk ({best.name}, "
        sentence += f"{duration(best.epoch_seconds)}){_doubt(mine, best)}"
    if memory and memory.epoch_seconds and comparable(mine, memory):
        sentence += f"{';' if best else ','} that is {_against(mine, memory)} in-memory{_doubt(mine, memory)}"
    return sentence + "."


def reason(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> str:
    """Says that no disk is needed, or where the time of our epoch goes; empty if that is not known."""
    if fits_in_memory(comparison, summaries):
        graph = comparison.graph
        needed = format_size(graph["feature_bytes"] + graph.get("topology_bytes", 0))
        return (
            f"You do not need this tool for this graph: its features and edges ({needed}) fit the memory given "
            f"({format_size(comparison.settings['memory_bytes'])}), so any loader that keeps them in memory will do."
        )
    mine, parts = ours(summaries), []
    if mine is None:
        return ""
    if mine.total_seconds:
        parts.append(f"an epoch takes {duration(mine.total_seconds)} with its share of preparing")
    if mine.training_seconds and mine.training_wait_seconds is not None:
        share = mine.training_wait_seconds / mine.training_seconds
        parts.append(f"training waits for minibatches {share:.0%} of its time")
    if mine.loading and mine.bound and mine.bound_seconds:
        ratio = mine.loading.seconds / mine.bound_seconds
        parts.append(f"loading alone takes {times(ratio)} as long as {least_words(mine.bound)}")
    sentence = ", and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else ""


def least_words(bound: str) -> str:
    """Returns what a loader's bound is the time of: its `bound` in words."""
    if bound == "memory":
        return "copying the same rows within memory at its full speed"
    if bound in ("sequential reads", "random reads"):
        kind = "in one go" if bound == "sequential reads" else "in as many separate requests"
        return f"reading the same bytes {kind} at the disk's full speed"
    return bound


def _headline_without_ours(summaries: Sequence[LoaderSummary]) -> str:
    tried = next((one for one in summaries if one.loader == OURS), None)
    winner = fastest(summaries)
    missing = "diskgnn was not compared" if tried is None else f"diskgnn has no result ({tried.status})"
    if winner is None or winner.epoch_seconds is None:
        return f"{missing}, and no other loader finished an epoch." if summaries else "Nothing was compared."
    return f"{missing}; of the others {winner.name} is the fastest: {duration(winner.epoch_seconds)}."


def _against(mine: LoaderSummary, other: LoaderSummary) -> str:
    assert mine.epoch_seconds
    assert other.epoch_seconds
    ratio = other.epoch_seconds / mine.epoch_seconds
    if within_noise(mine, other) and is_run_to_run(ratio):
        return "within noise of"
    return f"{times(ratio)} faster than" if ratio > 1 else f"{times(1 / ratio)} slower than"


def _doubt(mine: LoaderSummary, other: LoaderSummary) -> str:
    """Returns the measurements of both where the means differ by more than runs do, and measuring again may turn
    them round."""
    assert mine.epoch_seconds
    assert other.epoch_seconds
    one, another = mine.epoch_spread, other.epoch_spread
    if not within_noise(mine, other) or is_run_to_run(other.epoch_seconds / mine.epoch_seconds):
        return ""
    assert one
    assert another
    return f", but measurements spread as far ({_spread(one)} against {_spread(another)})"


def _spread(spread: Spread) -> str:
    ends = dict.fromkeys((duration(spread.low_seconds), duration(spread.high_seconds)))
    return " to ".join(ends)
