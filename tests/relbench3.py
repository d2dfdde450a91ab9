"""RelBench 3, in processes of its own: in this one, RelBench 2 has its name."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

INSTALLED = Path(sys.prefix) / "relbench3"  # by tools/setup
_CALLS = Path(__file__).with_name("relbench3_calls.py")


def called(name: str, *arguments: Any) -> Any:
    """Returns what a function of `relbench3_calls` returns where RelBench is 3."""
    if not (INSTALLED / "relbench").is_dir():
        pytest.skip(f"RelBench 3 is not in {INSTALLED}, where tools/setup puts it")
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        path = os.pathsep.join([str(INSTALLED), *filter(None, [os.environ.get("PYTHONPATH")])])
        done = subprocess.run(
            [sys.executable, _CALLS, name, out], input=pickle.dumps(arguments), capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        return pickle.loads(out.read_bytes())
