"""The Illinois Graph Benchmark: IGB, papers and citations, tiny to full (260 M nodes), and IGBH with more types.

Its arrays are .npy files up to medium, and headerless float32 in files that are called .npy too in large and full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.formats.source_contents import SourceContents
from diskgnn.importers.containers import arrays, edge_lists, values
from diskgnn.importers.containers.file_kinds import kind_of
from diskgnn.importers.containers.file_rows import headerless
from diskgnn.importers.containers.rows import RowReader, RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_listing import SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, parse_edge_type

_CITES = "paper__cites__paper"
_SIZES = {"large": 100_000_000, "full": 269_346_174}  # papers of the headerless ones, to notice a download cut short
_LABELS = {19: "node_label_19.npy", 2983: "node_label_2K.npy"}
_LABELLED = {19: 227_130_858, 2983: 157_675_969}  # papers of "full" that have a label: the first ones
_SHARES = {
    "train": (0.0, 0.6),
    "valid": (0.6, 0.8),
    "test": (0.8, 1.0),
}  # of the labelled papers
_SPLIT_CHUNK = 1 << 20


def recognises(source: object) -> bool:
    """Returns whether this is the path of one size: a folder that holds `processed`."""
    return isinstance(source, Path) and (source / "processed" / _CITES / "edge_index.npy").is_file()


def read(
    source: Path,
    *,
    classes: int = 19,
    typed: bool | None = None,
    width: int = 1024,
    num_papers: int | None = None,
    seed: int = 0,
) -> GraphInput:
    """Returns the graph of one size.

    IGB's loader draws a split of 60, 20 and 20 % anew each time; here it depends on `seed`. Of "full" the papers
    without a label come last, and its loader splits the others by their position; so does this.

    Args:
        source: the folder of the size: it holds `processed`, and its name says what is expected of it.
        classes: 19 or 2983.
        typed: with the other types of nodes, if they are there; None: if they are.
        width: numbers per row of headerless features.
        num_papers: how many there should be; None: by the name of the folder, if that is "large" or "full".
        seed: of the split.

    Raises:
        InputError: a file is missing, or not what IGB leaves.
    """
    folder = source / "processed"
    if not recognises(source):
        raise InputError(f"expected the folder of one size, with processed/{_CITES}/edge_index.npy, found {source}")
    if classes not in _LABELS:
        raise InputError(f"classes: expected 19 or 2983, found {classes}")
    features = _rows("features of paper", folder / "paper" / "node_feat.npy", (width,))
    expected = _SIZES.get(source.name) if num_papers is None else num_papers
    if expected not in (None, features.num_rows):
        raise InputError(
            f"{features.name}: expected {expected} rows, found {features.num_rows}; was the download complete (the "
            f"last rows of full come in a file of their own)? If it was, use the option num_papers={features.num_rows}"
        )
    labels = values.classes(_rows("labels of paper", folder / "paper" / _LABELS[classes], ()))
    labelled = _LABELLED[classes] if source.name == "full" and features.num_rows == _SIZES["full"] else None
    papers = NodeInput(
        features=features, labels=_first(labels, labelled), num_classes=classes, **_splits(labels, labelled, seed)
    )
    triplets = sorted(entry.name for entry in folder.iterdir() if entry.name.count("__") == 2)
    typed = len(triplets) > 1 if typed is None else typed
    if not typed:
        contents = _contents(folder, ["paper", _CITES], classes, "typed=false was asked for")
        return GraphInput({ONE_NODE_TYPE: papers}, {ONE_EDGE_TYPE: _edges(folder, _CITES)}, contents)
    edges = {parse_edge_type(name.split("__")): _edges(folder, name) for name in triplets}
    ends = {end for source_type, _, destination in edges for end in (source_type, destination)} - {"paper"}
    others = {
        end: NodeInput(features=_rows(f"features of {end}", folder / end / "node_feat.npy", (width,)))
        for end in sorted(ends)
    }
    contents = _contents(folder, ["paper", *others, *triplets], classes, "no edge has such an end")
    return GraphInput({"paper": papers, **others}, edges, contents)


def _contents(folder: Path, types: list[str], classes: int, reason: str) -> SourceContents:
    """Lists the files of `types`, and the other folders, which are left out for `reason`."""
    listing = SourceListing()
    uses = {"node_feat.npy": "features", "edge_index.npy": "edges", _LABELS[classes]: "labels"}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and entry.name not in types:
            listing.leave_out("", entry.name, reason, expected=True)
        for file in sorted(entry.iterdir()) if entry.is_dir() and entry.name in types else []:
            of = entry.name.replace("__", ":")
            other = next((each for each, name in _LABELS.items() if name == file.name and each != classes), None)
            if other is not None:
                listing.leave_out(of, file.name, f"classes={other} reads it", expected=True)
            elif file.name in uses:
                listing.read(of, file.name, uses[file.name])
            elif "mapping" in file.name:
                listing.leave_out(of, file.name, "names of ids, for people", expected=True)
            else:
                listing.leave_out(of, file.name, "this format has no use for it")
    return listing.contents()


def _edges(folder: Path, name: str) -> EdgeInput:
    path = folder / name / "edge_index.npy"
    pairs = arrays.numbers(f"edges ({path})", path)
    if pairs.row_shape != (2,):  # [2, 2] are pairs here, too
        raise InputError(f"edges ({path}): expected shape [E, 2], found {pairs.shape}")
    return EdgeInput(edges=edge_lists.of_pairs(pairs))


def _rows(name: str, path: Path, row_shape: tuple[int, ...]) -> RowSource:
    if kind_of(path) == "npy":
        return arrays.numbers(name, path)
    return headerless(name, path, row_shape, np.float32)


def _first(labels: RowSource, labelled: int | None) -> RowSource:
    """Hides all labels but those of the first `labelled` nodes."""
    if labelled is None:
        return labels

    def chunks() -> Iterator[npt.NDArray[Any]]:
        start = 0
        for chunk in labels.chunks():
            yield np.where(np.arange(start, start + len(chunk)) < labelled, chunk, -1)
            start += len(chunk)

    return RowSource(labels.name, labels.num_rows, (), labels.dtype, chunks, stored_bytes=labels.stored_bytes)


def _splits(labels: RowSource, labelled: int | None, seed: int) -> dict[str, Any]:
    """Returns masks [N]."""
    chunks = partial(_drawn, labels, seed) if labelled is None else partial(_by_position, labels, labelled)
    return {
        split: RowSource(split, labels.num_rows, (), np.dtype(np.bool_), partial(chunks, *shares))
        for split, shares in _SHARES.items()
    }


def _drawn(labels: RowSource, seed: int, first: float, last: float) -> Iterator[npt.NDArray[np.bool_]]:
    """Yields a mask of the labelled nodes of each chunk that a permutation brings to this share."""
    reader = RowReader(labels)
    for number, start in enumerate(range(0, labels.num_rows, _SPLIT_CHUNK)):
        has_label = reader.take(min(_SPLIT_CHUNK, labels.num_rows - start)) >= 0
        nodes = np.random.default_rng([seed, number]).permutation(np.flatnonzero(has_label))
        mask = np.zeros(len(has_label), np.bool_)
        mask[nodes[int(first * len(nodes)) : int(last * len(nodes))]] = True
        yield mask


def _by_position(labels: RowSource, labelled: int, first: float, last: float) -> Iterator[npt.NDArray[np.bool_]]:
    for start in range(0, labels.num_rows, _SPLIT_CHUNK):
        nodes = np.arange(start, min(start + _SPLIT_CHUNK, labels.num_rows))
        yield (nodes >= int(first * labelled)) & (nodes < int(last * labelled))
