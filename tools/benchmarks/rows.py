"""Rows from disk: the planner's count against a static cache of the same bytes, and against brute force."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.making import make_graph, make_packed
from benchmarks.settings import Settings
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.specs.caches import cache_rows


def rows(settings: Settings) -> dict[str, Any]:
    """On the graph, and on a small one of its own that brute force can do."""
    packed = Packed.open(settings.packed)
    counted = packed.sequence("train").rows
    counts = np.zeros(settings.nodes, np.int32)
    for minibatch in Samples.open(settings.samples).read("train"):
        counts[minibatch.only_nodes] += 1
    capacity = cache_rows(settings.cpu_cache, packed.config.one_row_set.rows.row_bytes, settings.nodes)
    static_rows = counted.requested - int(np.sort(counts)[settings.nodes - capacity :].sum())

    small = replace(
        settings,
        folder=str(Path(settings.folder) / "small"),
        nodes=min(settings.nodes, 20_000),
        width=1,
        classes=min(settings.classes, 16),
        train_fraction=0.1,
        batch_size=64,
    )
    make_graph(small)
    make_packed(small)
    packed = Packed.open(small.packed)
    batches = [minibatch.only_nodes for minibatch in Samples.open(small.samples).read("train")]
    shutil.rmtree(small.folder)
    bound = belady_rows(
        batches, cache_rows(small.cpu_cache, packed.config.one_row_set.rows.row_bytes, small.nodes), small.nodes
    )
    planned = packed.sequence("train").rows.disk
    return {
        "accesses": counted.requested,
        "planned_rows": counted.disk,
        "static_cache_rows": static_rows,
        "of_static_cache": counted.disk / max(static_rows, 1),
        "small_accesses": sum(map(len, batches)),
        "small_planned_rows": planned,
        "small_bound_rows": bound,
        "of_bound": planned / max(bound, 1),
    }


def belady_rows(batches: list[np.ndarray], capacity: int, num_nodes: int, rounds: int = 8) -> float:
    """Rows that the best possible cache of `capacity` rows misses per round of an endlessly repeated sequence.

    Brute force, from the definition: after every minibatch the rows kept are those, of all that are at hand, whose next
    use is nearest. The first half of the rounds warms up, the second is averaged: in short sequences the best rounds
    may differ in turn, which a schedule that is the same in every round cannot copy.
    """
    after = [np.empty(0, np.int64)] * ((rounds + 1) * len(batches))  # per minibatch, the next use of each of its nodes
    next_use = np.full(num_nodes, np.iinfo(np.int64).max)
    for time in reversed(range(len(after))):
        nodes = batches[time % len(batches)]
        after[time] = next_use[nodes]
        next_use[nodes] = time
    kept, misses = np.empty(0, np.int64), [0] * rounds
    for time in range(rounds * len(batches)):  # one round less: its next uses are all known
        nodes = batches[time % len(batches)]
        misses[time // len(batches)] += len(np.setdiff1d(nodes, kept, assume_unique=True))
        next_use[nodes] = after[time]
        at_hand = np.union1d(kept, nodes)
        kept = at_hand[np.argsort(next_use[at_hand], kind="stable")[:capacity]]
    return sum(misses[rounds // 2 :]) / (rounds - rounds // 2)
