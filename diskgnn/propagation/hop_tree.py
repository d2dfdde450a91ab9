"""The tree of what hops compute: rows of a node type along a path that ends at features.

Paths share their ends: what comes of the features of institutions at authors is the same for papers that authors write
and for papers that cite these. So a tree node is a node type and the path that remains; its parent is that path without
its first step. A graph of one type is a chain: x, Px, P²x, ...
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from diskgnn.propagation.hop_paths import Path, path_name
from diskgnn.specs.schema import EdgeType


@dataclass(frozen=True)
class TreeNode:
    """The features of a node type, or what edges make of the rows of another tree node: their means."""

    node_type: str
    path: Path  # from this type to that of the features; empty: these
    parent: int | None  # the tree node whose rows are averaged; None: features
    is_kept: bool  # records have it; others are there for longer paths

    @property
    def edge_type(self) -> EdgeType:
        """Returns the edges that rows are averaged over."""
        return self.path[0]


@dataclass(frozen=True)
class HopTree:
    """All of them: parents before their children, and one root for each type whose features are used."""

    nodes: tuple[TreeNode, ...]
    target: str  # the type of the seeds
    is_typed: bool

    @staticmethod
    def of(paths: Sequence[Path], target: str, *, is_typed: bool) -> HopTree:
        """Returns the tree of these paths from `target` nodes."""
        numbers: dict[tuple[str, Path], int] = {}
        for path in paths:
            for first in range(len(path), -1, -1):
                at = path[first][2] if first < len(path) else path[-1][0] if path else target
                numbers.setdefault((at, path[first:]), len(numbers))
        kept = {*paths}
        nodes = tuple(
            TreeNode(at, path, numbers[path[0][0], path[1:]] if path else None, at == target and path in kept)
            for at, path in numbers
        )
        return HopTree(nodes, target, is_typed)

    @property
    def hops(self) -> int:
        """Returns the length of the longest path."""
        return max(len(node.path) for node in self.nodes)

    @property
    def roots(self) -> list[int]:
        """Returns the tree nodes that are features."""
        return [number for number, node in enumerate(self.nodes) if node.parent is None]

    @cached_property
    def children(self) -> list[list[int]]:
        """Returns the tree nodes that are means of the rows of each."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for child, node in enumerate(self.nodes):
            if node.parent is not None:
                found[node.parent].append(child)
        return found

    def below(self, number: int) -> list[int]:
        """Returns the tree node, and all that follow from it."""
        found = {number}
        for child, node in enumerate(self.nodes):  # parents come first
            if node.parent in found:
                found.add(child)
        return sorted(found)

    def segment_name(self, number: int, operator: str) -> str:
        """Returns what records call the rows of a tree node that they keep."""
        path = self.nodes[number].path
        return path_name(path) if self.is_typed or not path else f"{operator}/{len(path)}"
