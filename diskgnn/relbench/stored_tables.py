"""Tables of a database with their keys, as RelBench describes them: in memory, or as Parquet files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.source_formats import relbench_folder

_CHUNK_ROWS = 1 << 16
_METADATA = (b"fkey_col_to_pkey_table", b"pkey_col", b"time_col")  # that RelBench writes into the files of tables


@dataclass(frozen=True)
class StoredTable:
    """A table of a database, of which columns are read whole or some rows at a time.

    Attributes:
        name: of the table.
        num_rows: N.
        pkey: the column that numbers its rows, if there is one.
        fkeys: column -> the table whose rows it names.
        time: the column that says when a row appears, if there is one.
        names: of all columns.
        chunks: yields data frames of all rows in order, with the columns asked for, at most some rows each.
        identity: names the content of the columns that it is asked for.
    """

    name: str
    num_rows: int
    pkey: str | None
    fkeys: Mapping[str, str]
    time: str | None
    names: Sequence[str]
    chunks: Callable[[Sequence[str], int], Iterator[pd.DataFrame]]
    identity: Callable[[Sequence[str]], object]

    @staticmethod
    def of_frame(name: str, table: Any) -> StoredTable:
        """Returns a table of RelBench, which holds a data frame."""
        frame = table.df

        def chunks(columns: Sequence[str], rows: int) -> Iterator[pd.DataFrame]:
            for start in range(0, len(frame), rows):
                yield frame[list(columns)].iloc[start : start + rows].reset_index(drop=True)

        return StoredTable(
            name, len(frame), table.pkey_col, dict(table.fkey_col_to_pkey_table), table.time_col, list(frame.columns),
            chunks, partial(_content, frame),
        )  # fmt: skip

    @staticmethod
    def of_file(
        name: str, path: Path, pkey: str | None, fkeys: Mapping[str, str], time: str | None, until: pd.Timestamp | None
    ) -> StoredTable:
        """Returns the rows of a Parquet file up to the time `until`, if that is given, as RelBench reads them.

        Raises:
            InputError: it is no Parquet file, or lacks a column.
        """
        try:
            with pq.ParquetFile(path) as file:
                names, num_rows = file.schema_arrow.names, file.metadata.num_rows
        except (OSError, pa.ArrowException) as error:
            raise InputError(f"table {name}: expected a Parquet file, found {path} ({error})") from error
        if missing := [each for each in (pkey, time, *fkeys) if each is not None and each not in names]:
            raise InputError(f"table {name}: expected a column {missing[0]!r} in {path}, found {', '.join(names)}")
        until = None if time is None else until
        chunks = partial(_rows_of_file, path, time, until)
        if until is not None:
            num_rows = sum(len(each) for each in chunks([str(time)], _CHUNK_ROWS))
        state = path.stat()
        identity = (str(path.resolve()), state.st_size, state.st_mtime_ns, None if until is None else str(until))
        return StoredTable(name, num_rows, pkey, fkeys, time, names, chunks, lambda _: identity)

    def column(self, name: str) -> pd.Series:
        """Reads all rows of a column."""
        parts = [each[name] for each in self.chunks([name], _CHUNK_ROWS)]
        return pd.concat(parts, ignore_index=True) if parts else pd.Series([], name=name, dtype=object)

    def require_numbered(self) -> None:
        """Checks that the primary key counts the rows from 0, as RelBench has it.

        Raises:
            InputError: it does not.
        """
        if self.pkey is None:
            return
        start = 0
        for each in self.chunks([self.pkey], _CHUNK_ROWS):
            if not (each[self.pkey].to_numpy() == np.arange(start, start + len(each))).all():
                raise InputError(
                    f"table {self.name}: expected the primary key {self.pkey!r} to count the rows from 0; call "
                    "`Database.reindex_pkeys_and_fkeys` first, as `Dataset.get_db` does in RelBench 2, or "
                    "byod/reindex_dataset.py of RelBench 3"
                )
            start += len(each)

    def edges(self, column: str, num_referred: int) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        """Yields (rows, rows that a foreign key names), without the rows whose key is null, or past `num_referred`, as
        a row is that came later than those that are read.
        """
        start = 0
        for each in self.chunks([column], _CHUNK_ROWS):
            keys = pd.to_numeric(each[column]).astype("Float64").to_numpy(np.float64, na_value=np.nan)
            known = ~np.isnan(keys) & (keys < num_referred)
            yield start + np.flatnonzero(known), keys[known].astype(np.int64)
            start += len(each)


def tables_of_database(database: Any) -> list[StoredTable]:
    """Returns the tables of a RelBench Database."""
    return [StoredTable.of_frame(name, table) for name, table in database.table_dict.items()]


def tables_of_folder(folder: Path, until: pd.Timestamp | None) -> list[StoredTable]:
    """Returns the tables in a folder: that of a data set of RelBench 3, or one that RelBench's `Database.save` wrote.

    Raises:
        ConfigError: it holds no such tables.
        InputError: one cannot be read.
    """
    if relbench_folder.recognises(folder):
        source = relbench_folder.read_folder(folder)
        until = pd.Timestamp(source.until) if until is None and source.until is not None else until
        return [
            StoredTable.of_file(name, folder / "db" / f"{name}.parquet", each.pkey, each.fkeys, each.time, until)
            for name, each in source.tables.items()
        ]
    files = {each.stem: each for each in sorted(folder.glob("*.parquet"))}
    if not files:
        raise ConfigError(f"db: expected a folder of Parquet tables as RelBench saves them, found {folder}")
    return [_saved(name, file, until) for name, file in files.items()]


def _saved(name: str, file: Path, until: pd.Timestamp | None) -> StoredTable:
    try:
        metadata = pq.read_schema(file).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"table {name}: expected a Parquet file, found {file} ({error})") from error
    if missing := [key.decode() for key in _METADATA if key not in metadata]:
        raise ConfigError(
            f"db: expected {file} to say its keys, as files that RelBench's `Database.save` writes do, found no "
            f"{missing[0]}; save them with RelBench's `Table.save`"
        )
    fkeys, pkey, time = (json.loads(metadata[key]) for key in _METADATA)
    return StoredTable.of_file(name, file, pkey, fkeys, time, until)


def _rows_of_file(
    path: Path, time: str | None, until: pd.Timestamp | None, columns: Sequence[str], rows: int
) -> Iterator[pd.DataFrame]:
    asked = list(dict.fromkeys([*columns, *([time] if until is not None and time is not None else [])]))
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(rows, columns=asked):
            schema = batch.schema.with_metadata(file.schema_arrow.metadata)
            frame = pa.Table.from_batches([batch], batch.schema).cast(schema).to_pandas()
            for name in frame.columns:
                if isinstance(frame[name].dtype, pd.StringDtype):
                    frame[name] = frame[name].astype(object)
            if until is not None:
                frame = frame[frame[time] <= until]
            if len(frame):
                yield frame[list(columns)].reset_index(drop=True)


def _content(frame: pd.DataFrame, names: Sequence[str]) -> str:
    """Names what the columns `names` of a data frame hold: all of it is read."""
    frame = frame[[*names]]
    found = hashlib.blake2b(digest_size=16)
    for start in range(0, len(frame), _CHUNK_ROWS):
        part = frame.iloc[start : start + _CHUNK_ROWS]
        for name in frame.columns:
            try:
                column = pa.Array.from_pandas(part[name])
            except pa.ArrowException:  # objects of several types
                found.update(repr([(type(value).__qualname__, value) for value in part[name]]).encode())
                continue
            for each in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
                found.update(pa.record_batch([each], names=[str(name)]).serialize())
    return f"{[(str(name), str(dtype)) for name, dtype in frame.dtypes.items()]} {len(frame)} {found.hexdigest()}"
