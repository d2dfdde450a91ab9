"""Where every input row of every minibatch will be: static, in a slot of the cpu tier, or in the minibatch's extent.

Sampling has fixed every future access, so nothing is guessed: the most accessed rows are static, and Belady's MIN with
bypass (Belady, IBM Systems Journal 1966) schedules the cpu tier. Sequences are cyclic: training for more epochs than
were prepared starts over, so the last minibatches already keep what the first ones need.

Node-sized memory is one int32 per node (counts, then next uses, then locations) and one bit (what is there at the
start); packing adds one byte (what is needed). Per-access data streams through scratch files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import BeladyPlanner, count_nodes, exchange_next_uses
from diskgnn.progress import Advance
from diskgnn.storage.samples import Samples

# One warm-up round finds what is resident when a cycle ends. A second one can improve on it by a row or so, which
# matters only in short sequences: where rounds are cheap, they go on until the residents settle.
MAX_WARM_UP_ROUNDS = 4
CHEAP_ROUND_ACCESSES = 4_000_000
MAX_BATCHES = 1 << 29  # next uses are int32 and span two cycles
_CHUNK_NODES = 1 << 20
_READ_AHEAD = 4  # minibatches


@dataclass(frozen=True)
class Placement:
    """Where one minibatch's rows are. Addresses: [0, S) static, [S, S+C) cpu slot, [S+C, S+C+R) row of the extent."""

    addresses: npt.NDArray[np.int32]  # [U]
    disk_nodes: npt.NDArray[Any]  # [R] ascending: the rows of the extent
    admissions: npt.NDArray[np.int32]  # [A, 2]: extent row -> slot, applied after the minibatch is assembled


class Accesses:
    """The input nodes of one split's sequence, in a scratch file that can be read again, and backwards, cheaply."""

    def __init__(self, samples: Samples, split: str, num_nodes: int, scratch: Path, advance: Advance) -> None:
        """Copies the sequence to `scratch` and counts: `counts` [N] int32, minibatches that need each node."""
        self.num_nodes = num_nodes
        self.scratch = scratch
        self.counts: npt.NDArray[np.int32] = np.zeros(num_nodes, np.int32)
        lengths: list[int] = []
        self.dtype: np.dtype[Any] = np.dtype(np.int32)
        with scratch.open("wb") as file:
            for minibatch in samples.read(split):
                nodes = minibatch.only_nodes
                self.dtype = nodes.dtype
                file.write(nodes.data)  # not tofile: it drops errno
                count_nodes(self.counts, nodes)
                lengths.append(len(nodes))
                advance(1)
        self.offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # [B+1] in accesses
        self.read_bytes = 0  # from the scratch files so far

    @property
    def num_batches(self) -> int:
        """B, minibatches in the sequence."""
        return len(self.offsets) - 1

    def nodes(self, order: range) -> Iterator[npt.NDArray[Any]]:
        """The input nodes of each minibatch in `order`; see `read`."""
        return self.read(self.scratch, self.dtype, order)

    def read(self, path: Path, dtype: np.dtype[Any], order: range) -> Iterator[npt.NDArray[Any]]:
        """What a file of one `dtype` per access holds for each minibatch in `order`; valid until the next one.

        The next few are asked for in advance: backwards, the kernel does not read ahead by itself.
        """
        starts = self.offsets * dtype.itemsize
        buffer = np.empty(int(np.diff(self.offsets).max(initial=0)), dtype)
        with path.open("rb") as file:
            for position, batch in enumerate(order):
                for ahead in order[position + _READ_AHEAD :][:1] if position else order[: _READ_AHEAD + 1]:
                    first, last = int(starts[ahead]), int(starts[ahead + 1])
                    os.posix_fadvise(file.fileno(), first, last - first, os.POSIX_FADV_WILLNEED)
                values = buffer[: int(self.offsets[batch + 1] - self.offsets[batch])]
                file.seek(int(starts[batch]))
                if file.readinto(values.data) != values.nbytes:
                    raise OSError(f"{path} ends early")
                self.read_bytes += values.nbytes
                yield values


def hottest_nodes(counts: npt.NDArray[np.int32], num_rows: int) -> npt.NDArray[np.int64]:
    """The `num_rows` most counted nodes (fewer if fewer were accessed), hottest first, ties by node."""
    num_rows = min(num_rows, int(np.count_nonzero(counts)))
    if num_rows == 0:
        return np.empty(0, np.int64)
    # In chunks: NumPy makes int64 of all that it counts and finds, twice the size of `counts`.
    histogram = np.zeros(int(counts.max()) + 1, np.int64)
    for first in range(0, len(counts), _CHUNK_NODES):
        found = np.bincount(counts[first : first + _CHUNK_NODES])
        histogram[: len(found)] += found
    at_least = np.cumsum(histogram[::-1])[::-1]  # at_least[c]: nodes counted c times or more
    threshold = int(np.flatnonzero(at_least >= num_rows)[-1])
    wanted_at_threshold = num_rows - int(at_least[threshold] - histogram[threshold])
    nodes = np.empty(num_rows, np.int64)
    filled = 0
    for first in range(0, len(counts), _CHUNK_NODES):
        chunk = counts[first : first + _CHUNK_NODES]
        chosen = chunk > threshold
        at_threshold = np.flatnonzero(chunk == threshold)[:wanted_at_threshold]
        chosen[at_threshold] = True
        wanted_at_threshold -= len(at_threshold)
        found = first + np.flatnonzero(chosen)
        nodes[filled : filled + len(found)] = found
        filled += len(found)
    return nodes[np.lexsort((nodes, -counts[nodes]))]


class Schedule:
    """The placement of one sequence. Read `initial_cpu_nodes`, iterate once, then read `next_cycle_slots`."""

    def __init__(
        self, accesses: Accesses, static_nodes: npt.NDArray[np.int64], cpu_rows: int, *, from_empty: bool = False
    ) -> None:
        """Plans with `cpu_rows` slots, or as many as there are rows to keep if those are fewer (then all are kept).

        `from_empty`: once and for a tier that is empty when the sequence starts: the bound for any cache that is.
        """
        kept = int(np.count_nonzero(accesses.counts)) - int(np.count_nonzero(accesses.counts[static_nodes]))
        del accesses.counts  # one node-sized array at a time
        self.cpu_rows = min(cpu_rows, kept)
        self.num_static = len(static_nodes)
        self._accesses = accesses
        self._next_uses = accesses.scratch.with_suffix(".next")
        self._write_next_uses()
        location = np.full(accesses.num_nodes, -1, np.int32)
        location[static_nodes] = -2 - np.arange(len(static_nodes), dtype=np.int32)
        self._planner = BeladyPlanner(location, self.num_static, self.cpu_rows, accesses.num_batches)
        rounds = MAX_WARM_UP_ROUNDS if accesses.offsets[-1] <= CHEAP_ROUND_ACCESSES else 1
        for _ in range(rounds if self.cpu_rows and not from_empty else 0):
            settled = any(
                self._planner.warm_up(nodes, next_uses) for nodes, next_uses in self._accesses_and_next_uses()
            )
            self._planner.start_cycle()
            if settled:
                break
        self.initial_cpu_nodes: npt.NDArray[np.int64] = self._planner.initial_cpu_nodes()  # [C] by slot, ascending

    @property
    def next_cycle_slots(self) -> npt.NDArray[np.int32]:
        """[C] the next cycle's slot i takes the row in this cycle's slot next_cycle_slots[i]; known after iterating."""
        return self._planner.next_cycle_slots()

    def __iter__(self) -> Iterator[Placement]:
        for nodes, next_uses in self._accesses_and_next_uses():
            addresses, disk_nodes, admissions = self._planner.place(nodes, next_uses)
            yield Placement(addresses, disk_nodes, admissions.reshape(-1, 2))
        self._next_uses.unlink()
        self._accesses.scratch.unlink()

    def _write_next_uses(self) -> None:
        """For each access, the next minibatch that needs the node, counted on into the next cycle: a backward pass."""
        accesses = self._accesses
        num_batches = accesses.num_batches
        next_use = np.empty(accesses.num_nodes, np.int32)
        backwards = range(num_batches)[::-1]
        for batch, nodes in zip(backwards, accesses.nodes(backwards), strict=True):
            # What stays in the end is each node's first use, one cycle on.
            exchange_next_uses(next_use, nodes, num_batches + batch)
        with self._next_uses.open("wb") as file:
            for batch, nodes in zip(backwards, accesses.nodes(backwards), strict=True):
                file.seek(int(accesses.offsets[batch]) * 4)
                file.write(exchange_next_uses(next_use, nodes, batch).data)

    def _accesses_and_next_uses(self) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.int32]]]:
        batches, int32 = range(self._accesses.num_batches), np.dtype(np.int32)
        return zip(self._accesses.nodes(batches), self._accesses.read(self._next_uses, int32, batches), strict=True)
