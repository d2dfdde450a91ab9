"""How far the edges of one type are on their way to a graph directory, so that a killed run goes on there.

Each of the passes counts the edges that it has done. A unit is a part of all passes together (`Pace`); what is recorded
of it says how to go on, and holds all that the passes before it found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy.typing as npt

from diskgnn.schema import EdgeType
from diskgnn.storage.pace import Pace
from diskgnn.storage.writer import ArtifactWriter

State = Mapping[str, npt.NDArray[Any]]

_PASSES = 3  # count, scatter, sort
_EDGE_BYTES = 16


class EdgeProgress:
    """What a killed run recorded of an edge type, and the records of this one.

    Args:
        writer: of the graph directory; nothing is recorded unless it is resumable.
        edge_type: whose edges.
        num_edges: about.
        record_bytes: of what each edge carries, which is in two of the passes.
    """

    def __init__(self, writer: ArtifactWriter, edge_type: EdgeType, num_edges: int, record_bytes: int = 0) -> None:
        self._writer, self._name, self._record_bytes = writer, f"edges-{'.'.join(edge_type)}", record_bytes
        self._pace = self._pace_of(num_edges, record_bytes)
        self.state: dict[str, npt.NDArray[Any]] = (writer.recorded(self._name) or {}) if self._pace.has_units else {}

    @staticmethod
    def _pace_of(num_edges: int, record_bytes: int = 0) -> Pace:
        return Pace((_PASSES * _EDGE_BYTES + (_PASSES - 1) * record_bytes) * num_edges)

    @staticmethod
    def has_units_of(num_edges: int) -> bool:
        """Whether so many edges are worth records."""
        return EdgeProgress._pace_of(num_edges).has_units

    def number(self, key: str) -> int:
        """What was recorded of a pass, or 0."""
        return int(self.state[key]) if key in self.state else 0

    def forget(self, *, but: Iterable[str] = ()) -> None:
        """What was recorded is of no use: all passes are made again that need more than the keys of `but`."""
        self.state = {key: self.state[key] for key in but if key in self.state}

    def counted(self, num_edges: int, found: Callable[[], State]) -> None:
        """So many edges more are counted; `found` says how to go on after them."""
        self._done(num_edges * _EDGE_BYTES, found, ())

    def done(self, num_edges: int, found: Callable[[], State], claims: Iterable[str]) -> None:
        """So many edges more, and what they carry, are through a pass; `found` says how to go on after them, from the
        files of `claims`."""
        self._done(num_edges * (_EDGE_BYTES + self._record_bytes), found, claims)

    def _done(self, num_bytes: int, found: Callable[[], State], claims: Iterable[str]) -> None:
        if self._pace.has_units and self._pace.done(num_bytes):
            self.record(found(), claims)

    def record(self, found: State, claims: Iterable[str] = ()) -> None:
        """Note `found` durably now."""
        if self._pace.has_units:
            self.state |= found
            self._writer.record(self._name, self.state, claims=claims)
