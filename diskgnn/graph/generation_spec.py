"""Describes a synthetic graph, and checks the description once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from diskgnn._native import GraphGenerator
from diskgnn.errors import ConfigError
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.schema import SPLITS
from diskgnn.units import seed_number

# Length of a class centroid over that at which C classes can just be told apart in noise, sqrt(2 ln C). At this
# ratio the best classifier that sees only a node's own features is right 43 % of the time with 16 classes, 36 %
# with 47: clearly more than chance, clearly less than one that sees the neighbours too.
SIGNAL_RATIO = 0.65


def feature_signal(num_classes: int) -> float:
    """Returns the length of the centroids of so many classes."""
    return SIGNAL_RATIO * math.sqrt(2 * math.log(num_classes))


@dataclass(frozen=True)
class GenerationSpec:
    """A synthetic graph. See `generate` for what each number means.

    Raises:
        ConfigError: a value that makes no sense; names it.
    """

    num_nodes: int
    avg_degree: float
    num_classes: int
    rows: RowFormat
    fractions: dict[str, float]  # of the nodes in each split of SPLITS
    homophily: float
    seed: int

    def __post_init__(self) -> None:
        if self.num_classes < 1 or self.num_nodes < 2 * self.num_classes:
            raise ConfigError(
                f"expected at least 1 class and 2 nodes per class, found {self.num_classes} classes for "
                f"{self.num_nodes} nodes: change `num_classes` or `num_nodes`"
            )
        limit = self.num_nodes / (2 * self.num_classes)
        if not 0 < self.avg_degree <= limit:
            raise ConfigError(
                f"avg_degree: expected a number above 0 and at most {limit:g} (half of the nodes of a class), found "
                f"{self.avg_degree}: change it, or have fewer classes or more nodes"
            )
        if not 0 <= self.homophily <= 1:
            raise ConfigError(f"homophily: expected a number from 0 to 1, found {self.homophily}")
        object.__setattr__(self, "seed", seed_number(self.seed))
        fractions = self.fractions
        if not all(0 <= fraction <= 1 for fraction in fractions.values()) or sum(fractions.values()) > 1 + 1e-9:
            raise ConfigError(f"expected fractions from 0 to 1 whose sum is at most 1, found {fractions}")
        for split, size in self.split_sizes.items():
            if size == 0 and (fractions[split] > 0 or split == "train"):
                raise ConfigError(
                    f"{split}_fraction: expected at least one {split} node, found none: {fractions[split]} of "
                    f"{self.num_nodes} nodes is less than one; pass a larger number"
                )

    def generator(self) -> GraphGenerator:
        """Returns what draws the graph."""
        return GraphGenerator(
            num_nodes=self.num_nodes, num_classes=self.num_classes, homophily=self.homophily,
            num_features=self.rows.num_features, feature_signal=feature_signal(self.num_classes), seed=self.seed,
        )  # fmt: skip

    @property
    def num_drawn_edges(self) -> int:
        """Returns the number of edges that are drawn. Repeated ones are dropped later."""
        return round(self.num_nodes * self.avg_degree)

    @property
    def centroid_bytes(self) -> int:
        """Returns the bytes of the classes' centroids, float32 [num_classes, num_features]."""
        return self.num_classes * self.rows.num_features * 4

    @property
    def split_sizes(self) -> dict[str, int]:
        """Returns the number of nodes in each split. Splits are consecutive in the order of
        `GraphGenerator.shuffled_nodes`."""
        sizes, left = {}, self.num_nodes
        for split in SPLITS:
            sizes[split] = min(round(self.fractions[split] * self.num_nodes), left)
            left -= sizes[split]
        return sizes

    def to_json(self, num_edges: int) -> dict[str, Any]:
        """Returns the config for the manifest. `num_edges` is known after the edges are drawn."""
        options = {
            "generator": "degree-corrected planted partition",
            "avg_degree": self.avg_degree,
            **{f"{split}_fraction": self.fractions[split] for split in SPLITS},
            "homophily": self.homophily,
            "seed": self.seed,
        }
        return GraphConfig.of_one_type(self.num_nodes, num_edges, self.num_classes, self.rows).to_json(options)
