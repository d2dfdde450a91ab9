"""The process that runs one step of a comparison: `python -m diskgnn.compare.step_main STEP.json RESULT.json`."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from diskgnn.errors import DiskGNNError, UnavailableError

_PR_SET_PDEATHSIG = 1


def main(step_path: str, result_path: str) -> None:
    """Run the step that `step_path` describes; what came of it goes to `result_path`, errors included."""
    step = json.loads(Path(step_path).read_text())
    _die_with(step["parent"])
    outcome: dict[str, Any]
    with warnings.catch_warnings(record=True) as caught:
        try:
            from diskgnn.compare.step_bodies import run_step

            outcome = {"result": run_step(step["step"], step["arguments"])}
        except Exception as error:
            tells_all = isinstance(error, (DiskGNNError, MemoryError)) and str(error)
            message = str(error) if tells_all else f"{type(error).__name__}: {error}"
            outcome = {"status": _status(error), "message": message}
    outcome |= {"peak_bytes": peak_bytes(), "warnings": sorted({str(warning.message) for warning in caught})}
    Path(result_path).write_text(json.dumps(outcome))


def _status(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    unavailable = isinstance(error, (ImportError, UnavailableError))
    return "unavailable" if unavailable else "failed"


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the one that runs the comparison is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the comparison has ended")


def peak_bytes() -> int:
    """The most memory that this process has had resident; its children, as a library's workers, are not counted."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Not getrusage: its maximum is inherited there from the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
