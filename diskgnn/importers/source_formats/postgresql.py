"""A PostgreSQL database: its tables, with the primary and foreign keys that they are declared with, in one snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ConfigError
from diskgnn.importers.source_formats.catalogue import Catalogue, CatalogueTable
from diskgnn.importers.source_formats.postgresql_columns import (
    Check,
    PostgresType,
    ReadColumn,
    encodings_of,
    read_column,
    read_text,
)
from diskgnn.importers.source_formats.postgresql_url import PostgresUrl
from diskgnn.importers.source_formats.table_keys import (
    ForeignKey,
    GivenKeys,
    TableKeys,
    by_name,
    id_column,
    looked_up,
    type_word,
)
from diskgnn.importers.tables.frames import NamedColumns
from diskgnn.importers.tables.looked_up import UnknownKeys
from diskgnn.importers.tables.postgresql_server import HELD_BYTES, PostgresServer, quoted
from diskgnn.stores.locations import is_database

_TABLES = """
    SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text,
        EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'),
        has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'),
        c.reltuples::float8
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
        AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
    ORDER BY n.nspname <> 'public', n.nspname COLLATE "C", c.relname COLLATE "C"
    """
_COLUMNS = """
    SELECT a.attrelid::int8, a.attnum::int4, a.attname::text, a.atttypid::int8, a.atttypmod::int4,
        format_type(a.atttypid, a.atttypmod)::text, has_column_privilege(a.attrelid, a.attnum, 'SELECT'),
        COALESCE(l.collisdeterministic, true)
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p') AND NOT c.relispartition
    ORDER BY a.attrelid, a.attnum
    """
_TYPES = """
    SELECT t.oid::int8, t.typname::text, t.typtype::text, t.typbasetype::int8, t.typtypmod::int4,
        CASE WHEN t.typcategory = 'A' THEN t.typelem::int8 ELSE 0 END
    FROM pg_type t
    """
_KEYS = """
    SELECT conrelid::int8, contype::text, conkey, confrelid::int8, confkey FROM pg_constraint
    WHERE contype IN ('p', 'f') AND conparentid = 0 AND conrelid <> 0 ORDER BY conrelid, contype, conkey, conname
    """
# How a unique index compares: by this operator, values of another type cast to that of its own; and by a collation.
_UNIQUE = """
    SELECT i.indrelid::int8, i.indkey[0]::int4, format('OPERATOR(%I.%s)', n.nspname, o.oprname),
        CASE WHEN tn.nspname <> 'pg_catalog' THEN '::' || format_type(c.opcintype, NULL)
            WHEN t.typname = 'bpchar' THEN '::pg_catalog.bpchar' ELSE '' END
            || CASE WHEN l.oid IS NULL THEN '' ELSE format(' COLLATE %I.%I', ln.nspname, l.collname) END,
        COALESCE(l.collisdeterministic, true)
    FROM pg_index i JOIN pg_opclass c ON c.oid = i.indclass[0]
    JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amopstrategy = 3 AND a.amoplefttype = c.opcintype
        AND a.amoprighttype = c.opcintype
    JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
    JOIN pg_type t ON t.oid = c.opcintype JOIN pg_namespace tn ON tn.oid = t.typnamespace
    LEFT JOIN pg_collation l ON l.oid = i.indcollation[0] LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
    WHERE i.indisunique AND i.indisvalid AND i.indnkeyatts = 1 AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary, i.indexrelid
    """
_NO_TABLES = {"v": "it is a view", "m": "it is a materialized view",
              "f": "it is a foreign table, whose rows are in no snapshot"}  # fmt: skip
_NUMERIC_HEADER = 4  # of a typmod, beside precision and scale
_FLAGS = 62  # of checks in one whole number


@dataclass(frozen=True)
class _Equals:
    """Says how a unique index compares a column with values.

    Attributes:
        operator, cast: SQL: column, operator, value, cast.
        is_exact: its collation takes different letters for different.
    """

    operator: str
    cast: str
    is_exact: bool


@dataclass(frozen=True)
class _Described:
    """A table as the catalogue has it."""

    sql: str  # its name
    types: Mapping[str, PostgresType]
    unreadable: frozenset[str]  # columns that the user must not read
    folded: frozenset[str]  # columns of a collation that takes different letters for alike
    keys: TableKeys
    equals: Mapping[str, _Equals]  # by column of unique values
    about_rows: int


class PostgresDatabase:
    """A PostgreSQL database, by its URL; see `databases.Database`.

    Raises:
        ConfigError: the URL is none.
    """

    is_server, held_bytes = True, HELD_BYTES

    def __init__(self, url: str) -> None:
        self._url = PostgresUrl.parse(url)
        self.shown = self._url.shown
        self._server: PostgresServer | None = None

    def catalogue(self, keys: str | None, links: str | None, encode: Collection[str] = ()) -> Catalogue:
        """Returns its tables, in a snapshot that is there until `close`, with the keys that the user gives. Columns of
        `encode` are read as text, whatever their type, if there is no other way.

        Raises:
            UnavailableError: the driver is not there.
            InputError: no server answers, or it refuses.
            ConfigError: keys of tables or columns that there are not.
        """
        url = self._url
        self._server = server = PostgresServer(url.conninfo, url.shown, url.without_secrets)
        described, left_out = _describe(server)
        declared = {name: table.keys for name, table in described.items()}
        all_keys = GivenKeys.parse(keys, links, declared).applied(declared)
        unreadable = {(name, column) for name, table in described.items() for column in table.unreadable}
        found_keys = looked_up(all_keys, _odd(described), unreadable, unreadable)
        tables = {}
        for name, table in described.items():
            columns, reasons = dict[str, ReadColumn](), dict[str, str]()
            for column in table.types:
                read = _read(name, column, described, found_keys)
                if isinstance(read, str) and {column, f"{name}.{column}", f"{type_word(name)}.{column}"} & {*encode}:
                    read = read_text(column, f"t.{quoted(column)}")
                if isinstance(read, str):
                    reasons[column] = read
                else:
                    columns[column] = read
            for column, key in found_keys[name].looked_up.items():
                columns[column] = _read_looked_up(name, key, described, found_keys)
            if not columns:
                left_out[name] = "none of its columns can be read" if reasons else "it has no columns"
                continue
            rows = PostgresTable(server, f"table {name} ({url.shown})", table.sql, columns)
            tables[name] = CatalogueTable(
                rows, found_keys[name], reasons, encodings_of(columns), rows.noticed, rows.unknown, table.about_rows
            )
        return Catalogue(tables, left_out, f"PostgreSQL {server.version.split()[0]}, as of {server.time} UTC")

    def identity(self, fetched: str) -> str:
        """Names the database, whatever the password."""
        del fetched
        return self._url.identity

    def close(self) -> None:
        """Ends the snapshot."""
        if self._server is not None:
            self._server.close()


def recognises(source: object) -> bool:
    """Returns True for text that is the URL of a PostgreSQL database."""
    return is_database(source)


def _read(
    table: str,
    column: str,
    described: Mapping[str, _Described],
    keys: Mapping[str, TableKeys],
) -> ReadColumn | str:
    here = described[table]
    if column in here.unreadable:
        return "the user has no privilege to read it (GRANT SELECT)"
    value, naming = f"t.{quoted(column)}", [key for key in keys[table].foreign_keys if key.columns == (column,)]
    is_id = column == id_column(table, keys)
    if naming and not is_id and all(key.ids for key in naming):
        return ReadColumn(f"{value}::text")  # other columns have what these keys name
    return read_column(column, here.types[column], is_key=is_id or bool(naming), value=value)


def _read_looked_up(
    table: str, key: ForeignKey, described: Mapping[str, _Described], keys: Mapping[str, TableKeys]
) -> ReadColumn:
    """Returns how the ids of the rows that a key names are read, which it names by other values."""
    ids, here, there = id_column(key.table, keys), described[table], described[key.table]
    assert ids is not None
    (column,), (referred,) = key.columns, key.referred
    _require_comparable(f"{table}.{column}", here.types[column], f"{key.table}.{referred}", there.types[referred])
    equals, value = there.equals[referred], f"t.{quoted(column)}"
    read = read_column(ids, there.types[ids], is_key=True, value=f"r.{quoted(ids)}")
    assert isinstance(read, ReadColumn), "any type is read as a key"
    return ReadColumn(
        f"(SELECT {read.sql} FROM {there.sql} r WHERE r.{quoted(referred)} {equals.operator} {value}{equals.cast})",
        asked=f"{value}::text", named=by_name(key, keys),
    )  # fmt: skip


def _odd(described: Mapping[str, _Described]) -> dict[tuple[str, str], str]:
    """Returns the columns that the server compares otherwise than by what is read of them, and their types."""
    found = {}
    for name, table in described.items():
        for column, kind in table.types.items():
            equals = table.equals.get(column)
            # Without an index, keys of these types are compared as text, which is right among keys of one type.
            of_index = equals is not None and (not equals.is_exact or kind.is_compared_across_types)
            if kind.is_compared_otherwise or of_index or column in table.folded:
                found[name, column] = f"of type {kind.shown}"
    return found


def _require_comparable(column: str, kind: PostgresType, referred: str, other: PostgresType) -> None:
    """Raises ConfigError for a key of numbers to a column of text, and the like, which a server has no operator for."""
    if kind.compared_as != other.compared_as:
        raise ConfigError(
            f"links: {column} is of type {kind.shown}, and {referred}, by which it would name rows, of type "
            f"{other.shown}: these cannot be equal"
        )


@dataclass(frozen=True)
class _Listed:
    """A table that can be read."""

    name: str
    sql: str
    about_rows: float


def _list_tables(server: PostgresServer) -> tuple[dict[int, str], dict[int, _Listed], dict[str, str]]:
    """Returns the names of all tables by number, those that can be read, and by name why others are not."""
    names, listed, left_out = dict[int, str](), dict[int, _Listed](), dict[str, str]()
    for oid, schema, table, kind, of_extension, is_readable, about_rows in server.rows(_TABLES):
        name = table if schema == "public" else f"{schema}.{table}"
        if name in names.values():
            raise ConfigError(
                f"two tables are called {name!r}, where those of schema public have no prefix: rename one"
            )
        names[oid] = name
        if kind in _NO_TABLES:
            left_out[name] = _NO_TABLES[kind]
        elif of_extension:
            left_out[name] = "it belongs to an extension of the server"
        elif not is_readable:
            left_out[name] = "the user has no privilege to read it (GRANT SELECT)"
        else:
            # ONLY: rows of a table that inherits from it are its own; partitions are the table.
            only = "" if kind == "p" else "ONLY "
            listed[oid] = _Listed(name, f"{only}{quoted(schema)}.{quoted(table)}", about_rows)
    return names, listed, left_out


def _describe(server: PostgresServer) -> tuple[dict[str, _Described], dict[str, str]]:
    """Returns the tables of a database, and what else it has, with the reasons why that is not read."""
    names, listed, left_out = _list_tables(server)
    types = _Types(server)
    columns: dict[int, dict[int, str]] = {}
    kinds: dict[int, dict[str, PostgresType]] = {}
    unreadable: dict[int, set[str]] = {}
    folded: dict[int, set[str]] = {}
    for oid, number, column, kind, modifier, shown, is_readable, is_exact in server.rows(_COLUMNS):
        if oid in listed:
            columns.setdefault(oid, {})[number] = column
            kinds.setdefault(oid, {})[column] = types.of(kind, modifier, shown)
            unreadable.setdefault(oid, set()).update([] if is_readable else [column])
            folded.setdefault(oid, set()).update([] if is_exact else [column])
    primary: dict[int, tuple[str, ...]] = {}
    foreign: dict[int, list[ForeignKey]] = {}
    for oid, kind, own, other, referred in server.rows(_KEYS):
        if oid not in listed:
            continue
        own_columns = tuple(columns[oid][number] for number in own)
        if kind == "p":
            primary[oid] = own_columns
        else:
            others = tuple(columns.get(other, {}).get(number, "") for number in referred)
            foreign.setdefault(oid, []).append(ForeignKey(own_columns, names.get(other, "of this schema"), others))
    unique: dict[int, dict[str, _Equals]] = {}
    for oid, number, *how in server.rows(_UNIQUE):
        if oid in listed:
            unique.setdefault(oid, {})[columns[oid][number]] = _Equals(*how)
    return {
        each.name: _Described(
            each.sql, kinds.get(oid, {}), frozenset(unreadable.get(oid, ())), frozenset(folded.get(oid, ())),
            TableKeys(
                [*kinds.get(oid, {})], primary.get(oid, ()), foreign.get(oid, []), frozenset(unique.get(oid, ()))
            ),
            unique.get(oid, {}),
            max(0, int(each.about_rows)),
        )
        for oid, each in listed.items()
    }, left_out  # fmt: skip


class _Types:
    """The types of a database."""

    def __init__(self, server: PostgresServer) -> None:
        self._rows = {oid: rest for oid, *rest in server.rows(_TYPES)}

    def of(self, oid: int, modifier: int, shown: str) -> PostgresType:
        """Returns a type; of a domain, what it is made of."""
        name, kind, base, base_modifier, element = self._rows[oid]
        if kind == "d":
            return self.of(base, base_modifier, shown)
        precision = (modifier - _NUMERIC_HEADER) >> 16 if name == "numeric" and modifier >= _NUMERIC_HEADER else None
        made_of = self.of(element, -1, shown.removesuffix("[]")) if element else None
        return PostgresType(name, shown, kind, made_of, precision)


class PostgresTable(NamedColumns):
    """A table of a PostgreSQL database, in the order in which the server has its rows."""

    stored_bytes = 0

    def __init__(self, server: PostgresServer, name: str, table: str, columns: Mapping[str, ReadColumn]) -> None:
        self.name, self._server, self._table, self._columns = name, server, table, columns
        self._found: dict[tuple[str, Check], int] = {}
        self._unknown = UnknownKeys()
        for column, read in columns.items():
            if read.asked is not None:
                self._unknown.expect(column, read.named)
        found = server.schema(f"SELECT {self._list([*columns])} FROM {table} t")
        self.schema = pa.schema([pa.field(name, column.type) for name, column in zip(columns, found, strict=True)])

    @property
    def num_rows(self) -> int:
        """Returns the rows, which the server counts."""
        return int(self._server.rows(f"SELECT count(*) FROM {self._table} t")[0][0])

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows in the order of the server, these columns only, at most `batch_rows` at a time.

        Raises:
            InputError: the server fails, or has values that cannot be read.
        """
        assert first == 0, "a table of a server is read once, from the front"
        self._found.clear()
        self._unknown.clear()
        asked = {name: sql for name in columns if (sql := self._columns[name].asked) is not None}
        checks = [(name, check) for name in columns for check in self._columns[name].checks if check.sql]
        flags = [_flags(checks[begin : begin + _FLAGS]) for begin in range(0, len(checks), _FLAGS)]
        listed = ", ".join([self._list(columns), *asked.values(), *flags])
        for arrays in self._server.batches(f"SELECT {listed} FROM {self._table} t", self.name):
            for name, values in zip(asked, arrays[len(columns) :], strict=False):
                self._unknown.add(name, values, arrays[columns.index(name)])
            for part, found in enumerate(arrays[len(columns) + len(asked) :]):
                self._count(checks[part * _FLAGS :], np.asarray(found))
            taken = [self._check_values(name, values) for name, values in zip(columns, arrays, strict=False)]
            batch = pa.record_batch(taken, names=list(columns))
            for start in range(0, batch.num_rows, batch_rows):
                yield batch.slice(start, batch_rows)

    def noticed(self) -> dict[str, str]:
        """Returns what of the values is not as it was in the database, and why."""
        return dict(check.found(self.name, column, count) for (column, check), count in self._found.items())

    def unknown(self) -> dict[str, str]:
        """Returns the foreign keys with values that name no row, and what is told of them."""
        return self._unknown.told()

    def _list(self, columns: Sequence[str]) -> str:
        return ", ".join(f"{self._columns[name].sql} AS {quoted(name)}" for name in columns)

    def _check_values(self, column: str, values: pa.Array) -> pa.Array:
        for check in self._columns[column].checks:
            if check.taken is not None:
                values, count = check.taken(values)
                self._add(column, check, count)
        return values

    def _add(self, column: str, check: Check, count: int) -> None:
        if count:
            self._found[column, check] = self._found.get((column, check), 0) + count

    def _count(self, checks: Sequence[tuple[str, Check]], flags: npt.NDArray[np.int64]) -> None:
        flags = flags[flags != 0]
        if not len(flags):
            return
        for bit, (column, check) in enumerate(checks[:_FLAGS]):
            self._add(column, check, int(np.count_nonzero(flags & (1 << bit))))


def _flags(checks: Sequence[tuple[str, Check]]) -> str:
    """Returns SQL of a whole number with a bit for each check that a row does not pass."""
    return " + ".join(f"CASE WHEN {check.sql} THEN {1 << bit}::int8 ELSE 0::int8 END"
                      for bit, (_, check) in enumerate(checks))  # fmt: skip
