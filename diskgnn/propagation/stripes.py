"""Features by columns: transposed once into stripes of a few columns, in their own dtype.

A panel of columns then reads its own stripes and nothing else, however many columns memory holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from diskgnn._native import cut_stripes, dequantise_rows, page_memory, place_columns
from diskgnn.errors import InputError
from diskgnn.files.traffic import Traffic
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.type_data import NodeSet
from diskgnn.ordered import Threads, in_order
from diskgnn.progress.reporter import Reporter
from diskgnn.propagation.hop_features import HopFeatures, viewing
from diskgnn.propagation.needed_rows import RankedNodes
from diskgnn.specs.schema import ONE_NODE_TYPE
from diskgnn.work.fold import Output
from diskgnn.work.shuffle import Piece, Shuffle, piece_buffer
from diskgnn.work.work_folder import State

COLUMNS = 4  # of a stripe
STRIPES_AT_A_TIME = 4  # of a window of rows that a thread loads
_READ_AHEAD = 1


def transpose(
    features: HopFeatures,
    needed: RankedNodes,
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
    nodes, rows = features.nodes, features.rows
    traffic.add(read=features.checksums_bytes)
    windows = list(features.windows(needed))

    def wanted_of(first: int, last: int) -> npt.NDArray[np.bool_]:
        base = first // 64 * 64
        return needed.members(base, last)[first - base :]

    def read(first: int, last: int) -> tuple[npt.NDArray[np.uint8], int]:
        return features.read(first, wanted_of(first, last))

    with (
        viewing([features]),
        Threads(1) as pool,
        output.stage(reporter, f"transpose features{_of_type(nodes)}", nodes.num_nodes, "rows") as advance,
    ):
        first_window = int(state["windows"])
        done = windows[first_window - 1][1] if first_window else 0
        reads = (partial(read, *bounds) for bounds in windows[first_window:])
        with closing(in_order(pool, reads, _READ_AHEAD)) as spans:
            for data, num_bytes in spans:
                first, last = windows[int(state["windows"])]
                wanted = wanted_of(first, last)
                cut = page_memory(int(np.count_nonzero(wanted)) * rows.row_bytes)
                count, unusual = cut_stripes(
                    data, wanted, row_bytes=rows.row_bytes, stripe_bytes=stored_bytes(rows, 0),
                    value_bytes=rows.storage.itemsize, exponent_bits=rows.exponent_bits or 0, stripes=cut,
                )  # fmt: skip
                if count and not int(state["unusual"]):
                    state["first_unusual"][...] = first + unusual
                state["unusual"] += count
                traffic.add(read=num_bytes)
                if not int(state["unusual"]):
                    traffic.add(written=cut.nbytes)
                    begin = 0
                    for stripe in stripes_of(0, rows.num_features):
                        end = begin + len(cut) // rows.row_bytes * stored_bytes(rows, stripe)
                        stripes.add(stripe, cut[begin:end])
                        begin = end
                state["windows"] += 1
                advance(last - done)
                done = last
                yield num_bytes
    if count := int(state["unusual"]):
        raise InputError(
            f"features: expected finite numbers, found NaN or infinite ones in the rows of {count} nodes that hops "
            f"need, the first of them {nodes.called(int(state['first_unusual']))}{_of_type(nodes)}; "
            f"{_how_to_be_finite(nodes)}"
        )


def _how_to_be_finite(nodes: NodeSet) -> str:
    raw = [f"{nodes.name}.{each.name}=number" for each in nodes.config.columns or () if each.encoding == "raw"]
    if raw:
        return f"`diskgnn convert --encode {' --encode '.join(raw)}` makes 0 of null"
    return "replace them, e.g. with np.nan_to_num(features, nan=0, posinf=0, neginf=0), and `diskgnn convert` again"


def _of_type(nodes: NodeSet) -> str:
    return "" if nodes.name == ONE_NODE_TYPE else f" of type {nodes.name}"


def stripe_width(rows: RowFormat, stripe: int) -> int:
    """Returns how many columns a stripe has."""
    return min(COLUMNS, rows.num_features - stripe * COLUMNS)


def stored_bytes(rows: RowFormat, stripe: int) -> int:
    """Returns the bytes of a row of a stripe."""
    width = stripe_width(rows, stripe)
    return -(-width // 2) if rows.dtype == "int4" else width * rows.storage.itemsize


def stripes_of(first: int, last: int) -> range:
    """Returns the stripes that columns [first, last) lie in."""
    return range(first // COLUMNS, -(-last // COLUMNS))


def load(
    features: HopFeatures, stripes: Shuffle, columns: range, into: npt.NDArray[np.float32], most_rows: int, threads: int
) -> int:
    """Fills the first `most_rows` of `into` [needed rows, columns], or some more, with what features mean, as float32.
    Returns the bytes of stripes read.

    A window of rows at a time, whose part of `into` stays in the processor's cache meanwhile.

    Raises:
        DamagedStepError: see `Shuffle.pieces`.
    """
    wanted = stripes_of(columns.start, columns.stop)
    windows = _first_windows(features, zip(*map(stripes.places, wanted), strict=True), wanted, most_rows)
    most_bytes = max((piece.num_bytes for window, _ in windows for piece in window), default=0)
    buffers = SimpleQueue[npt.NDArray[np.uint8]]()  # those of threads that wait
    for _ in range(threads):
        buffers.put(piece_buffer(most_bytes, min(STRIPES_AT_A_TIME, len(wanted))))

    def calls() -> Iterator[Callable[[], None]]:
        row = 0
        for window, num_rows in windows:
            part = into[row : row + num_rows].reshape(-1)
            yield partial(_load_window, features, stripes, wanted, window, columns, part, buffers)
            row += num_rows
        assert min(len(into), most_rows) <= row <= len(into), (row, most_rows, len(into))

    with Threads(threads) as pool, closing(in_order(pool, calls(), 2 * threads)) as loaded:
        for _ in loaded:
            pass
    return sum(piece.num_bytes for window, _ in windows for piece in window)


def first_rows(features: HopFeatures, needed: RankedNodes, most_rows: int) -> int:
    """Returns how many rows `load` fills, of the needed ones, where the first `most_rows` are wanted."""
    begins = np.array([first for first, _ in features.windows(needed)], np.int64)
    ranks = np.append(needed.ranks(begins), len(needed))
    return int(ranks[np.searchsorted(ranks, min(most_rows, len(needed)))])


def _first_windows(
    features: HopFeatures, windows: Iterable[Sequence[Piece]], wanted: range, most_rows: int
) -> list[tuple[Sequence[Piece], int]]:
    """Returns the pieces of each window of the first `most_rows` rows, and how many rows it has."""
    found, row = list[tuple[Sequence[Piece], int]](), 0
    for window in windows:
        if row >= most_rows:
            break
        num_rows = window[0].num_bytes // stored_bytes(features.rows, wanted[0])
        found.append((window, num_rows))
        row += num_rows
    return found


def _load_window(
    features: HopFeatures,
    stripes: Shuffle,
    wanted: range,
    pieces: Sequence[Piece],
    columns: range,
    into: npt.NDArray[np.float32],
    buffers: SimpleQueue[npt.NDArray[np.uint8]],
) -> None:
    buffer = buffers.get_nowait()
    try:
        for stripe, content in zip(wanted, stripes.read(pieces, buffer), strict=True):
            width, first_column = stripe_width(features.rows, stripe), stripe * COLUMNS
            begin, end = max(columns.start, first_column), min(columns.stop, first_column + width)
            values = _widened(features, content, first_column, width)
            place_columns(values, width, begin - first_column, end - begin, into, len(columns), begin - columns.start)
    finally:
        buffers.put(buffer)


def _widened(
    features: HopFeatures, piece: npt.NDArray[np.uint8], first_column: int, width: int
) -> npt.NDArray[np.float32]:
    """Returns [rows * width] of the bytes of a stripe."""
    rows, codes = features.rows, features.quantisation
    if codes is not None:
        bits = 4 if rows.dtype == "int4" else 8
        num_rows = len(piece) // (-(-width // 2) if bits == 4 else width)
        widened = np.empty(num_rows * width, np.float32)
        scale, zero_point = (
            each[first_column : first_column + width].copy() for each in (codes.scale, codes.zero_point)
        )
        dequantise_rows(piece, bits, scale, zero_point, widened, 1)
        return widened
    values = piece.view(rows.storage)
    if rows.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32, copy=False)
