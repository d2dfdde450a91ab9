"""Check labels and splits on their way into a graph directory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.errors import DataWarning, InputError, callers_level
from diskgnn.files.checked_files import npy_parts
from diskgnn.files.file_reading import ReadableFile
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.graph.type_data import id_in
from diskgnn.importers.containers.rows import RowSource
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.writer import ArtifactWriter

# As many classes may be inferred from the labels of however few nodes; a model's last layer costs memory for each.
_PLAUSIBLE_CLASSES = 10_000


@dataclass(frozen=True)
class SplitOrigin:
    """Which columns of a table splits and labels of nodes come from, for messages."""

    splits: Mapping[str, str] = field(default_factory=dict)  # by split; of none that is given by itself
    labels: str | None = None  # None: they are given by themselves


GIVEN_APART = SplitOrigin()


def write_labels(writer: ArtifactWriter, node_type: str, rows: RowSource, num_classes: int | None) -> int:
    """Copy labels [N] into the graph; return the number of classes (`num_classes`, or the largest label plus 1).

    Raises:
        InputError: a label that is no class and not -1, or labels so large that they can hardly be classes; names the
            first node that has one.
    """
    limit = np.iinfo(np.int64).max if num_classes is None else num_classes
    largest, largest_node, labelled, position = -1, 0, 0, 0
    smallest = limit  # of those that are classes
    with ArrayFile(writer, node_file(artifacts.LABELS, node_type), np.int64, rows.num_rows) as file:
        for chunk in rows.chunks():
            wrong = (chunk < -1) | (chunk >= limit)
            if wrong.any():
                node = int(wrong.argmax())
                classes = "0 or more" if num_classes is None else f"0 to {num_classes - 1}"
                found = f"{chunk[node]} or more" if chunk[node] == np.iinfo(np.int64).max else str(chunk[node])
                raise InputError(
                    f"{rows.name}: expected {classes}, or -1 for none; found {found} at node {position + node}: "
                    f"correct the labels" + ("" if num_classes is None else " or pass a larger number of classes")
                )
            if chunk.max(initial=-1) > largest:
                node = int(chunk.argmax())
                largest, largest_node = int(chunk[node]), position + node
            labelled += int(np.count_nonzero(chunk != -1))
            smallest = int(chunk.min(initial=smallest, where=chunk != -1))
            position += len(chunk)
            file.write(chunk)
    if num_classes is not None:
        return num_classes
    if largest >= max(labelled, _PLAUSIBLE_CLASSES):
        raise InputError(
            f"{rows.name}: expected classes counted from 0; found {largest} at node {largest_node}, which makes more "
            f"classes than the {labelled} nodes with a label: number the classes without gaps "
            f"(np.unique(labels, return_inverse=True)), or pass num_classes={largest + 1} if this is meant"
        )
    if 0 < smallest < largest:
        warnings.warn(
            f"{rows.name}: classes are counted from 0, and no node has one below {smallest}: {largest + 1} classes are "
            f"taken, of which {smallest} are never seen; subtract {smallest}, or pass num_classes={largest + 1} if "
            f"that is meant",
            DataWarning,
            stacklevel=callers_level(),
        )
    return max(largest + 1, 1)


def write_rows(writer: ArtifactWriter, file: str, rows: RowSource) -> None:
    """Copy values that are checked as they are read: labels of other kinds, times."""
    with ArrayFile(writer, file, rows.dtype, rows.num_rows, rows.row_shape) as array:
        for chunk in rows.chunks():
            array.write(chunk)


def write_splits(
    writer: ArtifactWriter,
    node_type: str,
    splits: Mapping[str, npt.NDArray[np.int64]],
    num_nodes: int,
    owner: str = "",
    origin: SplitOrigin = GIVEN_APART,
) -> dict[str, int]:
    """Check and write the node ids of each split; return its size. The labels are written already.

    Warns about repeated ids, which are written once, and about nodes in two splits.

    Args:
        writer: of the graph directory.
        node_type: names the files.
        splits: node ids of each.
        num_nodes: of this type.
        owner: the type, for messages; "" where there is one.
        origin: where splits and labels come from, for messages.

    Raises:
        InputError: an id out of range, an empty split, or seeds without a label.
    """
    labels = writer.path(node_file(artifacts.LABELS, node_type))
    checked: dict[str, npt.NDArray[np.int64]] = {}
    for split, ids in splits.items():
        checked[split] = _check_split(f"{split} of {owner}" if owner else split, ids, num_nodes)
        _require_labels(split, owner, checked[split], labels, writer.path(artifacts.ids_file(node_type)), origin)
        writer.save_array(node_file(split, node_type), checked[split])
    for one, other in combinations(splits, 2):
        shared = len(np.intersect1d(checked[one], checked[other], assume_unique=True))
        if shared:
            warnings.warn(
                f"{shared} {'node is' if shared == 1 else 'nodes are'} both in {one} and in {other}: what is measured "
                f"on {other} is too good; take {'it' if shared == 1 else 'them'} out of one of the two",
                DataWarning,
                stacklevel=callers_level(),
            )
    return {split: len(ids) for split, ids in checked.items()}


def _check_split(split: str, ids: npt.NDArray[np.int64], num_nodes: int) -> npt.NDArray[np.int64]:
    """Refuses what are no ids of a split. Returns each id once."""
    if len(ids) == 0:
        raise InputError(f"{split}: expected node ids, found none; leave it out if there is none")
    wrong = (ids < 0) | (ids >= num_nodes)
    if wrong.any():
        position = int(wrong.argmax())
        raise InputError(
            f"{split}: expected node ids from 0 to {num_nodes - 1}, found {ids[position]} at position {position}; "
            f"for a mask pass truth values (dtype bool)"
        )
    if len(ids) == num_nodes > 2 and ids.max() <= 1:
        raise InputError(
            f"{split}: expected node ids, found {num_nodes} numbers (one per node) that are all 0 or 1; if they are a "
            f"mask, save it as truth values: mask.astype(bool)"
        )
    distinct, places = np.unique(ids, return_index=True)
    if repeated := len(ids) - len(distinct):
        warnings.warn(
            f"{split}: {repeated} of {len(ids)} node ids occur before; each node is kept once",
            DataWarning,
            stacklevel=callers_level(),
        )
        ids = ids[np.sort(places)]
    return ids


def _require_labels(
    split: str, owner: str, ids: npt.NDArray[np.int64], labels: Path, user_ids: Path, origin: SplitOrigin
) -> None:
    """Raises InputError if some of `ids` [n] have no label; names the first as the user calls it."""
    count, first = 0, -1
    for nodes, found in _labels_of(labels, np.sort(ids)):
        unlabelled, none = _without_label(found)
        if unlabelled.any():
            first = int(nodes[unlabelled].min()) if first < 0 else first
            count += int(np.count_nonzero(unlabelled))
    if not count:
        return
    lacking = f"have no label ({none})" if origin.labels is None else f"have no label in {origin.labels}"
    told = f"{count} of {len(ids)} nodes {{}}{lacking}, the first of them {_node_words(first, user_ids)}"
    if split not in origin.splits:
        named = f"{split} of {owner}" if owner else split
        raise InputError(f"{named}: {told.format('')}; leave out the nodes without a label")
    raise InputError(
        f"{origin.splits[split]}: {told.format(f'of {split} ')}; empty the split of these rows, or give them a label"
    )


def _node_words(node: int, user_ids: Path) -> str:
    """Returns what messages call a node: the user's own id, if the graph keeps ids."""
    if not user_ids.exists():
        return f"node {node}"
    with pq.ParquetFile(pa.PythonFile(ReadableFile(user_ids), mode="r")) as file:
        return f"id {id_in(file, node)!r}"


def _labels_of(path: Path, nodes: npt.NDArray[np.int64]) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[Any]]]:
    """Yields `nodes`, which ascend, some at a time, and their labels in a .npy file."""
    start = 0
    for part, _ in npy_parts(path):
        first, last = np.searchsorted(nodes, [start, start + len(part)])
        yield nodes[first:last], part[nodes[first:last] - start]
        start += len(part)


def _without_label(labels: npt.NDArray[Any]) -> tuple[npt.NDArray[np.bool_], str]:
    """Returns [n] which of labels [n] or [n, C] are none, and what says so."""
    if labels.dtype.kind == "f":
        return np.isnan(labels.reshape(len(labels), -1)).all(axis=1), "NaN"
    return (labels == -1) if labels.dtype.kind == "i" else np.zeros(len(labels), np.bool_), "-1"
