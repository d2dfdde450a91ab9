"""The command line, run in this process."""

from __future__ import annotations

from click.testing import CliRunner, Result

from diskgnn.cli import main


def run(*arguments: object, exit_code: int = 0) -> Result:
    """What a command said; it has to end with `exit_code`."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result
