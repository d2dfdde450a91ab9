"""What the catalogue of a database says of its tables, as a `RelationalSource`: keys of one column are edges."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from diskgnn.errors import ConfigError
from diskgnn.importers.source_formats.relational_source import KeyedTable, RelationalSource
from diskgnn.importers.tables.frames import RowTable


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that name rows of another one."""

    columns: tuple[str, ...]
    table: str
    referred: tuple[str, ...]  # columns of that table; empty: its primary key


@dataclass(frozen=True)
class CatalogueTable:
    """A table as its database describes it."""

    rows: RowTable
    primary_key: tuple[str, ...]
    foreign_keys: Sequence[ForeignKey]
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns that are not in `rows` -> why


@dataclass(frozen=True)
class Catalogue:
    """Lists the tables of a database, and what is not read of it.

    Attributes:
        tables: by name.
        left_out: other things, such as views, and why each is not read.
        held_bytes: of memory, while tables are read.
    """

    tables: Mapping[str, CatalogueTable]
    left_out: Mapping[str, str]
    held_bytes: int = 0


def source_of(catalogue: Catalogue, times: str | None) -> RelationalSource:
    """Returns the tables as node types, and their keys as edges.

    Args:
        catalogue: the tables.
        times: columns that say when rows appear: "orders.at,users.since".

    Raises:
        ConfigError: times of no table, or two tables whose names differ in letters only that types do not have.
    """
    tables = catalogue.tables
    time_of = _times(tables, times)
    reasons = {(type_word(name), "table"): reason for name, reason in catalogue.left_out.items()}
    empty = [name for name, table in tables.items() if not table.rows.num_rows]
    reasons |= {(type_word(name), "table"): "it has no rows" for name in empty}
    found: dict[str, KeyedTable] = {}
    for name, table in tables.items():
        word = type_word(name)
        if name in empty:
            continue
        if word in found:
            raise ConfigError(f"table {name!r}: another table would be called {word} as well; rename one of them")
        reasons |= {(word, column): reason for column, reason in table.left_out.items()}
        if len(table.primary_key) > 1:
            what = f"primary key ({', '.join(table.primary_key)})"
            reasons[word, what] = "it has several columns, so rows are numbered"
        fkeys = dict[str, str]()
        for key in table.foreign_keys:
            if reason := _why_not(key, tables, empty) or ("the column has another one" * (key.columns[0] in fkeys)):
                reasons[word, f"foreign key ({', '.join(key.columns)})"] = reason
            else:
                fkeys[key.columns[0]] = type_word(key.table)
        pkey = table.primary_key[0] if len(table.primary_key) == 1 else None
        found[word] = KeyedTable(table.rows, pkey, fkeys, time_of.get(name))
    return RelationalSource(found, left_out=reasons)


def type_word(name: str) -> str:
    """Returns `name` in letters that names of types may have."""
    return re.sub("[^A-Za-z0-9_-]", "_", name)


def _why_not(key: ForeignKey, tables: Mapping[str, CatalogueTable], empty: Sequence[str]) -> str:
    """Why a foreign key makes no edges; "" if it does."""
    if len(key.columns) > 1:
        return "it has several columns"
    if key.table not in tables:
        return f"there is no table {key.table}"
    if key.table in empty:
        return f"table {key.table} has no rows"
    primary = tables[key.table].primary_key
    if len(primary) != 1:
        return f"table {key.table} has no primary key of one column"
    if key.referred and key.referred[0].casefold() != primary[0].casefold():
        return f"it names {key.table} by {', '.join(key.referred)}, which is not its primary key"
    return ""


def _times(tables: Mapping[str, CatalogueTable], times: str | None) -> dict[str, str]:
    found = {}
    for pair in times.split(",") if times else []:
        table, _, column = pair.strip().rpartition(".")
        if table not in tables:
            raise ConfigError(
                f"times: expected TABLE.COLUMN of a table of {', '.join(tables) or 'none'}, found {pair.strip()!r}"
            )
        tables[table].rows.field(column)
        found[table] = column
    return found
