"""Reads a graph directory. `importers` and `generation` write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import EdgeType
from diskgnn.stores.locations import AnyPath


@dataclass(frozen=True)
class Graph:
    """An opened graph directory: `nodes` and `edges` by type, in the order in which the types were given.

    The other properties are those of the one node type and the one edge type of a homogeneous graph. They raise
    ConfigError on a graph with more types, and if the graph does not have what is asked for.
    """

    manifest: Manifest
    config: GraphConfig
    nodes: Mapping[str, NodeSet]
    edges: Mapping[EdgeType, EdgeSet]
    left_out: tuple[str, ...] = ()  # columns that its tables keep, and that are not asked for: see `without`

    @staticmethod
    def open(path: AnyPath) -> Graph:
        """Opens a graph directory, or its URL. Its files stay open until the graph is dropped: see `Packed.open`.

        Raises:
            ArtifactError: see `open_pinned`; or its config is not that of a graph, its files are not of one graph, or a
                split is damaged.
        """
        manifest = open_pinned(path, artifacts.GRAPH)
        config = manifest.parsed(GraphConfig.parse)
        nodes = {
            nodes.name: NodeSet.open(manifest, number, nodes) for number, nodes in enumerate(config.node_types)
        }  # fmt: skip
        edges = {}
        for number, described in enumerate(config.edge_types):
            num_nodes = nodes[described.type[2]].num_nodes
            edges[described.type] = EdgeSet.open(manifest, number, described, num_nodes)
        return Graph(manifest, config, nodes, edges)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles a graph as its path and digest. Whoever unpickles it opens the directory, and finds the same."""
        return _reopened, (str(self.manifest.path.absolute()), self.manifest.digest, self.left_out)

    def without(self, columns: Sequence[str]) -> Graph:
        """Returns the graph without some columns that its tables keep: neither x nor what is prepared of it has them.

        Args:
            columns: 'TYPE.COLUMN' each, of node types whose rows are records.

        Raises:
            ConfigError: there is no such column, or rows are vectors.

        Example:
            >>> diskgnn.Graph.open("graph").without(["users.left"]).nodes["users"].config.rows.fields
        """
        by_type: dict[str, list[str]] = {}
        for each in columns:
            name, _, column = each.partition(".")
            if name not in self.nodes or not column:
                raise ConfigError(
                    f"without: expected TYPE.COLUMN with a type of {', '.join(self.nodes)}, found {each!r}"
                    f"{near_name(each, self.kept_columns)}"
                )
            if each not in self.left_out:
                by_type.setdefault(name, []).append(column)
        if not by_type:
            return self
        nodes = {name: each.without(by_type[name]) if name in by_type else each for name, each in self.nodes.items()}
        config = replace(self.config, node_types=tuple(each.config for each in nodes.values()))
        return replace(self, config=config, nodes=nodes, left_out=(*self.left_out, *columns))

    @property
    def constants(self) -> tuple[str, ...]:
        """Returns the node types whose only feature is a 1, which no file has."""
        return tuple(name for name, nodes in self.nodes.items() if nodes.config.is_constant)

    @property
    def keeps_columns(self) -> bool:
        """Returns True if rows of some type are records in their file, whatever is left out of them."""
        return bool(self.kept_columns)

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """Returns TYPE.COLUMN of all columns that `without` can leave out, or has left out."""
        rows = {name: nodes.stored_rows or nodes.config.rows for name, nodes in self.nodes.items()}
        return tuple(
            f"{name}.{field.name}" for name, each in rows.items() if isinstance(each, RecordFormat)
            for field in each.fields
        )  # fmt: skip

    @property
    def is_typed(self) -> bool:
        """Returns True if there is more than one type of nodes or of edges."""
        return len(self.nodes) > 1 or len(self.edges) > 1

    @property
    def topology_bytes(self) -> int:
        """Returns the bytes of `indptr` and `indices` of all edge types when they are loaded."""
        return sum(edges.topology_bytes for edges in self.edges.values())

    def only_nodes(self, what: str) -> NodeSet:
        """Returns the one type of nodes.

        Args:
            what: what needs it, for the message.

        Raises:
            ConfigError: there are several types of nodes, or of edges.
        """
        self._require_one_type(what)
        return next(iter(self.nodes.values()))

    def only_edges(self, what: str) -> EdgeSet:
        """Returns the one type of edges; see `only_nodes`."""
        self._require_one_type(what)
        return next(iter(self.edges.values()))

    def _require_one_type(self, what: str) -> None:
        if self.is_typed:
            raise ConfigError(
                f"{self.manifest.path} is a typed graph ({', '.join(self.nodes)}): {what} needs one type of node and "
                f"of edge"
            )

    def _missing(self, what: str) -> ConfigError:
        return ConfigError(f"{self.manifest.path} has no {what}: make it again with `diskgnn convert` and name them")

    @property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Returns [N+1] memory map: in-neighbours of v are indices[indptr[v]:indptr[v+1]] (CSC)."""
        return self.only_edges("indptr").indptr

    @property
    def indices(self) -> npt.NDArray[Any]:
        """Returns [E] memory map, int32 when N < 2^31, otherwise int64."""
        return self.only_edges("indices").indices

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """Returns the dtype of `indices`."""
        return self.only_edges("indices").id_dtype

    @property
    def labels(self) -> npt.NDArray[Any]:
        """Returns [N] or [N, C] memory map; see `NodeSet.labels`."""
        labels = self.only_nodes("labels").labels
        if labels is None:
            raise self._missing("labels")
        return labels

    @property
    def splits(self) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the node ids by split, in the order given; loaded and checked."""
        return self.only_nodes("a split").splits

    @property
    def num_nodes(self) -> int:
        """Returns N, the number of nodes."""
        return self.only_nodes("num_nodes").num_nodes

    @property
    def num_edges(self) -> int:
        """Returns E, the number of edges."""
        return self.only_edges("num_edges").num_edges

    @property
    def num_classes(self) -> int:
        """Returns the number of classes: labels are in [0, num_classes)."""
        target = self.only_nodes("num_classes").config.target
        if target is None or target.kind != "class":
            raise self._missing("classes")
        return target.num_outputs

    @property
    def feature_file(self) -> FeatureFile:
        """Returns the file of feature rows, with their format.

        Raises:
            ArtifactError: the description of quantised rows' codes is damaged.
        """
        file = self.only_nodes("a feature file").feature_file
        if file is None:
            raise self._missing("features")
        return file

    @property
    def feature_checksums(self) -> npt.NDArray[np.uint32]:
        """Returns the CRC-32C of each CHECKSUM_CHUNK_BYTES of the feature file; see `NodeSet.feature_checksums`."""
        return self.only_nodes("a feature file").feature_checksums

    @property
    def features(self) -> npt.NDArray[Any]:
        """Returns [N, D] memory map of the features as stored; see `NodeSet.features`."""
        return self.only_nodes("features").features

    def labels_of(self, nodes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the labels of ascending `nodes`, checked; see `NodeSet.labels_of`."""
        return self.only_nodes("labels").labels_of(nodes)

    def topology(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Returns `indptr` and `indices` in memory, checked; see `EdgeSet.topology`."""
        return self.only_edges("a topology").topology()

    def topology_at_random(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Returns `indptr` and `indices` as memory maps that read no more than what is touched."""
        return self.only_edges("a topology").topology_at_random()


def _reopened(path: str, digest: str, left_out: Sequence[str]) -> Graph:
    """Opens the graph that was pickled.

    Raises:
        ArtifactError: it is not there, or another graph is.
    """
    graph = Graph.open(path)
    if graph.manifest.digest != digest:
        raise ArtifactError(
            f"{path} holds another graph than here before (digest {graph.manifest.digest}, expected {digest}); "
            "put that one there, or start over"
        )
    return graph.without(left_out)
