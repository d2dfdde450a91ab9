"""The steps of one comparison, each in a process of its own that starts from a cold page cache."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diskgnn.compare import page_cache
from diskgnn.compare.processes import Outcome, run_in_process
from diskgnn.errors import ConfigError, DiskGNNError
from diskgnn.storage.manifest import Manifest
from diskgnn.units import format_size


class Steps:
    """Runs steps one after the other; keeps what they warned of.

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

    def run(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        capped: bool = True,
        watched: Path | None = None,
        about: str | None = None,
    ) -> Outcome:
        """Run one step; what it warns of is kept with the name of whom it is `about`."""
        self.cache_dropped &= page_cache.drop(page_cache.files_read(self.graph, self.folder))
        outcome = run_in_process(
            name,
            arguments,
            self.folder,
            limit_bytes=self.memory_bytes if capped else None,
            timeout_seconds=self._timeout_seconds,
            watched=watched,
        )
        told = [message if about is None else f"{about}: {message}" for message in outcome.warnings]
        self.warnings += [message for message in told if message not in self.warnings]
        return outcome

    def needed(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """The result of a step without which there is nothing to compare.

        Raises:
            ConfigError: it needs more memory than the cap.
            DiskGNNError: it failed for another reason.
        """
        outcome = self.run(name, arguments)
        if outcome.status == "out of memory":
            raise ConfigError(
                f"memory: {format_size(self.memory_bytes or 0)} is not even enough for Python, PyTorch and what "
                f"is prepared with half of it ({outcome.message}); try 1GiB or more"
            )
        if outcome.status != "ok":
            raise DiskGNNError(f"{outcome.status}: {outcome.message}")
        return outcome.result

    @contextmanager
    def subfolder(self, name: str) -> Iterator[Path]:
        """A new folder that goes with the block."""
        path = self.folder / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path)
