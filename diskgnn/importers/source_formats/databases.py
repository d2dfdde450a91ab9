"""Databases: the graph of tables with the primary and foreign keys that they are declared with, or that are given.

The tables are fetched first, each read once, in one snapshot (`importers.fetched_tables`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from diskgnn.errors import InputError
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.identity import file_states
from diskgnn.importers.source_formats.catalogue import Catalogue, OpenCatalogue, source_of, with_given_keys
from diskgnn.importers.source_formats.given_kinds import with_read_kinds
from diskgnn.importers.source_formats.relational import (
    dated,
    graph_of,
    is_left_empty,
    require_graph,
    time_unit,
)
from diskgnn.importers.source_formats.relational_keys import require_comparable
from diskgnn.importers.source_formats.relational_source import DESCRIPTION
from diskgnn.importers.source_formats.table_graph_options import TableGraphKeywords, TableGraphOptions
from diskgnn.importers.source_formats.table_keys import by_name, id_column, looked_up, type_word
from diskgnn.importers.source_listing import Listed
from diskgnn.importers.tables.times import Moment
from diskgnn.specs.keywords import takes_options
from diskgnn.system.resources import Resources

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Database(Protocol):
    """Says what is asked of a database that is read.

    Attributes:
        shown: what messages call it.
        is_server: whoever asks again sees another state.
        held_bytes: of memory, while tables are read.
    """

    shown: str
    is_server: bool
    held_bytes: int

    def catalogue(self, keys: str | None, links: str | None, encode: Collection[str] = ()) -> Catalogue:
        """Opens it, and returns its tables in one state, which can be read until `close`.

        Args:
            keys, links: those that the user gives.
            encode: columns that the user wants as features, TABLE.COLUMN or COLUMN.
        """
        ...

    def identity(self, fetched: str) -> str:
        """Names it; of a file, with its state.

        Args:
            fetched: what was the name of the database whose tables were fetched before; "" if none were.

        Raises:
            InputError: the file is not there any more, and it is not that one.
        """
        ...

    def close(self) -> None:
        """Closes it."""
        ...


class DatabaseFile:
    """A file of SQLite or DuckDB; see `Database`.

    Args:
        path: of the file.
        open_catalogue: opens it.
        held_bytes: of memory, while tables are read.
    """

    is_server = False

    def __init__(
        self,
        open_catalogue: Callable[[Path], OpenCatalogue],
        held_bytes: int,
        path: Path,
    ) -> None:
        self.shown = str(path)
        self.held_bytes, self._open, self._path = held_bytes, open_catalogue, path
        self._opened: OpenCatalogue | None = None

    def catalogue(self, keys: str | None, links: str | None, encode: Collection[str] = ()) -> Catalogue:
        """Returns its tables, with the keys that the user gives.

        Raises:
            ConfigError: keys of tables or columns that there are not.
            InputError, UnavailableError: it cannot be read.
        """
        del encode
        if self._path.is_dir():
            raise InputError(
                f"source: expected the file of a database, found the folder {self._path}; a folder of Parquet and CSV "
                f"with keys is read by format='relational', from {DESCRIPTION} in it"
            )
        if not self._path.stat().st_size:
            raise InputError(
                f"source: expected a database with tables in {self._path}, found an empty file, as is made of a path "
                "that was not there; give the one that has them"
            )
        self._opened = opened = self._open(self._path)
        catalogue = with_given_keys(opened.catalogue, keys, links)
        odd = {(name, column): kind for name, table in catalogue.tables.items() for column, kind in table.odd.items()}
        unread = {(name, column) for name, table in catalogue.tables.items() for column in table.left_out}
        found = catalogue.with_keys(looked_up(catalogue.keys, odd, unread))
        for name, table in found.tables.items():
            for key in table.keys.looked_up.values():
                ((column,), (referred,)), others = (key.columns, key.referred), found.tables[key.table].rows
                if referred in others.schema.names:
                    require_comparable(f"table {name}", table.rows, column, key.table, others, referred)
                ids = id_column(key.table, found.keys)
                assert ids is not None
                opened.look_up(name, key, ids, by_name(key, found.keys))
        return found

    def identity(self, fetched: str) -> str:
        """Returns the path and the state of the file, or of one that is gone, what these were when it was fetched."""
        if self._path.exists():
            return json.dumps([str(self._path), file_states(self._path)])
        if fetched and json.loads(fetched)[0] == str(self._path):
            return fetched
        raise InputError(f"source: expected a file or folder, found none at {self._path}")

    def close(self) -> None:
        """Closes the file, so that others may write to it."""
        if self._opened is not None:
            self._opened.close()


def require(
    catalogue: Catalogue,
    exclude: Sequence[str],
    encode: Mapping[str, str],
    encoding: GivenEncoding | None,
    require_times: Callable[..., None],
    quantise: str | None = None,
    **options: Any,
) -> None:
    """Refuses, before any row is read, what cannot become a graph; see `read`, which takes the same `options`.

    `require_times` refuses what else the user says of times, if there are none such: see `completing.require_times`.

    Raises:
        ConfigError, InputError: as `read`, but for what only values show.
    """
    shown = catalogue if encoding is None else catalogue.without_encodings()
    source = with_read_kinds(source_of(shown, options.pop("times", None)), options.get("kinds"))
    for name in ("keys", "links"):
        options.pop(name, None)
    asked = TableGraphOptions(
        exclude=catalogue.spelt(exclude), encode=catalogue.spelt(encode), encoding=encoding, quantise=quantise,
        **options,
    )  # fmt: skip
    found = require_graph(source, asked)
    require_times({f"nodes of type {name}": is_dated for name, is_dated in dated(found).items()}, said=time_unit(found))


@takes_options(TableGraphKeywords, TableGraphOptions)
def read(
    catalogue: Catalogue,
    *,
    times: Listed | None = None,
    until: Moment | None = None,
    keys: Listed | None = None,
    links: Listed | None = None,
    resources: Resources | None = None,
    **options: Unpack[TableGraphKeywords],
) -> GraphInput:
    """Returns the graph of the tables of a database that were fetched.

    Args:
        catalogue: the tables.
        times: columns that say when rows appear, with commas between: "orders.at,users.since"; or a list of them.
        until: rows after this time, and those without one, are left out of tables that have times; None: none.
        keys: columns that name rows, beside or in place of primary keys: "users=id". They were heeded when the tables
            were fetched.
        links: columns that name rows of other tables, beside or in place of foreign keys: "orders.user_id=users". The
            same.
        resources: have the memory for the values of categories.
        options: what graph it becomes.

    Raises:
        ConfigError: times of no table, no foreign keys, or columns to exclude or to encode that no table has, or that
            are keys or times.
        InputError: columns that are not what they are said to be.
    """
    del keys, links
    asked = TableGraphOptions(until=until, **options)
    shown = catalogue if asked.encoding is None else catalogue.without_encodings()
    tables = catalogue.tables.items()
    empty = [name for name, table in tables if is_left_empty(type_word(name), table.rows, asked.encoding)]
    source = source_of(shown, times, empty, skip_unknown=asked.skip_unknown)
    asked = replace(asked, exclude=catalogue.spelt(asked.exclude), encode=catalogue.spelt(asked.encode))
    return graph_of(source, asked, resources)
