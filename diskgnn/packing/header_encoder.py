"""Encodes the header of an extent, from a minibatch and the places of its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from diskgnn.formats.extent_headers import EncodedHeader, encode_header
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.sampled_minibatch import RowPlaces, SampledBlock, SampledMinibatch
from diskgnn.packing.edge_ids import EdgeIds
from diskgnn.packing.placement import Placement
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.split_labels import SplitLabels


class HeaderEncoder:
    """Encodes the headers of one split.

    Args:
        config: config of the packed directory, as far as it is known before placing.
        row_sets: [K].
        labels: labels of the split; None if its seeds have none.
        edge_ids: edge ids of the graph; None if headers do not keep them.
    """

    def __init__(
        self, config: PackedConfig, row_sets: Sequence[RowSet], labels: SplitLabels | None, edge_ids: EdgeIds | None
    ) -> None:
        self._row_sets, self._layout, self._labels = row_sets, config.header_layout(), labels
        self._edge_ids = edge_ids

    def encode(self, minibatch: SampledMinibatch, placements: Sequence[Placement]) -> EncodedHeader:
        """Returns the encoded header of a minibatch; `placements` [K] say where the rows of each row set are."""
        header = replace(
            minibatch,
            y=None if self._labels is None else self._labels.of_seeds(minibatch),
            rows=tuple(
                RowPlaces(placement.addresses, placement.admissions, row_set.spread(minibatch))
                for row_set, placement in zip(self._row_sets, placements, strict=True)
            ),
            blocks=minibatch.blocks if self._edge_ids is None else self._blocks_with_ids(minibatch, self._edge_ids),
        )
        return encode_header(header, self._layout)

    @staticmethod
    def _blocks_with_ids(minibatch: SampledMinibatch, edge_ids: EdgeIds) -> tuple[tuple[SampledBlock, ...], ...]:
        def with_ids(number: int, block: SampledBlock) -> SampledBlock:
            assert block.positions is not None  # samples have those of all types then
            return replace(block, edge_ids=edge_ids.of(number, block.positions))

        return tuple(tuple(with_ids(e, block) for e, block in enumerate(blocks)) for blocks in minibatch.blocks)
