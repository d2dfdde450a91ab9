"""Tables that were fetched: what is read is what was written, compressed or not; errors of both threads come out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from diskgnn.errors import DiskFullError
from diskgnn.files.disk_space import UNLIMITED, DiskBudget
from diskgnn.importers.tables.arrow_tables import ArrowTable, write_table

_ROWS = 300_000
_TABLE = pa.table({
    "id": np.arange(_ROWS),
    "text": pa.array([None if row % 7 == 0 else f"row {row % 1000} of many" for row in range(_ROWS)]),
})  # fmt: skip


def batches(rows: int = 20_000) -> Iterator[pa.RecordBatch]:
    yield from _TABLE.to_batches(max_chunksize=rows)


@pytest.mark.parametrize("threads", [1, 4])
def test_rows_are_read_from_any_on(tmp_path: Path, threads: int) -> None:
    _, pieces = write_table(tmp_path / "table", _TABLE.schema, batches(), UNLIMITED, threads)
    assert len(pieces) > 1
    read = ArrowTable("table", tmp_path / "table", pieces)
    for first in (0, 1, pieces[0], _ROWS - 1, _ROWS):
        found = list(read.batches(["text", "id"], 50_000, first))
        assert pa.Table.from_batches(found, pa.schema([_TABLE.schema.field(name) for name in ("text", "id")])).equals(
            _TABLE.select(["text", "id"]).slice(first)
        )


def test_many_threads_make_it_small(tmp_path: Path) -> None:
    for threads in (2, 4):
        write_table(tmp_path / str(threads), _TABLE.schema, batches(), UNLIMITED, threads)
    assert (tmp_path / "4").stat().st_size < (tmp_path / "2").stat().st_size / 2


def test_errors_of_reading_and_of_writing(tmp_path: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches()):
            if number == 12:
                raise ConnectionError("the server is gone")
            yield batch

    with pytest.raises(ConnectionError, match="the server is gone"):
        write_table(tmp_path / "table", _TABLE.schema, failing(), UNLIMITED, 1)
    with pytest.raises(DiskFullError):
        write_table(tmp_path / "table", _TABLE.schema, batches(), DiskBudget(1 << 20, [tmp_path]), 1)
