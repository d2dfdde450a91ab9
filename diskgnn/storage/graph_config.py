"""What the manifest of a graph says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from diskgnn.storage.manifest import typed
from diskgnn.storage.row_format import RowFormat


@dataclass(frozen=True)
class GraphConfig:
    """The size of a graph, and what its feature rows look like."""

    num_nodes: int  # N
    num_edges: int  # E
    num_classes: int  # labels are in [0, num_classes)
    rows: RowFormat

    def to_json(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """As it stands in the manifest, with the options that the graph was made with."""
        return {
            "num_nodes": self.num_nodes,
            **self.rows.to_json(),
            **options,
            "num_classes": self.num_classes,
            "num_edges": self.num_edges,
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> GraphConfig:
        """Raises ValueError or KeyError for what no graph's manifest says."""
        return GraphConfig(
            typed(config["num_nodes"], int),
            typed(config["num_edges"], int),
            typed(config["num_classes"], int),
            RowFormat.parse(config),
        )
