"""Bytes that a stage moves, counted where it moves them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass
class Traffic:
    """Bytes moved between disk and memory. Threads add to it."""

    read_bytes: int = 0
    written_bytes: int = 0
    edge_bytes: int = 0  # of those read: offsets and indices
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, read: int = 0, written: int = 0, edges: int = 0) -> None:
        """Count some; `edges` were read."""
        with self._lock:
            self.read_bytes += read + edges
            self.edge_bytes += edges
            self.written_bytes += written

    def __iadd__(self, other: Traffic) -> Self:
        self.add(read=other.read_bytes - other.edge_bytes, written=other.written_bytes, edges=other.edge_bytes)
        return self

    def __getstate__(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
