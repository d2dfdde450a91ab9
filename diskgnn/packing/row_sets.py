"""Row sets: the feature files whose rows are placed, cached and packed, each by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.formats.graph_config import id_dtype
from diskgnn.formats.packed_config import RowSetConfig
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.specs.schema import edge_type_name


@dataclass(frozen=True, eq=False)
class RowSet:
    """The feature rows of one node type or edge type."""

    data: NodeSet | EdgeSet
    features: FeatureFile
    may_repeat: bool  # a minibatch may need a row in several places

    @property
    def config(self) -> RowSetConfig:
        """Returns the config of this row set in a packed directory, before static rows are chosen."""
        found = self.data.name if isinstance(self.data, NodeSet) else self.data.type
        of_graph = self.data.config
        return RowSetConfig(
            found, self.features.rows, self.features.num_rows, num_static=0, values=of_graph.values,
            columns=of_graph.columns,
            values_digest=self.data.values_digest if isinstance(self.data, NodeSet) else None,
        )  # fmt: skip

    @property
    def is_edges(self) -> bool:
        """Returns True if the rows are those of edges."""
        return isinstance(self.data, EdgeSet)

    @property
    def num_rows(self) -> int:
        """Returns the number of nodes or edges of the type in the graph."""
        return self.features.num_rows

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Returns the dtype of a row's id: a node, or a position in the list of edges."""
        return id_dtype(self.num_rows)

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of a row."""
        return self.features.row_bytes

    def needed(self, minibatch: SampledMinibatch) -> npt.NDArray[Any]:
        """Returns [U] the rows that a minibatch needs, each once, in the order of its addresses."""
        wanted = self._rows_of(minibatch)
        return np.unique(wanted) if self.may_repeat else wanted

    def spread(self, minibatch: SampledMinibatch) -> npt.NDArray[np.int32] | None:
        """Returns for each place which row of `needed` it takes, see `RowPlaces.spread`; None if each takes its own."""
        if not self.may_repeat:
            return None
        _, spread = np.unique(self._rows_of(minibatch), return_inverse=True)
        return spread.astype(np.int32).reshape(-1)

    def _rows_of(self, minibatch: SampledMinibatch) -> npt.NDArray[Any]:
        number = self.data.number
        if isinstance(self.data, NodeSet):
            return minibatch.input_nodes[number]
        found = [blocks[number].positions for blocks in minibatch.blocks]
        return np.concatenate([positions for positions in found if positions is not None])


def row_sets_of(graph: Graph, samples: SamplesConfig) -> tuple[RowSet, ...]:
    """Returns the row sets of the node types with features, then of the edge types with features, in the order of the
    graph, without the columns that the samples are without.

    Raises:
        ConfigError: edges have features, and the samples do not say which edges they consist of.
    """
    found, graph = [], graph.without(samples.spec.without)
    for nodes in graph.nodes.values():
        if nodes.feature_file is not None:
            found.append(RowSet(nodes, nodes.feature_file, may_repeat=samples.layout.trees))
    for edges in graph.edges.values():
        if edges.feature_file is None:
            continue
        if edges.type not in samples.layout.positions:
            raise ConfigError(
                f"samples: expected the positions of the edges {edge_type_name(edges.type)}, which have features; "
                "sample again with them"
            )
        found.append(RowSet(edges, edges.feature_file, may_repeat=True))
    return tuple(found)


def features_of(graph: Graph, samples: SamplesConfig) -> list[FeatureFile]:
    """Returns [K] the feature files of `row_sets_of`."""
    return [row_set.features for row_set in row_sets_of(graph, samples)]


def only_features(graph: Graph, samples: SamplesConfig) -> FeatureFile | None:
    """Returns the features of a graph of one type whose edges have none.

    Returns None for other graphs, for which no rows are predicted yet.
    """
    found = row_sets_of(graph, samples)
    if graph.is_typed or len(found) != 1 or not isinstance(found[0].data, NodeSet):
        return None
    return found[0].features
