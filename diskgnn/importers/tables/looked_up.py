"""Foreign keys that a database looks up by its own comparison: those that find no row are counted, not lost."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


class UnknownKeys:
    """Counts the values of foreign keys that name no row, while their tables are read.

    Such a value becomes null like one that is not there, so nobody could tell them apart later.
    """

    def __init__(self) -> None:
        self._tables: dict[str, str] = {}
        self._found: dict[str, tuple[int, str]] = {}

    def expect(self, column: str, named: str) -> None:
        """Notes that what `column` has was looked up among the values of `named`, such as TABLE.COLUMN."""
        self._tables[column] = named

    def clear(self) -> None:
        """Begins to count anew."""
        self._found.clear()

    def add(self, column: str, asked: pa.Array, found: pa.Array) -> None:
        """Counts some rows: `asked` [n] has the values as text, `found` [n] what they name, or null."""
        unknown = pc.and_(asked.is_valid(), found.is_null())
        if count := unknown.true_count:
            before, example = self._found.get(column, (0, ""))
            self._found[column] = before + count, example or str(asked.filter(unknown)[0].as_py())

    def told(self) -> dict[str, str]:
        """Returns what of each column names no row, and why."""
        return {
            column: f"{count:,} rows have values, such as {example!r:.80}, that no row has in {self._tables[column]}"
            for column, (count, example) in self._found.items()
        }
