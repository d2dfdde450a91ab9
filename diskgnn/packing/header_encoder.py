"""What the header of an extent says, from a minibatch and where its rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import Placement
from diskgnn.packing.row_sets import RowSet
from diskgnn.specs.targets import NodeTarget
from diskgnn.storage.extent_headers import LABEL_DTYPES, EncodedHeader, Header, RowPlaces
from diskgnn.storage.packed_config import PackedConfig
from diskgnn.storage.samples import SampledBlock, SampledMinibatch, Samples
from diskgnn.storage.seed_files import read_given


class HeaderEncoder:
    """Encodes the headers of one split.

    Args:
        graph: what was sampled.
        samples: what is placed.
        config: of the packed directory, as far as it is known before placing.
        row_sets: [K].
        split: train, valid or test.
    """

    def __init__(
        self, graph: Graph, samples: Samples, config: PackedConfig, row_sets: Sequence[RowSet], split: str
    ) -> None:
        self._row_sets, self._layout = row_sets, config.header_layout()
        self._labels = None if config.target is None else _Labels.of(graph, samples, config, split)
        self._edge_ids = [edges.edge_ids for edges in graph.edges.values()] if config.keep_edge_ids else None

    def encode(self, minibatch: SampledMinibatch, placements: Sequence[Placement]) -> EncodedHeader:
        """The header of a minibatch; `placements` [K] are those of the row sets."""
        layout = self._layout
        return layout.encode(
            Header(
                seeds=minibatch.seeds,
                y=None if self._labels is None else self._labels.of_seeds(minibatch),
                node_counts=minibatch.node_counts,
                blocks=self._blocks(minibatch),
                rows=tuple(
                    RowPlaces(placement.addresses, placement.admissions, row_set.spread(minibatch))
                    for row_set, placement in zip(self._row_sets, placements, strict=True)
                ),
                input_nodes=tuple(
                    nodes if dtype is not None else None
                    for nodes, dtype in zip(minibatch.input_nodes, layout.node_dtypes, strict=True)
                ),
                trees=minibatch.trees,
                pairs=minibatch.pairs,
            )
        )

    def _blocks(self, minibatch: SampledMinibatch) -> tuple[tuple[SampledBlock, ...], ...]:
        """With the user's edge ids in place of positions, if they are kept."""

        def with_ids(number: int, block: SampledBlock) -> SampledBlock:
            ids, positions = None if self._edge_ids is None else self._edge_ids[number], block.positions
            if self._edge_ids is None or positions is None:
                return SampledBlock(block.indptr, block.indices)
            found = positions.astype(np.int64) if ids is None else ids[positions]
            return SampledBlock(block.indptr, block.indices, found)

        return tuple(tuple(with_ids(e, block) for e, block in enumerate(blocks)) for blocks in minibatch.blocks)


@dataclass(frozen=True)
class _Labels:
    """Those of a split's seeds, read once: each minibatch's own would be read at random from a cold file."""

    nodes: npt.NDArray[np.int64] | None  # ascending; None where each seed that was given has its own
    y: npt.NDArray[Any]  # [n] or [n, C], in the dtype of a header's y: of these nodes, or of the seeds as given

    @staticmethod
    def of(graph: Graph, samples: Samples, config: PackedConfig, split: str) -> _Labels:
        """Raises ArtifactError: the labels are damaged."""
        assert config.target is not None
        dtype, target = LABEL_DTYPES[config.target.kind], read_given(samples.manifest, samples.config.spec).target
        if isinstance(target, NodeTarget) and target.labels is not None:
            return _Labels(None, target.labels[split].astype(dtype, copy=False))
        nodes = graph.nodes[str(config.schema().target)]
        of_split = np.unique((nodes.splits if target.seeds is None else target.seeds)[split])
        return _Labels(of_split, nodes.labels_of(of_split).astype(dtype, copy=False))

    def of_seeds(self, minibatch: SampledMinibatch) -> npt.NDArray[Any]:
        """[B] or [B * C] y of the seeds of a minibatch of the split.

        Raises:
            ArtifactError: they are none of those that have labels.
        """
        places = minibatch.places if self.nodes is None else np.searchsorted(self.nodes, minibatch.seeds)
        if places is None or places.max() >= len(self.y):
            raise ArtifactError("the samples have seeds that are not in the split; sample again")
        return self.y[places].reshape(-1)
