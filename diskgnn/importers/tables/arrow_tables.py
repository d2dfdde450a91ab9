"""Tables that were fetched into Arrow files: read from any row on, only the columns that are asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from diskgnn.errors import InputError
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.disk_space import DiskBudget
from diskgnn.files.file_reading import raise_if_disk_failed
from diskgnn.importers.tables.frames import NamedColumns
from diskgnn.ordered import Threads, in_order

_PIECE_BYTES = 4 << 20  # of rows that are written, and read, together
# While they are written: rows that wait, a copy of them in one piece, one that is compressed, and one beside it.
HELD_BYTES = 6 * _PIECE_BYTES
_COMPRESSING_THREADS = 3  # of a server of this machine, to read, and to compress and write


def write_table(
    path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch], disk: DiskBudget, threads: int
) -> tuple[int, list[int]]:
    """Writes a table. Returns the CRC-32C of the file, and how many rows each piece in it has.

    With `threads` that are few, it is not compressed: that takes as long as reading rows of a database does.
    """
    compression = "zstd" if threads >= _COMPRESSING_THREADS else None
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    with ChecksummedFile(path, disk=disk) as sink:
        with pa.ipc.new_file(sink, schema, options=options) as file:

            def written(piece: pa.RecordBatch) -> int:
                file.write_batch(piece)
                return int(piece.num_rows)

            # One piece is compressed and written while the next ones are read.
            calls = (partial(written, piece) for piece in _pieces(batches))
            with Threads(1) as pool:
                pieces = [*in_order(pool, calls, ahead=1)]
        return sink.crc32c, pieces


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, but where batches are small, several as one."""
    waiting, num_bytes = list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        num_bytes += batch.nbytes
        if num_bytes >= _PIECE_BYTES:
            yield _join(waiting)
            waiting, num_bytes = [], 0
    if waiting:
        yield _join(waiting)


def _join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    table = pa.Table.from_batches(batches).combine_chunks()
    return pa.record_batch([column.chunk(0) for column in table.columns], schema=table.schema)


class ArrowTable(NamedColumns):
    """A table that `write_table` wrote.

    Args:
        name: of the table, for messages.
        path: of the file.
        pieces: how many rows each piece has.
    """

    def __init__(self, name: str, path: Path, pieces: Sequence[int]) -> None:
        self.name, self._path, self._pieces = name, path, pieces
        self.num_rows, self.stored_bytes = sum(pieces), path.stat().st_size
        with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as reader:
            self.schema = reader.schema

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only, at most `batch_rows` at a time.

        Raises:
            InputError: the file is not what was written.
        """
        positions = sorted({self.schema.get_field_index(column) for column in columns})
        options = pa.ipc.IpcReadOptions(included_fields=positions, use_threads=False)
        try:
            with pa.OSFile(str(self._path)) as file, pa.ipc.open_file(file, options=options) as reader:
                for number, num_rows in enumerate(self._pieces):
                    skipped, first = min(first, num_rows), max(0, first - num_rows)
                    if skipped == num_rows:
                        continue
                    piece = reader.get_batch(number).select(list(columns))
                    for start in range(skipped, num_rows, batch_rows):
                        yield piece.slice(start, batch_rows)
        except (OSError, pa.ArrowException) as error:
            raise_if_disk_failed(error, self._path)
            raise InputError(f"{self.name}: what was fetched of it is damaged: run this again ({error})") from error
