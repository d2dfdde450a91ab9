"""Records: what panels kept of each seed, side by side; and means and deviations of the train ones."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory
from diskgnn.errors import InputError
from diskgnn.files.traffic import Traffic
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import given_file, node_file, record_checksums_file, records_file
from diskgnn.formats.hops_config import ALL_NODES, HopsConfig
from diskgnn.graph.type_data import NodeSet
from diskgnn.progress.reporter import Reporter
from diskgnn.propagation.kept_pieces import unpacked
from diskgnn.propagation.record_order import RecordOrder, RecordWindow, window_rows
from diskgnn.system.allocators import pages_kept
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.shuffle import Shuffle, piece_buffer
from diskgnn.work.step_file import SavedArray, StepFile
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_READ_BYTES = 4 << 20  # of pieces at a time
_PART_VALUES = 1 << 16  # in float64 at a time
_CONSTANT = 1e-6  # of its mean: what a column deviates by that is constant but for float32's rounding


def first_state(config: HopsConfig) -> dict[str, npt.ArrayLike]:
    """Returns the state of `RecordWriting.write` at its beginning."""
    zeros = np.zeros(config.num_values)
    return {"windows": 0, "train_rows": 0, "mean": zeros, "squares": zeros}


@dataclass(frozen=True)
class RecordFiles:
    """Holds the files that records are written to."""

    records: dict[str, ArrayFile]  # by split, [rows, num_values]
    statistics: SavedArray | None  # [2, num_values] means and deviations; None without train records

    @staticmethod
    def of(writer: ArtifactWriter, config: HopsConfig) -> RecordFiles:
        """Declares those of a hops directory."""
        shape = (config.num_values,)
        records = {
            split: ArrayFile(writer, records_file(split), np.float32, count, shape, record_checksums_file(split))
            for split, count in config.num_rows.items()
        }
        has_train = config.num_rows.get("train", 0) > 0
        return RecordFiles(
            records, SavedArray(writer, artifacts.STATISTICS, np.empty((2, *shape))) if has_train else None
        )

    @property
    def all(self) -> list[StepFile]:
        """Returns every file that the step declares."""
        return [*self.records.values(), *([] if self.statistics is None else [self.statistics])]


@dataclass(frozen=True)
class RecordWriting:
    """Writes the records of all splits, a window at a time."""

    files: RecordFiles
    config: HopsConfig
    windows: Sequence[RecordWindow]
    kept: Shuffle  # what panels kept
    order: RecordOrder
    traffic: Traffic

    def write(self, reporter: Reporter, state: State, output: Output) -> Generator[int, None, None]:
        """Writes the windows that are left.

        Raises:
            InputError: a value is beyond float32.
            DamagedStepError: what panels kept is damaged.
        """
        files, config = self.files, self.config
        with (
            pages_kept(2 * window_rows(config.row_bytes) * config.row_bytes),
            output.stage(reporter, "write records", self.order.num_records, "rows") as advance,
        ):
            first = int(state["windows"])
            for number, window in enumerate(self.windows[first:], first):
                records = _put_together(config, window, self.kept, number)
                _require_finite(config, records, self.order.of_window(window))
                files.records[window.split].write(records)
                self.traffic.add(read=records.nbytes, written=records.nbytes)
                if window.split == "train":
                    _add_moments(records, state)
                state["windows"] += 1
                advance(len(records))
                yield records.nbytes
                del records
        if files.statistics is not None:
            deviation = np.sqrt(state["squares"] / int(state["train_rows"]))
            deviation[deviation <= _CONSTANT * np.abs(state["mean"])] = 1
            files.statistics.array[:] = state["mean"], deviation


def _put_together(config: HopsConfig, window: RecordWindow, kept: Shuffle, number: int) -> npt.NDArray[np.float32]:
    num_records = window.last - window.first
    records = page_memory(num_records * config.row_bytes).view(np.float32).reshape(num_records, config.num_values)
    filled, pieces = 0, kept.places(number)
    most_bytes = max(piece.num_bytes for piece in pieces)
    buffer = piece_buffer(most_bytes, max(1, min(len(pieces), _READ_BYTES // max(1, most_bytes))))
    for content in kept.read(pieces, buffer):
        place, values = unpacked(content)
        records[:, place : place + values.shape[1]] = values
        filled += values.shape[1]
    assert filled == config.num_values, (filled, config.num_values)
    return records


def _require_finite(config: HopsConfig, records: npt.NDArray[np.float32], nodes: npt.NDArray[np.int64]) -> None:
    """Means are as large as what they are of at most; scales of small weights may be larger."""
    if np.isfinite(records).all():
        return
    row, column = np.argwhere(~np.isfinite(records))[0].tolist()
    names = [segment.name for segment in config.segments for _ in range(segment.width)]
    raise InputError(
        f"features: expected hops within float32, found {records[row, column]} in {names[column]!r} of node "
        f"{nodes[row]}; divide the features, or multiply the weights of edges, and `diskgnn convert` again"
    )


def _add_moments(records: npt.NDArray[np.float32], state: State) -> None:
    """Adds by Chan, Golub and LeVeque's update: no cancellation, however far the mean is from 0."""
    step = max(1, _PART_VALUES // records.shape[1])
    values = np.empty((min(step, len(records)), records.shape[1]))
    for first in range(0, len(records), step):
        part = values[: len(records) - first]
        np.copyto(part, records[first : first + step])
        before = int(state["train_rows"])
        count = before + len(part)
        mean = part.mean(axis=0)
        shift = mean - state["mean"]
        np.square(np.subtract(part, mean, out=part), out=part)
        state["squares"] += part.sum(axis=0) + shift**2 * (before * len(part) / count)
        state["mean"] += shift * (len(part) / count)
        state["train_rows"] += len(part)


def write_seeds(writer: ArtifactWriter, nodes: NodeSet, order: RecordOrder, traffic: Traffic) -> None:
    """Writes whose records these are, and their labels.

    Raises:
        ArtifactError: the labels of the graph are damaged.
    """
    if order.chosen == ALL_NODES:
        return
    labels = None if order.chosen else _labels(nodes, order, traffic)
    first = 0
    for split, seeds in order.nodes.items():
        assert seeds is not None
        writer.save_array(given_file("seeds", split), seeds)
        traffic.add(written=seeds.nbytes)
        if labels is not None:
            found = labels[first : first + len(seeds)]
            writer.save_array(given_file("labels", split), found)
            traffic.add(written=found.nbytes)
        first += len(seeds)


def _labels(nodes: NodeSet, order: RecordOrder, traffic: Traffic) -> npt.NDArray[Any] | None:
    """Returns the labels of all records, in one pass over those of the graph."""
    if nodes.config.target is None:
        return None
    traffic.add(read=nodes.manifest.files[node_file(artifacts.LABELS, nodes.name)].bytes)
    distinct, places = np.unique(np.concatenate(list(order.all_nodes())), return_inverse=True)
    return nodes.labels_of(distinct)[places.reshape(-1)]
