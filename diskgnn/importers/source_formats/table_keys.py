"""Keys of the tables of a database: those that it declares, and those that the user gives beside or in their place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from diskgnn.errors import ConfigError


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that name rows of another one."""

    columns: tuple[str, ...]
    table: str
    referred: tuple[str, ...] = ()  # columns of that table; empty: its primary key


@dataclass(frozen=True)
class TableKeys:
    """The columns of a table, and which of them are keys.

    Attributes:
        columns: all, also such as cannot be read.
        primary_key: those that name its rows.
        foreign_keys: those that name rows of other tables.
        unique: columns that no two rows have alike; None where nobody says that.
    """

    columns: Sequence[str]
    primary_key: tuple[str, ...] = ()
    foreign_keys: Sequence[ForeignKey] = ()
    unique: frozenset[str] | None = None


@dataclass(frozen=True)
class GivenKeys:
    """Keys that the user gives.

    Attributes:
        keys: by table, the column that names its rows.
        links: by (table, column), the table whose rows the column names, and by which column; None for its key.
    """

    keys: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], tuple[str, str | None]] = field(default_factory=dict)

    @staticmethod
    def parse(keys: str | None, links: str | None, tables: Mapping[str, TableKeys]) -> GivenKeys:
        """Returns what "users=id,shops=number" and "orders.user_id=users,orders.shop=shops.code" say.

        Args:
            keys: TABLE=COLUMN, with commas between.
            links: TABLE.COLUMN=TABLE or TABLE.COLUMN=TABLE.COLUMN, with commas between.
            tables: by name. They may be given as types are called, too.

        Raises:
            ConfigError: no such table or column, or no pairs.
        """
        names = {type_word(name): name for name in tables} | {name: name for name in tables}

        def table(option: str, name: str) -> str:
            if name not in names:
                raise ConfigError(f"{option}: expected a table of {', '.join(tables) or 'none'}, found {name!r}")
            return names[name]

        def column(option: str, of: str, name: str) -> str:
            if name not in tables[of].columns:
                raise ConfigError(
                    f"{option}: expected a column of {of} ({', '.join(tables[of].columns)}), found {name!r}"
                )
            return name

        found_keys, found_links = dict[str, str](), dict[tuple[str, str], tuple[str, str | None]]()
        for name, key in _pairs("keys", keys, "TABLE=COLUMN, such as users=id"):
            of = table("keys", name)
            found_keys[of] = column("keys", of, key)
        for left, right in _pairs("links", links, "TABLE.COLUMN=TABLE, such as orders.user_id=users"):
            name, _, linked = left.rpartition(".")
            of = table("links", name)
            to, dot, key = ("", "", "") if right in names else right.rpartition(".")
            other = table("links", to if dot else right)
            found_links[of, column("links", of, linked)] = (other, column("links", other, key) if dot else None)
        return GivenKeys(found_keys, found_links)

    def applied(self, tables: Mapping[str, TableKeys]) -> dict[str, TableKeys]:
        """Returns `tables` with these keys in place of declared ones of the same table or column."""
        found = {}
        for name, table in tables.items():
            given = {key: to for (of, key), to in self.links.items() if of == name}
            kept = [key for key in table.foreign_keys if len(key.columns) > 1 or key.columns[0] not in given]
            added = [
                ForeignKey((key,), other, () if referred is None else (referred,))
                for key, (other, referred) in given.items()
            ]
            primary = (self.keys[name],) if name in self.keys else table.primary_key
            found[name] = replace(table, primary_key=primary, foreign_keys=[*kept, *added])
        return found


def id_column(table: str, tables: Mapping[str, TableKeys]) -> str | None:
    """Returns the column whose values are the ids of a table's rows: its primary key, if that is one column; else the
    first one of unique values that a foreign key names rows by."""
    if len(primary := tables[table].primary_key) == 1:
        return primary[0]
    named = [key.referred for other in tables.values() for key in other.foreign_keys if key.table == table]
    return next((name for name, *more in filter(None, named) if not more and _is_unique(tables[table], name)), None)


def why_not(key: ForeignKey, tables: Mapping[str, TableKeys]) -> str:
    """Why a foreign key makes no edges; "" if it does. One that names rows by another column than their id makes edges
    if it is `translated` before."""
    if len(key.columns) > 1:
        return "it has several columns"
    if key.table not in tables:
        return f"there is no table {key.table}"
    ids = id_column(key.table, tables)
    named = f"it names {key.table} by {', '.join(key.referred)}"
    if key.referred and (len(key.referred) > 1 or not _is_unique(tables[key.table], key.referred[0])):
        return f"{named}, which is not its primary key, and not unique"
    if ids is None:
        return f"table {key.table} has no primary key of one column"
    if key.referred and not _same(key.referred[0], ids):
        return f"{named}, which is not its primary key"
    return ""


def translated(tables: Mapping[str, TableKeys]) -> tuple[dict[str, TableKeys], dict[tuple[str, str], ForeignKey]]:
    """Returns the tables as if each foreign key to unique values named rows by their id, and by (table, column) the
    keys that do not: whoever reads these columns has to look the ids up."""
    found, others = dict[str, TableKeys](), dict[tuple[str, str], ForeignKey]()
    for name, table in tables.items():
        keys = []
        for key in table.foreign_keys:
            is_single = len(key.columns) == 1 == len(key.referred) and key.table in tables
            ids = id_column(key.table, tables) if is_single else None
            if ids is not None and not _same(ids, key.referred[0]) and key.referred[0] in _known(tables[key.table]):
                others.setdefault((name, key.columns[0]), key)
                key = replace(key, referred=())
            keys.append(key)
        found[name] = replace(table, foreign_keys=keys)
    return found, others


def _is_unique(table: TableKeys, column: str) -> bool:
    if table.unique is None or table.primary_key == (column,):
        return True
    return any(_same(column, each) for each in (*table.unique, *table.primary_key[: len(table.primary_key) == 1]))


def _known(table: TableKeys) -> frozenset[str]:
    return table.unique or frozenset()


def _same(column: str, other: str) -> bool:
    return column.casefold() == other.casefold()  # SQLite does not tell them apart


def type_word(name: str) -> str:
    """Returns `name` in letters that names of types may have."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)


def _pairs(option: str, given: str | None, expected: str) -> list[tuple[str, str]]:
    pairs = []
    for pair in given.split(",") if given else ():
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not (left and equals and right):
            raise ConfigError(f"{option}: expected {expected}, found {pair.strip()!r}")
        pairs.append((left, right))
    return pairs
