"""A layer taken apart, together with what follows it in the model: normalisation, activation, and a skip connection."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from diskgnn.batches.blocks import Block
from diskgnn.inference.layer_steps import ArrayName, LayerSteps, Panel
from diskgnn.nn.between import Between
from diskgnn.specs.schema import EdgeType


class FollowedSteps:
    """`LayerSteps` of a layer and of what the model applies to its output.

    A skip connection adds what it makes of the layer's input, which is gone when sums are there: so it lies behind the
    layer's own columns of `own`.

    Args:
        steps: of the layer alone.
        between: what follows, by type of the destinations.
    """

    def __init__(self, steps: LayerSteps, between: Mapping[str, Between]) -> None:
        self._layer, self._between = steps, between
        self.types, self.heads, self.width = steps.types, steps.heads, steps.width
        self.divisible, self.edge_bytes, self.uses_degrees = steps.divisible, steps.edge_bytes, steps.uses_degrees
        has_skips = any(each.skip is not None for each in between.values())
        self.own_array = None if has_skips else steps.own_array

    def _skip(self, node_type: str) -> nn.Module | None:
        return self._between[node_type].skip if node_type in self._between else None

    def stored(self, node_type: str) -> Mapping[str, int]:
        """Returns those of the layer."""
        return self._layer.stored(node_type)

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        """Returns those of the layer."""
        return self._layer.sources(destination)

    def beside(self, destination: str) -> tuple[str, ...]:
        """Returns those of the layer."""
        return self._layer.beside(destination)

    def own_columns(self, node_type: str) -> int:
        """Returns the layer's, and then those that the skip connection adds."""
        added = 0 if self._skip(node_type) is None else self._between[node_type].out_channels
        return self._layer.own_columns(node_type) + added

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        """Returns those of the layer."""
        return self._layer.messages(node_type, x, out_degrees)

    def own(self, node_type: str, x: Tensor) -> Tensor:
        """Returns [n, own columns]."""
        own, skip = self._layer.own(node_type, x), self._skip(node_type)
        return own if skip is None else torch.cat([own, skip(x)], dim=1)

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        """Sums as the layer does."""
        return self._layer.aggregate(destination, blocks, sources, beside, panel)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        """Returns the rows of the next layer."""
        columns, between = self._layer.own_columns(destination), self._between[destination]
        rows = between.rows(self._layer.after(destination, own[:, :columns], sums))
        return rows if between.skip is None else rows + own[:, columns:]
