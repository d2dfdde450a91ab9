"""Numbers in text without a header, a row per line, compressed or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from diskgnn.errors import InputError
from diskgnn.files.file_reading import raise_if_disk_failed
from diskgnn.importers.containers.compressed_text import open_text, text_for_arrow
from diskgnn.importers.containers.rows import CHUNK_EDGES, RowSource

_HEAD_BYTES = 4 << 20  # that are looked at before
_BLOCK_BYTES = 512 << 10  # that are parsed at once
_ARROW_TYPES = {np.dtype(np.int64): pa.int64(), np.dtype(np.float32): pa.float32(), np.dtype(np.float64): pa.float64()}


def rows(name: str, path: Path, num_rows: int, dtype: Any, *, delimiter: str = ",", comment: str = "") -> RowSource:
    """Returns the rows [num_rows, columns] of a text file; empty fields and "nan" are NaN.

    Args:
        name: for messages.
        path: of the file; .gz, .bz2 and .zst are unpacked while they are read.
        num_rows: which it has.
        dtype: int64, float32 or float64.
        delimiter: between columns.
        comment: what lines begin with that are left out.

    Raises:
        InputError: no such file, or (while read) something else than numbers, or another number of rows.
    """
    name = f"{name} ({path})"
    skipped, width = _layout(name, path, delimiter, comment)
    dtype = np.dtype(dtype)
    chunks = partial(_chunks, name, path, num_rows, width, dtype, delimiter, comment, skipped)
    return RowSource(name, num_rows, (width,), dtype, chunks, stored_bytes=path.stat().st_size)


def column(name: str, path: Path, num_rows: int, dtype: Any) -> RowSource:
    """Reads as `rows` a file with one column: [num_rows].

    Raises:
        InputError: as `rows`, or several columns.
    """
    found = rows(name, path, num_rows, dtype)
    if found.row_shape != (1,):
        raise InputError(f"{found.name}: expected one column, found {found.row_shape[0]}")
    return found.mapped((), found.dtype, lambda chunk: chunk[:, 0])


def whole_column(name: str, path: Path) -> npt.NDArray[np.int64]:
    """Returns [any number] the whole numbers of a small file with one column.

    Raises:
        InputError: as `column`.
    """
    parts = [chunk[:, 0] for chunk in rows(name, path, -1, np.int64).chunks()]
    return np.concatenate([np.empty(0, np.int64), *parts])


def table(name: str, path: Path) -> dict[str, list[Any]]:
    """Returns a small file with a header: the values of each column by its name.

    Raises:
        InputError: it is none.
    """
    try:
        with open_text(name, path) as stream:
            return pa.csv.read_csv(pa.BufferReader(stream.read())).to_pydict()  # type: ignore[no-any-return]
    except (OSError, pa.ArrowException) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: expected a table with a header in {path} ({error})") from error


def lines(name: str, path: Path) -> list[list[str]]:
    """Returns the fields of each line of a small file without a header.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with open_text(name, path) as stream:
            return [line.split(",") for line in stream.read().decode().splitlines() if line]
    except InputError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: {path} cannot be read ({error})") from error


def first_lines(name: str, path: Path) -> list[str]:
    """Returns the first lines of a file, the last of which may be cut off.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with open_text(name, path) as stream:
            return stream.read(_HEAD_BYTES).decode(errors="replace").splitlines()  # type: ignore[no-any-return]
    except (OSError, pa.ArrowException) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: {path} cannot be read ({error})") from error


def text_block_bytes(head: Sequence[str] | Sequence[bytes], skipped: int = 0) -> int:
    """Returns how much of a text file that begins with the lines of `head` to parse at once: pyarrow reads 32 such
    blocks ahead. The first one has to have all lines that are skipped.
    """
    lengths = [len(line) + 2 for line in head]
    return max(_BLOCK_BYTES, 8 * max(lengths, default=0), 2 * sum(lengths[: skipped + 1]))


def count_lines(name: str, path: Path) -> int:
    """Counts the lines of a file that are not empty.

    Raises:
        InputError: it cannot be read.
    """
    return sum(len(chunk) for chunk in rows(name, path, -1, np.float64).chunks())


def _layout(name: str, path: Path, delimiter: str, comment: str) -> tuple[int, int]:
    """Returns how many lines are before the first row, and how many columns there are."""
    for number, line in enumerate(first_lines(name, path)):
        if line.strip() and not (comment and line.startswith(comment)):
            return number, line.count(delimiter) + 1
    raise InputError(f"{name}: expected rows of numbers, found none")


def _chunks(
    name: str, path: Path, num_rows: int, width: int, dtype: np.dtype[Any], delimiter: str, comment: str, skipped: int
) -> Iterator[npt.NDArray[Any]]:
    names = [str(number) for number in range(width)]

    def wrong(row: Any) -> str:
        if comment and row.text.startswith(comment):
            return "skip"
        return "error"

    position = 0
    block_bytes = text_block_bytes(first_lines(name, path), skipped)
    try:
        with (
            text_for_arrow(name, path, block_bytes) as (stream, checked),
            pa.csv.open_csv(
                stream,
                pa.csv.ReadOptions(use_threads=False, block_size=block_bytes, column_names=names, skip_rows=skipped),
                pa.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=wrong),
                pa.csv.ConvertOptions(column_types=dict.fromkeys(names, _ARROW_TYPES[dtype])),
            ) as reader,
        ):
            for batch in checked(reader):
                chunk = np.empty((batch.num_rows, width), dtype)
                for number, values in enumerate(batch.columns):
                    if values.null_count and dtype.kind == "i":
                        row = position + int(np.asarray(values.is_null()).argmax())
                        raise InputError(f"{name}: expected a whole number, found none in row {row} (counted from 0)")
                    chunk[:, number] = values.to_numpy(zero_copy_only=False)
                yield from np.array_split(chunk, range(CHUNK_EDGES, len(chunk), CHUNK_EDGES))
                position += len(chunk)
    except (OSError, pa.ArrowException) as error:
        raise_if_disk_failed(error, path)
        raise InputError(f"{name}: expected rows of {width} {dtype} numbers ({error})") from error
    if num_rows not in (-1, position):
        raise InputError(f"{name}: expected {num_rows} rows, found {position}; was the download complete?")
