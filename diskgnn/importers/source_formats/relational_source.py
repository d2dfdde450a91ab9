"""A database whose tables have keys, and what is to be predicted of it: as RelBench has it, or as a YAML file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.graph_input import load_yaml, mapping_of
from diskgnn.importers.tables.frames import FrameTable, RowTable
from diskgnn.importers.tables.table import Table, TableColumns
from diskgnn.specs.schema import SPLITS

_MAYBE_YAML = ("text", "csv", "json", "empty")  # by their first bytes
DESCRIPTION = "relational.yaml"  # in a folder that is given in its place


@dataclass(frozen=True)
class KeyedTable:
    """A table of a database."""

    rows: RowTable
    pkey: str | None = None  # the column that names a row
    fkeys: Mapping[str, str] = field(default_factory=dict)  # column -> the table whose rows it names
    time: str | None = None  # the column that says when a row appears
    columns: Mapping[str, str] = field(default_factory=dict)  # column -> its encoding, where it is not the natural one
    may_lack_key: bool = False  # null in `pkey` is no error: nobody names such a row
    keeps_time: bool = False  # the time is a feature, too
    # Of `fkeys`, the columns whose values are not the ids of rows -> the column that has these, in no schema.
    ids_of: Mapping[str, str] = field(default_factory=dict)
    is_encoded_as_asked: bool = False  # the user says some of `columns`, beside the description


@dataclass(frozen=True)
class TaskTables:
    """Says what is to be predicted: a row for each entity and time, in tables by split."""

    splits: Mapping[str, RowTable]  # "train", "valid", "test"
    entity: tuple[str, str]  # the column that names the entity, and the table of entities
    label: str
    time: str | None = None
    kind: str = "class"  # what the labels are: "class" or "regression"
    hides: tuple[tuple[str, str], ...] = ()  # (table, column) that the labels are made of: no features
    by_row: bool = False  # entities are named by the numbers of their rows; otherwise by their primary keys


@dataclass(frozen=True)
class RelationalSource:
    """A database and what is to be predicted of it."""

    tables: Mapping[str, KeyedTable]
    tasks: Mapping[str, TaskTables] = field(default_factory=dict)
    val_timestamp: Any = None  # features are scaled by rows up to this time; None: by all
    until: Any = None  # rows of tables with times after this one are left out
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict)  # (of, name) of what is not here -> why
    names: Mapping[str, str] = field(default_factory=dict)  # table -> what its database calls it, where that differs
    # table -> column -> kind, see `given_kinds`; None: the natural ones.
    kinds: Mapping[str, Mapping[str, Any]] | None = None

    @staticmethod
    def of(
        database: Any,
        tasks: Mapping[str, Mapping[str, Any]] | None = None,
        kinds: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> RelationalSource:
        """Takes a RelBench `Database`, or anything with a `table_dict` of the same attributes.

        Args:
            database: has tables in memory (pandas) by name, each with `df`, `pkey_col`, `fkey_col_to_pkey_table` and
                `time_col`.
            tasks: by name: "train", "valid" and "test" (RelBench tables), "label" (their target column), and "kind"
                if the labels are no classes.
            kinds: by table and column, stypes of torch_frame or their names, such as RelBench's `col_to_stype_dict`.
                Columns without one are left out. Rows have to keep their columns, as they do by default.

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
            tables, {name: _task_of(f"task {name}", given) for name, given in (tasks or {}).items()}, kinds=kinds
        )


def _task_of(where: str, given: Mapping[str, Any]) -> TaskTables:
    found = mapping_of(where, given, (*SPLITS, "label", "kind"))
    splits = {split: found[split] for split in SPLITS if split in found}
    if not splits or "label" not in found:
        raise ConfigError(f"{where}: expected tables by split ({', '.join(SPLITS)}) and a label")
    first = next(iter(splits.values()))
    entity = _entity(where, dict(first.fkey_col_to_pkey_table))
    frames = {split: FrameTable(f"{split} of {where}", table.df) for split, table in splits.items()}
    return TaskTables(frames, entity, found["label"], first.time_col, found.get("kind", "class"))


def _entity(where: str, fkeys: Mapping[str, str]) -> tuple[str, str]:
    if len(fkeys) != 1:
        raise ConfigError(f"{where}: expected one key of an entity, found {', '.join(fkeys) or 'none'}")
    return next(iter(fkeys.items()))


def described(path: Path) -> RelationalSource:
    """Returns what a YAML file says."""
    path = path / DESCRIPTION if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"source: expected a description of the tables, found no file {path}")
    if (kind := kind_of(path)) is not None and kind not in _MAYBE_YAML and not kind.startswith("UTF-"):
        raise ConfigError(f"source: expected a description of the tables in YAML, found {describe(path)}")
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
        entity = _entity(where, mapping_of(f"{where}: entity", found.get("entity")))
        if "train" not in splits or "label" not in found:
            raise ConfigError(f"{where}: expected train and label, found {', '.join(found) or 'nothing'}")
        tasks[str(name)] = TaskTables(splits, entity, found["label"], found.get("time"), found.get("kind", "class"))
    return RelationalSource(tables, tasks, content.get("val_timestamp"))


def _file(where: str, name: str, folder: Path, file: Any, csv: Any) -> Table:
    if not isinstance(file, str):
        raise ConfigError(f"{where}: expected a file, found {file!r}")
    known = tuple(member.name for member in fields(TableColumns) if member.name in ("names", "delimiter", "types"))
    return Table(f"{name} ({folder / file})", folder / file, TableColumns(**mapping_of(f"{where}: csv", csv, known)))
