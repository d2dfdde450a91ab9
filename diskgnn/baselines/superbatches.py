"""A superbatch on its way from sampling to gathering: minibatches and changesets in files, and the optimal cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import BeladyPlanner, belady_misses, count_next_uses, exchange_next_uses, sort_nodes
from diskgnn.baselines.sampling_source import SampledBlocks, as_blocks

SUPERBATCH = 1000  # minibatches, as in the authors' program


@dataclass(frozen=True)
class Changeset:
    """Says what the cache does for one minibatch."""

    slots: npt.NDArray[np.int32]  # [U] where each row is, -1 if it has to be read
    admissions: npt.NDArray[np.int32]  # [A, 2] position in the minibatch -> slot, once x is filled


@dataclass(frozen=True)
class SuperbatchFiles:
    """Minibatches in a scratch folder, each in files of consecutive .npy arrays."""

    folder: Path

    def save_sample(self, number: int, sampled: SampledBlocks) -> None:
        """Keeps a sample until `take`."""
        with self._sample(number).open("wb") as file:
            np.save(file, sampled.nodes)
            np.save(file, sampled.seeds)
            for block in sampled.blocks:
                np.save(file, block.indptr.numpy())
                np.save(file, block.indices.numpy())

    def nodes(self, number: int) -> npt.NDArray[Any]:
        """Returns the input nodes of a saved minibatch."""
        with self._sample(number).open("rb") as file:
            return np.asarray(np.load(file))

    def save_next_uses(self, number: int, next_uses: npt.NDArray[np.int32]) -> None:
        """Keeps the next uses of the minibatch's nodes, until `take_next_uses`."""
        np.save(self._next_uses(number), next_uses)

    def take_next_uses(self, number: int) -> npt.NDArray[np.int32]:
        """Returns what was saved; the file is removed."""
        (next_uses,) = _load_all(self._next_uses(number))
        self._next_uses(number).unlink()
        return next_uses

    def save_changeset(self, number: int, changes: Changeset) -> None:
        """Keeps a changeset until `take`."""
        with self._changeset(number).open("wb") as file:
            np.save(file, changes.slots)
            np.save(file, changes.admissions)

    def take(self, number: int) -> tuple[SampledBlocks, Changeset]:
        """Returns the minibatch and what the cache does for it; its files are removed."""
        nodes, seeds, *blocks = _load_all(self._sample(number))
        slots, admissions = _load_all(self._changeset(number))
        self._sample(number).unlink()
        self._changeset(number).unlink()
        arrays = list(zip(blocks[::2], blocks[1::2], strict=True))
        return SampledBlocks(seeds, nodes, as_blocks(len(nodes), arrays)), Changeset(slots, admissions)

    def _sample(self, number: int) -> Path:
        return self.folder / f"{number}-sample"

    def _next_uses(self, number: int) -> Path:
        return self.folder / f"{number}-next-uses.npy"

    def _changeset(self, number: int) -> Path:
        return self.folder / f"{number}-changeset"


def _load_all(path: Path) -> list[npt.NDArray[Any]]:
    size, arrays = path.stat().st_size, []
    with path.open("rb") as file:
        while file.tell() < size:
            arrays.append(np.load(file))
    return arrays


def place_superbatch(
    numbers: range,
    input_nodes: Callable[[range], Iterable[npt.NDArray[Any]]],
    files: SuperbatchFiles,
    num_nodes: int,
    capacity: int,
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[Any], npt.NDArray[np.int32]]]:
    """Yields what `BeladyPlanner.place` says of each minibatch of a superbatch, the cache being empty before it.

    A backward pass finds next uses, which wait in `files`; a forward pass places. `input_nodes` gives those of some
    minibatches in order, each to be used before the next.
    """
    num_batches = len(numbers)
    next_use = np.full(num_nodes, num_batches, np.int32)  # that many stand for never
    backwards = numbers[::-1]
    counts: list[npt.NDArray[np.int32]] = []
    for number, nodes in zip(backwards, input_nodes(backwards), strict=True):
        found = exchange_next_uses(next_use, sort_nodes(nodes, num_nodes)[0], number - numbers.start)
        counts.append(count_next_uses(found, num_batches))
        files.save_next_uses(number, found)
    del next_use
    bounds = np.cumsum([0, *(len(pairs) // 2 for pairs in reversed(counts))])
    misses = belady_misses(bounds, np.concatenate(counts[::-1]), capacity, from_empty=True)
    # Nothing is kept for ever: as if all rows that are not needed again were those of the next minibatch 0.
    first_uses = np.zeros(num_batches, np.int32)
    first_uses[0] = misses[0]
    planner = BeladyPlanner(np.zeros(num_nodes, np.int32), 0, capacity, misses, first_uses)
    for number, nodes in zip(numbers, input_nodes(numbers), strict=True):
        yield planner.place(*sort_nodes(nodes, num_nodes), files.take_next_uses(number))


def changeset(
    addresses: npt.NDArray[np.int32], num_read: int, admissions: npt.NDArray[np.int32], capacity: int
) -> Changeset:
    """Returns what `BeladyPlanner.place` returned, in terms of positions in the minibatch instead of rows of an
    extent."""
    missed = np.flatnonzero(addresses >= capacity).astype(np.int32)
    position_of_row = np.empty(num_read, np.int32)
    position_of_row[addresses[missed] - capacity] = missed
    pairs = admissions.reshape(-1, 2)
    slots = np.where(addresses < capacity, addresses, np.int32(-1))
    return Changeset(slots, np.column_stack([position_of_row[pairs[:, 0]], pairs[:, 1]]))
