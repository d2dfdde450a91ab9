"""The command line, run in this process or, by `run_python("-m", "diskgnn", ...)`, in one of its own; and what such a
process has in memory before it does anything.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from click.testing import CliRunner, Result
from forked_python import Python, fork_command, run_python

from diskgnn.cli import main

_STATUS = "import torch; print(open('/proc/self/status').read())"
__all__ = ["Python", "fork_command", "forked_mib", "loaded_mib", "run", "run_python"]


def run(*arguments: object, exit_code: int = 0) -> Result:
    """What a command said; it has to end with `exit_code`."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output + repr(result.exception)
    return result


@cache
def loaded_mib() -> int:
    """MiB that a process has in memory, and that are no file's, once torch is imported: 150 for the CPU, 290 for CUDA.

    A test that gives a whole process a budget adds to this what is meant for arrays.
    """
    return _anonymous_mib(subprocess.check_output([sys.executable, "-c", _STATUS], text=True))


@cache
def forked_mib() -> int:
    """The same of a process that `run_python` starts, in which more is imported."""
    return _anonymous_mib(run_python("-c", _STATUS, capture_output=True, text=True, check=True).stdout)


def _anonymous_mib(status: str) -> int:
    return int(status.split("RssAnon:")[1].split()[0]) // 1024
