"""Reads the labels of a split's seeds, for the headers of its extents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.formats.minibatch_columns import LABEL_DTYPES
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import label_target
from diskgnn.specs.targets import LinkTarget, Target


@dataclass(frozen=True)
class SplitLabels:
    """The labels of a split's seeds, read once: each minibatch's own would be read at random from a cold file."""

    nodes: npt.NDArray[np.int64] | None  # ascending; None where each seed that was given has its own
    y: npt.NDArray[Any]  # [n] or [n, C], in the dtype of a header's y: of these nodes, or of the seeds as given

    @staticmethod
    def of(graph: Graph, target: Target, split: str) -> SplitLabels | None:
        """Reads the labels of the seeds of `target`, with the arrays that were given. Returns None if the seeds have
        none.

        Raises:
            ArtifactError: the labels are damaged.
        """
        config = label_target(graph, target)
        if config is None or isinstance(target, LinkTarget):
            return None  # samples have the labels of pairs
        dtype = LABEL_DTYPES[config.kind]
        if target.labels is not None:
            return SplitLabels(None, target.labels[split].astype(dtype, copy=False))
        nodes = graph.nodes[str(target.node_type)]
        of_split = np.unique((nodes.splits if target.seeds is None else target.seeds)[split])
        return SplitLabels(of_split, nodes.labels_of(of_split).astype(dtype, copy=False))

    def of_seeds(self, minibatch: SampledMinibatch) -> npt.NDArray[Any]:
        """Returns y, [B] or [B * C], of the seeds of a minibatch of the split.

        Raises:
            ArtifactError: seeds are not among those that have labels.
        """
        places = minibatch.places if self.nodes is None else np.searchsorted(self.nodes, minibatch.seeds)
        if places is None or places.max() >= len(self.y) or not self._are(places, minibatch.seeds):
            raise ArtifactError("the samples have seeds that are not in the split; sample again")
        return self.y[places].reshape(-1)

    def _are(self, places: npt.NDArray[np.int64], seeds: npt.NDArray[np.int64]) -> bool:
        return self.nodes is None or np.array_equal(self.nodes[places], seeds)


def label_row_bytes(graph: Graph, target: Target) -> int:
    """Returns the bytes of the y of one seed; 0 if seeds have none."""
    if (config := label_target(graph, target)) is None:
        return 0
    return np.dtype(LABEL_DTYPES[config.kind]).itemsize * (1 if config.kind == "class" else config.num_outputs)
