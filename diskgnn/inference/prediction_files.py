"""The file that predictions are written to: .npy, or a table, Parquet or CSV, with the nodes' ids beside them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import torch

from diskgnn._native import scatter_rows
from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.files.checked_files import ChecksummedFile, npy_file_bytes, npy_header_bytes
from diskgnn.files.disk_space import DiskBudget, file_bytes
from diskgnn.graph.type_data import NodeSet
from diskgnn.specs.schema import ClassValue

WHAT = ("logits", "probabilities", "classes", "embeddings")
SUFFIXES = (".npy", ".parquet", ".csv")
_IDS_AT_ONCE = 1 << 16
# Of a row group of a table. They are whole rows, at most so many, whatever windows the rows come in.
_GROUP_BYTES, _GROUP_ROWS = 8 << 20, 1 << 16
_ID_BYTES = 16  # of a node in Parquet, at most where ids are numbers
# Of CSV at most, with what stands between: -1.1754944e-38 and -9223372036854775808
_FLOAT_TEXT_BYTES, _INTEGER_TEXT_BYTES = 16, 21

# What a model says of nodes, or of pairs, by what it was trained for; that a model for links says of pairs is a score.
_OF_NODES = {
    "class": WHAT,
    "multilabel": WHAT,
    "regression": ("logits", "embeddings"),
    "link": ("logits", "embeddings"),
}
_OF_PAIRS = {
    "class": ("logits", "probabilities", "classes"),
    "multilabel": ("logits", "probabilities", "classes"),
    "regression": ("logits",),
    "link": ("logits", "probabilities"),
}

# Takes values [n, ...] and the ascending numbers [n] of what they are of: nodes, or rows of given seeds.
Write = Callable[[npt.NDArray[Any], npt.NDArray[np.int64]], None]


@dataclass(frozen=True)
class OutputFormat:
    """Says what is written of each node.

    Args:
        what: one of WHAT, which `check_what` has accepted.
        kind: what the model was trained for: one of `specs.schema.TARGET_KINDS`, or 'link'.
        columns: of a row of the model.
        values: what classes 0, 1, ... are called; None: by these numbers.
    """

    what: str
    kind: str
    columns: int
    values: tuple[ClassValue, ...] | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Returns the dtype of a value."""
        if self.what != "classes":
            return np.dtype(np.float32)
        if self.kind == "class" and self.values is not None:
            return np.array(self.values).dtype
        return np.dtype(np.int64 if self.kind == "class" else np.uint8)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Returns the shape of what is said of one node: one class, or `columns` numbers."""
        return () if self.what == "classes" and self.kind == "class" else (self.columns,)

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one node."""
        return self.dtype.itemsize * (self.row_shape[0] if self.row_shape else 1)

    @property
    def text_bytes(self) -> int:
        """Returns the bytes of one node in CSV, at most where values are numbers."""
        of_value = _FLOAT_TEXT_BYTES if self.dtype.kind == "f" else max(_INTEGER_TEXT_BYTES, self.dtype.itemsize)
        return of_value * (self.row_shape[0] if self.row_shape else 1)

    def of(self, rows: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Returns what is written of rows [n, columns] of the model."""
        if self.what in ("logits", "embeddings"):
            return rows
        logits = torch.from_numpy(rows)
        if self.what == "probabilities":
            return (logits.softmax(1) if self.kind == "class" else logits.sigmoid()).numpy()
        found = (logits.argmax(1) if self.kind == "class" else (logits > 0).to(torch.uint8)).numpy()
        return found if self.kind != "class" or self.values is None else np.array(self.values)[found]

    def column(self, values: npt.NDArray[Any]) -> tuple[str, pa.Array]:
        """Returns the name and content of the column of a table that has these."""
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        rows = pa.FixedSizeListArray.from_arrays(flat, self.columns) if self.row_shape else flat
        return "class" if self.what == "classes" else self.what, rows


class FiniteRows:
    """Counts rows of a model that are not finite, which classes do not show: the first one is as good as any then."""

    def __init__(self) -> None:
        self._num_rows = self._num_odd = 0

    def count(self, rows: npt.NDArray[np.float32]) -> None:
        """Counts rows [n, ...]."""
        flat = rows.reshape(len(rows), -1)  # its extremes are not finite where a number is not: no mask of all
        self._num_odd += int((~np.isfinite(flat.max(1)) | ~np.isfinite(flat.min(1))).sum())
        self._num_rows += len(rows)

    def warn(self) -> None:
        """Warns if there were such rows (a DataWarning)."""
        if self._num_odd:
            warnings.warn(
                f"{self._num_odd:,} of {self._num_rows:,} rows that the model computed have NaN or infinite numbers, "
                "so what is written of them means nothing: features of these nodes or near them have such numbers "
                "(`diskgnn inspect` of the graph counts them), or the weights of the model do",
                DataWarning,
                stacklevel=callers_level(),
            )


def check_what(what: str, kind: str, *, of_pairs: bool = False) -> None:
    """Refuses what a model for `kind` does not say of nodes, or of pairs.

    Raises:
        ConfigError: names what it does say.
    """
    if what not in WHAT:
        raise ConfigError(f"what: expected one of {', '.join(WHAT)}, found {what!r}")
    if what not in (said := (_OF_PAIRS if of_pairs else _OF_NODES)[kind]):
        subject = "pairs" if of_pairs else "nodes"
        raise ConfigError(f"what: a model for {kind} has no {what} of {subject}; ask for {' or '.join(said)}")


class IdColumn:
    """The user's ids of ascending nodes, read from front to back.

    Args:
        file: one column, row i is node i.
    """

    def __init__(self, file: pq.ParquetFile) -> None:
        self.type: pa.DataType = file.schema_arrow.field(0).type
        self._batches: Iterator[pa.RecordBatch] = file.iter_batches(batch_size=_IDS_AT_ONCE)
        self._first, self._ids = 0, pa.array([], self.type)  # the batch that was read last, and the node it starts with

    def of(self, nodes: npt.NDArray[np.int64]) -> pa.ChunkedArray:
        """Returns the ids of `nodes` [n]: none before those that were asked for last."""
        parts = []
        while len(nodes):
            here = int(np.searchsorted(nodes, self._first + len(self._ids)))
            parts.append(self._ids.take(pa.array(nodes[:here] - self._first)))
            nodes = nodes[here:]
            if len(nodes):
                self._first += len(self._ids)
                self._ids = next(self._batches).column(0)
        return pa.chunked_array(parts, self.type)


def ids_of(
    nodes: NodeSet | None, numbers: npt.NDArray[np.int64]
) -> tuple[str, pa.Array | pa.ChunkedArray]:  # fmt: skip
    """Returns what the user knows these nodes [n] by, in this order, after the name of such a column: their ids, or
    their numbers where nobody has kept any.
    """
    with (nodes and nodes.user_ids) or nullcontext() as file:
        if file is None:
            return "node", pa.array(numbers)
        distinct, places = np.unique(numbers, return_inverse=True)
        return "id", IdColumn(file).of(distinct).take(pa.array(places))


@dataclass(frozen=True)
class RowNames:
    """The columns of a table that say what its rows are of.

    Args:
        schema: of these columns.
        of: takes what `Write` gets beside values, and returns these columns of it.
    """

    schema: pa.Schema
    of: Callable[[npt.NDArray[np.int64]], list[pa.Array | pa.ChunkedArray]]

    @classmethod
    def of_nodes(cls, ids: IdColumn | None) -> RowNames:
        """Returns the ids of nodes: the user's, or their numbers where they have none."""
        if ids is None:
            return cls(pa.schema([("node", pa.int64())]), lambda nodes: [pa.array(nodes)])
        return cls(pa.schema([("id", ids.type)]), lambda nodes: [ids.of(nodes)])

    @classmethod
    def of_rows(cls, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> RowNames:
        """Returns these columns, of numbers of rows, which stand beside values then."""
        return cls(
            pa.schema([(name, column.type) for name, column in columns.items()]),
            lambda rows: [column.take(pa.array(rows)) for column in columns.values()],
        )


def output_bytes(content: OutputFormat, num_rows: int, suffix: str, nodes: NodeSet) -> int:
    """Returns the bytes of an output file: of .npy exactly; of Parquet about, as if nothing were compressed; of CSV
    about the most.
    """
    if suffix == ".npy":
        return npy_file_bytes(content.dtype, (num_rows, *content.row_shape))
    id_bytes: float = _INTEGER_TEXT_BYTES if suffix == ".csv" else _ID_BYTES
    with nodes.user_ids or nullcontext() as file:
        if file is not None:
            groups = (file.metadata.row_group(number) for number in range(file.metadata.num_row_groups))
            id_bytes += sum(group.column(0).total_uncompressed_size for group in groups) / max(1, nodes.num_nodes)
    return int(num_rows * ((content.text_bytes if suffix == ".csv" else content.row_bytes) + id_bytes))


def check_suffix(path: Path) -> None:
    """Raises ConfigError for a file that would be none of SUFFIXES."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"out: expected a file that ends in {', '.join(SUFFIXES)}, found {path.name}")


def open_output(
    path: Path,
    suffix: str,
    content: OutputFormat,
    num_rows: int,
    order: npt.NDArray[np.int64] | None,
    names: RowNames,
    disk: DiskBudget,
) -> AbstractContextManager[Write]:
    """Opens `path` to write `num_rows` rows to it, whose bytes are claimed before they are written.

    Args:
        path: the file.
        suffix: one of SUFFIXES.
        content: what is written.
        num_rows: of all.
        order: [num_rows] the row of .npy that the next value belongs to; None: from front to back.
        names: of the rows, for tables.
        disk: what may be taken.

    Raises:
        DiskFullError: it is more than that, when the file is opened or written to.
    """
    if suffix != ".npy":
        return _table(path, suffix, content, names, disk)
    return _npy(path, content, num_rows, disk) if order is None else _npy_in_order(path, content, order, disk)


@contextmanager
def _npy(path: Path, content: OutputFormat, num_rows: int, disk: DiskBudget) -> Iterator[Write]:
    with ChecksummedFile(path, disk=disk) as file:
        file.write(npy_header_bytes(content.dtype, (num_rows, *content.row_shape)))
        yield lambda values, _: _append(file, values)


def _append(file: ChecksummedFile, values: npt.NDArray[Any]) -> None:
    file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8))


@contextmanager
def _npy_in_order(
    path: Path, content: OutputFormat, order: npt.NDArray[np.int64], disk: DiskBudget
) -> Iterator[Write]:  # fmt: skip
    header, row_bytes, written = npy_header_bytes(content.dtype, (len(order), *content.row_shape)), content.row_bytes, 0
    disk.claim(file_bytes(len(header) + len(order) * row_bytes))
    with path.open("wb", buffering=0) as file:
        file.write(header)

        def write(values: npt.NDArray[Any], _: npt.NDArray[np.int64]) -> None:
            nonlocal written
            places = order[written : written + len(values)]
            ascending = np.argsort(places)
            rows = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            scatter_rows(
                file.fileno(), len(header), len(order), places[ascending], ascending * row_bytes, rows, row_bytes, 1
            )
            written += len(values)

        yield write


@contextmanager
def _table(
    path: Path, suffix: str, content: OutputFormat, names: RowNames, disk: DiskBudget
) -> Iterator[Write]:  # fmt: skip
    name, nothing = content.column(np.empty((0, *content.row_shape), content.dtype))
    schema = names.schema.append(pa.field(name, nothing.type))
    with ChecksummedFile(path, disk=disk) as sink, TableWriter(sink, suffix, schema) as file:
        group_rows = max(1, min(_GROUP_ROWS, _GROUP_BYTES // content.row_bytes))
        values = np.empty((group_rows, *content.row_shape), content.dtype)
        named, waiting = np.empty(group_rows, np.int64), 0

        def write(found: npt.NDArray[Any], of: npt.NDArray[np.int64]) -> None:
            nonlocal waiting
            while len(found):
                taken = min(len(found), group_rows - waiting)
                values[waiting : waiting + taken] = found[:taken]
                named[waiting : waiting + taken] = of[:taken]
                found, of, waiting = found[taken:], of[taken:], waiting + taken
                if waiting == group_rows:
                    write_group()

        def write_group() -> None:
            nonlocal waiting
            _, rows = content.column(values[:waiting])
            file.write(pa.table([*names.of(named[:waiting]), rows], schema=schema))
            waiting = 0

        yield write
        if waiting:
            write_group()


class TableWriter:
    """Writes a table to an open file, part by part: as Parquet, or as CSV, which has a column for each number of a
    list. A context manager.

    Args:
        sink: the file.
        suffix: '.parquet' or '.csv'.
        schema: of each part.
    """

    def __init__(self, sink: ChecksummedFile, suffix: str, schema: pa.Schema) -> None:
        self._is_text = suffix == ".csv"
        self._writer = (
            pacsv.CSVWriter(sink, _flattened(schema.empty_table()).schema)
            if self._is_text
            else pq.ParquetWriter(sink, schema, compression="zstd")
        )

    def __enter__(self) -> TableWriter:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._writer.__exit__(*error)

    def write(self, part: pa.Table) -> None:
        """Appends some rows."""
        self._writer.write_table(_flattened(part) if self._is_text else part)


def _flattened(table: pa.Table) -> pa.Table:
    """Returns lists of k numbers as columns NAME_0 to NAME_(k-1)."""
    columns = dict[str, pa.Array]()
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_fixed_size_list(column.type):
            numbers = column.combine_chunks().flatten()
            width = column.type.list_size
            columns |= {f"{name}_{k}": numbers[k::width] for k in range(width)}
        else:
            columns[name] = column
    return pa.table(columns)
