"""The steps of one comparison, each in its own process under the memory cap, that starts from a cold page cache."""

from __future__ import annotations

import json
import pickle
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from diskgnn.compare import page_cache
from diskgnn.compare.step_bodies import train
from diskgnn.errors import ConfigError, DiskGNNError
from diskgnn.files.disk_space import folder_bytes
from diskgnn.formats.manifest import Manifest
from diskgnn.system.memory_cgroup import MemoryCgroup
from diskgnn.units import format_size

_TAIL_CHARACTERS = 500
_LOOK_SECONDS = 0.25  # from one look at the folder watched to the next
_OPTIMIZING = {train}  # steps that are charged for what making an optimizer imports
T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of one step."""

    status: str  # 'ok', 'unavailable', 'failed', 'out of memory'
    message: str = ""
    result: T | None = None
    peak_process_bytes: int = 0
    peak_cgroup_bytes: int | None = None
    peak_disk_bytes: int = 0  # that the folder watched held at a time
    warnings: tuple[str, ...] = field(default=())


class Steps:
    """Runs steps one after the other; keeps what they warned of. A context manager, which ends their processes.

    Args:
        graph: what all read.
        folder: where steps and what they prepare lie.
        memory_bytes: the cap of each process; None where nothing can cap it.
        timeout_seconds: of each process.
    """

    def __init__(self, graph: Manifest, folder: Path, memory_bytes: int | None, timeout_seconds: float) -> None:
        self.graph, self.folder, self.memory_bytes = graph, folder, memory_bytes
        self._timeout_seconds = timeout_seconds
        self.cache_dropped = True  # before every step so far
        self.warnings: list[str] = []
        self._servers: dict[bool, _Server] = {}  # by whether their steps make optimizers

    def __enter__(self) -> Steps:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.end()

    def run(
        self,
        step: Callable[..., T],
        arguments: Mapping[str, Any],
        *,
        capped: bool = True,
        watched: Path | None = None,
        about: str | None = None,
    ) -> Outcome[T]:
        """Run one step, a function that can be pickled; what it warns of is kept with the name of whom it is `about`.

        The bytes of what it writes in folder `watched` are looked at meanwhile. Nothing of it is left running when this
        function ends, however it ends.
        """
        self.cache_dropped &= page_cache.drop(page_cache.files_read(self.graph, self.folder))
        limit = MemoryCgroup(self.memory_bytes) if capped and self.memory_bytes is not None else nullcontext()
        with limit as cgroup:
            outcome = self._run(step, arguments, watched, cgroup)
        told = [message if about is None else f"{about}: {message}" for message in outcome.warnings]
        self.warnings += [message for message in told if message not in self.warnings]
        return outcome

    def needed(self, step: Callable[..., T], **arguments: Any) -> T:
        """Returns the result of a step without which there is nothing to compare.

        Raises:
            ConfigError: it needs more memory than the cap.
            DiskGNNError: it failed for another reason.
        """
        outcome = self.run(step, arguments)
        if outcome.status == "out of memory":
            raise ConfigError(
                f"memory: {format_size(self.memory_bytes or 0)} is not even enough for Python, PyTorch and what "
                f"is prepared with half of it ({outcome.message}); try 1GiB or more"
            )
        if outcome.status != "ok":
            raise DiskGNNError(f"{outcome.status}: {outcome.message}")
        return cast(T, outcome.result)

    @contextmanager
    def subfolder(self, name: str) -> Iterator[Path]:
        """Yields a new folder that goes with the block."""
        path = self.folder / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def _run(
        self, step: Callable[..., T], arguments: Mapping[str, Any], watched: Path | None, cgroup: MemoryCgroup | None
    ) -> Outcome[T]:
        step_path, result_path, log_path = (self.folder / name for name in ("step.pickle", "result.pickle", "step.log"))
        result_path.unlink(missing_ok=True)
        step_path.write_bytes(pickle.dumps((step, arguments)))
        optimizing, name = step in _OPTIMIZING, step.__name__
        if optimizing not in self._servers:
            self._servers[optimizing] = _Server(optimizing, self.folder / f"server-{len(self._servers)}.log")
        server = self._servers[optimizing]
        server.tell({
            "step": str(step_path), "result": str(result_path), "log": str(log_path),
            "cgroup": None if cgroup is None else str(cgroup.path),
        })  # fmt: skip
        ended, peak_disk_bytes, give_up = False, 0, time.monotonic() + self._timeout_seconds
        try:
            while not ended and time.monotonic() < give_up:
                ended = server.answers_within(min(_LOOK_SECONDS, max(0.0, give_up - time.monotonic())))
                peak_disk_bytes = max(peak_disk_bytes, 0 if watched is None else folder_bytes(watched))
        finally:
            if not ended:
                server.tell(None)
            code = server.answer()
        if not ended:
            return Outcome("failed", f"no end after {self._timeout_seconds:.0f} seconds, the limit of a process")
        peak = None if cgroup is None else cgroup.peak_bytes()
        if cgroup is not None and cgroup.oom_kills() > 0:
            message = f"{name}: needs more than the {format_size(self.memory_bytes or 0)} of memory"
            return Outcome("out of memory", message, peak_cgroup_bytes=peak)
        if not result_path.exists():
            message = f"{name}: ended with code {code} {_tail(log_path)}".strip()
            return Outcome("failed", message, peak_cgroup_bytes=peak)
        found = pickle.loads(result_path.read_bytes())
        return Outcome(
            found.get("status", "ok"), found.get("message", ""), found.get("result"), found["peak_bytes"], peak,
            peak_disk_bytes, tuple(found["warnings"]),
        )  # fmt: skip


class _Server:
    """Forks steps that find imported what they need; see `step_server`."""

    def __init__(self, optimizing: bool, log: Path) -> None:
        self._log = log
        with log.open("w") as file:
            # Its own session: Ctrl-C is ours alone. Python 3.12 warns of forks beside idle threads, as NumPy has them.
            self._process = subprocess.Popen(
                [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "diskgnn.compare.step_server",
                 *["optimizing"] * optimizing],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout

    def tell(self, request: Mapping[str, Any] | None) -> None:
        """Run a step, or, without one, kill the one that runs."""
        with suppress(BrokenPipeError):  # that there is no answer says more
            self._requests.write(b"\n" if request is None else json.dumps(request).encode() + b"\n")
            self._requests.flush()

    def answers_within(self, seconds: float) -> bool:
        """Returns True if the step ends in that time."""
        return bool(select.select([self._answers], [], [], seconds)[0])

    def answer(self) -> int:
        """Wait for the step's exit code.

        Raises:
            DiskGNNError: the server has ended.
        """
        line = self._answers.readline()
        if not line:
            code = self._process.wait()
            raise DiskGNNError(f"the process that starts all others has ended with code {code} {_tail(self._log)}")
        return int(line)

    def end(self) -> None:
        """End the server, and with it the step that runs."""
        self._process.kill()  # closing its stdin would do, but for others that this process has forked meanwhile
        self._process.communicate()


def _tail(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-_TAIL_CHARACTERS:]
