"""tools/torture, briefly: any kill of any stage, any damage to what it left, another budget for the next run; and
flipped bits. The same bytes come out, no finished unit is made twice, nothing is left.

tests/work/ has the same of the runner alone, and docs/RELIABILITY.md the long runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

TORTURE = Path(__file__).parents[1] / "tools" / "torture"
KILLS, FLIPS = 2 * 25, 20  # two of each stage
# Together these have each kind of file, and each way of going on: folds with shuffles, with runs of rows and with ids;
# maps of units that are kept, used up and fetched.
AIMED = ("convert", "convert ids", "sample", "prepare links", "prepare, large", "propagate", "infer", "fetch")


@pytest.mark.slow
def test_nothing_that_is_tortured_briefly_breaks_a_promise(tmp_path: Path) -> None:
    arguments = ["--kills", str(KILLS), "--flips", str(FLIPS), "--seed", "500", "--aims", "1"]
    for stage in AIMED:
        arguments += ["--stage", stage]
    done = subprocess.run(
        [TORTURE, *arguments], capture_output=True, text=True, check=False, timeout=1100,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    counts = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")][1:]
    *each, (_, total, failures) = counts
    assert int(failures) == 0
    aimed = {what.split()[0]: int(tried) for what, tried, _ in each if what.endswith("damaged")}
    assert int(total) == KILLS + FLIPS + sum(aimed.values())
    assert [kind for kind, tried in aimed.items() if not tried] == []
