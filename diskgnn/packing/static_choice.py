"""Chooses the static rows: those that the first split of the samples accesses most often."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from diskgnn._native import count_nodes, sort_nodes
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.accesses import count_histogram, hottest_nodes
from diskgnn.packing.row_sets import RowSet, row_sets_of
from diskgnn.packing.tiers import TierBudgets, Tiers, divide_static_rows

Nodes = npt.NDArray[np.int64]


def choose_static(
    row_sets: Sequence[RowSet], tiers: Tiers, counts_of: Callable[[], Sequence[npt.NDArray[np.int32]]]
) -> list[Nodes]:
    """Returns [K] static rows, each [S] hottest first, as many as `tiers` have room for.

    `counts_of` returns [K] how often each row [N] is needed. It is not called if nothing is to be static.
    """
    wanted = [tiers.static] if isinstance(tiers, TierBudgets) else [each.static for each in tiers]
    if not any(wanted):
        return [np.empty(0, np.int64) for _ in row_sets]
    counts = counts_of()
    if isinstance(tiers, TierBudgets):
        histograms = [
            (count_histogram(each), row_set.row_bytes) for each, row_set in zip(counts, row_sets, strict=True)
        ]
        wanted = list(divide_static_rows(histograms, tiers.static).rows)
    return [hottest_nodes(each, num_rows) for each, num_rows in zip(counts, wanted, strict=True)]


def choose_static_of_all(graph: Graph, samples: Iterable[Samples], tiers: Tiers) -> dict[str, Nodes]:
    """Returns by row set the rows that these samples, one or more, access most often together.

    Takes 4 bytes for each row of all row sets, and reads the first split of the samples.

    Raises:
        ArtifactError: samples are damaged.
    """
    first, *others = samples
    row_sets = row_sets_of(graph, first.config)

    def counted() -> list[npt.NDArray[np.int32]]:
        counts = [np.zeros(row_set.num_rows, np.int32) for row_set in row_sets]
        for each in (first, *others):
            for minibatch in each.read(first.splits[0]):
                for of_set, row_set in zip(counts, row_sets, strict=True):
                    count_nodes(of_set, sort_nodes(row_set.needed(minibatch), row_set.num_rows)[0])
        return counts

    return dict(zip((each.config.name for each in row_sets), choose_static(row_sets, tiers, counted), strict=True))
