"""What all commands have in common: --json, --debug, options listed by section, and errors turned into exit codes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import click

from diskgnn.cli.flags import with_flags
from diskgnn.cli.options import EXPERTS, Option
from diskgnn.cli.rendering import Output
from diskgnn.errors import ConfigError, DiskGNNError, WriteError
from diskgnn.redaction import redacted

_ENDINGS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


# How much was kept, if anything, only the stage knew that was stopped.
_GOES_ON = ": run the same command again, which goes on with what was finished, if anything was"
_ONE_KEYSTROKE_SECONDS = 0.5  # within which a terminal, a shell and a launcher may all send theirs
_AGAIN_SECONDS = 0.02
_SHOWN = 60  # characters of a path that is too long


class Ended(KeyboardInterrupt):
    """SIGINT, or SIGTERM, which batch systems and containers send before they kill, or SIGHUP of a closed terminal."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Within the block these signals unwind: training saves its checkpoint, half-written output is removed. Those that
    are ignored (nohup, jobs of a shell's background) stay so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    received: list[float] = []

    def end(number: int, _: object) -> None:
        now = time.monotonic()
        if received and now - received[-1] < _ONE_KEYSTROKE_SECONDS:
            return
        received.append(now)
        raise Ended(number)

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        """A signal that comes while Python closes what nobody refers to is dropped by Python, with a traceback."""
        if not isinstance(found.exc_value, Ended):
            previous_hook(found)
        elif len(received) == 1:  # nothing unwinds yet
            received.clear()
            threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), found.exc_value.signal)).start()

    previous_hook = sys.unraisablehook
    previous = {number: signal.getsignal(number) for number in _ENDINGS}
    heeded = {number: old for number, old in previous.items() if old not in (signal.SIG_IGN, None)}
    for number in heeded:
        signal.signal(number, end)
    sys.unraisablehook = unraisable
    try:
        yield
    finally:
        sys.unraisablehook = previous_hook
        for number, old in heeded.items():
            signal.signal(number, old)


def _print_redacted(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints a traceback: drivers of stores put URLs into the errors that ours come from."""
    sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))


@contextmanager
def _show_on_page(output: Output, port: int | None) -> Iterator[None]:
    """Shows on a page what the command does, if --serve asks for one."""
    if port is None:
        yield
        return
    from diskgnn.cli.serving import Board, served

    board = Board(["diskgnn", *sys.argv[1:]])
    with served(board, port) as address:
        output.show_on(board)
        output.note(f"watch at {address}")
        yield


def _read_of_a_source(ctx: click.Context) -> set[str]:
    """Returns the options that were not given, where a data set in the format of others has what they would name."""
    return {name for name, value in ctx.params.items() if value is None} if ctx.params.get("format") else set()


def _of_other_commands(ctx: click.Context) -> list[click.Parameter]:
    """Returns what the other commands take: messages may speak of what was said to one before."""
    group = None if ctx.parent is None else ctx.parent.command
    commands = group.commands.values() if isinstance(group, click.Group) else ()
    return [each for command in commands for each in command.params]


def _code_and_message(error: Exception) -> tuple[int, str]:
    """Returns the exit code and the message of an error that is part of the job."""
    if isinstance(error, DiskGNNError):
        return error.exit_code, str(error)
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes | os.PathLike):
        place = os.fsdecode(error.filename)
        if isinstance(error, PermissionError):
            return ConfigError.exit_code, (
                f"you have no permission for {place}: have that changed (chmod, chown), or run this as its owner"
            )
        if error.errno == errno.ENAMETOOLONG:
            return ConfigError.exit_code, (
                f"{place[:_SHOWN]}... is too long: file systems take names of 255 bytes in paths of 4,095, and what is "
                f"written gets up to 20 more meanwhile; found a path of {len(os.fsencode(place)):,}: give a shorter one"
            )
    return 1, str(error) or type(error).__name__


class Command(click.Command):
    """A click command whose function finds an `Output` in `ctx.obj`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True,
                         help="Print one JSON document on standard output; all else goes to standard error."),
            click.Option(["--debug"], is_flag=True, help="Show where in the code an error comes from."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors that are part of the job end as one line and an exit code."""
        debug = ctx.params.pop("debug")
        ctx.obj = output = Output(as_json=ctx.params.pop("as_json"))
        port = ctx.params.pop("serve", None)
        spelt = partial(
            with_flags, parameters=self.params, unnamed=_read_of_a_source(ctx),
            typed=() if ctx.parent is None else ctx.parent.obj or (), others=_of_other_commands(ctx),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: output.warn(spelt(str(message)))
            try:
                with _signals_unwind(), _show_on_page(output, port):
                    return self._run(ctx, output)
            except KeyboardInterrupt as error:
                number = error.signal if isinstance(error, Ended) else signal.SIGINT
                # Training has said it: its checkpoint may be older than its last step.
                goes_on = "overwrite" in ctx.params
                output.error(_ENDINGS[number] + (_GOES_ON if goes_on else ""))
                output.close()
                ctx.exit(128 + number)  # as a shell tells of a program that a signal ended
            except (DiskGNNError, OSError, MemoryError) as error:
                if debug:
                    sys.excepthook = _print_redacted
                    raise
                code, message = _code_and_message(error)
                output.error(spelt(message), kind=type(error).__name__, exit_code=code)
                with suppress(WriteError):  # the message is on standard error
                    output.close()
                ctx.exit(code)

    def _run(self, ctx: click.Context, output: Output) -> Any:
        try:
            result = super().invoke(ctx)
        except click.exceptions.Exit:  # of a command that has a result and its own exit code
            output.close()
            raise
        output.close()
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """For --help: the options of each section together, in the order of first occurrence, those in `last` at the
        end.
        """
        sections: dict[str, list[tuple[str, str]]] = {}
        last = {EXPERTS: 1, "Options": 2}
        for parameter in self.get_params(ctx):
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)) is not None:
                section = parameter.section if isinstance(parameter, Option) else "Options"
                sections.setdefault(section, []).append(record)
        for section, records in sorted(sections.items(), key=lambda item: last.get(item[0], 0)):
            with formatter.section(section):
                formatter.write_dl(records)


@contextmanager
def _usage_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Prints what is wrong with `arguments` as a document, too, if --json is among them; click tells people."""
    try:
        yield
    except click.UsageError as error:
        error.message = redacted(error.message)  # type: ignore[misc]  # Final, to nobody but type checkers
        if "--json" in arguments:
            output = Output(as_json=True)
            output.failed("UsageError", error.format_message(), error.exit_code)
            output.close()
        raise


class Group(click.Group):
    """The `diskgnn` command: lists its commands in the order in which one uses them."""

    command_class = Command

    def make_context(self, info_name: str | None, args: list[str], *arguments: Any, **more: Any) -> click.Context:
        """Parse what stands before a command's name."""
        given = list(args)  # click takes away what it has parsed
        with _usage_errors(given):
            ctx = super().make_context(info_name, args, *arguments, **more)
        ctx.obj = given
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        """Parse what stands after a command's name, and run it."""
        with _usage_errors(ctx.obj):
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names in the order of registration."""
        return list(self.commands)
