"""A data set of RelBench 3 as a folder: manifest.yaml, db/TABLE.parquet, and tasks/TASK with a manifest and tables.

The manifests say which columns are keys and times; the Parquet files have columns only. Tasks that ask for one label of
each row are read. Ranked lists and several labels are not, nor are tasks whose tables RelBench has to compute first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from diskgnn.errors import ConfigError
from diskgnn.importers.graph_input import load_yaml, mapping_of
from diskgnn.importers.source_formats.relational_source import KeyedTable, RelationalSource, TaskTables
from diskgnn.importers.tables.table import Table

_MANIFEST = "manifest.yaml"
_FILES = {"train": "train", "valid": "val", "test": "test"}
_KINDS = {
    "binary_classification": "class",
    "multiclass_classification": "class",
    "regression": "regression",
}


def recognises(path: Path) -> bool:
    """Returns whether this is such a folder."""
    return (path / _MANIFEST).is_file() and (path / "db").is_dir()


def read_folder(folder: Path) -> RelationalSource:
    """Returns the tables of a folder, and those of its tasks that diskgnn can train on.

    Rows after `test_timestamp` are left out, as by `dataset.get_db()`.

    Raises:
        ConfigError: a manifest that says something else than RelBench's do.
        InputError: a table that cannot be read.
    """
    manifest = _manifest(folder)
    tables = {}
    for name, given in mapping_of(f"{folder / _MANIFEST}: tables", manifest.get("tables")).items():
        where = f"{folder / _MANIFEST}: table {name}"
        found = mapping_of(where, given, ("pkey", "time_col", "fkeys"))
        file = folder / "db" / f"{name}.parquet"
        rows = Table(f"table {name} ({file})", file)
        fkeys = mapping_of(f"{where}: fkeys", found.get("fkeys"))
        tables[str(name)] = KeyedTable(rows, found.get("pkey"), fkeys, found.get("time_col"))
    tasks, left_out = dict[str, TaskTables](), dict[tuple[str, str], str]()
    for path in sorted((folder / "tasks").glob(f"*/{_MANIFEST}")):
        name = path.parent.name
        task = _task(path.parent, tables)
        if isinstance(task, str):
            left_out[name, "task"] = task
        else:
            tasks[name] = task
    return RelationalSource(tables, tasks, manifest.get("val_timestamp"), manifest.get("test_timestamp"), left_out)


def _manifest(folder: Path) -> dict[Any, Any]:
    return mapping_of(str(folder / _MANIFEST), load_yaml(folder / _MANIFEST))


def _task(folder: Path, tables: Mapping[str, KeyedTable]) -> TaskTables | str:
    """Returns a task, or why it is not read."""
    where, manifest = str(folder / _MANIFEST), _manifest(folder)
    kind = _KINDS.get(str(manifest.get("task_type")))
    if kind is None:
        return f"{manifest.get('task_type')} has no single label for each row"
    if not (folder / "train.parquet").is_file():
        return "there is no train.parquet: load it with relbench (regenerate=True), and save the tables of its splits"
    entity, label = str(manifest.get("entity_table")), manifest.get("target_col")
    if entity not in tables or not isinstance(label, str):
        raise ConfigError(f"{where}: expected target_col, and entity_table of {', '.join(tables)}; found {entity!r}")
    is_autocomplete = manifest.get("kind") == "autocomplete"
    time = tables[entity].time if is_autocomplete else manifest.get("time_col")
    # An autocomplete task names rows by their primary key. RelBench numbers the rows of a table without one.
    column = tables[entity].pkey or "primary_key" if is_autocomplete else manifest.get("entity_col")
    splits = {
        split: Table(f"{split} of task {folder.name}", folder / f"{file}.parquet")
        for split, file in _FILES.items()
        if (folder / f"{file}.parquet").is_file()
    }
    of_label = splits["train"].field(label).type
    if not (pa.types.is_integer(of_label) or pa.types.is_floating(of_label) or pa.types.is_boolean(of_label)):
        return f"its labels are of type {of_label}, expected numbers or truth values"
    hidden = [(str(table), str(hidden)) for table, hidden in manifest.get("remove_columns") or ()]
    if is_autocomplete:
        hidden.append((entity, label))
    by_row = tables[entity].pkey is None
    return TaskTables(splits, (str(column), entity), label, time, kind, hides=tuple(hidden), by_row=by_row)
