"""Says what is wrong with a CSV file in words of the file: its lines and columns, where Arrow counts rows.

A row may span lines, within quotes, and empty lines are no rows. So the file is read again up to the row in question.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from diskgnn.importers.containers.file_kinds import convert_from

_LENGTH = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)
_VALUE = re.compile(r"In CSV column #(\d+): Row #(\d+): CSV conversion error to (.+?): invalid value '(.*)'", re.DOTALL)
_MOST_ROWS = 5_000_000  # that are read again; of a later one its number is told
_SHOWN = 60  # characters of a row
_READ_BYTES = 1 << 20
_UNCLOSED = "is a quote opened and never closed?"

Stream = Callable[[], Any]  # opens the text of the file, from its start


def told(
    error: Exception, stream: Stream, path: object, names: Sequence[str] | None, delimiter: str, said: Collection[str]
) -> str:
    """Returns what is wrong, and what mends it.

    Args:
        error: of Arrow's.
        stream: opens the file.
        path: of the file.
        names: of its columns; None: its first row has them.
        delimiter: between columns.
        said: columns whose type was given, and not found in the first rows.
    """
    text = str(error)
    if found := _LENGTH.search(text):
        row, expected, count = (int(each) for each in found.groups()[:3])
        where = line_of(stream, row, delimiter)
        shown = _shortened(found[4])
        return f"expected {_columns(expected)} in each row of {path}, found {count} in {where}: {shown!r}; " + (
            _about_length(found[4], expected, count, delimiter)
        )
    if found := _VALUE.search(text):
        where = line_of(stream, int(found[2]), delimiter)
        name = _name(stream, int(found[1]), names, delimiter)
        wrong = f"{_shortened(found[4])!r} in {where}; correct it"
        if name in said:
            return f"expected values of type {found[3]} in column {name!r} of {path}, found {wrong}"
        return (
            f"expected values of type {found[3]} in column {name!r} of {path}, as its first rows have them, found "
            f"{wrong}, or say what the column holds (`columns`, types={name}:string)"
        )
    if "invalid UTF8" in text and (place := _not_utf8(stream)):
        return f"expected UTF-8 in {path}, found {place}; if it is in Windows-1252 or Latin-1, " + (
            convert_from("WINDOWS-1252")
        )
    if "Empty CSV file" in text:
        return f"expected rows below the names of columns in {path}, found none"
    if "straddl" in text:
        return f"expected rows of less than a block of text in {path}, found a longer one; {_UNCLOSED}"
    return f"{path} is no CSV that can be read: {text}"


def _about_length(row: str, expected: int, count: int, delimiter: str) -> str:
    if "\n" in row and row.count('"') % 2:
        return _UNCLOSED
    if expected == 1:
        return "say what stands between columns (`columns`, delimiter=;)"
    if count == expected + 1 and row.endswith(delimiter):
        return f"where rows end in a delimiter, the first line needs one, too: add {delimiter!r} to it"
    if count > expected:
        return "a value with a delimiter in it has to stand in double quotes"
    return "add what is missing, or delete the row"


def _columns(count: int) -> str:
    return f"{count} column" if count == 1 else f"{count} columns"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def line_of(stream: Stream, row: int, delimiter: str) -> str:
    """Returns the line in which a row begins, the first row being 1, of names if the file has some."""
    if row <= _MOST_ROWS:
        reader, line = csv.reader(_lines(stream), delimiter=delimiter), 1
        try:
            for values in reader:
                row -= bool(values)
                if not row:
                    return f"line {line}"
                line = reader.line_num + 1
        except csv.Error:  # what Arrow reads in another way
            pass
    return f"row {row}"


def _name(stream: Stream, column: int, names: Sequence[str] | None, delimiter: str) -> str:
    """Returns the name of a column, or its number, the first being 0, where Arrow reads names in another way."""
    with suppress(csv.Error):
        if names is None:
            names = next((row for row in csv.reader(_lines(stream), delimiter=delimiter) if row), ())
    return names[column].removeprefix("\ufeff") if names and column < len(names) else f"#{column}"


def ends_in_quote(stream: Stream) -> bool:
    """Returns whether the last character of a file is a quote, before ends of lines."""
    last = b""
    for line in _raw_lines(stream):
        last = line.strip() or last
    return last.endswith(b'"')


def _lines(stream: Stream) -> Iterator[str]:
    return (line.decode("utf-8", "replace") for line in _raw_lines(stream))


def _raw_lines(stream: Stream) -> Iterator[bytes]:
    rest = b""
    with stream() as file:
        while block := bytes(file.read(_READ_BYTES)):
            *lines, rest = (rest + block).split(b"\n")
            yield from (line + b"\n" for line in lines)
    if rest:
        yield rest


def _not_utf8(stream: Stream) -> str:
    """Returns the first byte that is not of UTF-8, and where it is; "" if there is none."""
    for number, line in enumerate(_raw_lines(stream), 1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            before = line[max(0, error.start - 20) : error.start].decode("utf-8", "replace").lstrip("\ufffd")
            return f"byte {line[error.start]:#04x} in line {number}, after {before!r}"
    return ""
