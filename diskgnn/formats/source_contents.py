"""What `convert` read from a source, and what it left out and why: in its report, and in the manifest of the graph."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn.formats.records import Record


@dataclass(frozen=True)
class ReadItem:
    """Something of a source that is in the graph."""

    of: str  # the node type, the edge type ("author:writes:paper"), or "" for the source as a whole
    name: str  # as the source calls it
    use: str  # what it was read as: "features", "weights", ...
    how: str = ""  # of a column: its encoding, such as "category"
    width: int | None = None  # of a column: numbers of a row that it became
    null_share: float | None = None  # of a column: share of rows without a value, where that was counted


@dataclass(frozen=True)
class LeftOutItem:
    """Something of a source that is not in the graph."""

    of: str
    name: str
    reason: str
    expected: bool = False  # the user asked for it, or nothing is lost by it: no warning


@dataclass(frozen=True)
class SourceContents(Record):
    """Lists what a source has, in the order in which it was looked at. Empty if the user named each part of the
    graph."""

    read: tuple[ReadItem, ...] = ()
    left_out: tuple[LeftOutItem, ...] = ()

    def __add__(self, other: SourceContents) -> SourceContents:
        return SourceContents(self.read + other.read, self.left_out + other.left_out)


NO_CONTENTS = SourceContents()
