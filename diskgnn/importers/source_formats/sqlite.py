"""An SQLite file: its tables, with the primary and foreign keys that they are declared with."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.source_formats.catalogue import Catalogue, CatalogueTable, OpenCatalogue, closed_by_errors
from diskgnn.importers.source_formats.table_keys import ForeignKey, TableKeys, folded
from diskgnn.importers.tables.sqlite_tables import SqliteFile, SqliteTable, quoted


def recognises(source: object) -> bool:
    """Returns True for an SQLite file, by its first bytes."""
    return isinstance(source, Path) and source.is_file() and kind_of(source) == "sqlite"


def open_catalogue(path: Path) -> OpenCatalogue:
    """Returns the tables of an SQLite file.

    Raises:
        InputError: no SQLite file, or values that are not of their column's type.
    """
    file = SqliteFile(path)
    with closed_by_errors(file.close):
        return _catalogue(file)


def _catalogue(file: SqliteFile) -> OpenCatalogue:
    tables, left_out = dict[str, CatalogueTable](), dict[str, str]()
    virtual: list[str] = []
    listed = file.rows("SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY rowid")
    names = {folded(name): name for name, _, _ in listed}
    for name, kind, sql in listed:
        of = next((other for other in virtual if name.startswith(f"{other}_")), None)
        if name.startswith("sqlite_"):  # SQLite's own
            continue
        if kind == "view":
            left_out[name] = "it is a view"
        elif str(sql).upper().startswith("CREATE VIRTUAL"):
            left_out[name] = "it is a virtual table"
            virtual.append(name)
        elif of is not None:
            left_out[name] = f"it is a part of the virtual table {of}"
        else:
            tables[name] = _table(file, name, names)
    found = Catalogue(tables, left_out)

    def look_up(table: str, key: ForeignKey, ids: str, named: str) -> None:
        rows, others = tables[table].rows, tables[key.table].rows
        assert isinstance(rows, SqliteTable)
        rows.look_up(key.ids, key.columns[0], others.field(ids).type, key.table, key.referred[0], ids, named)

    return OpenCatalogue(found, look_up, file.close)


def _table(file: SqliteFile, name: str, names: Mapping[str, str]) -> CatalogueTable:
    found = file.rows(f"PRAGMA table_xinfo({quoted(name)})")
    columns = [(column, declared or "") for _, column, declared, _, _, _, hidden in found if hidden != 1]
    numbered = sorted((number, column) for _, column, _, _, _, number, _ in found if number)
    primary_key = tuple(column for _, column in numbered)
    listed = file.rows(f"PRAGMA foreign_key_list({quoted(name)})")
    foreign_keys = []
    for _, group in groupby(sorted(listed, key=lambda key: (key[0], key[1])), key=lambda key: key[0]):
        parts = list(group)
        others = names.get(folded(parts[0][2]), parts[0][2])
        called = {folded(other): other for _, other, *_ in file.rows(f"PRAGMA table_xinfo({quoted(others)})")}
        referred = tuple(called.get(folded(part[4]), part[4]) for part in parts if part[4] is not None)
        foreign_keys.append(ForeignKey(tuple(part[3] for part in parts), others, referred))
    order = ["rowid"] if _has_rowid(file, name) else [quoted(column) for column in primary_key]
    collations = _unique(file, name)
    keys_of = {*primary_key, *collations, *(column for key in foreign_keys for column in key.columns)}
    rows = SqliteTable(file, name, columns, order, keys_of)
    keys = TableKeys([column for column, _ in columns], primary_key, foreign_keys, frozenset(collations))
    odd = {column: f"compared by COLLATE {how}" for column, how in collations.items() if how.upper() != "BINARY"}
    return CatalogueTable(rows, keys, rows.left_out, noticed=rows.noticed, unknown=rows.unknown, odd=odd)


def _unique(file: SqliteFile, name: str) -> dict[str, str]:
    """Returns the columns that have a unique index of all rows each, and the collation by which it compares."""
    found = dict[str, str]()
    for _, index, is_unique, _, is_partial in file.rows(f"PRAGMA index_list({quoted(name)})"):
        columns = [(column, how) for _, _, column, _, how, is_key in file.rows(f"PRAGMA index_xinfo({quoted(index)})")
                   if is_key]  # fmt: skip
        if is_unique and not is_partial and len(columns) == 1 and columns[0][0] is not None:
            found.setdefault(*columns[0])
    return found


def _has_rowid(file: SqliteFile, name: str) -> bool:
    """Tables WITHOUT ROWID have a primary key whose index is the table, and list it as such."""
    indices = file.rows(f"PRAGMA index_list({quoted(name)})")
    primary = [index for _, index, _, origin, _ in indices if origin == "pk"]
    # Of the index that is the table itself, sqlite_master has no entry.
    stored = {entry for (entry,) in file.rows("SELECT name FROM sqlite_master WHERE type = 'index'")}
    return not any(index not in stored for index in primary)
