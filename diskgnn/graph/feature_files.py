"""Lists the feature files of a graph, of nodes and edges alike."""

from __future__ import annotations

from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import EdgeType


def feature_files(graph: Graph) -> dict[str | EdgeType, FeatureFile]:
    """Returns the feature files of a graph by type: those of node types in order, then those of edge types."""
    files: dict[str | EdgeType, FeatureFile | None] = {name: nodes.feature_file for name, nodes in graph.nodes.items()}
    files |= {edge_type: edges.feature_file for edge_type, edges in graph.edges.items()}
    return {type_: file for type_, file in files.items() if file is not None}
