"""A layer of the user's own, computed for all nodes: it is not taken apart, so all of its input is in memory."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from diskgnn.batches.blocks import Block
from diskgnn.errors import ConfigError
from diskgnn.inference.layer_steps import ArrayName, Panel
from diskgnn.nn.block_models import in_channels_of
from diskgnn.nn.layer_types import LayerTypes
from diskgnn.specs.schema import EdgeType


class OwnSteps:
    """`LayerSteps` of a module (block, x [num_src, in_channels]) -> [num_dst, out] for graphs of one type.

    It is called for some destinations at a time, with their rows and then those of their neighbours. So a row may
    depend on the destination's own input, its edges and their sources' inputs, and on nothing else: not on the other
    destinations, nor on how many edges a source has.

    Raises:
        ConfigError: it is no such module.
    """

    heads, divisible, uses_degrees = 1, False, False
    own_array: str | None = None

    def __init__(self, layer: nn.Module, node_type: str, edge_type: EdgeType) -> None:
        self.types = LayerTypes((node_type,), (edge_type,), (None,))
        self._layer, self._in = layer, in_channels_of(layer)
        self.width = _out_channels(layer, self._in)
        # Numbers of sources in order and back, their rows, and messages that it may make of them, twice.
        self.edge_bytes = 40 + 4 * (3 * self._in + 2 * self.width)

    def stored(self, node_type: str) -> Mapping[str, int]:
        """Returns its input."""
        return {"x": self._in}

    def sources(self, destination: str) -> tuple[ArrayName, ...]:
        """Returns the same, of all sources."""
        return ((destination, "x"),)

    def beside(self, destination: str) -> tuple[str, ...]:
        """Returns the same, of the destinations."""
        return ("x",)

    def own_columns(self, node_type: str) -> int:
        """Returns none: `aggregate` does all."""
        return 0

    def messages(self, node_type: str, x: Tensor, out_degrees: Tensor | None) -> Mapping[str, Tensor]:
        """Returns its input as it is."""
        return {"x": x}

    def own(self, node_type: str, x: Tensor) -> Tensor:
        """Returns [n, 0]."""
        return x[:, :0]

    def aggregate(
        self, destination: str, blocks: Mapping[EdgeType, Block], sources: Mapping[ArrayName, Tensor],
        beside: Mapping[str, Tensor], panel: Panel,
    ) -> Tensor:  # fmt: skip
        """Returns what the layer makes of the destinations; each source has one row in its block."""
        block, own = blocks[self.types.edges[0]], beside["x"][:, 0]
        nodes, places = torch.unique(block.indices, return_inverse=True)
        x = torch.cat([own, sources[destination, "x"][nodes, 0]])
        found: Tensor = self._layer(Block(block.indptr, (places + len(own)).int(), len(x)), x)
        return found.unsqueeze(1)

    def after(self, destination: str, own: Tensor, sums: Tensor) -> Tensor:
        """Returns `sums`: the module has made the rows."""
        return sums


def _out_channels(layer: nn.Module, in_channels: int) -> int:
    """Returns the columns of what it makes of a few nodes, some with the same neighbours."""
    name = type(layer).__name__
    indptr, indices = ([0, 1, 3, 4], [3, 3, 4, 0])
    block = Block(torch.tensor(indptr, dtype=torch.int32), torch.tensor(indices, dtype=torch.int32), 5)
    try:
        with torch.no_grad():
            found = layer(block, torch.zeros(block.num_src, in_channels))
    except Exception as error:
        raise ConfigError(
            f"model: expected layer {name} to take (block, x [num_src, {in_channels}]), it raised "
            f"{type(error).__name__}: {error}; `predict` runs any module, with fanouts=[-1, ...] on all neighbours"
        ) from error
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != block.num_dst or found.dtype != torch.float32:
        shown = f"{found.dtype} {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ConfigError(
            f"model: expected layer {name} to return a row for each of {block.num_dst} destinations, float32 "
            f"[{block.num_dst}, out], found {shown}"
        )
    return found.shape[1]
