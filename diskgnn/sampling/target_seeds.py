"""The seeds that a target stands for."""

from __future__ import annotations

from diskgnn.graph.graph import Graph
from diskgnn.sampling.edge_seeds import EdgeSeeds
from diskgnn.sampling.node_seeds import NodeSeeds
from diskgnn.sampling.seeds import Seeds
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget


def seeds_of(graph: Graph, spec: SamplingSpec) -> Seeds:
    """Returns what `spec.target` asks for.

    Raises:
        ConfigError: a type that the graph does not have, or no one type to choose.
        InputError: the graph has nothing in the splits asked for.
        ArtifactError: a split has nodes that are not in the graph.
    """
    if isinstance(spec.target, LinkTarget):
        return EdgeSeeds(graph, spec, spec.target)
    return NodeSeeds(graph, spec, spec.target)
