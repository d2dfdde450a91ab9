"""MAG240M of OGB-LSC: papers, authors and institutions, or papers and citations alone, which most papers train on."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers import arrays, torch_files, values
from diskgnn.importers.containers.rows import RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name

_CITES: EdgeType = ("paper", "cites", "paper")
_OTHERS: tuple[EdgeType, ...] = (("author", "affiliated_with", "institution"), ("author", "writes", "paper"))
_FOLDER = "mag240m_kddcup2021"
_TESTS = ("test-dev", "test-whole", "test")  # whose labels are public come first


def recognises(source: object) -> bool:
    """Returns whether this is the path of the data set's folder, or of the one that holds it."""
    return isinstance(source, Path) and (_root(source) / "processed" / "paper___cites___paper").is_dir()


def _root(source: Path) -> Path:
    return source / _FOLDER if (source / _FOLDER).is_dir() else source


def read(source: Path, *, homogenise: bool = False) -> GraphInput:
    """Returns the graph; features are those of papers, float16 [N, 768], its years are times.

    Nodes of the test split have no label in public: the split is left out if they have none.

    Args:
        source: mag240m_kddcup2021, or the folder that holds it.
        homogenise: papers and the citations between them, in both directions, as a graph of one type.

    Raises:
        InputError: a file is missing, or not what OGB leaves.
    """
    root = _root(source)
    folder = root / "processed"
    counts = torch_files.load("sizes", _meta(root))
    if not isinstance(counts, dict) or not {"paper", "author", "institution", "num_classes"} <= counts.keys():
        raise InputError(f"{_meta(root)}: expected the numbers of papers, authors, institutions and classes")
    listing = SourceListing()
    labels = values.classes(arrays.numbers("labels", folder / "paper" / "node_label.npy"))
    papers = NodeInput(
        features=folder / "paper" / "node_feat.npy",
        labels=labels,
        num_classes=int(counts["num_classes"]),
        times=folder / "paper" / "node_year.npy",
        **_splits(root, folder, listing),
    )
    edges = {
        edge_type: folder / "___".join(edge_type) / "edge_index.npy"
        for edge_type in ((_CITES,) if homogenise else (*_OTHERS, _CITES))
    }
    _list_files(folder, edges, listing)
    contents = listing.contents()
    if homogenise:
        only = {ONE_EDGE_TYPE: EdgeInput(edges=edges[_CITES], symmetric=True)}
        return GraphInput({ONE_NODE_TYPE: papers}, only, contents)
    others = {name: NodeInput(num_nodes=int(counts[name])) for name in ("author", "institution")}
    edge_inputs = {edge_type: EdgeInput(edges=path) for edge_type, path in edges.items()}
    return GraphInput({"paper": papers, **others}, edge_inputs, contents)


def _list_files(folder: Path, edges: Iterable[EdgeType], listing: SourceListing) -> None:
    uses = {"paper/node_feat.npy": ("paper", "features"), "paper/node_label.npy": ("paper", "labels"),
            "paper/node_year.npy": ("paper", "times")}  # fmt: skip
    for edge_type in edges:
        uses[f"{'___'.join(edge_type)}/edge_index.npy"] = (edge_type_name(edge_type), "edges")
    unwanted = {f"{'___'.join(edge_type)}/edge_index.npy" for edge_type in (*_OTHERS, _CITES)} - uses.keys()
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        name = path.relative_to(folder).as_posix()
        if name in uses:
            listing.read(uses[name][0], name, uses[name][1])
        elif name in unwanted:
            listing.leave_out("", name, "homogenise=true was asked for", expected=True)
        else:
            listing.leave_out("", name, "this format has no use for it")


def _meta(root: Path) -> Path:
    for name in ("meta.pt", "meta_info.pt"):
        if (root / name).is_file():
            return root / name
    raise InputError(f"expected meta.pt of MAG240M in {root}, found none")


def _splits(root: Path, folder: Path, listing: SourceListing) -> dict[str, Any]:
    content = torch_files.load("splits", root / "split_dict.pt")
    labels = arrays.numbers("labels", folder / "paper" / "node_label.npy")
    found: dict[str, Any] = {split: torch_files.as_array(content.get(split)) for split in ("train", "valid")}
    chosen = next((name for name in _TESTS if _is_labelled(torch_files.as_array(content.get(name)), labels)), None)
    if chosen is not None:
        found["test"] = torch_files.as_array(content[chosen])
    for name in content:
        if name == chosen or found.get(name) is not None:
            listing.read("paper", f"split_dict.pt: {name}", "test" if name == chosen else name)
        else:
            reason = "its nodes have no labels in public" if chosen is None else f"{chosen} is the test split"
            listing.leave_out("paper", f"split_dict.pt: {name}", reason, expected=chosen is not None)
    return found


def _is_labelled(ids: npt.NDArray[Any] | None, labels: RowSource) -> bool:
    if ids is None or not len(ids):
        return False
    ordered, start = np.sort(ids), 0
    for chunk in labels.chunks():
        first, last = np.searchsorted(ordered, [start, start + len(chunk)])
        if not (chunk[ordered[first:last] - start] >= 0).all():  # NaN is not
            return False
        start += len(chunk)
    return True
