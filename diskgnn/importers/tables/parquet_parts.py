"""A Parquet file as a part of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.errors import InputError
from diskgnn.importers.containers.file_kinds import describe


class ParquetPart:
    """One Parquet file.

    Raises:
        InputError: nothing there, or not Parquet.
    """

    missing_column_hint = ""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self.path = name, path
        with self._open() as parquet:
            self._num_rows: int = parquet.metadata.num_rows
            self.schema = pa.schema([
                pa.field(column.name, column.type.value_type if pa.types.is_dictionary(column.type) else column.type)
                for column in parquet.schema_arrow
            ])  # fmt: skip

    def count_rows(self) -> int:
        """How many rows it has."""
        return self._num_rows

    def batches(self, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
        """All rows in order, these columns only.

        Raises:
            InputError: the file is damaged.
        """
        with self._open() as parquet:
            try:
                yield from parquet.iter_batches(batch_rows, columns=list(columns))
            except (OSError, pa.ArrowException) as error:
                raise InputError(f"{self._name}: {self.path} is damaged: {error}") from error

    def _open(self) -> pq.ParquetFile:
        try:
            # A buffered stream reads a column chunk (of any size) in pieces.
            return pq.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False)
        except (OSError, pa.ArrowException) as error:
            found = f"; found {describe(self.path)}" if self.path.exists() else ""
            raise InputError(f"{self._name}: {self.path} is no readable Parquet file: {error}{found}") from error
