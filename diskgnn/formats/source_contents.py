"""What `convert` read from a source, and what it left out and why: in its report, and in the manifest of the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from diskgnn.formats.manifest_document import typed


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
class SourceContents:
    """What a source has, in the order in which it was looked at. Empty if the user named each part of the graph."""

    read: tuple[ReadItem, ...] = ()
    left_out: tuple[LeftOutItem, ...] = ()

    def __add__(self, other: SourceContents) -> SourceContents:
        return SourceContents(self.read + other.read, self.left_out + other.left_out)

    def to_json(self) -> dict[str, Any]:
        """What stands in a manifest."""
        return {"read": [asdict(item) for item in self.read], "left_out": [asdict(item) for item in self.left_out]}

    @staticmethod
    def parse(content: Mapping[str, Any]) -> SourceContents:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        read = [typed(item, dict) for item in typed(content["read"], list)]
        left_out = [typed(item, dict) for item in typed(content["left_out"], list)]
        return SourceContents(
            tuple(map(_read_item, read)),
            tuple(
                LeftOutItem(*_texts(item, "of", "name", "reason"), typed(item["expected"], bool)) for item in left_out
            ),
        )


def _read_item(item: Mapping[str, Any]) -> ReadItem:
    width, share = item["width"], item["null_share"]
    return ReadItem(
        *_texts(item, "of", "name", "use"), typed(item["how"], str), None if width is None else typed(width, int),
        None if share is None else typed(share, float),
    )  # fmt: skip


def _texts(item: Mapping[str, Any], *keys: str) -> tuple[str, str, str]:
    first, second, third = (typed(item[key], str) for key in keys)
    return first, second, third
