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
KILLS, FLIPS = 4 * 24, 20  # four of each stage


@pytest.mark.slow
@pytest.mark.in_memory
def test_nothing_that_is_tortured_briefly_breaks_a_promise(tmp_path: Path) -> None:
    arguments = ["--kills", str(KILLS), "--flips", str(FLIPS), "--seed", "500"]
    done = subprocess.run(
        [TORTURE, *arguments], capture_output=True, text=True, check=False, timeout=1100,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    *_, total = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert total == f"| **all** | {KILLS + FLIPS} | 0 |"
