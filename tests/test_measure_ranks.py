"""A rank that is killed: torchrun starts the group again, which ends as if nothing had happened."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_killed_rank_costs_nothing_but_time(tmp_path):
    command = [sys.executable, ROOT / "tools" / "measure_ranks.py", "kills", tmp_path, "--kills", "1", "--epochs", "4"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path}
    found = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "1 of 1 runs of 2 ranks ended equal to the undisturbed one" in found.stdout
