"""What the catalogue of a database says of its tables, as a `RelationalSource`: keys of one column are edges."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, overload

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.source_formats.relational_source import KeyedTable, RelationalSource
from diskgnn.importers.source_formats.table_keys import (
    ForeignKey,
    GivenKeys,
    TableKeys,
    id_column,
    names_of,
    type_word,
    why_not,
)
from diskgnn.importers.source_listing import EXCLUDED
from diskgnn.importers.tables.frames import PartlyNamed, RowTable
from diskgnn.specs.near_names import near_name


@dataclass(frozen=True)
class CatalogueTable:
    """A table as its database describes it.

    Attributes:
        rows: its rows.
        keys: its columns and keys.
        left_out: columns that are not in `rows`, and why.
        encodings: of columns whose type says more than their values do.
        noticed: what of the values is not as it was, by what it is, and why; known once all rows were read.
        unknown: columns with keys that were looked up (`ForeignKey.ids`), where values name no row, and what is told
            of them; known then, too.
        about_rows: how many rows there are, about, if the database knows without counting; else 0.
        odd: columns that the database compares otherwise than by what is read of them, and what they are.
    """

    rows: RowTable
    keys: TableKeys
    left_out: Mapping[str, str] = field(default_factory=dict)
    encodings: Mapping[str, str] = field(default_factory=dict)
    noticed: Callable[[], Mapping[str, str]] = dict
    unknown: Callable[[], Mapping[str, str]] = dict
    about_rows: int = 0
    odd: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class OpenCatalogue:
    """Holds a file that is open.

    Attributes:
        catalogue: its tables.
        look_up: adds a column to a table, called `ForeignKey.ids` of its key, with what the key names rows by: their
            values in a column of ids. The last argument says for messages what they are looked up in.
        close: closes it; its tables cannot be read any more.
    """

    catalogue: Catalogue
    look_up: Callable[[str, ForeignKey, str, str], None]
    close: Callable[[], None]


@contextmanager
def closed_by_errors(close: Callable[[], None]) -> Iterator[None]:
    """Calls `close` if the block raises."""
    try:
        yield
    except BaseException:
        close()
        raise


@dataclass(frozen=True)
class Catalogue:
    """Lists the tables of a database, and what is not read of it.

    Attributes:
        tables: by name.
        left_out: other things, such as views, and why each is not read.
        about: the server, and the time of the snapshot that is read; "" of a file.
    """

    tables: Mapping[str, CatalogueTable]
    left_out: Mapping[str, str]
    about: str = ""

    @property
    def keys(self) -> dict[str, TableKeys]:
        """Returns the columns and keys of all tables."""
        return {name: table.keys for name, table in self.tables.items()}

    def with_keys(self, keys: Mapping[str, TableKeys]) -> Catalogue:
        """Returns the same tables with other keys."""
        return replace(self, tables={name: replace(table, keys=keys[name]) for name, table in self.tables.items()})

    def without_encodings(self) -> Catalogue:
        """Returns the same tables where types say no encodings: those of another graph count."""
        return replace(self, tables={name: replace(table, encodings={}) for name, table in self.tables.items()})

    @overload
    def spelt(self, named: Sequence[str]) -> list[str]: ...

    @overload
    def spelt(self, named: Mapping[str, str]) -> dict[str, str]: ...

    def spelt(self, named: Any) -> Any:
        """Returns what names columns, with tables called as their types are in place of as the database calls them."""
        found = {
            f"{name}.{column}": f"{type_word(name)}.{column}"
            for name, table in self.tables.items() for column in (*table.keys.columns, *table.left_out)
        }  # fmt: skip
        if isinstance(named, Mapping):
            return {found.get(each, each): value for each, value in named.items()}
        return [found.get(each, each) for each in named]

    def columns_to_fetch(self, table: str, times: str | None, exclude: Sequence[str]) -> list[str]:
        """Returns the columns of a table but for those that the user excludes. Keys of rows and times stay: that they
        cannot be left out is told where the graph is described."""
        found, exclude = self.tables[table], self.spelt(exclude)
        kept = {id_column(table, self.keys), _times(self.tables, times).get(table)}
        asked = {ids: key.columns[0] for ids, key in found.keys.looked_up.items()}
        return [
            name
            for name in found.rows.schema.names
            if name in kept or not {(column := asked.get(name, name)), f"{type_word(table)}.{column}"} & {*exclude}
        ]


def source_of(
    catalogue: Catalogue, times: str | None, empty: Collection[str] = (), *, skip_unknown: bool = True
) -> RelationalSource:
    """Returns the tables as node types, and their keys as edges.

    Args:
        catalogue: the tables.
        times: columns that say when rows appear: "orders.at,users.since".
        empty: tables without rows, which become no types.
        skip_unknown: foreign keys that name no row are listed; False: they are an error.

    Raises:
        ConfigError: times of no table, or two tables that become types of one name.
        InputError: a foreign key that names no row.
    """
    tables, keys = catalogue.tables, catalogue.keys
    time_of = _times(tables, times)
    reasons = {(type_word(name), "table"): reason for name, reason in catalogue.left_out.items()}
    reasons |= {(type_word(name), "table"): "it has no rows" for name in empty}
    found, names = dict[str, KeyedTable](), dict[str, str]()
    for name, table in tables.items():
        word = type_word(name)
        if name in empty:
            continue
        if word in found:
            raise ConfigError(f"table {name!r}: another table would be called {word} as well; rename one of them")
        names |= {word: name} if word != name else {}
        reasons |= {(word, column): reason for column, reason in {**table.left_out, **table.noticed()}.items()}
        ids = id_column(name, keys)
        if ids in table.left_out:  # rows are numbered then
            ids = None
        if len(primary := table.keys.primary_key) > 1 and ids is None:
            reasons[word, f"primary key ({', '.join(primary)})"] = "it has several columns, so rows are numbered"
        fkeys, ids_of, unknown = dict[str, str](), dict[str, str](), table.unknown()
        excluded = {column for column, reason in table.left_out.items() if reason == EXCLUDED}
        for key in (key for key in table.keys.foreign_keys if not excluded & {*key.columns}):
            if reason := _why_not(key, catalogue, empty, fkeys, table.left_out):
                reasons[word, f"foreign key ({', '.join(key.columns)})"] = reason
            else:
                fkeys[(column := key.columns[0])] = type_word(key.table)
                ids_of |= {column: key.ids} if key.ids else {}
                if (told := unknown.get(key.ids)) is not None:
                    if not skip_unknown:
                        raise InputError(
                            f"{table.rows.name}: column {column!r}: expected keys of rows, found others: {told}"
                        )
                    reasons[word, f"edges by {column}"] = told
        encodings = {column: how for column, how in table.encodings.items() if column not in {ids, *fkeys}}
        encodings.pop(time_of.get(name, ""), None)
        may_lack = (ids,) != tuple(primary)  # of unique values, which SQL lets be null
        rows = PartlyNamed(table.rows, table.keys.looked_up)
        found[word] = KeyedTable(rows, ids, fkeys, time_of.get(name), encodings, may_lack, ids_of=ids_of)
    return RelationalSource(found, left_out=reasons, names=names)


def _why_not(
    key: ForeignKey,
    catalogue: Catalogue,
    empty: Collection[str],
    fkeys: Mapping[str, str],
    left_out: Mapping[str, str],
) -> str:
    """Says why a foreign key makes no edges; "" if it does."""
    if len(key.columns) == 1 and key.columns[0] in left_out:
        return "its column is left out"
    if key.table in catalogue.left_out:
        return f"table {key.table} is left out"
    if len(key.columns) == 1 and key.table in catalogue.tables:
        used = {id_column(key.table, catalogue.keys), *(() if key.ids else key.referred)}
        if lost := [column for column in catalogue.tables[key.table].left_out if column in used]:
            return f"{key.table}.{lost[0]}, which names the rows, is left out"
    if reason := why_not(key, catalogue.keys):
        return reason
    if key.table in empty:
        return f"table {key.table} has no rows"
    other = fkeys.get(key.columns[0])
    return "" if other is None else f"its column makes edges to {other}: name the one that shall, by `links`"


def with_given_keys(catalogue: Catalogue, keys: str | None, links: str | None) -> Catalogue:
    """Returns the tables with the keys that the user gives; see `GivenKeys.parse`."""
    return catalogue.with_keys(GivenKeys.parse(keys, links, catalogue.keys).applied(catalogue.keys))


def _times(tables: Mapping[str, CatalogueTable], times: str | None) -> dict[str, str]:
    found, names = dict[str, str](), names_of(tables)
    for pair in times.split(",") if times else []:
        table, _, column = pair.strip().rpartition(".")
        table = names.get(table, table)
        if table not in tables:
            raise ConfigError(
                f"times: expected TABLE.COLUMN of a table of {', '.join(tables) or 'none'}, found {pair.strip()!r}"
                f"{near_name(table, names)}"
            )
        tables[table].rows.field(column)
        if found.setdefault(table, column) != column:
            raise ConfigError(f"times: expected one column of {table}, found {found[table]} and {column}")
    return found
