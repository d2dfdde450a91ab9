"""What all commands have in common: --json, --debug, and errors turned into exit codes."""

from __future__ import annotations

import warnings
from typing import Any

import click

from diskgnn.cli.rendering import Output
from diskgnn.errors import DiskGNNError

INTERRUPTED = 130  # 128 + SIGINT, what a shell expects of a program that Ctrl-C ended


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
                return super().invoke(ctx)
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
