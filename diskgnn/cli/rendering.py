"""How the command line shows things: progress on standard error, results on standard output."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from diskgnn.errors import WriteError
from diskgnn.progress.bars import BarReporter
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.redaction import redacted
from diskgnn.units import format_seconds, format_size, format_value, label

if TYPE_CHECKING:
    from diskgnn.cli.serving import Board
    from diskgnn.formats.source_contents import ReadItem, SourceContents

_MOST_ALIKE = 8  # columns of a table that get a line each, although they were read alike


def to_json(value: Any) -> Any:
    """Returns `value` as what json.dumps takes: dataclasses as objects, paths as text, NumPy scalars as numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value.item() if hasattr(value, "item") else value


def _runs(columns: Sequence[ReadItem]) -> Iterator[list[ReadItem]]:
    """Yields columns that follow each other and were read alike, together where they are many."""
    for _, alike in groupby(columns, lambda item: (item.of, item.use, item.how, item.width)):
        found = list(alike)
        yield from [found] if len(found) > _MOST_ALIKE else ([item] for item in found)


def _column_row(columns: Sequence[ReadItem]) -> tuple[Any, ...]:
    first, last = columns[0], columns[-1]
    shares = [item.null_share for item in columns if item.null_share is not None]
    name = first.name or "''" if len(columns) == 1 else f"{first.name} ... {last.name} ({len(columns)} columns)"
    width = "" if first.width is None else first.width * len(columns)
    return first.of, name, first.use, first.how, width, max(shares) if shares else ""


class _Stream:
    """Standard output or standard error, as rich writes to it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes all of `text`, or does what `failed` does."""
        with self._failing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Has everything written, or does what `failed` does."""
        with self._failing():
            self._stream.flush()

    def failed(self, error: OSError) -> None:
        """Handles a write that failed."""
        raise NotImplementedError

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.abandon()
            raise SystemExit(1) from None  # as other programs whose reader has gone (`| head`)
        except OSError as error:
            self.failed(error)

    def abandon(self) -> None:
        """Drops what could not be written: Python would try that again when it ends, and exit with 120."""
        with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


class _News(_Stream):
    """Standard error, where bars and notes go: a job of hours does not end because its log is on a full disk, or its
    terminal was closed."""

    def failed(self, error: OSError) -> None:
        """Goes on: room may be made."""

    def flushed(self) -> bool:
        """Tries once more. Returns True if nothing is left to be written."""
        try:
            self._stream.flush()
        except OSError:
            return False
        return True


class _Results(_Stream):
    """Standard output."""

    def failed(self, error: OSError) -> None:
        """Raises a `WriteError` that tells what is lost."""
        self.abandon()
        raise WriteError(
            error.errno,
            f"standard output cannot be written ({error.strerror}): what the command has made is kept, only what it "
            f"says of that is lost",
        ) from error


def _opened(kind: type[_Stream], stream: TextIO | None) -> Any:
    """Returns the stream; None of one that was closed (`2>&-`), which rich knows, too."""
    return None if stream is None else kind(stream)


class Output:
    """Takes one command's words. With --json, standard output gets one document when the command ends."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        for stream in (sys.stdout, sys.stderr):  # names of files may have bytes that are no UTF-8
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        # https://no-color.org; Rich itself would keep bold and dim
        colors: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self._stderr, self._stdout = _opened(_News, sys.stderr), _opened(_Results, sys.stdout)
        self.messages = Console(file=self._stderr, stderr=True, highlight=False, emoji=False, color_system=colors)
        self.results = Console(file=self._stdout, highlight=False, emoji=False, color_system=colors)
        if not self.results.is_terminal:
            self.results.width = 200  # a file or a pipe has no right edge to wrap at
        self.reporter: Reporter = BarReporter(self.messages)
        self._board: Board | None = None
        self._document: Any = None

    def show_on(self, board: Board) -> None:
        """Tell `board` of the command's progress, too."""
        self._board, self.reporter = board, board.reporter(self.reporter)

    def epochs_reporter(self) -> Reporter:
        """For training: each epoch ends with a line of its own, so bars go when they are done."""
        bars = BarReporter(self.messages, transient=True)
        return bars if self._board is None else self._board.reporter(bars)

    def record(self, record: Mapping[str, Any]) -> None:
        """Takes a record of `diskgnn.training.metrics`, for whoever watches."""
        if self._board is not None:
            self._board.add(record)

    def next(self, *command: object, why: str = "") -> None:
        """Prints the command that people mostly run after this one, ready to be copied."""
        if not self.as_json:
            self.note(redacted(f"next: {shlex.join(map(str, command))}{why and f'   # {why}'}"))

    def result(self, document: Any) -> None:
        """Has --json print a dataclass, or anything made of dicts, lists and numbers."""
        self._document = document

    def text(self, line: str) -> None:
        """Prints one line of the result, for people."""
        if not self.as_json:
            self.results.print(escape(line), soft_wrap=True)

    def paragraph(self, sentences: str) -> None:
        """Prints sentences of the result, for people: a terminal's lines end between words."""
        if not self.as_json:
            self.results.print(escape(sentences), soft_wrap=not self.results.is_terminal)

    def fields(self, title: str, record: Mapping[str, Any]) -> None:
        """Names and values, one a line, for people."""
        if self.as_json:
            return
        self.results.print(f"[bold]{escape(title)}")
        table = Table(box=None, show_header=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(overflow="fold")
        for name, value in record.items():
            table.add_row(escape(label(name)), escape(format_value(name, value)))
        self.results.print(table)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Prints a table for people; values are formatted by their column's name."""
        if self.as_json:
            return
        self.results.print(f"[bold]{escape(title)}")
        table = Table(box=None)
        for column in columns:
            table.add_column(escape(label(column)))
        for row in rows:
            table.add_row(*(escape(format_value(column, value)) for column, value in zip(columns, row, strict=True)))
        self.results.print(table)

    def source_contents(self, contents: SourceContents, *, with_warned: bool = True) -> None:
        """Tells what was read from a data set, a line for each type or column, and what was left out and why, unless a
        warning has said that."""
        read: dict[str, list[str]] = {}
        for item in contents.read:
            if not item.how:
                read.setdefault(item.of or "source", []).append(
                    item.name if item.name == item.use else f"{item.name} as {item.use}"
                )
        if read:
            self.fields("read", {of: ", ".join(items) for of, items in read.items()})
        if columns := [item for item in contents.read if item.how]:
            shown = ("of", "name", "use", "how", "width", "null_share")
            self.table("columns read", shown, map(_column_row, _runs(columns)))
        left_out = [item for item in contents.left_out if with_warned or item.expected]
        if left_out:
            rows = [(item.of, item.name or "''", item.reason) for item in left_out]
            self.table("left out", ["of", "name", "reason"], rows)

    def stages(self, reports: Sequence[StageReport]) -> None:
        """Tells what each stage read, wrote and took."""
        for report in reports:
            read = f"read {format_size(report.read_bytes)}, " if report.read_bytes else ""  # or nobody counted
            line = (
                f"{report.stage}: {read}wrote {format_size(report.written_bytes)} in {format_seconds(report.seconds)}"
            )
            details = ", ".join(f"{label(name)} {format_value(name, value)}" for name, value in report.details.items())
            self.text(f"{line} ({details})" if details else line)

    def note(self, line: str) -> None:
        """Prints one line of news while the command runs, on standard error."""
        self.messages.print(escape(line), soft_wrap=True)

    def warn(self, message: str) -> None:
        """Prints one line on standard error."""
        self.messages.print(f"[yellow]warning:[/] {escape(redacted(' '.join(message.split())))}", soft_wrap=True)

    def error(self, message: str, kind: str = "", exit_code: int = 0) -> None:
        """Prints one line on standard error, and in JSON mode the document."""
        message = redacted(message)  # not all errors are ours
        self.messages.print(f"[red]error:[/] {escape(message)}", soft_wrap=True)
        self._document = None
        if kind:
            self.failed(kind, message, exit_code)

    def failed(self, kind: str, message: str, exit_code: int) -> None:
        """Has --json print an error."""
        self._document = {"error": {"kind": kind, "message": message, "exit_code": exit_code}}

    def close(self) -> None:
        """Print the JSON document, if that was asked for.

        Raises:
            WriteError: standard output cannot be written.
        """
        if self._stderr is not None and not self._stderr.flushed():
            self._stderr.abandon()
        document, self._document = self._document, None
        if self.as_json and document is not None:
            print(json.dumps(to_json(document), indent=1), file=self._stdout, flush=True)
