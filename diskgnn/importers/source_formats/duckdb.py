"""A DuckDB file: its tables, with the primary and foreign keys that they are declared with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diskgnn.errors import ConfigError
from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.source_formats.catalogue import Catalogue, CatalogueTable, OpenCatalogue, closed_by_errors
from diskgnn.importers.source_formats.table_keys import ForeignKey, TableKeys, folded
from diskgnn.importers.tables.duckdb_tables import DuckdbFile, DuckdbTable

_KEYS = """
    SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names
    FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = ? AND table_name = ?
    AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'FOREIGN KEY') ORDER BY constraint_index
    """


def recognises(source: object) -> bool:
    """Returns True for a DuckDB file, by its first bytes."""
    return isinstance(source, Path) and source.is_file() and kind_of(source) == "duckdb"


def open_catalogue(path: Path) -> OpenCatalogue:
    """Returns the tables of a DuckDB file.

    Raises:
        UnavailableError: the package duckdb is not there.
        InputError: no DuckDB file, or one that somebody writes to.
    """
    file = DuckdbFile(path)
    with closed_by_errors(file.close):
        return _catalogue(file)


def _catalogue(file: DuckdbFile) -> OpenCatalogue:
    tables = dict[str, CatalogueTable]()
    listed = file.rows(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal AND database_name = current_database() "
        "ORDER BY table_oid"
    )
    # Constraints have names in the letters that they were written in.
    called = {folded(_table_name(schema, name)): _table_name(schema, name) for schema, name in listed}
    all_rows = [DuckdbTable(file, schema, name, _table_name(schema, name)) for schema, name in listed]
    spelt = {rows.called: {folded(column): column for column in rows.schema.names} for rows in all_rows}

    def columns_of(table: str, columns: Sequence[str]) -> tuple[str, ...]:
        return tuple(spelt.get(table, {}).get(folded(column), column) for column in columns)

    for (schema, name), rows in zip(listed, all_rows, strict=True):
        primary, foreign, unique = tuple[str, ...](), list[ForeignKey](), set[str]()
        for kind, written, other, referred in file.rows(_KEYS, schema, name):
            columns = columns_of(rows.called, written)
            if kind == "PRIMARY KEY":
                primary = columns
            elif kind == "FOREIGN KEY":
                table = called.get(folded(_table_name(schema, other)), _table_name(schema, other))
                foreign.append(ForeignKey(columns, table, columns_of(table, referred)))
            elif len(columns) == 1:
                unique |= {*columns}
        if _table_name(schema, name) in tables:
            raise ConfigError(
                f"two tables are called {_table_name(schema, name)!r}, where those of schema main have no prefix: "
                "rename one"
            )
        tables[_table_name(schema, name)] = CatalogueTable(
            rows,
            TableKeys(rows.schema.names, primary, foreign, frozenset(unique)),
            noticed=rows.noticed,
            unknown=rows.unknown,
        )
    views = file.rows(
        "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal AND database_name = current_database()"
    )
    left_out = {_table_name(schema, name): "it is a view" for schema, name in views}
    found = Catalogue(tables, left_out)

    def look_up(table: str, key: ForeignKey, ids: str, named: str) -> None:
        rows, others = tables[table].rows, tables[key.table].rows
        assert isinstance(rows, DuckdbTable)
        assert isinstance(others, DuckdbTable)
        rows.look_up(key.ids, key.columns[0], others, key.referred[0], ids, named)

    return OpenCatalogue(found, look_up, file.close)


def _table_name(schema: str, table: str) -> str:
    return table if schema == "main" else f"{schema}.{table}"
