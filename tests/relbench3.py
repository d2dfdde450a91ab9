"""RelBench 3, in processes of its own: in this one, RelBench 2 has its name."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from forked_python import run_python

INSTALLED = Path(sys.prefix) / "relbench3"  # by tools/setup
_CALLS = Path(__file__).with_name("relbench3_calls.py")


def called(name: str, *arguments: Any) -> Any:
    """Returns what a function of `relbench3_calls` returns where RelBench is 3."""
    if not (INSTALLED / "relbench").is_dir():
        pytest.skip(f"RelBench 3 is not in {INSTALLED}, where tools/setup puts it")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        path = os.pathsep.join([str(INSTALLED), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        done = run_python(_CALLS, name, out, input=pickle.dumps(arguments), capture_output=True, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return pickle.loads(out.read_bytes())
