"""A DuckDB file: its tables, with the primary and foreign keys that they are declared with."""

from __future__ import annotations

from pathlib import Path

from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.source_formats.catalogue import Catalogue, CatalogueTable, ForeignKey
from diskgnn.importers.tables.duckdb_tables import HELD_BYTES, DuckdbFile, DuckdbTable

_KEYS = """
    SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names
    FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = ? AND table_name = ?
    AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY') ORDER BY constraint_index
    """


def recognises(source: object) -> bool:
    """Returns True for a DuckDB file, by its first bytes."""
    return isinstance(source, Path) and source.is_file() and kind_of(source) == "duckdb"


def held_bytes(source: object) -> int:
    """Returns the bytes of memory that DuckDB takes while it reads."""
    return HELD_BYTES


def catalogue(path: Path) -> Catalogue:
    """Returns the tables of a DuckDB file.

    Raises:
        UnavailableError: the package duckdb is not there.
        InputError: no DuckDB file, or one that somebody writes to.
    """
    file = DuckdbFile(path)
    tables = {}
    for schema, name in file.rows(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE NOT internal AND database_name = current_database() "
        "ORDER BY table_oid"
    ):
        keys = file.rows(_KEYS, schema, name)
        primary = next((tuple(columns) for kind, columns, _, _ in keys if kind == "PRIMARY KEY"), ())
        foreign = [
            ForeignKey(tuple(columns), _called(schema, table), tuple(referred))
            for kind, columns, table, referred in keys
            if kind == "FOREIGN KEY"
        ]
        tables[_called(schema, name)] = CatalogueTable(DuckdbTable(file, schema, name), primary, foreign)
    views = file.rows(
        "SELECT schema_name, view_name FROM duckdb_views() WHERE NOT internal AND database_name = current_database()"
    )
    left_out = {_called(schema, name): "it is a view" for schema, name in views}
    return Catalogue(tables, left_out, HELD_BYTES)


def _called(schema: str, table: str) -> str:
    return table if schema == "main" else f"{schema}.{table}"
