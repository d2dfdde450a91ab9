"""Forks a process for each step of a comparison: `python -m diskgnn.compare.step_server`, which `Steps` tells.

Importing torch takes longer than an epoch of a small graph, so it is imported once, here. A step is a copy of this
process, which opens nothing that is measured. What it has of it counts as its own, as if it had imported it itself.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import pickle
import select
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn.errors import DiskGNNError, UnavailableError

_PR_SET_PDEATHSIG, _MADV_POPULATE_WRITE = 1, 23
_LOOK_SECONDS = 0.02  # from one look whether a step has ended to the next


def main(*what: str) -> None:
    """Run the steps that stdin names, one a line, and answer each with its exit code; an empty line kills one.

    Args:
        what: 'optimizing' if they make optimizers.
    """
    if _own_pages():
        with suppress(ImportError):  # told by the step that needs it
            from diskgnn.compare.step_bodies import import_all

            import_all(optimizing="optimizing" in what)
    with open(0, "rb", buffering=0, closefd=False) as requests:  # unbuffered: `_wait` must see what comes after a line
        while line := requests.readline():
            if not line.strip():  # what it was to kill had ended
                continue
            request = json.loads(line)
            server, pid = os.getpid(), os.fork()
            if pid == 0:
                _become(server, **request)
            with suppress(OSError):  # whoever comes first of both: there must be a group to kill
                os.setpgid(pid, pid)
            sys.stdout.write(f"{_wait(pid)}\n")
            sys.stdout.flush()


def _wait(pid: int) -> int:
    """Returns the exit code of `pid` when it has ended, or was killed because stdin says so; its children end with
    it."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if select.select([0], [], [], _LOOK_SECONDS)[0]:
            break
    os.killpg(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _own_pages() -> bool:
    """Copy the pages that this process shares with the one that forked it, so that its cgroup is charged for them.

    Returns:
        Whether the kernel can (Linux 5.14 and later).
    """
    page_bytes, libc = mmap.PAGESIZE, ctypes.CDLL(None, use_errno=True)
    with Path("/proc/self/maps").open() as maps, Path("/proc/self/pagemap").open("rb") as pagemap:
        for line in maps.read().splitlines():
            span, mode, _, _, inode = line.split()[:5]
            if mode[1] == "w" and mode[3] == "p" and inode == "0":
                first, end = (int(address, 16) // page_bytes for address in span.split("-"))
                pagemap.seek(8 * first)
                present = np.frombuffer(pagemap.read(8 * (end - first)), np.uint64) >> np.uint64(63)
                edges = np.flatnonzero(np.diff(present, prepend=np.uint64(0), append=np.uint64(0)))
                for start, stop in edges.reshape(-1, 2).tolist():
                    address, num_bytes = (first + start) * page_bytes, (stop - start) * page_bytes
                    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE):
                        return False
    return True


def _become(server: int, step: str, result: str, log: str, cgroup: str | None) -> None:
    """Run the call in file `step` in this process, a new copy; its outcome goes to file `result`, errors included."""
    code = 1
    try:
        os.setpgid(0, 0)
        for descriptor, file, flags in ((0, os.devnull, os.O_RDONLY), (1, log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            opened = os.open(file, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.dup2(1, 2)
        _die_with(server)
        if cgroup is not None:
            (Path(cgroup) / "cgroup.procs").write_text("0")
            _own_pages()
        outcome: dict[str, Any]
        with warnings.catch_warnings(record=True) as caught:
            try:
                function, arguments = pickle.loads(Path(step).read_bytes())
                outcome = {"result": function(**arguments)}
            except Exception as error:
                tells_all = isinstance(error, (DiskGNNError, MemoryError)) and str(error)
                message = str(error) if tells_all else f"{type(error).__name__}: {error}"
                outcome = {"status": _status(error), "message": message}
        outcome |= {
            "peak_bytes": _peak_bytes(),
            "warnings": sorted({str(warning.message) for warning in caught}),
        }
        Path(result).write_bytes(pickle.dumps(outcome))
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # what the copy would clean up is the original's


def _status(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    unavailable = isinstance(error, (ImportError, UnavailableError))
    return "unavailable" if unavailable else "failed"


def _die_with(server: int) -> None:
    """Have the kernel kill this process when the one that forked it is gone, however it went."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def _peak_bytes() -> int:
    """Returns the most memory that this process has had resident; its children, as a library's workers, are not
    counted."""
    # Not getrusage: its maximum is inherited there from the process that started this one.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
