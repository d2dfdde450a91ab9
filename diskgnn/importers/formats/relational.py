"""Relational tables with keys as a typed temporal graph: RelBench's view of a database.

Each table is a node type, with a node for each row. Each foreign key is an edge type, from the row that has it to the
row that it names, and the other way: (orders, f2p_user_id, users) and (users, rev_f2p_user_id, orders), as RelBench
calls them. A row's time is when its node appears. The other columns become features (`column_encoding`).

A task is a table, too: what is to be predicted of an entity at a time. Its rows are nodes with labels and splits, which
only the entity's row leads to. So a minibatch sees what the entity's neighbourhood was before that time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.importers.containers.rows import CHUNK_BYTES, CHUNK_EDGES, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput, load_yaml, mapping_of
from diskgnn.importers.ids.id_streams import IdColumns, checked_keys, skipping
from diskgnn.importers.ids.id_types import id_kind
from diskgnn.importers.tables.column_encoding import TableEncoding, label_numbers, seconds
from diskgnn.importers.tables.frames import FrameTable, JoinedTables, RowTable
from diskgnn.importers.tables.table import Table, TableColumns
from diskgnn.schema import SPLITS, EdgeType

DESCRIPTION = "relational.yaml"  # in a folder that is given in its place
_STATISTICS_ROWS = 1 << 16  # at a time: what is found must not depend on memory


@dataclass(frozen=True)
class KeyedTable:
    """A table of a database."""

    rows: RowTable
    pkey: str | None = None  # the column that names a row
    fkeys: Mapping[str, str] = field(default_factory=dict)  # column -> the table whose rows it names
    time: str | None = None  # the column that says when a row appears
    columns: Mapping[str, str] = field(default_factory=dict)  # column -> its encoding, where it is not the natural one


@dataclass(frozen=True)
class TaskTables:
    """What is to be predicted: a row for each entity and time, in tables by split."""

    splits: Mapping[str, RowTable]  # "train", "valid", "test"
    entity: tuple[str, str]  # the column that names the entity, and the table of entities
    label: str
    time: str | None = None
    kind: str = "class"  # what the labels are: "class" or "regression"


@dataclass(frozen=True)
class RelationalSource:
    """A database and what is to be predicted of it."""

    tables: Mapping[str, KeyedTable]
    tasks: Mapping[str, TaskTables] = field(default_factory=dict)

    @staticmethod
    def of(database: Any, tasks: Mapping[str, Mapping[str, Any]] | None = None) -> RelationalSource:
        """A RelBench `Database`, or anything with a `table_dict` of the same attributes.

        Args:
            database: has tables in memory (pandas) by name, each with `df`, `pkey_col`, `fkey_col_to_pkey_table` and
                `time_col`.
            tasks: by name: "train", "valid" and "test" (RelBench tables), "label" (their target column), and "kind"
                if the labels are no classes.

        Raises:
            ConfigError: a task that is none.

        Example:
            >>> source = RelationalSource.of(dataset.get_db(), {"churn": {
            ...     "train": task.get_table("train"), "valid": task.get_table("val"), "label": task.target_col}})
            >>> diskgnn.convert("graph", source=source, options={"val_timestamp": "2015-10-01"})
        """
        tables = {
            name: KeyedTable(
                FrameTable(name, table.df), table.pkey_col, dict(table.fkey_col_to_pkey_table), table.time_col
            )
            for name, table in database.table_dict.items()
        }
        return RelationalSource(
            tables, {name: _task_of(f"task {name}", given) for name, given in (tasks or {}).items()}
        )


def _task_of(where: str, given: Mapping[str, Any]) -> TaskTables:
    found = mapping_of(where, given, (*SPLITS, "label", "kind"))
    splits = {split: found[split] for split in SPLITS if split in found}
    if not splits or "label" not in found:
        raise ConfigError(f"{where}: expected tables by split ({', '.join(SPLITS)}) and a label")
    first = next(iter(splits.values()))
    entity = _only_entity(where, dict(first.fkey_col_to_pkey_table))
    frames = {split: FrameTable(f"{split} of {where}", table.df) for split, table in splits.items()}
    return TaskTables(frames, entity, found["label"], first.time_col, found.get("kind", "class"))


def _only_entity(where: str, fkeys: Mapping[str, str]) -> tuple[str, str]:
    if len(fkeys) != 1:
        raise ConfigError(f"{where}: expected one key of an entity, found {', '.join(fkeys) or 'none'}")
    return next(iter(fkeys.items()))


def recognises(source: object) -> bool:
    """A folder with relational.yaml, that file, a `RelationalSource`, or an object with tables by name."""
    if isinstance(source, Path):
        return (source / DESCRIPTION).is_file() or source.name == DESCRIPTION
    return isinstance(source, RelationalSource) or isinstance(
        getattr(source, "__dict__", {}).get("table_dict"),
        Mapping,  # PyG's HeteroData raises KeyError for any name
    )


def read(
    source: Any, *, val_timestamp: str | int | None = None, reverse: bool = True, skip_unknown: bool = True
) -> GraphInput:
    """The graph of a database.

    Args:
        source: see `recognises`.
        val_timestamp: features are scaled by rows up to this time, a date, timestamp or seconds since 1970; None: all.
        reverse: edges lead both ways.
        skip_unknown: keys that no row has make no edge, as in RelBench, and a warning; False: they are an error.

    Raises:
        ConfigError: a description that is none, or keys of tables that there are not.
        InputError: tables that cannot be read, or columns that are not what they are said to be.
    """
    if isinstance(source, Path):
        source, said = _described(source)
        val_timestamp = said if val_timestamp is None else val_timestamp
    elif not isinstance(source, RelationalSource):
        source = RelationalSource.of(source)
    until = None if val_timestamp is None else _timestamp(val_timestamp)
    nodes = {name: _nodes(name, table, until) for name, table in source.tables.items()}
    edges: dict[EdgeType, EdgeInput] = {}
    for name, table in source.tables.items():
        for column, other in table.fkeys.items():
            _require_key(f"table {name}: fkeys: {column}", source, other)
            edges[name, f"f2p_{column}", other] = EdgeInput(
                _key_edges(name, table.rows, column, skip_unknown), reverse=reverse
            )
    for name, task in source.tasks.items():
        if name in nodes:
            raise ConfigError(f"task {name}: there is a table of this name; call the task something else")
        column, entity = task.entity
        _require_key(f"task {name}: entity {column}", source, entity)
        rows = JoinedTables(f"task {name}", list(task.splits.values()))
        nodes[name] = _task_nodes(name, task, rows)
        edges[entity, f"rev_f2p_{column}", name] = EdgeInput(_key_edges(name, rows, column, False, turned=True))
    if not edges:
        raise ConfigError(f"expected tables with foreign keys, found none in {', '.join(source.tables)}")
    return GraphInput(nodes, edges)


def _require_key(where: str, source: RelationalSource, table: str) -> None:
    if table not in source.tables:
        raise ConfigError(f"{where}: expected a table of {', '.join(source.tables)}, found {table!r}")
    if source.tables[table].pkey is None:
        raise ConfigError(f"{where}: expected a pkey of table {table}, whose rows it names; found none")


def _nodes(name: str, table: KeyedTable, until: int | None) -> NodeInput:
    rows = table.rows
    for column in (table.pkey, table.time, *table.fkeys):
        if column is not None:
            rows.field(column)
    used = {table.pkey, table.time, *table.fkeys}
    kinds = {column.name: column.type for column in rows.schema if column.name not in used}
    encoding = TableEncoding(f"table {name}", kinds, table.columns)
    _find_statistics(encoding, table, until)
    if encoding.left_out:
        warnings.warn(
            f"table {name}: left out {', '.join(encoding.left_out)}: no numbers, times, truth values, vectors or "
            f"categories of few values; encode them as vectors beforehand, or as none to do without this",
            DataWarning,
            stacklevel=4,
        )
    return NodeInput(
        num_nodes=rows.num_rows,
        ids=None if table.pkey is None else _primary_key(name, rows, table.pkey),
        features=_features(f"features of table {name}", rows, encoding),
        times=None if table.time is None else _times(f"times of table {name}", rows, table.time),
    )


def _find_statistics(encoding: TableEncoding, table: KeyedTable, until: int | None) -> None:
    columns, time = encoding.columns, None if until is None else table.time
    if columns:
        for batch in table.rows.batches(columns if time is None else [*columns, time], _STATISTICS_ROWS):
            if time is not None:
                times = seconds(batch.column(len(columns)), f"{table.rows.name}: column {time!r}")
                batch = batch.filter(pc.less_equal(times, until).fill_null(False))
            encoding.add(batch.columns[: len(columns)])
    encoding.complete()


def _features(name: str, rows: RowTable, encoding: TableEncoding) -> RowSource:
    batch_rows = max(1, CHUNK_BYTES // (4 * encoding.width))
    columns = encoding.columns

    def chunks() -> Iterator[npt.NDArray[np.float32]]:
        for batch in rows.batches(columns or rows.schema.names[:1], batch_rows):
            yield encoding.encode(batch.columns if columns else [], batch.num_rows)

    return RowSource(
        name, rows.num_rows, (encoding.width,), np.dtype(np.float32), chunks, stored_bytes=rows.stored_bytes
    )


def _times(name: str, rows: RowTable, column: str) -> RowSource:
    def chunks() -> Iterator[npt.NDArray[np.int64]]:
        position = 0
        for batch in rows.batches([column], CHUNK_EDGES):
            times = seconds(batch.column(0), f"{name}: column {column!r}")
            if times.null_count:
                row = position + int(np.asarray(times.is_null()).argmax())
                raise InputError(f"{name}: expected a time in column {column!r}, found null in row {row} (from 0)")
            yield np.asarray(times)
            position += len(times)

    return RowSource(name, rows.num_rows, (), np.dtype(np.int64), chunks, stored_bytes=rows.stored_bytes)


def _primary_key(name: str, rows: RowTable, column: str) -> IdColumns:
    where, quoted = f"table {name}", (f"column {column!r}",)
    kind = _key_kind(where, rows, column)

    def read_keys(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        found = ((_keys(batch.column(0), kind, where, column),) for batch in rows.batches([column], chunk_rows))
        return skipping(found, first)

    chunks = partial(checked_keys, where, "row", quoted, read_keys)
    return IdColumns(where, "row", quoted, (kind,), rows.num_rows, True, chunks)


def _key_edges(name: str, rows: RowTable, column: str, skip_unknown: bool, *, turned: bool = False) -> IdColumns:
    """(row, row that its key names), for each row that has the key; `turned`: the other way."""
    where, kind = f"table {name}", _key_kind(f"table {name}", rows, column)
    ends = {"row number": pa.int64(), f"column {column!r}": kind}
    quoted, kinds = tuple(ends), tuple(ends.values())
    if turned:
        quoted, kinds = quoted[::-1], kinds[::-1]
    num_rows = sum(len(batch.column(0)) - _null_count(batch.column(0)) for batch in rows.batches([column], CHUNK_EDGES))

    def all_keys(chunk_rows: int) -> Iterator[tuple[pa.Array, ...]]:
        position = 0
        for batch in rows.batches([column], chunk_rows):
            keys = _keys(batch.column(0), kind, where, column)
            numbers = pa.array(np.arange(position, position + len(keys)))
            position += len(keys)
            if keys.null_count:
                numbers, keys = numbers.filter(keys.is_valid()), keys.drop_null()
            yield (keys, numbers) if turned else (numbers, keys)

    def read_keys(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        return skipping(all_keys(chunk_rows), first)

    chunks = partial(checked_keys, where, "edge", quoted, read_keys)
    return IdColumns(where, "edge", quoted, kinds, num_rows, True, chunks, int(turned), skip_unknown)


def _null_count(keys: pa.Array) -> int:
    return int(pc.sum(keys.is_null(nan_is_null=True)).as_py() or 0)


def _key_kind(where: str, rows: RowTable, column: str) -> pa.DataType:
    kind = rows.field(column).type
    if pa.types.is_floating(kind):  # whole numbers, if pandas holds a column with gaps
        return pa.int64()
    if id_kind(kind) is None:
        raise InputError(f"{where}: expected keys (whole numbers, strings, binary) in column {column!r}, found {kind}")
    return kind


def _keys(keys: pa.Array, kind: pa.DataType, where: str, column: str) -> pa.Array:
    if not pa.types.is_floating(keys.type):
        return keys
    keys = pc.if_else(pc.is_nan(keys), pa.scalar(None, keys.type), keys)
    try:
        return keys.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: expected keys in column {column!r}, found fractional numbers ({error})") from error


def _task_nodes(name: str, task: TaskTables, rows: JoinedTables) -> NodeInput:
    splits, start = dict[str, Any](), 0
    for split, table in task.splits.items():
        labelled = _labelled(table, task.label) + start
        splits |= {split: labelled} if len(labelled) else {}
        start += table.num_rows
    ones = TableEncoding(f"task {name}", {}, {})
    labels = _labels(f"labels of task {name}", task, rows)
    times = None if task.time is None else _times(f"times of task {name}", rows, task.time)
    features = _features(f"features of task {name}", rows, ones)
    return NodeInput(num_nodes=rows.num_rows, features=features, labels=labels, times=times, task=task.kind, **splits)


def _labelled(table: RowTable, label: str) -> npt.NDArray[np.int64]:
    """Rows whose label is not null."""
    table.field(label)
    found = [np.asarray(batch.column(0).is_valid()) for batch in table.batches([label], CHUNK_EDGES)]
    return np.flatnonzero(np.concatenate([np.empty(0, bool), *found]))


def _labels(name: str, task: TaskTables, rows: JoinedTables) -> RowSource:
    dtype = np.dtype(np.int64 if task.kind == "class" else np.float32)
    none = -1 if task.kind == "class" else np.nan
    rows.field(task.label)

    def chunks() -> Iterator[npt.NDArray[Any]]:
        for batch in rows.batches([task.label], CHUNK_EDGES):
            yield np.asarray(label_numbers(batch.column(0), task.kind, name).fill_null(none)).astype(dtype)

    return RowSource(name, rows.num_rows, (), dtype, chunks, stored_bytes=rows.stored_bytes)


def _timestamp(given: str | int | date) -> int:
    if isinstance(given, int) or (isinstance(given, str) and given.lstrip("-").isdecimal()):
        return int(given)
    text = given.isoformat() if isinstance(given, date) else given
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(
            f"val_timestamp: expected a date such as 2020-01-31, a timestamp or seconds since 1970, found {given!r}"
        ) from error
    return int(np.datetime64(found.replace(tzinfo=None), "s").astype(np.int64))


def _described(path: Path) -> tuple[RelationalSource, Any]:
    """What a YAML file says, and the time up to which statistics are taken."""
    path = path / DESCRIPTION if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"source: expected a description of the tables, found no file {path}")
    content = mapping_of(str(path), load_yaml(path), ("tables", "tasks", "val_timestamp"))
    tables = {}
    for name, given in mapping_of(f"{path}: tables", content.get("tables")).items():
        where = f"{path}: table {name}"
        found = mapping_of(where, given, ("file", "pkey", "fkeys", "time", "columns", "csv"))
        rows = _file(where, f"table {name}", path.parent, found.get("file"), found.get("csv"))
        fkeys, columns = (mapping_of(f"{where}: {key}", found.get(key)) for key in ("fkeys", "columns"))
        tables[str(name)] = KeyedTable(rows, found.get("pkey"), fkeys, found.get("time"), columns)
    tasks = {}
    for name, given in mapping_of(f"{path}: tasks", content.get("tasks")).items():
        where = f"{path}: task {name}"
        found = mapping_of(where, given, (*SPLITS, "entity", "label", "time", "kind", "csv"))
        splits = {
            split: _file(where, f"{split} of task {name}", path.parent, found[split], found.get("csv"))
            for split in SPLITS if split in found
        }  # fmt: skip
        entity = _only_entity(where, mapping_of(f"{where}: entity", found.get("entity")))
        if "train" not in splits or "label" not in found:
            raise ConfigError(f"{where}: expected train and label, found {', '.join(found) or 'nothing'}")
        tasks[str(name)] = TaskTables(splits, entity, found["label"], found.get("time"), found.get("kind", "class"))
    return RelationalSource(tables, tasks), content.get("val_timestamp")


def _file(where: str, name: str, folder: Path, file: Any, csv: Any) -> Table:
    if not isinstance(file, str):
        raise ConfigError(f"{where}: expected a file, found {file!r}")
    known = tuple(member.name for member in fields(TableColumns) if member.name in ("names", "delimiter", "types"))
    return Table(f"{name} ({folder / file})", folder / file, TableColumns(**mapping_of(f"{where}: csv", csv, known)))


__all__: Sequence[str] = ("KeyedTable", "RelationalSource", "TaskTables", "read", "recognises")
