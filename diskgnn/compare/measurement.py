"""Commands that are measured: what runs, under which limit, in turns. What benchmarks have in common."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from diskgnn.errors import DiskGNNError
from diskgnn.system.memory_cgroup import MemoryCgroup

_LOOK_SECONDS = 0.002  # from one look at the anonymous memory to the next


@dataclass(frozen=True)
class Measurement:
    """A command in a process of its own.

    Args:
        name: what tables call it.
        command: program and arguments; what it prints last, if that is a JSON object, are its figures.
        limit_bytes: of its memory cgroup, page cache included; None for none.
        watched: look at its anonymous memory all the time, which takes a little of a core.
        environment: of the process; that of this one by default.
    """

    name: str
    command: Sequence[object]
    limit_bytes: int | None = None
    watched: bool = False
    environment: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Finding:
    """A measurement that has been made."""

    name: str
    exit_code: int
    said: str  # on standard output
    errors: str  # on standard error; empty unless the measurement is watched, which is shown otherwise
    seconds: float
    cpu_seconds: float
    resident_bytes: int  # at most, of one process
    anonymous_bytes: int  # at most; 0 unless watched
    peak_bytes: int | None  # of the cgroup, page cache included
    oom_kills: int

    @property
    def figures(self) -> dict[str, Any]:
        """Returns the JSON object that the command printed last; all that it printed if it printed nothing else. Of a
        list, as of a command of several stages, the objects by their place.

        Raises:
            DiskGNNError: the command failed.
        """
        if self.exit_code:
            raise DiskGNNError(f"{self.name} ended with code {self.exit_code} {self.said}{self.errors}".strip())
        lines = self.said.strip()
        with suppress(ValueError):
            found = json.loads(lines)
            return {str(place): each for place, each in enumerate(found)} if isinstance(found, list) else dict(found)
        return dict(json.loads(lines.splitlines()[-1]))

    @property
    def costs(self) -> dict[str, Any]:
        """Returns the seconds and memory, as a record."""
        record: dict[str, Any] = {"seconds": round(self.seconds, 2), "cpu_seconds": round(self.cpu_seconds, 2)}
        record["resident_bytes"] = self.resident_bytes
        return record if self.peak_bytes is None else record | {
            "peak_bytes": self.peak_bytes, "oom_kills": self.oom_kills,
        }  # fmt: skip


def run(measurement: Measurement) -> Finding:
    """Run a command to its end.

    Raises:
        OSError: no memory cgroup can be made.
    """
    command, limit_bytes = [str(part) for part in measurement.command], measurement.limit_bytes
    with MemoryCgroup(limit_bytes) if limit_bytes is not None else nullcontext() as cgroup, \
            tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:  # fmt: skip
        started = time.perf_counter()
        process = subprocess.Popen(
            command if cgroup is None else cgroup.command(command),
            stdout=out, stderr=errors if measurement.watched else None, env=measurement.environment,
        )  # fmt: skip
        anonymous_bytes = 0
        ended, status, usage = os.wait4(process.pid, os.WNOHANG if measurement.watched else 0)
        while not ended:
            anonymous_bytes = max(anonymous_bytes, _anonymous_bytes(process.pid))
            time.sleep(_LOOK_SECONDS)
            ended, status, usage = os.wait4(process.pid, os.WNOHANG)
        process.returncode = os.waitstatus_to_exitcode(status)
        return Finding(
            measurement.name, process.returncode, _text(out), _text(errors), time.perf_counter() - started,
            usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, anonymous_bytes,
            None if cgroup is None else cgroup.peak_bytes(), 0 if cgroup is None else cgroup.oom_kills(),
        )  # fmt: skip


def run_in_turns(
    measurements: Sequence[Measurement], turns: int, before: Callable[[], object] = lambda: None
) -> dict[str, list[Finding]]:
    """Run all, again and again, so that what slows the machine for a while slows all alike.

    Args:
        measurements: of different names.
        turns: how often.
        before: called before each run, to have the next as cold as the first.
    """
    found: dict[str, list[Finding]] = {each.name: [] for each in measurements}
    for _ in range(turns):
        for each in measurements:
            before()
            found[each.name].append(run(each))
    return found


def median_and_spread(values: Sequence[float]) -> str:
    """Returns the median, and the least and the most: '1.53 (1.49 to 2.10)'; of one value that alone."""
    middle = f"{median(values):.4g}"
    return middle if len(values) < 2 else f"{middle} ({min(values):.3g} to {max(values):.3g})"


def _anonymous_bytes(process: int) -> int:
    """Returns what the process has in memory; 0 once it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) << 10
    return 0


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))
