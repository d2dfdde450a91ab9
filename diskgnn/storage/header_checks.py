"""Whether the header of an extent is one: models, and kernels on a GPU, compute with it without looking."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import check_block
from diskgnn.storage.extent_headers import Header, HeaderLayout, arrays_of


def checked_header(data: npt.NDArray[np.uint8], layout: HeaderLayout, records: npt.NDArray[Any]) -> Header:
    """The header in `data`, sharing its memory, once its parts have proved to fit each other, the index and the graph.

    Whatever it says leads to a place that is there. Addresses are the native reader's to check, which uses them first.

    Args:
        data: [header_bytes] uint8.
        layout: of it.
        records: [K] of its extent in the index, of `extents.ROWS_DTYPE`.

    Raises:
        ValueError: it is no header, or not a sound one; says why.
    """
    try:
        header = layout.decode(data)
    except (pa.ArrowException, EOFError, OSError, ValueError) as error:
        raise ValueError(f"its header cannot be decoded: {error}") from error
    for array in arrays_of(header):
        start = array.ctypes.data - data.ctypes.data
        # Those of a compressed message would lie elsewhere.
        if len(array) and not (0 <= start <= len(data) - array.nbytes and start % array.itemsize == 0):
            raise ValueError("a column does not lie in its header")
    _check_counts(header.node_counts)
    _check_seeds(header, layout)
    _check_blocks(header, layout)
    _check_rows(header, layout, records, data)
    _check_nodes(header, layout)
    return header


def _check_counts(counts: npt.NDArray[np.int32]) -> None:
    if (counts < 0).any() or (np.diff(counts, axis=0) > 0).any():
        raise ValueError("its node counts are negative, or it has more destinations than sources")


def _check_seeds(header: Header, layout: HeaderLayout) -> None:
    num_seeds, of_type = len(header.seeds), header.node_counts[-1]
    target = list(set(layout.target))
    if of_type[target].sum() != num_seeds or of_type.sum() != num_seeds or num_seeds == 0:
        raise ValueError(f"its last layer has {of_type.tolist()} destinations, expected its {num_seeds} seeds")
    ends = np.cumsum(of_type)
    for number in target:
        _check_range("seeds", header.seeds[ends[number] - of_type[number] : ends[number]], layout.num_nodes[number])
    if header.y is not None and len(header.y) != num_seeds * layout.num_outputs:
        raise ValueError(f"it has {len(header.y)} values of y, expected {layout.num_outputs} for each seed")
    if header.pairs is not None:
        pairs, (source, *rest) = header.pairs, layout.target
        if not len(pairs.src) == len(pairs.dst) == len(pairs.label):
            raise ValueError("its pairs do not have two ends and a label each")
        _check_range("pairs", pairs.src, of_type[source])
        _check_range("pairs", pairs.dst, of_type[rest[0] if rest else source])


def _check_blocks(header: Header, layout: HeaderLayout) -> None:
    for layer, blocks in enumerate(header.blocks):
        num_src, num_dst = header.node_counts[layer], header.node_counts[layer + 1]
        for number, ((source, destination), block) in enumerate(zip(layout.edge_types, blocks, strict=True)):
            if len(block.indptr) - 1 != num_dst[destination]:
                raise ValueError(
                    f"block {layer} of edge type {number} has {len(block.indptr) - 1} destinations, expected "
                    f"{num_dst[destination]}"
                )
            try:
                check_block(block.indptr, block.indices, int(num_src[source]))
            except ValueError as error:
                raise ValueError(f"block {layer} of edge type {number}: {error}") from error
            if block.positions is not None and len(block.positions) != len(block.indices):
                raise ValueError(f"block {layer} of edge type {number} has not as many edge ids as edges")


def _check_rows(header: Header, layout: HeaderLayout, records: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> None:
    for places, row_set, record in zip(header.rows, layout.row_sets, records, strict=True):
        num_rows = len(places.addresses)
        if (num_rows, len(places.admissions)) != (record["num_inputs"], record["num_admissions"]):
            raise ValueError("it has another number of inputs or admissions than the index says")
        if num_rows and places.addresses.ctypes.data - data.ctypes.data != record["addresses_offset"]:
            raise ValueError("its addresses are not where the index says")  # those there have been checked
        if row_set.is_edges:
            expected = sum(len(blocks[row_set.number].indices) for blocks in header.blocks)
        else:
            expected = int(header.node_counts[0, row_set.number])
        found = num_rows if places.spread is None else len(places.spread)
        if found != expected:
            raise ValueError(f"it has {found} rows of its inputs, expected {expected}")
        if places.spread is not None:
            _check_range("rows", places.spread, num_rows)


def _check_nodes(header: Header, layout: HeaderLayout) -> None:
    for nodes, count, num_nodes in zip(header.input_nodes, header.node_counts[0], layout.num_nodes, strict=True):
        if nodes is not None:
            if len(nodes) != count:
                raise ValueError(f"it has {len(nodes)} input nodes, expected {count}")
            _check_range("input nodes", nodes, num_nodes)
    for tree, count in zip(header.trees or (), header.node_counts[0], strict=False):
        if len(tree) != count:
            raise ValueError(f"it has the trees of {len(tree)} input nodes, expected {count}")
        _check_range("trees", tree, len(header.seeds))


def _check_range(name: str, numbers: npt.NDArray[Any], end: int) -> None:
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
        raise ValueError(f"its {name} are not all below {end}")
