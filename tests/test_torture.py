"""tools/torture, briefly: any kill of any stage, any damage to what it left, another budget for the next run; and
flipped bits. The same bytes come out, no finished unit is made twice, nothing is left.

tests/work/ has the same of the runner alone, and docs/RELIABILITY.md the long runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from commands import run_python

TOOLS = Path(__file__).parents[1] / "tools"
KILLS, FLIPS = 27, 20  # one of each stage
# Together these have each kind of file, and each way of going on: folds with shuffles, with runs of rows and with ids;
# maps of units that are kept, used up and fetched.
AIMED = ("convert", "convert ids", "sample", "prepare links", "prepare, large", "propagate", "infer", "fetch")


@pytest.mark.slow
def test_nothing_that_is_tortured_briefly_breaks_a_promise(tmp_path: Path) -> None:
    arguments = ["--kills", str(KILLS), "--flips", str(FLIPS), "--seed", "500", "--aims", "1"]
    for stage in AIMED:
        arguments += ["--stage", stage]
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(TOOLS), "OMP_NUM_THREADS": "1"}
    done = run_python("-m", "torturing", *arguments, capture_output=True, text=True, timeout=1100, env=environment)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    counts = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    *each, (_, total, failures) = counts
    assert int(failures) == 0
    aimed = {what.split()[0]: int(tried) for what, tried, _ in each if what.endswith("damaged")}
    assert int(total) == KILLS + FLIPS + sum(aimed.values())
    assert [kind for kind, tried in aimed.items() if not tried] == []


def test_the_command_hands_its_arguments_on() -> None:
    done = subprocess.run(
        [TOOLS / "torture", "--kills", "1"], capture_output=True, text=True, check=True, env={"PYTHON": "echo"}
    )
    assert done.stdout == "-m torturing --kills 1\n"
