"""Keys of relational tables: ids of their rows, and edges to the rows that foreign keys name."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import InputError
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.id_streams import IdColumns, checked_keys, skipping
from diskgnn.importers.ids.id_types import id_kind
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.times import is_date

_EXACT = 1 << 53  # whole numbers up to it are floats


def primary_key(name: str, rows: RowTable, column: str, *, may_lack: bool) -> IdColumns:
    """Returns the ids of the rows of a table; some `may_lack` one."""
    where, quoted = f"table {name}", (f"column {column!r}",)
    kind = _key_kind(where, rows, column)

    def read_keys(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        for batch in rows.batches([column], chunk_rows, first):
            yield (_keys(batch.column(0), kind, where, column),)

    chunks = partial(checked_keys, where, "row", quoted, read_keys, may_lack=may_lack)
    return IdColumns(where, "row", quoted, (kind,), rows.num_rows, True, chunks, may_lack=may_lack)


def key_edges(name: str, rows: RowTable, column: str, skip_unknown: bool, *, turned: bool = False) -> IdColumns:
    """Returns (row, row that its key names), for each row that has the key; `turned`: the other way."""
    where, kind = f"table {name}", _key_kind(f"table {name}", rows, column)
    ends = {"row number": pa.int64(), f"column {column!r}": kind}
    quoted, kinds = tuple(ends), tuple(ends.values())
    if turned:
        quoted, kinds = quoted[::-1], kinds[::-1]
    num_rows = sum(len(batch.column(0)) - _null_count(batch.column(0)) for batch in rows.batches([column], CHUNK_EDGES))

    def all_keys(chunk_rows: int) -> Iterator[tuple[pa.Array, ...]]:
        position = 0
        for batch in rows.batches([column], chunk_rows):
            keys = _keys(batch.column(0), kind, where, column)
            numbers = pa.array(np.arange(position, position + len(keys)))
            position += len(keys)
            if keys.null_count:
                numbers, keys = numbers.filter(keys.is_valid()), keys.drop_null()
            yield (keys, numbers) if turned else (numbers, keys)

    def read_keys(chunk_rows: int, first: int) -> Iterator[tuple[pa.Array, ...]]:
        return skipping(all_keys(chunk_rows), first)

    chunks = partial(checked_keys, where, "edge", quoted, read_keys)
    return IdColumns(where, "edge", quoted, kinds, num_rows, True, chunks, int(turned), skip_unknown)


def require_comparable(where: str, rows: RowTable, column: str, table: str, others: RowTable, referred: str) -> None:
    """Refuses keys that can be equal to none of those that they would name rows by, such as numbers to text.

    Args:
        where: the keys are, for messages.
        rows, column: their table and column.
        table, others, referred: the table whose rows they name, and its column.

    Raises:
        InputError: they are of another kind.
    """
    kind, other = rows.field(column).type, others.field(referred).type
    if _words_of(kind) != _words_of(other):
        raise InputError(
            f"{where}: column {column!r} has {_words_of(kind)} ({kind}), and {table}.{referred}, by which it would "
            f"name rows, {_words_of(other)} ({other}): these are never equal; name another column by `links` or "
            "`keys`, or cast one of these"
        )


def require_keys(where: str, rows: RowTable, column: str) -> None:
    """Refuses a column of a type that no keys are of; one that has no values yet passes.

    Raises:
        InputError: it is of such a type.
    """
    if not pa.types.is_null(rows.field(column).type):
        _key_kind(where, rows, column)


def _words_of(kind: pa.DataType) -> str:
    if is_date(kind):
        return "dates"
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return "numbers"
    found = id_kind(kind)
    return "no keys" if found is None else "numbers" if pa.types.is_integer(found) else str(found)[len("large_") :]


def _null_count(keys: pa.Array) -> int:
    return int(pc.sum(keys.is_null(nan_is_null=True)).as_py() or 0)


def _key_kind(where: str, rows: RowTable, column: str) -> pa.DataType:
    kind = rows.field(column).type
    if pa.types.is_floating(kind):  # whole numbers, if pandas holds a column with gaps
        return pa.int64()
    if id_kind(kind) is None:
        raise InputError(
            f"{where}: expected keys (whole numbers, strings, binary, dates) in column {column!r}, found {kind}: "
            "cast it to int64, or to text"
        )
    return kind


def _keys(keys: pa.Array, kind: pa.DataType, where: str, column: str) -> pa.Array:
    if not pa.types.is_floating(keys.type):
        return keys
    keys = pc.if_else(pc.is_nan(keys), pa.scalar(None, keys.type), keys)
    if (pc.max(pc.abs(keys)).as_py() or 0) > _EXACT:
        raise InputError(
            f"{where}: expected keys in column {column!r}, found {keys.type} numbers beyond 2^53, of which several "
            "keys may be one; store them as whole numbers or text"
        )
    try:
        return keys.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(f"{where}: expected keys in column {column!r}, found fractional numbers ({error})") from error
