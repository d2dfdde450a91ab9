"""tools/torture, briefly: three kills of each stage, with damage to what they left, and flipped bits; none fails.

docs/RELIABILITY.md has the long runs.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

TORTURE = Path(__file__).parents[1] / "tools" / "torture"


def test_nothing_that_is_tortured_briefly_breaks_a_promise() -> None:
    arguments = ["--kills", "57", "--flips", "40", "--seed", "500"]
    done = subprocess.run([TORTURE, *arguments], capture_output=True, text=True, check=False, timeout=1100)
    assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
    *_, total = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert total == "| **all** | 97 | 0 |"
