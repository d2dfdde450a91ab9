"""The header of an extent: what it says about its minibatch, as one Arrow record batch message of one row of lists."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import page_memory
from diskgnn.errors import ConfigError
from diskgnn.storage import faults
from diskgnn.storage.samples import PairSample, SampledBlock, SampledMinibatch, one_row
from diskgnn.units import format_size

MAX_HEADER_BYTES = (1 << 31) - 1  # the native reader counts them in 31 bits
_END_OF_STREAM_BYTES = 8
LABEL_DTYPES = {"class": "int64", "multilabel": "uint8", "regression": "float32"}  # by kind of target


@dataclass(frozen=True)
class RowPlaces:
    """Where the rows of one row set are that a minibatch needs: each once, U of them."""

    addresses: npt.NDArray[np.int32]  # [U]
    admissions: npt.NDArray[np.int32]  # [A, 2]: extent row, cpu slot
    spread: npt.NDArray[np.int32] | None = None  # in [0, U): the row of each input node, or of each edge layer by layer


@dataclass(frozen=True)
class Header:
    """What an extent says about its minibatch: L layers, T node types, K row sets, B seeds."""

    seeds: npt.NDArray[np.int64]  # [B] as in `SampledMinibatch`
    y: npt.NDArray[Any] | None  # [B] int64, [B * C] uint8 or [B * C] float32; None of links, and without labels
    node_counts: npt.NDArray[np.int32]  # [L + 1, T] as in `SampledMinibatch`
    blocks: tuple[tuple[SampledBlock, ...], ...]  # [L] each [edge types]; positions: the user's edge ids, if kept
    rows: tuple[RowPlaces, ...]  # [K]
    input_nodes: tuple[npt.NDArray[Any] | None, ...]  # [T] ids [U_t] of each node type whose ids are kept
    trees: tuple[npt.NDArray[np.int32], ...] | None = None  # [T] as in `SampledMinibatch`
    pairs: PairSample | None = None


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


@dataclass(frozen=True)
class RowSetLayout:
    """Of which nodes or edges a row set is, and how a header says so."""

    number: int  # of the node type or edge type
    is_edges: bool
    has_spread: bool  # of edges always; of nodes where one may be there several times


@dataclass(frozen=True)
class HeaderLayout:
    """Which columns the headers of a sequence have, and within what bounds. Types are named by their numbers."""

    num_layers: int
    num_nodes: tuple[int, ...]  # [T] of the graph
    edge_types: tuple[tuple[int, int], ...]  # (source type, destination type)
    node_dtypes: tuple[str | None, ...]  # [T] of the ids of a type that are kept: int32, int64, or None
    row_sets: tuple[RowSetLayout, ...]
    target: tuple[int, ...]  # the node type of the seeds; of link prediction those of the pairs' two ends
    label_dtype: str | None = "int64"  # one of LABEL_DTYPES; None of link prediction, and of seeds without labels
    num_outputs: int = 1  # C, values of y per seed
    has_edge_ids: bool = False
    has_trees: bool = False
    has_pairs: bool = False  # of link prediction

    @staticmethod
    def of_one_type(num_layers: int, num_nodes: int, node_dtype: str | None) -> HeaderLayout:
        """Of a graph of one node type, with features and classes, and one edge type without."""
        one = RowSetLayout(0, is_edges=False, has_spread=False)
        return HeaderLayout(num_layers, (num_nodes,), ((0, 0),), (node_dtype,), (one,), (0,))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, in order."""
        return pa.schema([(name, pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))) for name, dtype in self._columns()])

    @cached_property
    def _schema_bytes(self) -> int:
        """Of a stream, before its first message."""
        return int(self.schema.serialize().size)

    def _columns(self) -> Iterator[tuple[str, str]]:
        yield "seeds", "int64"
        if self.label_dtype is not None:
            yield "y", self.label_dtype
        yield "node_counts", "int32"
        for k, row_set in enumerate(self.row_sets):
            yield f"addresses_{k}", "int32"
            yield f"admissions_{k}", "int32"
            if row_set.has_spread:
                yield f"spread_{k}", "int32"
        for t, dtype in enumerate(self.node_dtypes):
            if dtype is not None:
                yield f"input_nodes_{t}", dtype
        if self.has_trees:
            yield from ((f"trees_{t}", "int32") for t in range(len(self.num_nodes)))
        if self.has_pairs:
            yield from (("pair_src", "int32"), ("pair_dst", "int32"), ("pair_label", "float32"))
        for layer, e in itertools.product(range(self.num_layers), range(len(self.edge_types))):
            yield f"indptr_{layer}_{e}", "int32"
            yield f"indices_{layer}_{e}", "int32"
            if self.has_edge_ids:
                yield f"edge_ids_{layer}_{e}", "int64"

    def encode(self, header: Header) -> EncodedHeader:
        """The bytes of `header`."""
        batch = one_row(self.schema, list(arrays_of(header)))
        # What `batch.serialize()` returns, but in memory that is kept for the next header.
        schema_bytes = self._schema_bytes
        memory = pa.py_buffer(page_memory(schema_bytes + pa.ipc.get_record_batch_size(batch) + _END_OF_STREAM_BYTES))
        with pa.ipc.new_stream(pa.FixedSizeBufferWriter(memory), self.schema) as stream:
            stream.write_batch(batch)
        message = memory[schema_bytes:-_END_OF_STREAM_BYTES]
        batch = pa.ipc.read_record_batch(message, self.schema)

        def span(name: str, width: int) -> Span:
            values = batch.column(name).values
            offset = int(values.buffers()[1].address - message.address) if len(values) else 0
            return Span(offset, len(values) // width)

        sets = range(len(self.row_sets))
        addresses = tuple(span(f"addresses_{k}", 1) for k in sets)
        return EncodedHeader(message, addresses, tuple(span(f"admissions_{k}", 2) for k in sets))

    def decode(self, data: Any) -> Header:
        """The header in `data` (bytes-like), sharing its memory.

        Raises:
            pyarrow.ArrowException, EOFError, OSError, ValueError: not such a header.
        """
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), self.schema)
        batch.validate()  # Arrow believes what a message says about its buffers' lengths
        if batch.num_rows != 1:
            raise pa.ArrowInvalid(f"it has {batch.num_rows} rows, expected 1")
        columns = iter([column.values.to_numpy() for column in batch.columns])
        num_types = len(self.num_nodes)
        return Header(
            seeds=next(columns),
            y=None if self.label_dtype is None else next(columns),
            node_counts=next(columns).reshape(self.num_layers + 1, num_types),
            rows=tuple(
                RowPlaces(next(columns), next(columns).reshape(-1, 2), next(columns) if row_set.has_spread else None)
                for row_set in self.row_sets
            ),
            input_nodes=tuple(None if dtype is None else next(columns) for dtype in self.node_dtypes),
            trees=tuple(next(columns) for _ in range(num_types)) if self.has_trees else None,
            pairs=PairSample(next(columns), next(columns), next(columns)) if self.has_pairs else None,
            blocks=tuple(
                tuple(
                    SampledBlock(next(columns), next(columns), next(columns) if self.has_edge_ids else None)
                    for _ in self.edge_types
                )
                for _ in range(self.num_layers)
            ),
        )


def require_header_fits(minibatch: SampledMinibatch, batch_size: int) -> None:
    """Refuse what no header can hold, when it is sampled: hours before it would be packed.

    Args:
        minibatch: as sampled; a header has what it has, an address for each input and a label for each seed.
        batch_size: that it was asked for with.

    Raises:
        ConfigError: it needs more than MAX_HEADER_BYTES; names a batch size that does not.
    """
    most_bytes = faults.reading("header.most_bytes", MAX_HEADER_BYTES)
    addressed = sum(map(len, minibatch.input_nodes)) + minibatch.num_edges
    num_bytes = sum(column.nbytes for column in minibatch.columns()) + 8 * addressed + 8 * len(minibatch.seeds)
    if num_bytes > most_bytes:
        fits = max(1, batch_size * most_bytes // num_bytes // 2)
        raise ConfigError(
            f"batch_size: the blocks of a minibatch of {batch_size} take {format_size(num_bytes)} with the places of "
            f"their rows, expected at most {format_size(most_bytes)}; use {fits}, or smaller fanouts"
        )


def arrays_of(header: Header) -> Iterator[npt.NDArray[Any]]:
    """All arrays of a header, flat, in the order of its columns."""
    yield header.seeds
    if header.y is not None:
        yield header.y
    yield header.node_counts.reshape(-1)
    for places in header.rows:
        yield places.addresses
        yield places.admissions.reshape(-1)
        if places.spread is not None:
            yield places.spread
    yield from (nodes for nodes in header.input_nodes if nodes is not None)
    yield from header.trees or ()
    if header.pairs is not None:
        yield from (header.pairs.src, header.pairs.dst, header.pairs.label)
    for block in itertools.chain(*header.blocks):
        yield block.indptr
        yield block.indices
        if block.positions is not None:
            yield block.positions
