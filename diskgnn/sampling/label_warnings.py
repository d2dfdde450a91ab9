"""Warns of labels that make training look better than it is: one class only, or labels that a feature says."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, DataWarning, callers_level
from diskgnn.files.row_reading import read_ranges_of, row_buffer
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.specs.schema import ONE_NODE_TYPE, ClassValue
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target

_MOST_LABELS = 1 << 17  # of a split, that are looked at
_MOST_ROWS = 1 << 11  # of features that are read, of the most frequent class, and as many of the others
# A good feature tells classes apart, too. So a label counts as told by a feature only if hardly any of so many differs.
_LEAST_SEEDS, _LEAST_OTHERS, _SHARE = 1000, 20, 0.999
_SAME = 1e-3  # of a label's deviation: a number that is so near is this label, rounded
_PIECE_BYTES = 4 << 20  # of pages that are read at once


def warn_of_labels(graph: Graph, target: Target, seeds: Mapping[str, npt.NDArray[np.int64]]) -> None:
    """Warn if all seeds of a split are of one class, or, of nodes, if one column of the features says the labels.

    Features are compared for a sample of the seeds. They are not read from a store.

    Args:
        graph: of the seeds.
        target: what they are, with the type named.
        seeds: [n] nodes or [n, 2] pairs of each split, in the order of the labels that `target` has.
    """
    if isinstance(target, LinkTarget):
        for split in seeds:
            labels = np.empty(0) if target.labels is None else np.asarray(target.labels[split])
            _warn_of_one_class(target.classes, split, labels[_evenly(len(labels), _MOST_LABELS)])
        return
    nodes = graph.nodes[str(target.node_type)]
    if target.labels is None and (nodes.config.target is None or not isinstance(graph.manifest.path, Path)):
        return
    names = target.classes
    if target.labels is None and nodes.config.target is not None:
        names = nodes.config.target.classes
    with suppress(OSError, ArtifactError):  # whoever needs what cannot be read says so
        ids, labels, splits = _labelled(nodes, target, seeds)
        for number, split in enumerate(seeds):
            _warn_of_one_class(names, split, labels[splits == number])
        ids, first = np.unique(ids, return_index=True)
        _warn_of_told(graph, nodes, ids, labels[first])


def _labelled(
    nodes: NodeSet, target: NodeTarget, seeds: Mapping[str, npt.NDArray[np.int64]]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Returns some seeds of each split that have labels, these labels, and the number of the split of each."""
    chosen = {split: _evenly(len(each), _MOST_LABELS) for split, each in seeds.items()}
    ids = np.concatenate([seeds[split][places] for split, places in chosen.items()])
    splits = np.repeat(np.arange(len(chosen)), [len(places) for places in chosen.values()])
    if target.labels is None:
        distinct, positions = np.unique(ids, return_inverse=True)
        labels = nodes.labels_of(distinct)[positions]
    else:
        labels = np.concatenate([np.asarray(target.labels[split])[places] for split, places in chosen.items()])
    known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
    known = known.reshape(len(labels), -1).all(axis=1)
    return ids[known], labels[known], splits[known]


def _evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """Returns at most so many of `count` positions."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _warn_of_one_class(names: Sequence[ClassValue] | None, split: str, labels: npt.NDArray[Any]) -> None:
    if labels.ndim > 1 or labels.dtype.kind == "f" or not len(labels) or labels.min() < labels.max():
        return
    found = labels[0] if names is None else repr(names[labels[0]])
    warnings.warn(
        f"labels: all {len(labels)} seeds of {split} that were looked at are of class {found}: a model that always "
        "says so is right; give it seeds of other classes, too",
        DataWarning,
        stacklevel=callers_level(),
    )


def _warn_of_told(graph: Graph, nodes: NodeSet, ids: npt.NDArray[np.int64], labels: npt.NDArray[Any]) -> None:
    file = nodes.feature_file
    if file is None or not isinstance(file.path, Path) or len(ids) < _LEAST_SEEDS:
        return
    is_class = labels.dtype.kind != "f"
    most = _is_most_frequent(labels) if labels.ndim == 1 else np.ones(len(labels), np.bool_)
    parts = [np.flatnonzero(each) for each in (most, ~most)]
    chosen = np.sort(np.concatenate([part[_evenly(len(part), _MOST_ROWS)] for part in parts]))
    values, labels = _rows(file, ids[chosen]), labels[chosen].reshape(len(chosen), -1)
    for name, column in _columns(graph, nodes, values):
        says = _is_renamed if is_class else _is_scaled
        for label in labels.T:
            if says(column, label):
                _warn(graph, nodes, name, len(label))
                return


def _warn(graph: Graph, nodes: NodeSet, column: str | int, num_seeds: int) -> None:
    uses = {each.use for each in graph.config.contents.read if (each.of, each.name) == (nodes.name, column)}
    if isinstance(column, int):
        what, remedy = f"column {column} (from 0)", "leave it out of them"
    elif "labels" in uses:  # without the column there would be no labels
        what = f"column {column!r}"
        remedy = (
            f"as it is the label itself, convert again with other features: {_other_features(graph, nodes, column)}"
        )
    else:
        named = column if nodes.name == ONE_NODE_TYPE else f"{nodes.name}.{column}"
        what, remedy = f"column {column!r}", f"convert again with `diskgnn convert --exclude {named}`"
        if isinstance(nodes.config.rows, RecordFormat):
            remedy = f"leave it out of minibatches (`diskgnn prepare --without {nodes.name}.{column}`)"
    warnings.warn(
        f"labels: {what} of the features of {nodes.name} says the label of {num_seeds} seeds that were looked at, so a "
        f"model is shown its answers; {'' if 'labels' in uses else 'if it is what the labels are made from, '}{remedy}",
        DataWarning,
        stacklevel=callers_level(),
    )


def _other_features(graph: Graph, nodes: NodeSet, column: str) -> str:
    """Returns how to name all columns of the features but this one; or none, so that all without a role become
    features."""
    others = [each.name for each in graph.config.contents.read
              if (each.of, each.use) == (nodes.name, "features") and each.name != column]  # fmt: skip
    if nodes.name != ONE_NODE_TYPE:
        return f"in what describes {nodes.name}, columns: {{features: [{', '.join(others)}]}}" if others else (
            f"in what describes {nodes.name}, columns without features")  # fmt: skip
    if not others:
        return "TableColumns without features (`diskgnn convert` without `--column features=...`)"
    words = " ".join(f"--column features={name}" for name in others)
    # `columns` would become the flag of the command that warns, which is another one than `convert`.
    return f"TableColumns(features={others}) (`diskgnn convert {words}`)"


def _rows(file: FeatureFile, nodes: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Returns [n, D] values as stored, or codes of them, of ascending `nodes`."""
    page_bytes, row_bytes = 4096, file.file_row_bytes
    slot_bytes = -(-(row_bytes + page_bytes) // page_bytes) * page_bytes
    piece = max(1, _PIECE_BYTES // slot_bytes)
    found = np.empty((len(nodes), row_bytes), np.uint8)
    for start in range(0, len(nodes), piece):
        offsets = file.data_offset_bytes + nodes[start : start + piece] * row_bytes
        places = np.arange(len(offsets)) * slot_bytes + offsets % page_bytes
        buffer = row_buffer(len(offsets), slot_bytes)
        read_ranges_of(file.path, offsets, np.full(len(offsets), row_bytes), places, buffer)
        for row, place in enumerate(places, start):
            found[row] = buffer[place : place + row_bytes]
    if file.view is not None:
        return np.asarray(file.x(file.rows.as_tensor(file.kept(found.reshape(-1)))))
    values = found.view(file.rows.storage)
    if file.rows.dtype == "int4":
        values = np.stack([values & 15, values >> 4], axis=2).reshape(len(nodes), -1)[:, : file.rows.num_features]
    if file.rows.dtype == "bfloat16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _columns(graph: Graph, nodes: NodeSet, values: npt.NDArray[Any]) -> Iterator[tuple[str | int, npt.NDArray[Any]]]:
    """Yields the columns of the user's table, each with the numbers [n, width] that it became; or else each number
    alone."""
    named = None if nodes.config.columns is None else {column.name for column in nodes.config.columns}
    read = [
        each for each in graph.config.contents.read
        if each.of == nodes.name and each.use == "features" and each.width and (named is None or each.name in named)
    ]  # fmt: skip
    widths = [each.width or 0 for each in read]
    if sum(widths) != values.shape[1]:
        yield from enumerate(np.hsplit(values, values.shape[1]))
        return
    for each, block in zip(read, np.hsplit(values, np.cumsum(widths)[:-1]), strict=True):
        # A category is one thing, a vector several.
        for part in [block] if each.how == "category" else np.hsplit(block, block.shape[1]):
            yield each.name, part


def _is_renamed(column: npt.NDArray[Any], labels: npt.NDArray[Any]) -> bool:
    """Returns True if values [n, width] of a column and classes [n] name each other."""
    _, classes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    compared = sizes[classes] > 1  # a class of one seed has a value of its own in any column of distinct values
    column, classes = column[compared], classes[compared]
    if len(classes) < _LEAST_SEEDS:
        return False
    is_one = column.shape[1] == 1
    distinct, keys = np.unique(column[:, 0] if is_one else column, axis=None if is_one else 0, return_inverse=True)
    keys = keys.reshape(-1)
    if len(distinct) > len(sizes) + len(classes) * (1 - _SHARE):
        return False
    _, pairs, together = np.unique(classes * len(distinct) + keys, return_inverse=True, return_counts=True)
    together = together[pairs]
    agree = (2 * together > np.bincount(classes)[classes]) & (2 * together > np.bincount(keys)[keys])
    return _is_nearly_all(agree, classes)


def _is_scaled(column: npt.NDArray[Any], labels: npt.NDArray[Any]) -> bool:
    """Returns True if the numbers [n, 1] of a column are those of `labels` [n], scaled and shifted."""
    x, y = (each.reshape(len(labels), -1).astype(np.float64) for each in (column, labels))
    if x.shape[1] > 1 or not (x.std() > 0 and y.std() > 0):
        return False
    x, y = (((each - each.mean()) / each.std())[:, 0] for each in (x, y))
    # Not of the deviation of all: where that comes from a few, all others are as near in any such column.
    lower, middle, upper = np.percentile(y, [25, 50, 75])
    allowed = _SAME * np.maximum(np.abs(y - middle), upper - lower) + _SAME**2
    return _is_nearly_all(np.abs(y - np.sign((x * y).mean()) * x) <= allowed, labels)


def _is_nearly_all(agree: npt.NDArray[np.bool_], labels: npt.NDArray[Any]) -> bool:
    """Returns True if `agree` [n] holds of nearly all seeds, those with the most frequent label and the others
    alike."""
    most = _is_most_frequent(labels)
    if len(agree) < _LEAST_SEEDS or np.count_nonzero(~most) < _LEAST_OTHERS:
        return False
    return bool(min(agree[most].mean(), agree[~most].mean()) >= _SHARE)


def _is_most_frequent(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Returns [n] which of labels [n] are the most frequent one."""
    values, counts = np.unique(labels, return_counts=True)
    found: npt.NDArray[np.bool_] = labels == values[counts.argmax()]
    return found
