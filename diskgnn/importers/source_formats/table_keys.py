"""Keys of the tables of a database: those that it declares, and those that the user gives beside or in their place."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import LONGEST_NAME


@dataclass(frozen=True)
class ForeignKey:
    """Columns of a table that name rows of another one.

    Attributes:
        columns: of the table that has the key.
        table: the other one.
        referred: columns of that table; empty: its primary key.
        ids: what the database is asked for in place of `columns`, a column of its own beside them: the ids of the rows
            that they name; empty: the values of `columns` are the ids.
    """

    columns: tuple[str, ...]
    table: str
    referred: tuple[str, ...] = ()
    ids: str = ""


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

    @property
    def looked_up(self) -> dict[str, ForeignKey]:
        """Returns the keys that the database looks up, by the column that has what it finds."""
        return {key.ids: key for key in self.foreign_keys if key.ids}


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
        names = names_of(tables)

        def table(option: str, name: str) -> str:
            if name not in names:
                raise ConfigError(
                    f"{option}: expected a table of {', '.join(tables) or 'none'}, found {name!r}"
                    f"{near_name(name, names)}"
                )
            return names[name]

        def column(option: str, of: str, name: str) -> str:
            if name not in tables[of].columns:
                raise ConfigError(
                    f"{option}: expected a column of {of} ({', '.join(tables[of].columns)}), found {name!r}"
                    f"{near_name(name, tables[of].columns)}"
                )
            return name

        found_keys, found_links = dict[str, str](), dict[tuple[str, str], tuple[str, str | None]]()
        for name, key in _pairs("keys", keys, "TABLE=COLUMN, such as users=id"):
            of = table("keys", name)
            _set_once("keys", found_keys, of, column("keys", of, key), of)
        for left, right in _pairs("links", links, "TABLE.COLUMN=TABLE, such as orders.user_id=users"):
            name, _, linked = left.rpartition(".")
            of = table("links", name)
            to, dot, key = ("", "", "") if right in names else right.rpartition(".")
            other = table("links", to if dot else right)
            to_key = (other, column("links", other, key) if dot else None)
            _set_once("links", found_links, (of, column("links", of, linked)), to_key, f"{of}.{linked}")
        return GivenKeys(found_keys, found_links)

    def applied(self, tables: Mapping[str, TableKeys]) -> dict[str, TableKeys]:
        """Returns `tables` with these keys in place of declared ones of the same table or column."""
        found = {}
        for name, table in tables.items():
            given = {key: to for (of, key), to in self.links.items() if of == name}
            kept = [
                # What is declared names rows by the key that was declared.
                replace(key, referred=key.referred or tables[key.table].primary_key) if key.table in self.keys else key
                for key in table.foreign_keys
                if len(key.columns) > 1 or key.columns[0] not in given
            ]
            added = [
                ForeignKey((key,), other, () if referred is None else (referred,))
                for key, (other, referred) in given.items()
            ]
            primary, unique = table.primary_key, table.unique
            if name in self.keys:
                primary = (self.keys[name],)
                if unique is not None and len(table.primary_key) == 1:
                    unique |= {*table.primary_key}  # declared keys name rows by it
            found[name] = replace(table, primary_key=primary, foreign_keys=[*kept, *added], unique=unique)
        return found


def id_column(table: str, tables: Mapping[str, TableKeys]) -> str | None:
    """Returns the column whose values are the ids of a table's rows: its primary key, if that is one column; else the
    first one of unique values that a foreign key names rows by."""
    if len(primary := tables[table].primary_key) == 1:
        return primary[0]
    named = [key.referred for other in tables.values() for key in other.foreign_keys if key.table == table]
    return next((name for name, *more in filter(None, named) if not more and _is_unique(tables[table], name)), None)


def why_not(key: ForeignKey, tables: Mapping[str, TableKeys]) -> str:
    """Says why a foreign key makes no edges; "" if it does. One that names rows by another column than their id makes
    edges if it is `looked_up`."""
    if len(key.columns) > 1:
        return "it has several columns"
    if key.table not in tables:
        return f"there is no table {key.table}"
    if key.ids:
        return ""
    ids = id_column(key.table, tables)
    named = f"it names {key.table} by {', '.join(key.referred)}"
    if key.referred and (len(key.referred) > 1 or not _is_unique(tables[key.table], key.referred[0])):
        given = (
            "" if len(key.referred) > 1 else f"; if it names each row, `keys` says so ({key.table}={key.referred[0]})"
        )
        return f"{named}, which is not its primary key, and not unique{given}"
    if ids is None:
        unique = sorted(tables[key.table].unique or ())
        return (
            f"table {key.table} has no primary key of one column; `keys` says which column names its rows "
            f"({key.table}={unique[0] if unique else 'COLUMN'})"
        )
    if key.referred and key.referred[0] != ids:
        return f"{named}, which is not its primary key"
    return ""


def looked_up(
    tables: Mapping[str, TableKeys],
    odd: Mapping[tuple[str, str], str],
    unread: Collection[tuple[str, str]],
    uncompared: Collection[tuple[str, str]] = (),
) -> dict[str, TableKeys]:
    """Returns the tables where each foreign key that names rows by other values than their ids as they are read has a
    column of its own, `ForeignKey.ids`: the database finds the ids, as it compares the values.

    Args:
        tables: by name.
        odd: columns (table, column) that the database compares otherwise than by what is read of them, such as without
            regard to capital letters, and their types.
        unread: columns (table, column) whose values are not known: such keys are not looked up, nor such ids found.
        uncompared: columns (table, column) that the database does not compare with anything.

    Raises:
        ConfigError: ids are such values, and no index says that they are unique, so that nobody could look them up.
    """
    found = dict[str, TableKeys]()
    for name, table in tables.items():
        taken, keys = {*table.columns}, []
        for key in table.foreign_keys:
            found_ids = id_column(key.table, tables) if _needs_look_up(key, tables, odd) else None
            if found_ids is not None:
                (column,), (referred,) = key.columns, key.referred or (found_ids,)
                is_read = (name, column) not in unread and (key.table, found_ids) not in unread
                if is_read and (key.table, referred) not in uncompared:
                    ids = f"{column}={key.table}.{referred}"
                    while ids in taken:
                        ids += "'"
                    taken.add(ids)
                    key = replace(key, referred=(referred,), ids=ids)
            keys.append(key)
        found[name] = replace(table, foreign_keys=keys)
    return found


def _needs_look_up(key: ForeignKey, tables: Mapping[str, TableKeys], odd: Mapping[tuple[str, str], str]) -> bool:
    is_single = len(key.columns) == 1 and len(key.referred) <= 1 and key.table in tables
    ids = id_column(key.table, tables) if is_single else None
    if ids is None:
        return False
    (referred,) = key.referred or (ids,)
    is_known = referred in (tables[key.table].unique or ())
    if referred != ids:
        return is_known
    if (kind := odd.get((key.table, ids))) is not None and not is_known:
        raise ConfigError(
            f"keys: {key.table}.{ids} is {kind}, and the database does not compare such values letter by "
            "letter: that needs a unique index of the column, found none"
        )
    return kind is not None


def by_name(key: ForeignKey, tables: Mapping[str, TableKeys]) -> str:
    """Returns what a key that is looked up names rows by, for messages: rows without an id are not among them."""
    (referred,), ids = key.referred, id_column(key.table, tables)
    may_lack = ids != referred and (ids,) != tuple(tables[key.table].primary_key)
    beside = f" together with a value of {key.table}.{ids}, by which rows are named" if may_lack else ""
    return f"{key.table}.{referred}{beside}"


def folded(name: str) -> str:
    """Returns a name as SQLite and DuckDB compare it: A to Z are a to z, and no other letters are alike."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _is_unique(table: TableKeys, column: str) -> bool:
    return table.unique is None or column in table.unique or table.primary_key == (column,)


def type_word(name: str, most: int = LONGEST_NAME) -> str:
    """Returns `name` in letters that names of types may have, and at most so many: of a longer one, the end is a hash,
    so that names that begin alike stay different."""
    word = re.sub("[^A-Za-z0-9_-]", "_", name)
    if len(word) <= most:
        return word
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{word[: most - len(digest) - 1]}_{digest}"


def key_word(column: str) -> str:
    """Returns the middle name of the edges that a foreign key makes; `rev_` before it fits, too."""
    return "f2p_" + type_word(column, LONGEST_NAME - len("rev_f2p_"))


def names_of(tables: Iterable[str]) -> dict[str, str]:
    """Returns the names of tables by how options may spell them: as the database does, or as their types are called."""
    tables = [*tables]
    return {type_word(name): name for name in tables} | {name: name for name in tables}


def _set_once(option: str, found: dict[Any, Any], name: Any, value: Any, shown: str) -> None:
    """Refuses a second value for the same name: nobody would see that the first one does not count."""
    if found.setdefault(name, value) != value:
        each = [".".join(filter(None, given)) if isinstance(given, tuple) else given for given in (found[name], value)]
        raise ConfigError(f"{option}: expected one of {shown}, found {' and '.join(each)}")


def _pairs(option: str, given: str | None, expected: str) -> list[tuple[str, str]]:
    pairs = []
    for pair in given.split(",") if given else ():
        left, equals, right = (part.strip() for part in pair.partition("="))
        if not (left and equals and right):
            raise ConfigError(f"{option}: expected {expected}, found {pair.strip()!r}")
        pairs.append((left, right))
    return pairs
