"""MAG240M of OGB-LSC: papers, authors and institutions, or papers and citations alone, which most papers train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers import arrays, torch_files, values
from diskgnn.importers.containers.rows import RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType

_CITES: EdgeType = ("paper", "cites", "paper")
_OTHERS: tuple[EdgeType, ...] = (("author", "affiliated_with", "institution"), ("author", "writes", "paper"))
_FOLDER = "mag240m_kddcup2021"
_TESTS = ("test-dev", "test-whole", "test")  # whose labels are public come first


def recognises(source: object) -> bool:
    """Whether this is the path of the data set's folder, or of the one that holds it."""
    return isinstance(source, Path) and (_root(source) / "processed" / "paper___cites___paper").is_dir()


def _root(source: Path) -> Path:
    return source / _FOLDER if (source / _FOLDER).is_dir() else source


def read(source: Path, *, homogenise: bool = False) -> GraphInput:
    """The graph; features are those of papers, float16 [N, 768], its years are times.

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
    labels = values.classes(arrays.numbers("labels", folder / "paper" / "node_label.npy"))
    papers = NodeInput(
        features=folder / "paper" / "node_feat.npy",
        labels=labels,
        num_classes=int(counts["num_classes"]),
        times=folder / "paper" / "node_year.npy",
        **_splits(root, folder),
    )
    edges = {
        edge_type: folder / "___".join(edge_type) / "edge_index.npy"
        for edge_type in ((_CITES,) if homogenise else (*_OTHERS, _CITES))
    }
    if homogenise:
        return GraphInput({ONE_NODE_TYPE: papers}, {ONE_EDGE_TYPE: EdgeInput(edges=edges[_CITES], symmetric=True)})
    others = {name: NodeInput(num_nodes=int(counts[name])) for name in ("author", "institution")}
    return GraphInput(
        {"paper": papers, **others}, {edge_type: EdgeInput(edges=path) for edge_type, path in edges.items()}
    )


def _meta(root: Path) -> Path:
    for name in ("meta.pt", "meta_info.pt"):
        if (root / name).is_file():
            return root / name
    raise InputError(f"expected meta.pt of MAG240M in {root}, found none")


def _splits(root: Path, folder: Path) -> dict[str, Any]:
    content = torch_files.load("splits", root / "split_dict.pt")
    labels = arrays.numbers("labels", folder / "paper" / "node_label.npy")
    found: dict[str, Any] = {split: torch_files.as_array(content.get(split)) for split in ("train", "valid")}
    for name in _TESTS:
        ids = torch_files.as_array(content.get(name))
        if ids is not None and len(ids) and _are_labelled(ids, labels):
            return {**found, "test": ids}
    return found


def _are_labelled(ids: npt.NDArray[Any], labels: RowSource) -> bool:
    ordered, start = np.sort(ids), 0
    for chunk in labels.chunks():
        first, last = np.searchsorted(ordered, [start, start + len(chunk)])
        if not (chunk[ordered[first:last] - start] >= 0).all():  # NaN is not
            return False
        start += len(chunk)
    return True
