"""A Parquet file as a part of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.errors import InputError
from diskgnn.files.file_reading import ReadableFile, raise_if_disk_failed
from diskgnn.importers.containers.file_kinds import describe
from diskgnn.importers.tables.dictionaries import decoded_schema
from diskgnn.importers.tables.parts import without
from diskgnn.stores.locations import Location


class ParquetPart:
    """One Parquet file.

    Raises:
        InputError: nothing there, or not Parquet.
    """

    missing_column_hint = ""

    def __init__(self, name: str, path: Location) -> None:
        self._name, self.path = name, path
        with self._open() as parquet:
            self._num_rows: int = parquet.metadata.num_rows
            self.schema = decoded_schema(parquet.schema_arrow)

    def count_rows(self) -> int:
        """Returns how many rows it has."""
        return self._num_rows

    def batches(self, columns: Sequence[str], batch_rows: int, first: int = 0) -> Iterator[pa.RecordBatch]:
        """Yields all rows from the `first` on in order, these columns only; groups of rows before it are not read.

        Raises:
            InputError: the file is damaged.
        """
        with self._open() as parquet:
            group, groups = 0, parquet.metadata.num_row_groups
            while group < groups and first >= (rows := parquet.metadata.row_group(group).num_rows):
                group, first = group + 1, first - rows
            try:
                found = parquet.iter_batches(batch_rows, range(group, groups), list(columns))
                yield from without(found, first)
            except (OSError, pa.ArrowException) as error:
                raise self._unreadable(error, "damaged") from error

    def _open(self) -> pq.ParquetFile:
        try:
            # A buffered stream reads a column chunk (of any size) in pieces.
            file = pa.PythonFile(ReadableFile(self.path), mode="r")
            return pq.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            found = f"; found {describe(self.path)}" if self.path.exists() else ""
            raise self._unreadable(error, "no readable Parquet file", found) from error

    def _unreadable(self, error: Exception, what: str, found: str = "") -> Exception:
        """Returns what to raise for it."""
        raise_if_disk_failed(error, self.path)
        return InputError(f"{self._name}: {self.path} is {what}: {error}{found}")
