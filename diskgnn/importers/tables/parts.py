"""What a table asks of the files that it consists of, and what the names of their folders say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

import pyarrow as pa

from diskgnn.stores.locations import Location, StoredPath

_NULL = "__HIVE_DEFAULT_PARTITION__"


class TablePart(Protocol):
    """One file of a table."""

    path: Location
    schema: pa.Schema  # dictionary-encoded columns have the type of their values
    missing_column_hint: str  # for the end of a message

    def count_rows(self) -> int:
        """Returns how many rows it has."""
        ...

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Returns all rows from the `first` on in order, these columns only. Batches may have another number of
        rows than `batch_rows`."""
        ...


def without(batches: Iterable[pa.RecordBatch], skipped: int) -> Iterator[pa.RecordBatch]:
    """Yields `batches`, but for so many rows at the start."""
    for batch in batches:
        if skipped < batch.num_rows:
            yield batch.slice(skipped)
        skipped = max(0, skipped - batch.num_rows)


def partition_values(root: Location, files: Sequence[Location]) -> dict[str, pa.Array]:
    """Returns what folders named `column=value` below `root` say of each of `files`: whole numbers, or otherwise
    strings."""
    found: dict[str, list[str | None]] = {}
    for number, file in enumerate(files):
        for folder in _folders(file, root):
            name, equals, value = folder.partition("=")
            if equals:
                values = found.setdefault(unquote(name), [None] * len(files))
                values[number] = None if value == _NULL else unquote(value)
    return {name: _parsed(values) for name, values in found.items()}


def _folders(file: Location, root: Location) -> tuple[str, ...]:
    if isinstance(file, StoredPath) and isinstance(root, StoredPath):
        return file.relative_to(root).parts[:-1]
    assert isinstance(file, Path)
    assert isinstance(root, Path)
    return file.relative_to(root).parts[:-1]


def _parsed(values: Sequence[str | None]) -> pa.Array:
    strings = pa.array(values, pa.string())
    try:
        return strings.cast(pa.int64())
    except pa.ArrowInvalid:
        return strings
