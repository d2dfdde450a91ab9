"""The header of an extent: what it says about its minibatch, as one Arrow record batch message of one row of lists."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import page_memory
from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.units import format_size

MAX_HEADER_BYTES = (1 << 31) - 1  # the native reader counts them in 31 bits
_END_OF_STREAM_BYTES = 8


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
    return layout.minibatch(header_arrays(data, layout))


def header_arrays(data: Any, layout: MinibatchLayout) -> list[npt.NDArray[Any]]:
    """Returns the columns of the header in `data`, flat; raises what `decode_header` does."""
    return layout.arrays(pa.ipc.read_record_batch(pa.py_buffer(data), layout.schema))


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
