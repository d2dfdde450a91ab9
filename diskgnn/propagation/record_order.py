"""The order of records: train seeds in a fixed random one, other seeds as they were given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.formats.hops_config import ALL_NODES, CHOSEN_NODES
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.ids.named_nodes import chosen_nodes, read_nodes
from diskgnn.specs.split_arrays import SplitArrays

WINDOW_BYTES = 16 << 20  # of records that are put together at a time
_MOST_ROWS = 1 << 16
WITHOUT_SPLITS = (  # what errors advise
    "give `nodes`, 'all' or a list of them; or make the graph with a split (`diskgnn convert --train`, or `train` of a "
    "node type in a schema; of relational tables, `tasks` in relational.yaml). Seeds in tables of their own are for "
    "`diskgnn prepare --target-seeds`"
)


@dataclass(frozen=True)
class RecordWindow:
    """Some records of a split that lie side by side."""

    split: str
    first: int
    last: int


@dataclass(frozen=True)
class RecordOrder:
    """The seeds of each split, or the nodes that were chosen in their place, in the order of their records."""

    nodes: Mapping[str, npt.NDArray[np.int64] | None]  # by split; None: all, in ascending order
    num_nodes: int
    chosen: str | None  # what the manifest says of nodes that were chosen: 'all' or their digest; None: none were

    @staticmethod
    def of(nodes: NodeSet, chosen: Any, seed: int) -> RecordOrder:
        """Arranges the seeds of a graph, or the `chosen` nodes: 'all', an array, or the path of a file.

        Raises:
            InputError: nobody chose nodes, and the graph has no splits.
            ConfigError: something that is no nodes.
            ArtifactError: seeds that are no nodes.
        """
        if chosen is None:
            if not any(map(len, nodes.splits.values())):
                raise InputError(f"{nodes.manifest.path} has no seeds (no split of its nodes): {WITHOUT_SPLITS}")
            splits = dict(nodes.splits)
            for split, seeds in splits.items():
                if len(seeds) and (seeds.min() < 0 or seeds.max() >= nodes.num_nodes):
                    raise ArtifactError(
                        f"{nodes.manifest.path} is damaged: {split} has seeds that are none of its "
                        f"{nodes.num_nodes} nodes; make it with `diskgnn convert` again"
                    )
            if "train" in splits:
                splits["train"] = splits["train"][permutation(len(splits["train"]), batch_key(seed, "hops/train", 0))]
            return RecordOrder(splits, nodes.num_nodes, None)
        if isinstance(chosen, str) and chosen == ALL_NODES:
            return RecordOrder({CHOSEN_NODES: None}, nodes.num_nodes, ALL_NODES)
        if isinstance(chosen, str) or hasattr(chosen, "__fspath__"):
            chosen = read_nodes(chosen, nodes)
        found = chosen_nodes(chosen, nodes)
        assert found is not None
        if len(np.unique(found)) != len(found):
            raise ConfigError("nodes: expected each node once, found some twice; leave those out")
        digest = SplitArrays({"test": found}).digest  # any split will do: it names the nodes by their content
        return RecordOrder({CHOSEN_NODES: found}, nodes.num_nodes, digest)

    @property
    def num_rows(self) -> dict[str, int]:
        """Returns how many records each split has."""
        return {split: self.num_nodes if nodes is None else len(nodes) for split, nodes in self.nodes.items()}

    @property
    def num_records(self) -> int:
        """Returns how many records all splits have."""
        return sum(self.num_rows.values())

    def windows(self, row_bytes: int) -> list[RecordWindow]:
        """Returns all records in windows, whatever the memory."""
        step = window_rows(row_bytes)
        return [
            RecordWindow(split, first, min(first + step, count))
            for split, count in self.num_rows.items()
            for first in range(0, count, step)
        ]

    def of_window(self, window: RecordWindow) -> npt.NDArray[np.int64]:
        """Returns the nodes of the records of a window."""
        nodes = self.nodes[window.split]
        return np.arange(window.first, window.last) if nodes is None else nodes[window.first : window.last]

    def all_nodes(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yields all nodes, some at a time."""
        for window in self.windows(1):
            yield self.of_window(window)


def window_rows(row_bytes: int) -> int:
    """Returns how many rows of so many bytes a window has at most."""
    return max(1, min(_MOST_ROWS, WINDOW_BYTES // row_bytes))
