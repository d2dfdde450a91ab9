"""What each of W ranks reads: its own part of real draws, placed by a real schedule. No feature is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.packing.accesses import Accesses
from diskgnn.packing.placement import Schedule
from diskgnn.packing.probes import structure_bytes_of
from diskgnn.packing.reuse import Reuse
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_a_few
from diskgnn.specs.shard import Shard
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Scratch

_MESSAGE_BYTES = 800  # of Arrow's around the arrays of a header, about


class Draws:
    """The minibatches of the prepared epochs of the train split, drawn once for all W.

    Ranks draw what one rank draws: rank r of W has the minibatches r, r + W, ... of each epoch.
    """

    def __init__(self, plan: SamplingPlan, folder: Path, resources: Resources) -> None:
        """Draws, and writes the input nodes to a file in `folder`."""
        self.batches_per_epoch, self.num_nodes = plan.sizes["train"].batches_per_epoch, plan.graph.num_nodes
        self._path, self._dtype = folder / "input-nodes", np.dtype(plan.parts.id_dtype)
        epochs = [plan.minibatches("train", epoch) for epoch in plan.prepared_epochs("train")]
        self.num_epochs, rows, structure_bytes, edges = len(epochs), [], [], []
        minibatches = (minibatch for epoch in epochs for minibatch in epoch)
        with (
            self._path.open("wb") as file,
            resources.reporter.stage("draw", len(epochs) * self.batches_per_epoch, "minibatches") as advance,
        ):
            for minibatch in sample_a_few(plan, minibatches, resources):
                file.write(minibatch.only_nodes.astype(self._dtype, copy=False).data)
                rows.append(len(minibatch.only_nodes))
                structure_bytes.append(structure_bytes_of(minibatch))
                edges.append(minibatch.num_edges)
                advance(1)
        self.rows, self.structure_bytes, self.edges = (np.array(each) for each in (rows, structure_bytes, edges))  # [B]
        self._offsets = np.concatenate([[0], np.cumsum(self.rows)])

    def numbers_of(self, shard: Shard) -> npt.NDArray[np.int64]:
        """Positions in the sequence of the minibatches of one rank."""
        of_epoch = np.array(shard.numbers(self.batches_per_epoch), np.int64)
        return (np.arange(self.num_epochs)[:, None] * self.batches_per_epoch + of_epoch).ravel()

    def nodes(self, numbers: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        """The input nodes of each of these minibatches."""
        with self._path.open("rb") as file:
            for number in numbers.tolist():
                first = int(self._offsets[number])
                file.seek(first * self._dtype.itemsize)
                yield np.fromfile(file, self._dtype, int(self.rows[number]))


@dataclass(frozen=True)
class RankWork:
    """The sequence of one rank, minibatch by minibatch."""

    read_bytes: npt.NDArray[np.int64]  # [b] of the extents
    x_bytes: npt.NDArray[np.int64]  # [b] that are assembled
    edges: npt.NDArray[np.int64]  # [b] that are computed with
    requested_rows: int  # of a cycle of the sequence
    disk_rows: int
    initial_bytes: int  # of rows in the cpu tier when a cycle starts

    @property
    def packed_bytes(self) -> int:
        """Of the packed directory's train split: its extents, and the rows that the cpu tier starts with."""
        return int(self.read_bytes.sum()) + self.initial_bytes


def work_of_ranks(
    draws: Draws, world_size: int, *, row_bytes: int, cpu_rows: int, folder: Path, threads: int
) -> list[RankWork]:
    """Place the sequence of every rank, each with a cpu tier of `cpu_rows` slots of its own."""
    return [
        _work_of(draws, draws.numbers_of(Shard(rank, world_size)), row_bytes, cpu_rows, folder, threads)
        for rank in range(min(world_size, draws.batches_per_epoch))
    ]


def _work_of(
    draws: Draws, numbers: npt.NDArray[np.int64], row_bytes: int, cpu_rows: int, folder: Path, threads: int
) -> RankWork:
    accesses = Accesses.sort(draws.nodes(numbers), draws.num_nodes, Scratch(folder / "rank"), threads=threads)
    schedule = Schedule(Reuse(accesses, np.empty(0, np.int64), threads=threads), cpu_rows)
    counted = [(len(placed.disk_nodes), len(placed.admissions)) for placed in schedule]
    disk_rows, admitted = np.array(counted, np.int64).T
    rows = draws.rows[numbers]
    header_bytes = draws.structure_bytes[numbers] + 4 * rows + 8 * admitted + _MESSAGE_BYTES
    read_bytes = -(-(header_bytes + disk_rows * row_bytes) // DIRECT_ALIGNMENT) * DIRECT_ALIGNMENT
    return RankWork(
        read_bytes=read_bytes,
        x_bytes=rows * row_bytes,
        edges=draws.edges[numbers],
        requested_rows=int(rows.sum()),
        disk_rows=int(disk_rows.sum()),
        initial_bytes=len(schedule.initial_cpu_nodes) * row_bytes,
    )


def total(ranks: Sequence[RankWork], name: str) -> int:
    """A number of `RankWork`, summed over ranks."""
    return sum(int(np.sum(getattr(rank, name))) for rank in ranks)
