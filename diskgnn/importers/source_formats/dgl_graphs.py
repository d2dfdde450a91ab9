"""Graphs of DGL: a DGLGraph in memory, or a file that dgl.save_graphs wrote, which DGL itself reads into memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diskgnn.errors import InputError, UnavailableError
from diskgnn.importers.containers import edge_lists, torch_files
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import EdgeStream, of_array
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_formats.node_targets import node_labels, node_splits, require_columns
from diskgnn.importers.source_listing import Attributes, SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name


def recognises(source: object) -> bool:
    """Returns whether this is a DGLGraph, or the path of a file with some."""
    if isinstance(source, Path):
        return kind_of(source) == "dgl"
    return type(source).__module__.split(".")[0] == "dgl" and hasattr(source, "canonical_etypes")


def read(
    source: Any, *, number: int | None = None, features: str | None = "feat", labels: str | None = "label",
    weights: str | None = None, times: str | None = None, task: str | None = None, split: int | None = None,
) -> GraphInput:  # fmt: skip
    """Returns the graph with its data: features, labels, and the masks `train_mask`, `val_mask` and `test_mask` of
    nodes.

    Args:
        source: a DGLGraph, or the path of a file.
        number: of the graph in the file, from 0 on; needed if there are several.
        features: their name in ndata, and in edata.
        labels: their name in ndata.
        weights: their name in edata.
        times: their name in ndata or edata.
        task: what the labels are; None: whole numbers [N] are "class", 0 and 1 [N, C] "multilabel", others
            "regression".
        split: which column of masks [N, several] to take.

    Raises:
        ConfigError: masks have several columns, and `split` is none of them.
        InputError: it is none.
        UnavailableError: dgl is not installed.
    """
    listing = SourceListing()
    graph = _load(source, number, listing) if isinstance(source, Path) else source
    one_type = len(graph.ntypes) == 1 and len(graph.canonical_etypes) == 1
    require_columns(split, [graph.nodes[name].data for name in graph.ntypes])
    nodes = {}
    for name in graph.ntypes:
        kept = ONE_NODE_TYPE if one_type else name
        known = Attributes(listing, kept, dict(graph.nodes[name].data))
        found = _array(known.take(labels, "labels"))
        labelled = {} if found is None else node_labels(f"{kept}: {labels}", found, task)
        nodes[kept] = NodeInput(
            num_nodes=graph.num_nodes(name), **_features(known.take(features, "features")),
            times=_array(known.take(times, "times")), **labelled,
            **node_splits(known, split, _array, labelled=bool(labelled)),
        )  # fmt: skip
        known.leave_rest("no option names it, such as features, labels and times")
    edges: dict[EdgeType, EdgeInput] = {}
    for edge_type in graph.canonical_etypes:
        kept_type = ONE_EDGE_TYPE if one_type else edge_type
        known = Attributes(listing, edge_type_name(kept_type), dict(graph.edges[edge_type].data))
        listing.read(known.of, "edges", "edges")
        edges[kept_type] = EdgeInput(
            edges=_edges(graph, edge_type), **_features(known.take(features, "features")),
            weights=_array(known.take(weights, "weights")), times=_array(known.take(times, "times")),
        )  # fmt: skip
        known.leave_rest("no option names it, such as features, weights and times")
    return GraphInput(nodes, edges, listing.contents())


def _load(path: Path, number: int | None, listing: SourceListing) -> Any:
    if kind_of(path) != "dgl":
        raise InputError(f"expected a file that dgl.save_graphs wrote, found {describe(path)}")
    try:
        import dgl
    except ImportError as error:
        raise UnavailableError(
            "source: graphs of DGL are read by dgl, which cannot be imported here; install it, or save the edges with "
            "np.save where it is"
        ) from error
    graphs, of_graphs = dgl.load_graphs(str(path))
    if number is None and len(graphs) != 1:
        raise InputError(
            f"{path}: expected one graph, found {len(graphs)}; pass `options` number=K, from 0 to {len(graphs) - 1}"
        )
    if not 0 <= (number or 0) < len(graphs):
        raise InputError(f"{path}: expected a graph number {number}, found {len(graphs)} graphs")
    for name in of_graphs:
        listing.leave_out("", name, "a label of each graph, of which one is read")
    for other in range(len(graphs)):
        if other != (number or 0):
            listing.leave_out("", f"graph {other}", f"graph {number} was asked for", expected=True)
    return graphs[number or 0]


def _edges(graph: Any, edge_type: EdgeType) -> EdgeStream:
    name = f"edges of {':'.join(edge_type)}"
    src, dst = (of_array(name, ends.numpy()) for ends in graph.edges(etype=edge_type, order="eid"))
    return edge_lists.of_ends(src, dst)


def _array(value: Any) -> Any:
    """Returns numbers that are no features, or None."""
    return torch_files.as_array(value)


def _features(value: Any) -> dict[str, Any]:
    """Returns `features` of NodeInput and EdgeInput."""
    if value is None:
        return {}
    return {"features": torch_files.tensor_rows("features", value[:, None] if value.ndim == 1 else value)}
