"""One snapshot of a PostgreSQL database, read as Arrow batches by the driver of ADBC."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from diskgnn.errors import InputError, UnavailableError
from diskgnn.importers.tables.dictionaries import decoded

# The driver hands over a batch when it has so many bytes; it holds one, and Arrow another one.
_BATCH_BYTES = 4 << 20
HELD_BYTES = 24 << 20  # libpq, the driver and its batches
# Parallel scans, and those that begin where another one is, would give rows in another order each time. Timeouts are
# for applications. Names are those of the catalogue, whatever the database has of the same name.
_SETTINGS = (
    "search_path = pg_catalog", "row_security = off", "statement_timeout = 0",
    "idle_in_transaction_session_timeout = 0", "synchronize_seqscans = off", "max_parallel_workers_per_gather = 0",
    "timezone = 'UTC'",
)  # fmt: skip


class PostgresServer:
    """A connection with one read-only transaction, which sees one state of the database.

    Args:
        conninfo: how to connect, in libpq's words; nothing of it is shown.
        shown: the database, for messages.
        without_secrets: makes text of the driver fit to be shown.

    Attributes:
        version: of the server.
        time: of the snapshot, in UTC.

    Raises:
        UnavailableError: the driver is not there.
        InputError: no server answers, or it refuses.
    """

    def __init__(self, conninfo: str, shown: str, without_secrets: Callable[[str], str]) -> None:
        self.shown, self._without_secrets = shown, without_secrets
        try:
            import adbc_driver_manager
            import adbc_driver_postgresql.dbapi as driver
        except ImportError as error:
            raise UnavailableError(
                f"{shown} is a PostgreSQL database, which the driver of ADBC reads: pip install 'diskgnn[databases]' "
                f"({error})"
            ) from error
        self._error: type[Exception] = adbc_driver_manager.Error
        with self._errors_named("that answers"):
            self._connection = driver.connect(conninfo)
        try:
            self._run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            for setting in _SETTINGS:
                self._run(f"SET LOCAL {setting}")
            ((self.version, self.time),) = self.rows(
                "SELECT current_setting('server_version'), to_char(now(), 'YYYY-MM-DD HH24:MI:SS')"
            )
        except BaseException:
            self.close()
            raise

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Returns all rows of a query that has few."""
        with self._errors_named("that lets its catalogue be read"), self._connection.cursor() as cursor:
            cursor.execute(query)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def schema(self, query: str) -> pa.Schema:
        """Returns the columns of a query."""
        with self._errors_named("whose tables can be read"), self._connection.cursor() as cursor:
            cursor.execute(f"{query} LIMIT 0")
            return cursor.fetch_arrow_table().schema.remove_metadata()

    def batches(self, query: str, where: str) -> Iterator[Sequence[pa.Array]]:
        """Yields the columns of the rows of a query, some rows at a time; `where` is what they are, for messages."""
        hint = {"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
        with (
            self._errors_named(f"that gives {where}"),
            self._connection.cursor(adbc_stmt_kwargs=hint) as cursor,
        ):
            cursor.execute(query)
            for batch in cursor.fetch_record_batch():
                yield [*map(decoded, batch.columns)]

    def close(self) -> None:
        """Ends the transaction and the connection."""
        with self._errors_named("that answers"):
            self._connection.close()

    def _run(self, statement: str) -> None:
        with self._errors_named("that lets a snapshot be read"), self._connection.cursor() as cursor:
            cursor.execute(statement)

    @contextmanager
    def _errors_named(self, expected: str) -> Iterator[None]:
        try:
            yield
        except (self._error, pa.ArrowException, OSError) as error:
            told = str(error).partition("\n\nQuery was")[0].partition("\nQuery was")[0]
            told = self._without_secrets(" ".join(told.split()))
            raise InputError(f"{self.shown}: expected a PostgreSQL server {expected}, found: {told}") from None


def quoted(name: str) -> str:
    """Returns a name in SQL."""
    return '"' + name.replace('"', '""') + '"'
