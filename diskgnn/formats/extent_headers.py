"""The header of an extent: what it says about its minibatch, as one Arrow record batch message of one row of lists."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import page_memory
from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.units import format_size

if TYPE_CHECKING:
    from torch import Tensor

MAX_HEADER_BYTES = (1 << 31) - 1  # the native reader counts them in 31 bits
_END_OF_STREAM_BYTES = 8
_RECORD_BATCH = 3  # of Arrow's types of messages


@dataclass(frozen=True)
class Span:
    """An array in a header."""

    offset: int  # of the first value, bytes; 0 if there is none
    count: int


@dataclass(frozen=True)
class EncodedHeader:
    """A header as bytes, and where the native reader finds what it needs in them."""

    message: pa.Buffer
    addresses: tuple[Span, ...]  # [K]
    admissions: tuple[Span, ...]  # [K] pairs


def encode_header(header: SampledMinibatch, layout: MinibatchLayout) -> EncodedHeader:
    """Returns the bytes of `header`."""
    batch, schema_bytes = layout.encode(header), layout.schema_bytes
    # What `batch.serialize()` returns, but in memory that is kept for the next header.
    memory = pa.py_buffer(page_memory(schema_bytes + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM_BYTES))
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(memory), layout.schema) as stream:
        stream.write_batch(batch)
    message = memory[schema_bytes:-_END_OF_STREAM_BYTES]
    batch = pa.ipc.read_record_batch(message, layout.schema)

    def span(name: str, width: int) -> Span:
        values = batch.column(name).values
        offset = int(values.buffers()[1].address - message.address) if len(values) else 0
        return Span(offset, len(values) // width)

    sets = range(len(layout.row_sets))
    addresses = tuple(span(f"addresses_{k}", 1) for k in sets)
    return EncodedHeader(message, addresses, tuple(span(f"admissions_{k}", 2) for k in sets))


def decode_header(data: Any, layout: MinibatchLayout) -> SampledMinibatch:
    """Returns the header in `data` (bytes-like), sharing its memory.

    Raises:
        pyarrow.ArrowException, EOFError, OSError, ValueError: not such a header.
    """
    return layout.minibatch(layout.arrays(pa.ipc.read_record_batch(pa.py_buffer(data), layout.schema)))


@dataclass(frozen=True)
class ColumnPlaces:
    """Says where the values of each column lie in a header. Arrow tells, too, but in an object for each column."""

    starts: list[int]  # bytes; a multiple of the size of a value
    counts: list[int]  # values

    @staticmethod
    def of(data: npt.NDArray[np.uint8], layout: MinibatchLayout) -> ColumnPlaces:
        """Finds them in a header's bytes.

        Raises:
            ValueError: it is no header, or a column does not lie in it.
        """
        try:
            num_rows, body, nodes, buffers = _record_batch(data)
        except (struct.error, ValueError) as error:
            raise ValueError(f"its header cannot be decoded: {error}") from error
        num_columns = len(layout.columns)
        if (num_rows, len(nodes), len(buffers)) != (1, 2 * num_columns, 4 * num_columns):
            raise ValueError(f"its header is not a row of {num_columns} lists")
        # Nodes are each list and then its values: how many, how many of them null. Buffers are two of the list and two
        # of its values, the last of which has the numbers: where, how many bytes.
        if nodes[:, 1].any() or (nodes[::2, 0] != 1).any():
            raise ValueError("its header has nulls")
        counts, starts = nodes[1::2, 0], np.where(nodes[1::2, 0], body + buffers[3::4, 0], 0)
        if (np.minimum(counts, starts) < 0).any() or (np.maximum(counts, starts) > len(data)).any():
            raise ValueError("a column does not lie in its header")
        if (starts + counts * layout.item_bytes > len(data)).any() or (starts % layout.item_bytes).any():
            raise ValueError("a column does not lie in its header")
        return ColumnPlaces(starts.tolist(), counts.tolist())

    def arrays(self, data: npt.NDArray[np.uint8], layout: MinibatchLayout) -> list[npt.NDArray[Any]]:
        """Returns the columns, flat, which share the memory of `data`."""
        places = zip(layout.dtypes, self.counts, self.starts, strict=True)
        return [np.frombuffer(data, dtype, count, start) for dtype, count, start in places]

    def tensors(self, data: Tensor, layout: MinibatchLayout) -> list[Tensor]:
        """Returns the same of a tensor of these bytes."""
        import torch

        found, views = list[torch.Tensor](), dict[str, torch.Tensor]()
        for column, size, start, count in zip(
            layout.columns, layout.item_bytes.tolist(), self.starts, self.counts, strict=True
        ):
            if column.dtype not in views:
                views[column.dtype] = data[: len(data) // size * size].view(getattr(torch, column.dtype))
            found.append(views[column.dtype][start // size : start // size + count])
        return found


def _record_batch(data: npt.NDArray[np.uint8]) -> tuple[int, int, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns of a record batch message how many rows it has, where its body starts, and what it says of its
    [nodes, 2] columns and [buffers, 2], see Arrow's Message.fbs. What is compressed has buffers that hold no numbers.

    Raises:
        struct.error, ValueError: it leads out of `data`, or is something else.
    """

    def number(code: str, at: int) -> int:
        found: int = struct.unpack_from(f"<{code}", data.data, at)[0]
        return found

    def field(table: int, which: int) -> int:  # the table itself, where it has none
        fields, at = table - number("i", table), 4 + 2 * which
        return table + number("H", fields + at) if at < number("H", fields) else table

    def table(at: int) -> int:
        return at + number("I", at)

    def pairs(at: int) -> npt.NDArray[np.int64]:
        return np.frombuffer(data, "<i8", 2 * number("I", table(at)), table(at) + 4).reshape(-1, 2)

    message, body = table(8), 8 + number("i", 4)
    if (number("i", 0), number("B", field(message, 1))) != (-1, _RECORD_BATCH) or not 8 <= body <= len(data):
        raise ValueError("it is no record batch message")
    batch = table(field(message, 2))
    if field(batch, 3) != batch:
        raise ValueError("it is compressed, so that a column does not lie in its header")
    return number("q", field(batch, 0)), body, pairs(field(batch, 1)), pairs(field(batch, 2))


def require_header_fits(
    minibatch: SampledMinibatch, layout: MinibatchLayout, batch_size: int, timed: Iterable[int] = ()
) -> None:
    """Refuse what no header can hold, when it is sampled: hours before it would be packed.

    Args:
        minibatch: as sampled; a header has what it has, an address for each input and a label for each seed.
        layout: of the samples.
        batch_size: that it was asked for with.
        timed: the node types whose times the header keeps.

    Raises:
        ConfigError: it needs more than MAX_HEADER_BYTES; names a batch size that does not.
    """
    most_bytes = faults.reading("header.most_bytes", MAX_HEADER_BYTES)
    addressed = sum(map(len, minibatch.input_nodes)) + minibatch.num_edges
    num_bytes = layout.value_bytes(minibatch) + 8 * addressed + 8 * len(minibatch.seeds)
    num_bytes += 8 * sum(len(minibatch.input_nodes[t]) for t in timed)
    if num_bytes > most_bytes:
        fits = max(1, batch_size * most_bytes // num_bytes // 2)
        raise ConfigError(
            f"batch_size: the blocks of a minibatch of {batch_size} take {format_size(num_bytes)} with the places of "
            f"their rows, expected at most {format_size(most_bytes)}; use {fits}, or smaller fanouts"
        )
