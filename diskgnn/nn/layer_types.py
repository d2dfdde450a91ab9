"""Which types of nodes and edges each layer of a model on a typed graph computes with. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diskgnn.specs.schema import EdgeType, SourceSchema

if TYPE_CHECKING:
    from diskgnn.batches.blocks import Block


@dataclass(frozen=True)
class LayerTypes:
    """Names what a layer computes: rows of some node types, from edges of some types."""

    destinations: tuple[str, ...]
    edges: tuple[EdgeType, ...]  # into these
    edge_features: tuple[int | None, ...]  # length of the feature rows of each; None: has none

    @property
    def sources(self) -> tuple[str, ...]:
        """Returns the node types at the other ends of the edges."""
        return tuple(dict.fromkeys(source for source, _, _ in self.edges))

    def followed(self, blocks: Mapping[EdgeType, Block], destination: str) -> list[tuple[int, EdgeType]]:
        """Returns the edge types into a node type of which a minibatch has edges, with their numbers."""
        return [
            (number, edge_type)
            for number, edge_type in enumerate(self.edges)
            if edge_type[2] == destination and blocks[edge_type].num_edges
        ]


def layer_types(schema: SourceSchema, num_layers: int) -> list[LayerTypes]:
    """Returns what each layer has to compute, outermost first, so that the last one has the seeds: nothing that nobody
    uses.
    """
    target = schema.target
    needed = {target} if isinstance(target, str) else {target[0], target[2]}
    found: list[LayerTypes] = []
    for _ in range(num_layers):
        edges: list[tuple[EdgeType, int | None]] = [each for each in schema.edge_types if each[0][2] in needed]
        names = tuple(name for name, _, _ in schema.node_types if name in needed)
        found.append(LayerTypes(names, tuple(each for each, _ in edges), tuple(width for _, width in edges)))
        needed = needed | {edge_type[0] for edge_type, _ in edges}
    return found[::-1]


def input_types(schema: SourceSchema, num_layers: int) -> list[tuple[str, int, int | None]]:
    """Returns the node types whose input nodes count, as `SourceSchema.node_types` has them."""
    outermost = layer_types(schema, num_layers)[0]
    used = {*outermost.destinations, *outermost.sources}
    return [each for each in schema.node_types if each[0] in used]
