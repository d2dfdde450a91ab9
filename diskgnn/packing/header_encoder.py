"""What the header of an extent says, from a minibatch and where its rows are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import Placement
from diskgnn.packing.row_sets import RowSet
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
                y=None if self._labels is None else self._labels.of_seeds(minibatch.seeds),
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
    """Those of a split's nodes, read once: each minibatch's own would be read at random from a cold file."""

    nodes: npt.NDArray[np.int64]  # ascending
    y: npt.NDArray[Any]  # [len(nodes)] or [len(nodes), C], in the dtype of a header's y

    @staticmethod
    def of(graph: Graph, samples: Samples, config: PackedConfig, split: str) -> _Labels:
        """Raises ArtifactError: the labels are damaged."""
        assert config.target is not None
        nodes = graph.nodes[str(config.schema().target)]
        given = read_given(samples.manifest, samples.config.spec).target.seeds
        of_split = np.unique((nodes.splits if given is None else given)[split])
        return _Labels(of_split, nodes.labels_of(of_split).astype(LABEL_DTYPES[config.target.kind], copy=False))

    def of_seeds(self, seeds: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """[B] or [B * C] y of seeds of the split."""
        return self.y[np.searchsorted(self.nodes, seeds)].reshape(-1)
