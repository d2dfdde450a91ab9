"""The rows of a table up to a time, as if there were no later ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.tables.frames import RowTable
from diskgnn.importers.tables.parts import without
from diskgnn.importers.tables.times import seconds


class RowsUntil:
    """The rows of `table` whose column `time` says at most `until`, in seconds since 1970; not those without a time."""

    def __init__(self, table: RowTable, time: str, until: int) -> None:
        self.name, self.schema, self.stored_bytes = table.name, table.schema, table.stored_bytes
        self._table, self._time, self._until = table, time, until
        table.field(time)

    @cached_property
    def num_rows(self) -> int:
        """Returns the rows up to the time, which are counted by reading it."""
        return sum(batch.num_rows for batch in self.batches([self._time], CHUNK_EDGES))

    def field(self, column: str) -> pa.Field:
        """Returns the column's name and type, or InputError."""
        return self._table.field(column)

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Returns all rows from the `first` on in order, these columns only, at most `batch_rows` at a time."""
        return without(self._known_batches(columns, batch_rows), first)

    def _known_batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        for batch in self._table.batches(list(dict.fromkeys([*columns, self._time])), batch_rows):
            times = seconds(batch[self._time], f"{self.name}: column {self._time!r}")
            yield batch.filter(pc.less_equal(times, self._until).fill_null(False)).select(list(columns))
