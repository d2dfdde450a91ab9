"""Files of databases: the graph of tables with the primary and foreign keys that they are declared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.source_formats.catalogue import Catalogue, source_of
from diskgnn.importers.source_formats.relational import graph_of


def read(
    catalogue_of: Callable[[Path], Catalogue],
    path: Path,
    *,
    times: str | None = None,
    val_timestamp: str | int | None = None,
    until: str | int | None = None,
    reverse: bool = True,
    skip_unknown: bool = True,
    keep_columns: bool = False,
    exclude: Sequence[str] = (),
    encode: Mapping[str, str] | None = None,
    encoding: GivenEncoding | None = None,
) -> GraphInput:
    """Returns the graph of a database in a file.

    Args:
        catalogue_of: opens the file.
        path: of the file, which nobody else writes to meanwhile.
        times: columns that say when rows appear, with commas between: "orders.at,users.since".
        val_timestamp: features are scaled by rows up to this time, a date, timestamp or seconds since 1970; None: all.
        until: rows after this time, and those without one, are left out of tables that have times; None: none.
        reverse: edges lead both ways.
        skip_unknown: keys that no row has make no edge, and a warning; False: they are an error.
        keep_columns: rows are records, which keep their columns, in place of vectors; see `record_encoding`.
        exclude: columns to leave out, TABLE.COLUMN, or COLUMN of every table that has it.
        encode: how columns become features, by such names.
        encoding: of another graph, for tables that are to be encoded alike; `val_timestamp` then means nothing.

    Raises:
        ConfigError: times of no table, no foreign keys, or columns to exclude or to encode that no table has, or that
            are keys or times.
        InputError, UnavailableError: see `catalogue_of`.
    """
    catalogue = catalogue_of(path)
    source = source_of(catalogue, times)
    found = graph_of(source, val_timestamp, until, reverse, skip_unknown, keep_columns, exclude, encode, encoding)
    return replace(found, reading_bytes=catalogue.held_bytes)
