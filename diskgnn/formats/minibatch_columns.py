"""The columns of a minibatch, in samples and in the headers of extents.

`MinibatchLayout._declared` says each of them once. Writing, reading, checking and counting a minibatch follow from it.
A new column takes a line there, the field of `SampledMinibatch` that holds it, a line of docs/FORMAT.md, and its bytes
in what is forecast before minibatches are there: `packing/space.py`, `packing/packing_need.py`, `extent_headers.py`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.formats.sampled_minibatch import PairSample, RowPlaces, SampledBlock, SampledMinibatch

LABEL_DTYPES = {"class": "int64", "multilabel": "uint8", "regression": "float32"}  # by kind of target
ADDRESS_BYTES, ADMISSION_BYTES = 4, 8  # of a row in a header: where it is; whether it stays, if it is read
_COLUMN_BYTES = 116  # of Arrow's around the values of one column, about
_NO_NODES = np.empty(0, np.int32)

Number = int | Callable[[SampledMinibatch], int]  # the same for all minibatches, or found in one
_Path = tuple[str | int, ...]  # attributes, and positions in tuples


@dataclass(frozen=True)
class RowSetLayout:
    """Says of which nodes or edges a row set is, and how a header tells."""

    number: int  # of the node type or edge type
    is_edges: bool
    has_spread: bool  # of edges always; of nodes where one may be there several times


@dataclass(frozen=True)
class Column:
    """A list of numbers that a minibatch has."""

    name: str
    dtype: str
    count: Number | None = None  # how many there are; None: as many as placing finds
    end: Number | None = None  # they are in [0, end); None: they may be anything, or native code checks them
    shape: tuple[int, ...] | None = None  # in memory; None: flat


@dataclass(frozen=True)
class MinibatchLayout:
    """Which columns the minibatches of a sequence have, and within what bounds. Types are named by their numbers."""

    num_layers: int
    num_nodes: tuple[int, ...]  # [T] of the graph
    edge_types: tuple[tuple[int, int], ...]  # (source type, destination type)
    target: tuple[int, ...]  # the node type of the seeds; of link prediction those of the pairs' two ends
    node_dtypes: tuple[str | None, ...]  # [T] of the ids of a type that are kept: int32, int64, or None
    position_dtypes: tuple[str | None, ...]  # [edge types] of the positions of a type that are kept
    row_sets: tuple[RowSetLayout, ...] = ()  # [K]
    label_dtype: str | None = None  # one of LABEL_DTYPES, where seeds have a y
    num_outputs: int = 1  # C, values of y per seed
    has_edge_ids: bool = False
    has_trees: bool = False
    has_pairs: bool = False  # of link prediction
    has_places: bool = False
    has_seed_times: bool = False
    timed: tuple[int, ...] = ()  # the node types whose input nodes have their times

    @staticmethod
    def of_one_type(num_layers: int, num_nodes: int, node_dtype: str | None) -> MinibatchLayout:
        """Lays out headers of a graph of one node type, with features and classes, and one edge type without."""
        one = RowSetLayout(0, is_edges=False, has_spread=False)
        return MinibatchLayout(
            num_layers, (num_nodes,), ((0, 0),), (0,), (node_dtype,), (None,), (one,), label_dtype="int64"
        )

    def _declared(self, column: Callable[..., Any]) -> SampledMinibatch:
        """Returns a minibatch of whatever `column` returns, which takes what a `Column` has; without a dtype there is
        none.

        Columns are written in this order.
        """
        num_layers, node_types, edge_types = self.num_layers, range(len(self.num_nodes)), range(len(self.edge_types))
        counts_shape = num_layers + 1, len(node_types)

        def num_seeds(minibatch: SampledMinibatch) -> int:
            return len(minibatch.seeds)

        def num_labels(minibatch: SampledMinibatch) -> int:
            return len(minibatch.seeds) * self.num_outputs

        def num_nodes(t: int) -> Number:
            return lambda minibatch: int(minibatch.node_counts[0, t])

        return SampledMinibatch(
            seeds=column("seeds", "int64", num_seeds),
            y=column("y", self.label_dtype, num_labels),
            node_counts=column("node_counts", "int32", math.prod(counts_shape), shape=counts_shape),
            rows=tuple([self._rows(column, k) for k in range(len(self.row_sets))]),
            input_nodes=tuple([
                column(f"input_nodes_{t}", dtype, num_nodes(t), self.num_nodes[t]) if dtype else _NO_NODES
                for t, dtype in enumerate(self.node_dtypes)
            ]),
            trees=tuple([column(f"trees_{t}", "int32", num_nodes(t), num_seeds) for t in node_types])
            if self.has_trees else None,
            times=tuple([column(f"times_{t}", "int64" if t in self.timed else None, num_nodes(t)) for t in node_types])
            if self.timed else None,
            seed_times=column("seed_times", "int64" if self.has_seed_times else None, num_seeds),
            pairs=self._pairs(column) if self.has_pairs else None,
            places=column("places", "int64" if self.has_places else None, num_seeds, 1 << 63),
            blocks=tuple([tuple([self._block(column, layer, e) for e in edge_types]) for layer in range(num_layers)]),
        )  # fmt: skip

    def _rows(self, column: Callable[..., Any], k: int) -> RowPlaces:
        def num_places(minibatch: SampledMinibatch) -> int:
            return self.num_row_places(minibatch, k)

        def num_rows(minibatch: SampledMinibatch) -> int:
            return len(minibatch.rows[k].addresses)

        return RowPlaces(
            addresses=column(f"addresses_{k}", "int32"),
            admissions=column(f"admissions_{k}", "int32", shape=(-1, 2)),
            spread=column(f"spread_{k}", "int32" if self.row_sets[k].has_spread else None, num_places, num_rows),
        )

    def _pairs(self, column: Callable[..., Any]) -> PairSample:
        def num_pairs(minibatch: SampledMinibatch) -> int:
            return len(minibatch.pairs.label) if minibatch.pairs else 0

        def num_seeds(t: int) -> Number:
            return lambda minibatch: int(minibatch.node_counts[-1, t])

        return PairSample(
            src=column("pair_src", "int32", num_pairs, num_seeds(self.target[0])),
            dst=column("pair_dst", "int32", num_pairs, num_seeds(self.target[-1])),
            label=column("pair_label", "float32", num_pairs),
        )

    def _block(self, column: Callable[..., Any], layer: int, e: int) -> SampledBlock:
        destination = self.edge_types[e][1]

        def num_bounds(minibatch: SampledMinibatch) -> int:
            return int(minibatch.node_counts[layer + 1, destination]) + 1

        def num_edges(minibatch: SampledMinibatch) -> int:
            return int(minibatch.blocks[layer][e].indptr[-1])

        return SampledBlock(
            indptr=column(f"indptr_{layer}_{e}", "int32", num_bounds),
            indices=column(f"indices_{layer}_{e}", "int32", num_edges),
            positions=column(f"positions_{layer}_{e}", self.position_dtypes[e], num_edges),
            edge_ids=column(f"edge_ids_{layer}_{e}", "int64" if self.has_edge_ids else None, num_edges),
        )

    @cached_property
    def columns(self) -> list[Column]:
        """Returns all of them, in order."""
        return [column for column, _ in self._places]

    @cached_property
    def _of_columns(self) -> SampledMinibatch:
        """Returns a minibatch that has columns in place of arrays."""

        def column(name: str, dtype: str | None, *args: Any, **kwargs: Any) -> Column | None:
            return None if dtype is None else Column(name, dtype, *args, **kwargs)

        return self._declared(column)

    @cached_property
    def _places(self) -> list[tuple[Column, _Path]]:
        """Returns each column, and how a minibatch leads to it."""
        return list(_columns_in(self._of_columns, ()))

    @cached_property
    def schema(self) -> pa.Schema:
        """Returns the schema of a record batch whose one row is a minibatch."""
        return pa.schema([(each.name, pa.list_(pa.from_numpy_dtype(np.dtype(each.dtype)))) for each in self.columns])

    @cached_property
    def dtypes(self) -> list[np.dtype[Any]]:
        """Returns the dtype of each column."""
        return [np.dtype(each.dtype) for each in self.columns]

    @cached_property
    def item_bytes(self) -> npt.NDArray[np.int64]:
        """Returns the bytes of a value of each column."""
        return np.array([each.itemsize for each in self.dtypes], np.int64)

    @cached_property
    def schema_bytes(self) -> int:
        """Returns the bytes of a stream of such batches, before its first one."""
        return int(self.schema.serialize().size)

    def encode(self, minibatch: SampledMinibatch) -> pa.RecordBatch:
        """Returns a record batch of one row of lists, which shares the arrays' memory."""
        arrays = [_array_at(minibatch, path) for _, path in self._places]
        lists = [
            pa.ListArray.from_arrays(_as_arrow(np.array([0, len(values)], np.int32)), _as_arrow(values, dtype))
            for dtype, values in zip(self.dtypes, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(lists, schema=self.schema)

    def arrays(self, batch: pa.RecordBatch) -> list[npt.NDArray[Any]]:
        """Returns the values of each column of such a record batch, flat, sharing its memory.

        Raises:
            pyarrow.ArrowException: its lists lead outside of it, or it has several rows.
        """
        batch.validate()  # Arrow believes what a message says about its buffers' lengths
        if batch.num_rows != 1:
            raise pa.ArrowInvalid(f"it has {batch.num_rows} rows, expected 1")
        return [_as_numpy(column.values, dtype) for dtype, column in zip(self.dtypes, batch.columns, strict=True)]

    def minibatch(self, arrays: Sequence[npt.NDArray[Any]]) -> SampledMinibatch:
        """Returns the minibatch whose columns are `arrays`, which may still not fit each other.

        Raises:
            ValueError: one has a number of values that is not a multiple of what it should be.
        """
        return self._making(arrays)

    @cached_property
    def numbers(self) -> Any:
        """Returns a minibatch that has numbers of columns in place of arrays."""
        left = itertools.count()
        return self._declared(lambda _name, dtype, *_, **__: None if dtype is None else next(left))

    @cached_property
    def _making(self) -> Callable[[Sequence[Any]], SampledMinibatch]:
        return _making(self._of_columns, itertools.count())

    def value_bytes(self, minibatch: SampledMinibatch) -> int:
        """Returns the bytes of the values of all columns, without addresses and admissions."""
        return sum(
            np.dtype(column.dtype).itemsize * value_of(column.count, minibatch)
            for column in self.columns
            if column.count is not None
        )

    def num_bytes(self, minibatch: SampledMinibatch) -> int:
        """Returns about how many bytes the columns take, with what Arrow puts around them."""
        return self.value_bytes(minibatch) + _COLUMN_BYTES * len(self.columns)

    def num_row_places(self, minibatch: SampledMinibatch, k: int) -> int:
        """Returns the input nodes or edges of a row set's type, each of which takes a row."""
        row_set = self.row_sets[k]
        if row_set.is_edges:
            return sum(len(blocks[row_set.number].indices) for blocks in minibatch.blocks)
        return int(minibatch.node_counts[0, row_set.number])


def value_of(number: Number, minibatch: SampledMinibatch) -> int:
    """Returns what `number` is for a minibatch."""
    return number(minibatch) if callable(number) else number


def _columns_in(found: Any, path: _Path) -> Iterator[tuple[Column, _Path]]:
    if isinstance(found, Column):
        yield found, path
    elif isinstance(found, tuple):
        for number, each in enumerate(found):
            yield from _columns_in(each, (*path, number))
    elif is_dataclass(found):
        for field in fields(found):
            yield from _columns_in(getattr(found, field.name), (*path, field.name))


def _making(found: Any, left: Iterator[int]) -> Callable[[Sequence[Any]], Any]:
    """Returns what makes of a list of arrays what `found` is, with those whose numbers are left in place of columns."""
    if isinstance(found, Column):
        number, shape = next(left), found.shape
        return itemgetter(number) if shape is None else lambda arrays: arrays[number].reshape(shape)
    if isinstance(found, tuple):
        makers = [_making(each, left) for each in found]
        return lambda arrays: tuple([make(arrays) for make in makers])
    if is_dataclass(found):
        parts = [(name, _making(each, left)) for name, each in vars(found).items()]
        kind: Any = type(found)
        return lambda arrays: kind(**{name: make(arrays) for name, make in parts})
    return lambda _: found


def _array_at(found: Any, path: _Path) -> npt.NDArray[Any]:
    for step in path:
        found = found[step] if isinstance(step, int) else getattr(found, step)
    array: npt.NDArray[Any] = found
    return array.reshape(-1)


# Not `pa.array` and `to_numpy`: where pandas is installed, the first of them imports it, 0.3 s and 17 MB of a process.
def _as_arrow(values: npt.NDArray[Any], dtype: np.dtype[Any] | None = None) -> pa.Array:
    """Returns numbers [n] as an Arrow array of `dtype`, or of their own, that shares their memory if it can.

    Raises:
        pyarrow.ArrowInvalid: one is none of `dtype`.
    """
    values = np.ascontiguousarray(values)
    array = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])
    return array if dtype is None else array.cast(pa.from_numpy_dtype(dtype))


def _as_numpy(values: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns the numbers of an Arrow array, sharing its memory.

    Raises:
        pyarrow.ArrowInvalid: some are null.
    """
    if values.null_count:
        raise pa.ArrowInvalid(f"{values.null_count} of its values are null")
    _, memory = values.buffers()
    if not len(values):
        return np.empty(0, dtype)
    return np.frombuffer(memory, dtype, len(values), values.offset * dtype.itemsize)
