"""Whether a minibatch is one: models, and kernels on a GPU, compute with it without looking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import check_block
from diskgnn.formats.extent_headers import ColumnPlaces
from diskgnn.formats.minibatch_columns import MinibatchLayout, value_of
from diskgnn.formats.sampled_minibatch import SampledMinibatch

_UNSIGNED: dict[int, np.dtype[Any]] = {4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}


def checked_minibatch(arrays: Sequence[npt.NDArray[Any]], layout: MinibatchLayout) -> SampledMinibatch:
    """Returns the minibatch whose columns are `arrays`, once they have proved to fit each other and the graph.

    What blocks consist of is not looked at.

    Raises:
        ValueError: they do not fit; says which.
    """
    minibatch = layout.minibatch(arrays)
    _check_counts(minibatch, layout)
    for column, values in zip(layout.columns, arrays, strict=True):
        if column.count is not None and len(values) != (count := value_of(column.count, minibatch)):
            raise ValueError(f"its column {column.name} has {len(values)} values, expected {count}")
        if column.end is not None:
            _check_range(column.name, values, value_of(column.end, minibatch))
    return minibatch


def checked_header(data: npt.NDArray[np.uint8], layout: MinibatchLayout, records: npt.NDArray[Any]) -> SampledMinibatch:
    """Returns the header in `data`, sharing its memory, once its parts have proved to fit each other, the index and the
    graph.

    Whatever it says leads to a place that is there. Addresses are the native reader's to check, which uses them first.

    Args:
        data: [header_bytes] uint8.
        layout: of it.
        records: [K] of its extent in the index, of `extents.ROWS_DTYPE`.

    Raises:
        ValueError: it is no header, or not a sound one; says why.
    """
    return checked_columns(data, ColumnPlaces.of(data, layout), layout, records)


def checked_columns(
    data: npt.NDArray[np.uint8], places: ColumnPlaces, layout: MinibatchLayout, records: npt.NDArray[Any]
) -> SampledMinibatch:
    """Returns what `checked_header` does, of a header whose columns have been found."""
    header = checked_minibatch(places.arrays(data, layout), layout)
    _check_blocks(header, layout)
    _check_rows(header, layout, records, places)
    return header


def _check_counts(minibatch: SampledMinibatch, layout: MinibatchLayout) -> None:
    """Checks the counts of nodes, and the seeds by them."""
    counts, num_seeds = minibatch.node_counts, len(minibatch.seeds)
    of_type: list[int] = counts[-1].tolist()
    if min(of_type) < 0 or (counts[1:] > counts[:-1]).any():
        raise ValueError("its node counts are negative, or it has more destinations than sources")
    if not sum(of_type) == sum(of_type[number] for number in set(layout.target)) == num_seeds > 0:
        raise ValueError(f"its last layer has {of_type} destinations, expected its {num_seeds} seeds")
    end = 0
    for count, num_nodes in zip(of_type, layout.num_nodes, strict=True):
        end += count
        _check_range("seeds", minibatch.seeds[end - count : end], num_nodes)


def _check_blocks(header: SampledMinibatch, layout: MinibatchLayout) -> None:
    for layer, blocks in enumerate(header.blocks):
        num_src = header.node_counts[layer].tolist()
        for number, ((source, _), block) in enumerate(zip(layout.edge_types, blocks, strict=True)):
            try:
                check_block(block.indptr, block.indices, num_src[source])
            except ValueError as error:
                raise ValueError(f"block {layer} of edge type {number}: {error}") from error


def _check_rows(
    header: SampledMinibatch, layout: MinibatchLayout, records: npt.NDArray[Any], places: ColumnPlaces
) -> None:
    told = records[["num_inputs", "num_admissions", "addresses_offset"]].tolist()
    for k, (rows, numbers) in enumerate(zip(header.rows, layout.numbers.rows, strict=True)):
        num_inputs, num_admissions, addresses_offset = told[k]
        num_rows = len(rows.addresses)
        if (num_rows, len(rows.admissions)) != (num_inputs, num_admissions):
            raise ValueError("it has another number of inputs or admissions than the index says")
        if num_rows and places.starts[numbers.addresses] != addresses_offset:
            raise ValueError("its addresses are not where the index says")  # those there have been checked
        if rows.spread is None and num_rows != (expected := layout.num_row_places(header, k)):
            raise ValueError(f"it has {num_rows} rows of its inputs, expected {expected}")


def _check_range(name: str, numbers: npt.NDArray[Any], end: int) -> None:
    # Read without their signs, negative ones are larger than all others: one pass tells both bounds.
    magnitudes, bits = numbers.view(_UNSIGNED[numbers.itemsize]), 8 * numbers.itemsize
    if len(numbers) and magnitudes.max() >= min(end, 1 << (bits - 1)):
        raise ValueError(f"its {name} are not all in [0, {end})")
