"""A DuckDB file: its tables, with the primary and foreign keys that they are declared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.source_formats.catalogue import CatalogueTable, ForeignKey, source_of
from diskgnn.importers.source_formats.relational import graph_of
from diskgnn.importers.tables.duckdb_tables import HELD_BYTES, DuckdbFile, DuckdbTable

_KEYS = """
    SELECT constraint_type, constraint_column_names, referenced_table, referenced_column_names
    FROM duckdb_constraints() WHERE database_name = current_database() AND schema_name = ? AND table_name = ?
    AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY') ORDER BY constraint_index
    """


def recognises(source: object) -> bool:
    """A DuckDB file, by its first bytes."""
    return isinstance(source, Path) and source.is_file() and kind_of(source) == "duckdb"


def held_bytes(source: object) -> int:
    """Of memory, that DuckDB takes while it reads."""
    return HELD_BYTES


def read(
    path: Any,
    *,
    times: str | None = None,
    val_timestamp: str | int | None = None,
    until: str | int | None = None,
    reverse: bool = True,
    skip_unknown: bool = True,
    exclude: Sequence[str] = (),
    encoding: GivenEncoding | None = None,
) -> GraphInput:
    """The graph of a DuckDB file.

    Args:
        path: of the file.
        times: columns that say when rows appear, with commas between: "orders.at,users.since".
        val_timestamp: features are scaled by rows up to this time, a date, timestamp or seconds since 1970; None: all.
        until: rows after this time, and those without one, are left out of tables that have times; None: none.
        reverse: edges lead both ways.
        skip_unknown: keys that no row has make no edge, and a warning; False: they are an error.
        exclude: columns to leave out, TABLE.COLUMN, or COLUMN of every table that has it.
        encoding: of another graph, for tables that are to be encoded alike; `val_timestamp` then means nothing.

    Raises:
        UnavailableError: the package duckdb is not there.
        ConfigError: times of no table, no foreign keys, or columns to exclude that no table has or that are keys or
            times.
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
    found = graph_of(source_of(tables, left_out, times), val_timestamp, until, reverse, skip_unknown, exclude, encoding)
    return replace(found, reading_bytes=HELD_BYTES)


def _called(schema: str, table: str) -> str:
    return table if schema == "main" else f"{schema}.{table}"
