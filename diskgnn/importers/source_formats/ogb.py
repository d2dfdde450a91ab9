"""Data sets of the Open Graph Benchmark as downloads leave them: node and link prediction, of one type or several.

`raw/` holds text (csv.gz) or, of ogbn-papers100M, `data.npz`; `split/<name>/` node ids as text, or seed edges as files
of torch. `read` makes of them what the ogb package does: the reverse of each edge is added where it does that.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.importers.containers import edge_lists, npz, text_numbers, torch_files, values
from diskgnn.importers.containers.rows import EdgeStream, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_formats import ogb_knowledge
from diskgnn.importers.source_listing import Attributes, SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, SPLITS, EdgeType, edge_type_name

_NEEDED = ("raw/edge.csv.gz", "raw/data.npz", "raw/triplet-type-list.csv.gz")
# Names of folders, without ogbn_ or ogbl_ and _pyg or _dgl: those of downloads and those that the ogb package makes.
_UNDIRECTED = ("products", "proteins", "collab", "ppa", "ppassoc", "ddi")  # the ogb package adds their reverse edges
_DIRECTED = ("arxiv", "mag", "papers100m", "papers100m_bin", "citation2", "citation_v2", "wikikg2", "wikikg_v2",
             "biokg", "vessel")  # fmt: skip
_COUNTS = ("num-node-list", "num-edge-list", "num-node-dict", "triplet-type-list", "nodetype-has-label")


def recognises(source: object) -> bool:
    """Returns whether this is the path of a data set's folder."""
    return isinstance(source, Path) and any((source / file).is_file() for file in _NEEDED)


def held_bytes(source: object) -> int:
    """Returns what `read` takes of memory, where that grows with the edges: where it sorts the triples of one list."""
    if not isinstance(source, Path) or not (source / "raw" / "edge_reltype.csv.gz").is_file():
        return 0
    splits = [path.parent for path in source.glob("split/*/train.pt")]
    return max((ogb_knowledge.held_bytes(source / "raw", split) for split in splits), default=0)


def read(
    source: Path,
    *,
    split: str | None = None,
    add_reverse: bool | None = None,
    task: str | None = None,
    edge_data: bool = True,
) -> GraphInput:
    """Returns the graph of a data set's folder, the one that holds `raw` and `split`.

    Args:
        source: the folder.
        split: of the folders in `split`; None if there is only one.
        add_reverse: add the reverse of each edge; None does so for the data sets for which the ogb package does.
        task: "class", "multilabel" or "regression"; None goes by the number of label columns.
        edge_data: take features, weights and years of edges.

    Raises:
        InputError: a file is missing, or not what OGB leaves.
    """
    raw = source / "raw"
    if not recognises(source):
        raise InputError(f"expected a folder with one of {', '.join(_NEEDED)}, found none of them in {source}")
    undirected = _is_undirected(source) if add_reverse is None else add_reverse
    listing = SourceListing()
    folder = _split_folder(source, split, listing)
    triples = ogb_knowledge.with_triples(folder)
    if triples is not None:
        _warn_of_negatives()
    if (raw / "triplet-type-list.csv.gz").is_file():
        graph = _typed_input(raw, folder if triples is None else None, undirected, task, edge_data, listing)
        if triples is not None:
            graph = ogb_knowledge.of_several_lists(graph, raw, triples, listing)
    elif triples is not None:
        num_nodes, num_edges = (_one_graph(raw / f"num-{each}-list.csv.gz") for each in ("node", "edge"))
        graph = ogb_knowledge.of_one_list(raw, triples, num_nodes, num_edges, undirected, listing)
    else:
        graph = _of_one_type(raw, folder, undirected, task, edge_data, listing)
    _leave_rest(raw, listing)
    return replace(graph, contents=listing.contents())


def _is_undirected(source: Path) -> bool:
    """Returns True if the ogb package adds reverse edges to the data set in the folder."""
    name = source.name.lower().replace("-", "_").removeprefix("ogbn_").removeprefix("ogbl_")
    name = name.removesuffix("_pyg").removesuffix("_dgl")
    if name not in (*_UNDIRECTED, *_DIRECTED):
        warnings.warn(
            f"the name of the folder {source.name} is that of no data set of OGB, so no reverse edges are added, as "
            f"its loader does for {', '.join(_UNDIRECTED)}: pass `options` add_reverse=true or add_reverse=false",
            DataWarning,
            stacklevel=callers_level(),
        )
    return name in _UNDIRECTED


def _leave_rest(raw: Path, listing: SourceListing) -> None:
    """Notes the files that nothing was read from."""
    contents = listing.contents()
    noted = {item.name.partition(":")[0] for item in contents.read} | {item.name for item in contents.left_out}
    for path in sorted(raw.rglob("*")):
        name = _name(path, raw)
        if not path.is_file() or name in noted:
            continue
        if path.name.removesuffix(".csv.gz") in _COUNTS:
            listing.read("", name, "types and sizes")
        else:
            listing.leave_out("", name, "this format has no use for it")
    if (raw.parent / "mapping").is_dir():
        listing.leave_out("", "mapping", "names of ids, for people", expected=True)


def _name(path: Path, raw: Path) -> str:
    """Returns what a file of the data set is called in the list of what was read."""
    return path.relative_to(raw.parent).as_posix()


def _of_one_type(
    raw: Path, folder: Path | None, undirected: bool, task: str | None, edge_data: bool, listing: SourceListing
) -> GraphInput:
    read = _binary if (raw / "data.npz").is_file() else _text
    nodes, edges = read(raw, task, edge_data, listing)
    splits = _splits(folder, ONE_NODE_TYPE, listing)
    if any(isinstance(found, EdgeStream) for found in splits.values()):
        edges |= splits
    else:
        nodes |= splits
    return GraphInput({ONE_NODE_TYPE: NodeInput(**nodes)}, {ONE_EDGE_TYPE: EdgeInput(**edges, symmetric=undirected)})


def _text(
    raw: Path, task: str | None, edge_data: bool, listing: SourceListing
) -> tuple[dict[str, Any], dict[str, Any]]:
    num_nodes = _one_graph(raw / "num-node-list.csv.gz")
    num_edges = _one_graph(raw / "num-edge-list.csv.gz")
    node_file, edge_file = (partial(_file, listing, raw, of) for of in (ONE_NODE_TYPE, edge_type_name(ONE_EDGE_TYPE)))
    nodes = _node_data(node_file, raw, raw / "node-label.csv.gz", num_nodes, task)
    return nodes, _edge_data(edge_file, raw, num_edges, edge_data)


def _file(listing: SourceListing, raw: Path, of: str, path: Path, use: str, *, wanted: bool = True) -> bool:
    """Returns True if a file is there and wanted, which is noted."""
    if path.is_file() and wanted:
        listing.read(of, _name(path, raw), use)
    elif path.is_file():
        listing.leave_out(of, _name(path, raw), "edge_data=false was asked for", expected=True)
    return path.is_file() and wanted


def _one_graph(path: Path) -> int:
    if not path.is_file():
        raise InputError(f"{path} is missing; is the download complete?")
    counts = text_numbers.whole_column("sizes", path).tolist()
    if len(counts) != 1:
        raise InputError(f"{path}: expected one graph, found {len(counts)}; many small graphs fit in memory")
    return int(counts[0])


def _node_data(
    is_read: Callable[..., bool], folder: Path, labels: Path, num_nodes: int, task: str | None
) -> dict[str, Any]:
    found: dict[str, Any] = {"num_nodes": num_nodes}
    if is_read(path := folder / "node-feat.csv.gz", "features"):
        found["features"] = text_numbers.rows("features", path, num_nodes, np.float32)
    if is_read(path := folder / "node_year.csv.gz", "times"):
        found["times"] = text_numbers.column("times", path, num_nodes, np.int64)
    if is_read(labels, "labels"):
        found |= labelled(text_numbers.rows("labels", labels, num_nodes, np.float64), task)
    return found


def labelled(rows: RowSource, task: str | None) -> dict[str, Any]:
    """Returns labels [N], [N, 1] or [N, C] as fields of `NodeInput`; `task` None goes by their shape."""
    if task is None:
        task = "class" if rows.row_shape in ((), (1,)) else "multilabel"
    if task == "class":
        return {"labels": values.classes(rows, "; for regression, pass `options` task=regression")}
    return {"labels": rows, "task": task}


def _edge_data(is_read: Callable[..., bool], folder: Path, num_edges: int, with_data: bool) -> dict[str, Any]:
    is_read(path := folder / "edge.csv.gz", "edges")
    found: dict[str, Any] = {"edges": edge_lists.of_pairs(text_numbers.rows("edges", path, num_edges, np.int64))}
    if is_read(path := folder / "edge-feat.csv.gz", "features", wanted=with_data):
        found["features"] = text_numbers.rows("edge features", path, num_edges, np.float32)
    if is_read(path := folder / "edge_weight.csv.gz", "weights", wanted=with_data):
        found["weights"] = text_numbers.column("weights", path, num_edges, np.float32)
    if is_read(path := folder / "edge_year.csv.gz", "times", wanted=with_data):
        found["times"] = text_numbers.column("times", path, num_edges, np.int64)
    return found


def _binary(
    raw: Path, task: str | None, edge_data: bool, listing: SourceListing
) -> tuple[dict[str, Any], dict[str, Any]]:
    data = npz.members("graph", raw / "data.npz")
    if "edge_index" not in data:
        raise InputError(f"{raw / 'data.npz'}: expected an edge_index, found {', '.join(data)}")
    counts = next(data["num_nodes_list"].chunks()).tolist() if "num_nodes_list" in data else []
    if len(counts) > 1:
        raise InputError(f"{raw / 'data.npz'}: expected one graph, found {len(counts)}")
    of_edges = edge_type_name(ONE_EDGE_TYPE)
    named = {f"raw/data.npz: {name}": rows for name, rows in data.items()}
    known, of_data = (Attributes(listing, of, named) for of in (ONE_NODE_TYPE, of_edges))

    def taken(attributes: Attributes, name: str, use: str) -> RowSource | None:
        return attributes.take(f"raw/data.npz: {name}", use)  # type: ignore[no-any-return]

    taken(known, "num_nodes_list", "types and sizes")
    nodes: dict[str, Any] = {
        "num_nodes": counts[0] if counts else None,
        "features": taken(known, "node_feat", "features"),
    }
    if (years := taken(known, "node_year", "times")) is not None:
        nodes["times"] = _flat(years)
    if (path := raw / "node-label.npz").is_file():
        labels = npz.members("labels", path)
        if "node_label" not in labels:
            raise InputError(f"{path}: expected node_label, found {', '.join(labels)}")
        listing.read(ONE_NODE_TYPE, "raw/node-label.npz", "labels")
        nodes |= labelled(labels["node_label"], task)
    taken(of_data, "edge_index", "edges")
    taken(of_data, "num_edges_list", "types and sizes")
    edges: dict[str, Any] = {"edges": npz.edges("edges", raw / "data.npz", "edge_index", data["edge_index"])}
    for name, use in (("edge_feat", "features"), ("edge_weight", "weights"), ("edge_year", "times")):
        if not edge_data:
            of_data.leave_out(f"raw/data.npz: {name}", "edge_data=false was asked for", expected=True)
        elif (rows := taken(of_data, name, use)) is not None:
            edges[use] = rows if use == "features" else _flat(rows)
    for name in named:
        if not known.is_taken(name):
            of_data.leave_out(name, "this format has no use for it")
    return nodes, edges


def _flat(rows: RowSource) -> RowSource:
    return rows.mapped((), rows.dtype, lambda chunk: chunk.reshape(-1)) if rows.row_shape == (1,) else rows


def _typed_input(
    raw: Path, split: Path | None, undirected: bool, task: str | None, edge_data: bool, listing: SourceListing
) -> GraphInput:
    counts = text_numbers.table("sizes", raw / "num-node-dict.csv.gz")
    labelled_types = _named_in(raw / "nodetype-has-label.csv.gz")
    nodes: dict[str, NodeInput] = {}
    splits = {}
    if split is not None:
        splits = {kind: _splits(split / kind, kind, listing) for kind in _named_in(split / "nodetype-has-split.csv.gz")}
    for kind, (num_nodes, *_) in counts.items():
        labels = raw / "node-label" / (kind if kind in labelled_types else "") / "node-label.csv.gz"
        found = _node_data(partial(_file, listing, raw, kind), raw / "node-feat" / kind, labels, num_nodes, task)
        nodes[kind] = NodeInput(**found, **splits.get(kind, {}))
    edges: dict[EdgeType, EdgeInput] = {}
    for source, relation, destination in sorted(text_numbers.lines("edge types", raw / "triplet-type-list.csv.gz")):
        folder = raw / "relations" / f"{source}___{relation}___{destination}"
        num_edges = _one_graph(folder / "num-edge-list.csv.gz")
        of = edge_type_name((source, relation, destination))
        edges[source, relation, destination] = EdgeInput(
            **_edge_data(partial(_file, listing, raw, of), folder, num_edges, edge_data),
            symmetric=undirected and source == destination,
            reverse=undirected and source != destination,
        )
        if (folder / "edge_reltype.csv.gz").is_file():
            reason = "the number of the edge type, the same for each edge"
            listing.leave_out(of, _name(folder / "edge_reltype.csv.gz", raw), reason, expected=True)
    return GraphInput(nodes, edges)


def _named_in(path: Path) -> list[str]:
    """Returns the types of which a table says that they have something."""
    if not path.is_file():
        return []
    return [kind for kind, (has, *_) in text_numbers.table("types", path).items() if has]


def _split_folder(source: Path, split: str | None, listing: SourceListing) -> Path | None:
    folder = source / "split"
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else []
    if split is None and len(names) > 1:
        raise InputError(f"{folder}: expected one split, found {', '.join(names)}; choose one by the option split")
    if split is not None and split not in names:
        raise InputError(f"split: expected one of {', '.join(names) or 'none'}, found {split!r}")
    for name in names:
        if name != (split or names[0]):
            listing.leave_out("", f"split/{name}", f"split={split} was asked for", expected=True)
    return folder / (split or names[0]) if names else None


def _splits(folder: Path | None, of: str, listing: SourceListing) -> dict[str, Any]:
    """Returns the node ids of each split, or seed edges."""
    if folder is None:
        return {}
    found: dict[str, Any] = {}
    together = torch_files.load("splits", path) if (path := folder / "split_dict.pt").is_file() else None
    for split in SPLITS:
        if together is not None:
            content = together.get(split) if isinstance(together, dict) else None
        elif (path := folder / f"{split}.pt").is_file():
            content = torch_files.load(split, path)
        elif (path := folder / f"{split}.csv.gz").is_file():
            content = text_numbers.whole_column(split, path)
        else:
            continue
        name = f"split of {folder.name}: {split}"
        if isinstance(content, dict):
            found[split] = _seed_edges(split, folder, content)
            ogb_knowledge.list_seed_data(listing, edge_type_name(ONE_EDGE_TYPE), name, split, content)
        else:
            found[split] = torch_files.as_array(content)
            listing.read(of, name, split)
    if isinstance(together, dict):
        for other in together.keys() - {*SPLITS}:
            listing.leave_out(of, f"split of {folder.name}: {other}", f"the splits are {', '.join(SPLITS)}")
    if any(isinstance(value, EdgeStream) for value in found.values()):
        _warn_of_negatives()
    return found


def _warn_of_negatives() -> None:
    warnings.warn(
        "the negative pairs that OGB gives for validation and test are not used: diskgnn draws its own, so its "
        "scores do not compare with OGB's leaderboard",
        DataWarning,
        stacklevel=callers_level(),
    )


def _seed_edges(split: str, folder: Path, content: dict[str, Any]) -> EdgeStream:
    arrays = {key: torch_files.as_array(value) for key, value in content.items()}
    pairs = arrays.get("edge")
    if pairs is not None and pairs.ndim == 2 and pairs.shape[1] == 2:
        ends = pairs[:, 0], pairs[:, 1]
    elif (sources := arrays.get("source_node")) is not None and (targets := arrays.get("target_node")) is not None:
        ends = sources, targets
    else:
        raise InputError(
            f"{split}: expected edge, or source_node and target_node, in {folder}, found {', '.join(content)}"
        )
    return EdgeStream(split, len(ends[0]), lambda: iter([ends]))
