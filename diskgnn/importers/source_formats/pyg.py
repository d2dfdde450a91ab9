"""Graphs of PyTorch Geometric, as the importers have them (`pyg_graphs` says what is in them, `pyg_files` reads)."""

from __future__ import annotations

import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.files.file_reading import ReadableFile
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.containers.rows import RowSource, of_array
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_formats.node_targets import node_labels, node_splits, require_columns
from diskgnn.importers.source_formats.pyg_files import of_file
from diskgnn.importers.source_formats.pyg_graphs import (
    Stored,
    StoredGraph,
    as_source,
    is_data_set,
    is_link_split,
    is_numeric,
    is_stores,
    only_graph,
    stored_graph,
)
from diskgnn.importers.source_listing import Attributes, SourceListing
from diskgnn.specs.schema import SPLITS, EdgeType, edge_type_name

_OWN_NEGATIVES = "diskgnn draws negative pairs of its own"
_MARK = b"torch_geometric"  # in what pickles of its classes say of them


def recognises(source: object) -> bool:
    """Returns whether this is a graph of PyG, or the path of a file that torch has saved one to."""
    if isinstance(source, Path):
        return kind_of(source) == "torch" and _names_pyg(source)
    if "torch_geometric" not in sys.modules:
        return False
    from torch_geometric.data import Data, HeteroData

    return isinstance(source, Data | HeteroData) or is_data_set(source) or is_stores(source)


def read(
    source: Any,
    *,
    features: str | None = "x",
    labels: str | None = "y",
    times: str | None = "time",
    edge_times: str | None = "edge_time",
    edge_features: str | None = "edge_attr",
    weights: str | None = "edge_weight",
    task: str | None = None,
    split: int | None = None,
    link_split: str | None = None,
) -> GraphInput:
    """Returns a graph of PyG. Arguments name attributes; one that a type lacks is left out, and so is one that is None.

    The values of an `adj_t` in torch.sparse_csr are weights (numbers that are not all 1) or features (rows) of edges
    that have no other ones.

    Args:
        source: `Data`, `HeteroData`, (FeatureStore, GraphStore), or the path of a .pt file with one of the first two,
            as torch.save or a data set's folder `processed` has it. Or what RandomLinkSplit returns: three graphs, for
            training, validation and test, of which the first has the edges, and each the seed edges of its split.
        features: of nodes, [N, D].
        labels: of nodes. Whole numbers [N] or [N, 1] are classes, 0 and 1 [N, C] are labels, other numbers are for
            regression.
        times: of nodes and of edges.
        edge_times: of edges that have none of `times`.
        edge_features: of edges, [E, D] or [E].
        weights: of edges.
        task: 'class', 'multilabel' or 'regression', where that is not what the labels look like.
        split: which column of masks [N, several] to take.
        link_split: the split whose seed edges `edge_label_index` of a single graph has: 'train', 'valid' or 'test'.

    Raises:
        ConfigError: an option that does not fit.
        InputError: it is no such graph.
        UnavailableError: a file needs torch_geometric to be read.
    """
    if link_split not in (None, *SPLITS):
        raise ConfigError(f"options: link_split: expected one of {', '.join(SPLITS)}, found {link_split!r}")
    parts = _parts(source)
    if link_split is not None and len(parts) > 1:
        raise ConfigError(f"link_split={link_split}: three graphs have the seed edges of a split each; leave it out")
    found, listing = parts[0], SourceListing()
    require_columns(split, [stored.attributes for stored in found.nodes.values()])
    nodes = {}
    for name, stored in found.nodes.items():
        known = Attributes(listing, name, stored.attributes)
        _leave_out_objects(known)
        known.take("num_nodes", "num_nodes")
        found_labels = known.take(labels, "labels")
        labelled = {} if found_labels is None else node_labels(f"{name}: {labels}", _array(found_labels), task)
        when = known.take(times, "times")
        nodes[name] = NodeInput(
            stored.num_rows, times=None if when is None else as_source(when),
            **_features(known, features, "features"), **labelled,
            **node_splits(known, split, _array, labelled=bool(labelled)),
        )  # fmt: skip
        known.leave_rest("no option names it, such as features, labels and times")
    edges = {
        edge_type: _edges(Attributes(listing, edge_type_name(edge_type), stored.attributes), stored, times, edge_times,
                          edge_features, weights, "train" if len(parts) > 1 else link_split)
        for edge_type, stored in found.edges.items()
    }  # fmt: skip
    for name, part in zip(SPLITS[1:], parts[1:], strict=False):
        edges = _with_links_of(part, name, edges, listing)
    if link_split is not None and not any(getattr(each, link_split) is not None for each in edges.values()):
        raise ConfigError(f"link_split={link_split}: expected edge_label_index of edges, found none; leave it out")
    for name in found.others:
        listing.leave_out("", name, "it has no row for each node or edge")
    return GraphInput(nodes, edges, listing.contents())


def _parts(source: Any) -> list[StoredGraph]:
    """Returns the graph, or the three graphs of RandomLinkSplit."""
    if isinstance(source, Path):
        return of_file(source)
    if is_link_split(source):
        return [stored_graph(part) for part in source]
    return [stored_graph(only_graph(source, "source") if is_data_set(source) else source)]


def _leave_out_objects(known: Attributes) -> None:
    """Leaves out what holds no numbers."""
    for name, value in known.values.items():
        if name != "num_nodes" and value is not None and not is_numeric(value):
            known.leave_out(name, f"a {type(value).__name__} is no tensor")


def _edges(
    known: Attributes, stored: Stored, times: str | None, edge_times: str | None, edge_features: str | None,
    weights: str | None, link_split: str | None,
) -> EdgeInput:  # fmt: skip
    _leave_out_objects(known)
    by_values: dict[str, Any] = {}
    if known.take("edge_index", "edges") is not None:
        known.leave_out("adj_t", "edge_index has the edges")
    elif known.take("adj_t", "edges") is not None:
        by_values = _values(known, weights, edge_features)
    elif stored.topology:
        known.listing.read(known.of, "edge_index", "edges")
    when = known.take(times, "times")
    if when is None:
        when = known.take(edge_times, "edge_times")
    elif edge_times is not None:
        known.leave_out(edge_times, f"the times of edges are read from {times}; times=none reads these")
    found_weights = None if "weights" in by_values else known.take(weights, "weights")
    given = {
        "weights": None if found_weights is None else as_source(found_weights),
        **({} if "features" in by_values else _features(known, edge_features, "edge_features")),
        **by_values,
    }
    links = _links(known, link_split)
    known.leave_rest("no option names it, such as edge_features, weights and times")
    return EdgeInput(**stored.topology, times=None if when is None else as_source(when), **given, **links,
                     keep_ids=True)  # fmt: skip


def _values(known: Attributes, weights: str | None, edge_features: str | None) -> dict[str, Any]:
    """Returns what the values of `adj_t` are: `weights` or `features` of EdgeInput."""
    source = as_source(known.values["adj_t"])
    found = source if isinstance(source, RowSource) else of_array("adj_t", np.asarray(source))
    use = "edge_features" if found.row_shape else "weights"
    asked = {"weights": weights, "edge_features": edge_features}
    if "adj_t" not in asked.values():
        if use == "weights" and all(bool((chunk == 1).all()) for chunk in found.chunks()):
            return {}
        name = asked[use]
        if name is None or known.values.get(name) is not None:
            known.listing.leave_out(known.of, "values of adj_t", f"other {use.replace('_', ' ')} were asked for")
            return {}
    elif asked["edge_features"] == "adj_t":
        use, found = "edge_features", found if found.row_shape else found.as_column()
    elif found.row_shape:
        raise ConfigError(f"{known.of}: weights=adj_t: expected a number for each edge, found {found.shape}")
    known.take("adj_t", use)
    return {"weights" if use == "weights" else "features": found}


def _links(known: Attributes, split: str | None) -> dict[str, Any]:
    """Returns the seed edges of a split, as fields of EdgeInput: the positive pairs of RandomLinkSplit."""
    found: dict[str, Any] = {}
    for pairs_name, label_name in (("pos_edge_label_index", "pos_edge_label"), ("edge_label_index", "edge_label")):
        pairs, labels = known.values.get(pairs_name), known.values.get(label_name)
        if pairs is None or found:
            continue
        if split is None:
            known.leave_out(
                pairs_name, "nothing says of which split these seed edges are: link_split=train, valid or test, or "
                "all three graphs of RandomLinkSplit"
            )  # fmt: skip
            known.leave_out(label_name, f"the seed edges of {pairs_name} are left out")
            continue
        pairs = _array(pairs)
        if labels is not None:
            labels = _array(labels)
            if not np.isin(labels, (0, 1)).all():
                raise InputError(
                    f"{known.of}: expected {label_name} of 1 (edges) and 0 (negative pairs), found "
                    f"{labels[~np.isin(labels, (0, 1))][0]}: seed edges have no labels here; delete {label_name} to "
                    f"take all pairs, or {pairs_name} to take none"
                )
            positive = labels == 1
            known.take(label_name, f"what pairs are {split}")
            if not positive.all():
                known.listing.leave_out(known.of, f"{label_name} 0", _OWN_NEGATIVES, expected=True)
            pairs = pairs[:, positive]
        known.take(pairs_name, split)
        found[split] = pairs
    for name in ("neg_edge_label_index", "neg_edge_label"):
        known.leave_out(name, _OWN_NEGATIVES, expected=True)
    return found


def _with_links_of(
    part: StoredGraph, split: str, edges: dict[EdgeType, EdgeInput], listing: SourceListing
) -> dict[EdgeType, EdgeInput]:
    """Returns `edges` with the seed edges of another of the three graphs of RandomLinkSplit."""
    if part.edges.keys() != edges.keys():
        raise InputError(f"{split}: expected the edge types of the first graph, found others")
    known = dict(edges)
    for edge_type, stored in part.edges.items():
        of = f"{edge_type_name(edge_type)}, {split}"
        if links := _links(Attributes(listing, of, stored.attributes), split):
            known[edge_type] = replace(known[edge_type], **links)
        reason = "every split draws its messages from the edges of the first graph, which are those to train on"
        listing.leave_out(of, "edge_index", reason, expected=True)
    return known


def _array(value: Any) -> npt.NDArray[Any]:
    source = as_source(value)
    return np.asarray(source.widened().load() if isinstance(source, RowSource) else source)


def _features(known: Attributes, name: str | None, use: str) -> dict[str, Any]:
    """Returns `features` of NodeInput and EdgeInput."""
    value = known.take(name, use)
    if value is None:
        return {}
    source = as_source(value)
    if isinstance(source, np.ndarray) and source.ndim == 1:
        source = source[:, None]
    if isinstance(source, RowSource) and not source.row_shape:
        source = source.as_column()
    return {"features": source}


def _names_pyg(path: Path) -> bool:
    if not torch_files.is_zip(path):
        return False
    with ReadableFile(path) as file, zipfile.ZipFile(file) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("data.pkl")]
        return any(_MARK in archive.read(name) for name in pickles)
