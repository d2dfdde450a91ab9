"""A fresh process for each step of a comparison, in a memory cgroup of its own, killed when it takes too long."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diskgnn.storage.disk_space import folder_bytes
from diskgnn.system.memory_cgroup import MemoryCgroup
from diskgnn.units import format_size

_TAIL_CHARACTERS = 500
_LOOK_SECONDS = 0.25  # from one look at the folder watched to the next


@dataclass(frozen=True)
class Outcome:
    """What came of one step."""

    status: str  # 'ok', 'unavailable', 'failed', 'out of memory'
    message: str = ""
    result: Any = None
    peak_process_bytes: int = 0
    peak_cgroup_bytes: int | None = None
    peak_disk_bytes: int = 0  # that the folder watched held at a time
    warnings: tuple[str, ...] = field(default=())


def run_in_process(
    step: str,
    arguments: Mapping[str, Any],
    folder: Path,
    *,
    limit_bytes: int | None,
    timeout_seconds: float,
    watched: Path | None = None,
) -> Outcome:
    """Run `step_bodies.run_step(step, arguments)` in a new interpreter, under `limit_bytes` if that is given.

    Its files go to `folder`; the bytes of what it writes in folder `watched` are looked at meanwhile. Nothing of it is
    left running when this function ends, however it ends.
    """
    step_path, result_path, log_path = (folder / name for name in ("step.json", "result.json", "log"))
    result_path.unlink(missing_ok=True)
    step_path.write_text(json.dumps({"step": step, "arguments": arguments, "parent": os.getpid()}))
    command = [sys.executable, "-m", "diskgnn.compare.step_main", str(step_path), str(result_path)]
    cgroup = None if limit_bytes is None else MemoryCgroup(limit_bytes)
    try:
        with log_path.open("w") as log:
            timed_out, peak_disk_bytes, give_up = False, 0, time.monotonic() + timeout_seconds
            # Its own session: Ctrl-C is ours alone, and whoever it starts can be killed with it.
            process = subprocess.Popen(
                command if cgroup is None else cgroup.command(command),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            try:
                while not timed_out and process.returncode is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(min(_LOOK_SECONDS, max(0.0, give_up - time.monotonic())))
                    peak_disk_bytes = max(peak_disk_bytes, 0 if watched is None else folder_bytes(watched))
                    timed_out = process.returncode is None and time.monotonic() >= give_up
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if timed_out:
            return Outcome("failed", f"no end after {timeout_seconds:.0f} seconds, the limit of a process")
        peak = None if cgroup is None else cgroup.peak_bytes()
        killed = cgroup is not None and cgroup.oom_kills() > 0
    finally:
        if cgroup is not None:
            cgroup.remove()
    if killed:
        message = f"{step}: needs more than the {format_size(limit_bytes or 0)} of memory"
        return Outcome("out of memory", message, peak_cgroup_bytes=peak)
    if not result_path.exists():
        told = " ".join(log_path.read_text(errors="replace").split())[-_TAIL_CHARACTERS:]
        return Outcome("failed", f"{step}: ended with code {process.returncode} {told}".strip(), peak_cgroup_bytes=peak)
    found = json.loads(result_path.read_text())
    return Outcome(
        found.get("status", "ok"), found.get("message", ""), found.get("result"), found["peak_bytes"], peak,
        peak_disk_bytes, tuple(found["warnings"]),
    )  # fmt: skip
