"""Databases: the graph of tables with the primary and foreign keys that they are declared with, or that are given.

The tables are fetched first, each read once, in one snapshot (`importers.fetched_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.source_formats.catalogue import Catalogue, source_of, with_given_keys
from diskgnn.importers.source_formats.relational import graph_of
from diskgnn.importers.source_formats.table_keys import ForeignKey, id_column, translated


class Database(Protocol):
    """Says what is asked of a database that is read.

    Attributes:
        shown: what messages call it.
        identity: names it; of a file, its path.
        is_server: whoever asks again sees another state.
        held_bytes: of memory, while tables are read.
    """

    shown: str
    identity: str
    is_server: bool
    held_bytes: int

    def catalogue(self, keys: str | None, links: str | None, encode: Collection[str] = ()) -> Catalogue:
        """Opens it, and returns its tables in one state, which can be read until `close`.

        Args:
            keys, links: those that the user gives.
            encode: columns that the user wants as features, TABLE.COLUMN or COLUMN.
        """
        ...

    def close(self) -> None:
        """Closes it."""
        ...


class DatabaseFile:
    """A file of SQLite or DuckDB; see `Database`.

    Args:
        path: of the file.
        open_catalogue: returns its tables, and how a column looks up the ids that its values stand for.
        held_bytes: of memory, while tables are read.
    """

    is_server = False

    def __init__(
        self,
        open_catalogue: Callable[[Path], tuple[Catalogue, Callable[[str, ForeignKey], None]]],
        held_bytes: int,
        path: Path,
    ) -> None:
        self.shown = self.identity = str(path)
        self.held_bytes, self._open, self._path = held_bytes, open_catalogue, path

    def catalogue(self, keys: str | None, links: str | None, encode: Collection[str] = ()) -> Catalogue:
        """Returns its tables, with the keys that the user gives.

        Raises:
            ConfigError: keys of tables or columns that there are not.
            InputError, UnavailableError: it cannot be read.
        """
        del encode
        catalogue, look_up = self._open(self._path)
        catalogue = with_given_keys(catalogue, keys, links)
        named_by_ids, looked_up = translated(catalogue.keys)
        for (table, column), key in looked_up.items():
            here, there = (catalogue.tables[name].rows.schema.names for name in (table, key.table))
            if column in here and id_column(key.table, catalogue.keys) in there:
                look_up(table, key)
        return catalogue.with_keys(named_by_ids)

    def close(self) -> None:
        """Does nothing: the file is closed when nobody reads it."""


def read(
    catalogue: Catalogue,
    *,
    times: str | None = None,
    val_timestamp: str | int | None = None,
    until: str | int | None = None,
    reverse: bool = True,
    skip_unknown: bool = True,
    keep_columns: bool = False,
    keys: str | None = None,
    links: str | None = None,
    exclude: Sequence[str] = (),
    encode: Mapping[str, str] | None = None,
    encoding: GivenEncoding | None = None,
) -> GraphInput:
    """Returns the graph of the tables of a database that were fetched.

    Args:
        catalogue: the tables.
        times: columns that say when rows appear, with commas between: "orders.at,users.since".
        val_timestamp: features are scaled by rows up to this time, a date, timestamp or seconds since 1970; None: all.
        until: rows after this time, and those without one, are left out of tables that have times; None: none.
        reverse: edges lead both ways.
        skip_unknown: keys that no row has make no edge, and a warning; False: they are an error.
        keep_columns: rows are records, which keep their columns, in place of vectors; see `record_encoding`.
        keys: columns that name rows, beside or in place of primary keys: "users=id". They were heeded when the tables
            were fetched.
        links: columns that name rows of other tables, beside or in place of foreign keys: "orders.user_id=users". The
            same.
        exclude: columns to leave out, TABLE.COLUMN, or COLUMN of every table that has it.
        encode: how columns become features, by such names.
        encoding: of another graph, for tables that are to be encoded alike; `val_timestamp` then means nothing.

    Raises:
        ConfigError: times of no table, no foreign keys, or columns to exclude or to encode that no table has, or that
            are keys or times.
        InputError: columns that are not what they are said to be.
    """
    del keys, links
    source = source_of(catalogue if encoding is None else catalogue.without_encodings(), times)
    return graph_of(source, val_timestamp, until, reverse, skip_unknown, keep_columns, exclude, encode, encoding)
