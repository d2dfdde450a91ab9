"""Features by columns: transposed once into stripes of a few columns, in their own dtype.

A panel of columns then reads its own stripes and nothing else, however many columns memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import dequantise_rows
from diskgnn.errors import InputError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES
from diskgnn.files.traffic import Traffic
from diskgnn.formats.feature_scan import read_checked_span
from diskgnn.formats.row_format import FeatureFile, RowFormat
from diskgnn.graph.type_data import NodeSet
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Reporter
from diskgnn.propagation.needed_rows import RowSet
from diskgnn.propagation.record_order import window_rows
from diskgnn.specs.schema import ONE_NODE_TYPE
from diskgnn.work.runner import Output
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.work_folder import State

COLUMNS = 4  # of a stripe
_READ_AHEAD = 1


def feature_windows(features: FeatureFile, needed: RowSet) -> Iterator[tuple[int, int]]:
    """Yields [first, last) of the nodes whose rows are read at a time: without those before and after, if they are not
    needed."""
    step = -(-window_rows(features.row_bytes) // 64) * 64
    for first in range(0, features.num_rows, step):
        members = np.flatnonzero(needed.members(first, min(first + step, features.num_rows)))
        if len(members):
            yield first + int(members[0]), first + int(members[-1]) + 1


def read_bytes(features: FeatureFile, first: int, last: int) -> int:
    """Returns how many bytes are read for the rows of such a window: all chunks that have a checksum."""
    begin, end = (features.data_offset_bytes + node * features.row_bytes for node in (first, last))
    file_bytes = features.data_offset_bytes + features.num_bytes
    end = min(-(-end // CHECKSUM_CHUNK_BYTES) * CHECKSUM_CHUNK_BYTES, file_bytes)
    return end - begin // CHECKSUM_CHUNK_BYTES * CHECKSUM_CHUNK_BYTES


def transpose(
    nodes: NodeSet,
    needed: RowSet,
    stripes: Shuffle,
    reporter: Reporter,
    traffic: Traffic,
    state: State,
    output: Output,
) -> Generator[int, None, None]:
    """Writes the needed rows of the features to `stripes`, a partition for each.

    Raises:
        InputError: a needed row has NaN or infinite values; names the first such node, and how many there are.
    """
    features = nodes.feature_file
    assert features is not None
    rows, checksums = features.rows, nodes.feature_checksums
    traffic.add(read=checksums.nbytes)
    windows = list(feature_windows(features, needed))
    with (
        Threads(1) as pool,
        output.stage(reporter, f"transpose features{_of_type(nodes)}", features.num_rows, "rows") as advance,
    ):
        first_window = int(state["windows"])
        done = windows[first_window - 1][1] if first_window else 0
        reads = (partial(read_checked_span, features, checksums, *bounds) for bounds in windows[first_window:])
        with closing(in_order(pool, reads, _READ_AHEAD)) as spans:
            for data, num_bytes in spans:
                first, last = windows[int(state["windows"])]
                values = data.view(rows.storage).reshape(last - first, rows.stored_columns)
                base = first // 64 * 64
                wanted = needed.members(base, last)[first - base :]
                if not wanted.all():
                    values = values[wanted]
                _count_unusual(values, rows, first, wanted, state)
                traffic.add(read=num_bytes)
                if not int(state["unusual"]):
                    traffic.add(written=values.nbytes)
                    for stripe, columns in enumerate(stored_columns(rows)):
                        stripes.add(stripe, np.ascontiguousarray(values[:, columns]))
                state["windows"] += 1
                advance(last - done)
                done = last
                yield num_bytes
    if count := int(state["unusual"]):
        raise InputError(
            f"features: expected finite numbers, found NaN or infinite ones in the rows of {count} nodes that hops "
            f"need, the first of them {nodes.called(int(state['first_unusual']))}{_of_type(nodes)}; replace them, e.g. "
            f"with np.nan_to_num, and `diskgnn convert` again"
        )


def _of_type(nodes: NodeSet) -> str:
    return "" if nodes.name == ONE_NODE_TYPE else f" of type {nodes.name}"


def stored_columns(rows: RowFormat) -> list[slice]:
    """Returns the values of a stored row that each stripe has."""
    step = COLUMNS // 2 if rows.dtype == "int4" else COLUMNS
    return [slice(first, first + step) for first in range(0, rows.stored_columns, step)]


def stripe_width(rows: RowFormat, stripe: int) -> int:
    """Returns how many columns a stripe has."""
    return min(COLUMNS, rows.num_features - stripe * COLUMNS)


def stripes_of(first: int, last: int) -> range:
    """Returns the stripes that columns [first, last) lie in."""
    return range(first // COLUMNS, -(-last // COLUMNS))


def _count_unusual(
    values: npt.NDArray[Any], rows: RowFormat, first: int, wanted: npt.NDArray[np.bool_], state: State
) -> None:
    if rows.exponent_bits is None:
        return
    bits = values.view(f"<u{rows.storage.itemsize}")
    unusual = ((bits & rows.exponent_bits) == rows.exponent_bits).any(axis=1)
    if (count := np.count_nonzero(unusual)) and not int(state["unusual"]):
        state["first_unusual"][...] = first + np.flatnonzero(wanted)[unusual.argmax()]
    state["unusual"] += count


def load(
    features: FeatureFile, stripes: Shuffle, columns: range, into: npt.NDArray[np.float32], pool: ThreadPoolExecutor
) -> int:
    """Fills `into` [needed rows, columns] with what features mean, as float32. Returns the bytes of stripes read.

    Raises:
        DamagedStepError: see `Shuffle.pieces`.
    """
    calls: list[Callable[[], int]] = [
        partial(_load_stripe, features, stripes, stripe, columns, into)
        for stripe in stripes_of(columns.start, columns.stop)
    ]
    return sum(in_order(pool, calls, len(calls)))


def _load_stripe(
    features: FeatureFile, stripes: Shuffle, stripe: int, columns: range, into: npt.NDArray[np.float32]
) -> int:
    first_column, row = stripe * COLUMNS, 0
    width = stripe_width(features.rows, stripe)
    begin, end = max(columns.start, first_column), min(columns.stop, first_column + width)
    for piece in stripes.pieces(stripe):
        values = _widened(features, piece, first_column, width)
        part = into[row : row + len(values), begin - columns.start : end - columns.start]
        part[...] = values[:, begin - first_column : end - first_column]
        row += len(values)
    assert row == len(into), (row, len(into))
    return int(stripes.partition_bytes[stripe])


def _widened(features: FeatureFile, piece: npt.NDArray[np.uint8], first_column: int, width: int) -> npt.NDArray[Any]:
    """[rows, width] of the bytes of a stripe; quantised rows and bfloat16 as float32."""
    rows, codes = features.rows, features.quantisation
    if codes is not None:
        bits = 4 if rows.dtype == "int4" else 8
        num_rows = len(piece) // (-(-width // 2) if bits == 4 else width)
        widened = np.empty(num_rows * width, np.float32)
        scale, zero_point = (
            each[first_column : first_column + width].copy() for each in (codes.scale, codes.zero_point)
        )
        dequantise_rows(piece, bits, scale, zero_point, widened, 1)
        return widened.reshape(-1, width)
    values = piece.view(rows.storage).reshape(-1, width)
    if rows.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values
