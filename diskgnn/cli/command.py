"""What all commands have in common: --json, --debug, and errors turned into exit codes."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from diskgnn.cli.rendering import Output
from diskgnn.errors import DiskGNNError

# 128 + the signal's number: what a shell expects of a program that a signal ended.
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


class Terminated(KeyboardInterrupt):
    """SIGTERM: what batch systems and containers send before they kill."""


@contextmanager
def _sigterm_like_ctrl_c() -> Iterator[None]:
    """SIGTERM unwinds as Ctrl-C does: training saves its checkpoint, half-written output is removed."""
    previous = signal.getsignal(signal.SIGTERM)
    if previous in (signal.SIG_IGN, None) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


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
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: output.warn(str(message))
            try:
                with _sigterm_like_ctrl_c():
                    return super().invoke(ctx)
            except Terminated:
                output.error("terminated")
                ctx.exit(TERMINATED)
            except KeyboardInterrupt:
                output.error("interrupted")
                ctx.exit(INTERRUPTED)
            except (DiskGNNError, OSError, MemoryError) as error:
                if debug:
                    raise
                code = error.exit_code if isinstance(error, DiskGNNError) else 1
                output.error(str(error) or type(error).__name__, kind=type(error).__name__, exit_code=code)
                ctx.exit(code)
            finally:
                output.close()


class Group(click.Group):
    """The `diskgnn` command: lists its commands in the order in which one uses them."""

    command_class = Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of registration."""
        return list(self.commands)
