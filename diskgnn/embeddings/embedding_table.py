"""Vectors of nodes in a file, with the state of their optimizer: for tables larger than memory.

A table is a file of rows: the vector of a node, and Adam's two moments of it, side by side, so that a minibatch reads
and writes each of its rows once. Reads and writes go through the page cache, which is memory that the kernel takes back
when others need it. All pages of a minibatch are asked for before the first is waited for, so the disk works on many.

**In the background.** One thread of a table reads what is fetched and writes what a step made, in the order in which
both were asked for. So rows that are fetched two minibatches ahead miss the writes of the steps in between: those steps
hand what they write to all that is fetched and not used yet, and a row is always the one of the latest step.

**Checkpoints.** The file holds what training has come to; a checkpoint holds a number, its generation. Before a row is
written for the first time after a checkpoint, the row as it was goes to a journal of that generation. Going on from a
checkpoint puts back what its journal holds. So what a kill or a power cut interrupts is undone, whenever it comes:

    write rows      journal (old rows, made durable) -> rows
    checkpoint g    rows made durable -> checkpoint file with generation g -> an empty journal g, the one before removed
    resume from g   journal g, if there is one -> rows
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from diskgnn._native import read_file_rows, write_file_rows
from diskgnn.embeddings.embedding_journal import Ids, Rows, UndoJournal, writing_vectors
from diskgnn.errors import ReadError
from diskgnn.files import faults
from diskgnn.files.disk_space import require_free_bytes
from diskgnn.files.own_files import open_new_file

PARTS = 3  # of a row: the vector and two moments
_BETAS, _EPS = (0.9, 0.999), 1e-8  # torch.optim.SparseAdam's
_CHUNK_VALUES = 1 << 20  # of vectors that are made or copied at a time; a multiple of 16


class FetchedRows:
    """Holds the rows of one minibatch: read in the background, and kept up with the steps that write some of them
    meanwhile.

    Attributes:
        ids: [n] int64, ascending, each there once.
    """

    def __init__(self, ids: Ids, reading: Future[Rows]) -> None:
        self.ids, self._reading, self._written = ids, reading, list[tuple[Ids, Rows]]()

    def note(self, ids: Ids, rows: Rows) -> None:
        """Notes that a step has made these rows since these ones were asked for."""
        if len(ids):
            self._written.append((ids, rows))

    def rows(self) -> Rows:
        """Returns [n, PARTS, width] as the latest step left them; waits for the disk.

        Raises:
            ReadError: the disk failed.
        """
        rows = self._reading.result()
        for ids, newer in self._written:
            places = np.minimum(np.searchsorted(ids, self.ids), len(ids) - 1)
            common = ids[places] == self.ids
            rows[common] = newer[places[common]]
        self._written.clear()
        return rows


class EmbeddingTable:
    """Reads and writes the file of one table, and its journal. Used by one thread; it has another one for the file.

    Args:
        path: of the rows; journals and copies lie beside it.
        num_rows, width: vectors, and numbers in each.
        generation: of the checkpoint that the rows are of.
    """

    def __init__(self, path: Path, num_rows: int, width: int, generation: int) -> None:
        self.path, self.num_rows, self.width = path, num_rows, width
        self._row_bytes = PARTS * width * 4
        self._journal = UndoJournal(path, (PARTS, width), generation)
        self._touched = np.zeros(num_rows, np.bool_)  # since the checkpoint
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self._background = ThreadPoolExecutor(1, "embeddings")
        self._writing: Future[None] | None = None
        self._fetched: list[FetchedRows] = []  # and not used yet

    @property
    def generation(self) -> int:
        """Returns the number of the latest checkpoint."""
        return self._journal.generation

    @staticmethod
    def create(path: Path, num_rows: int, width: int, vectors: Callable[[int, int], Rows]) -> EmbeddingTable:
        """Makes a new table, of generation 0; `vectors(first, count)` gives those to start from.

        Raises:
            DiskFullError: there is no room for it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in (path, *path.parent.glob(f"{path.name}.*")):
            old.unlink(missing_ok=True)
        require_free_bytes(path.parent, num_rows * PARTS * width * 4, f"vectors of nodes {path}")
        with open_new_file(path) as file:
            for first, count in chunks(num_rows, width):
                rows = np.zeros((count, PARTS, width), np.float32)
                rows[:, 0] = vectors(first, count)
                file.write(rows.data)
        return EmbeddingTable(path, num_rows, width, 0)

    def fetch(self, ids: Ids) -> FetchedRows:
        """Start to read rows [n], ascending and each once. They are for `step` or `drop`."""
        fetched = FetchedRows(ids, self._background.submit(self._read, ids))
        self._fetched.append(fetched)
        return fetched

    def drop(self, fetched: FetchedRows) -> None:
        """Drops fetched rows that are not needed any more."""
        self._fetched = [each for each in self._fetched if each is not fetched]

    def read(self, ids: Ids) -> Rows:
        """Returns [n, width] vectors as the latest step left them; fastest for ids that ascend.

        Raises:
            ReadError: the disk failed.
        """
        return self._background.submit(self._read, ids).result()[:, 0]

    def step(self, fetched: FetchedRows, gradients: Rows, lr: float, number: int) -> None:
        """Takes `torch.optim.SparseAdam`'s step of this number, counted from 1. Written in the background.

        Args:
            fetched: the rows, which are dropped.
            gradients: [n, width] of their vectors.
            lr: Adam's.
            number: of the step.

        Raises:
            ReadError, DiskFullError, WriteError: the disk failed, perhaps in the write of an earlier step.
        """
        ids, rows = fetched.ids, fetched.rows()
        self.drop(fetched)
        new = ~self._touched[ids]
        before = rows[new]
        _adam(rows, gradients, lr, number)
        for other in self._fetched:
            other.note(ids, rows)
        self._touched[ids] = True
        self._wait()  # one step is behind at most
        self._writing = self._background.submit(self._write, ids, rows, ids[new], before)

    def make_durable(self) -> None:
        """Returns when everything that steps made is on the disk.

        Raises:
            DiskFullError, WriteError: the disk is full, or failed.
        """
        self._wait()
        with writing_vectors(self.path):
            os.fdatasync(self._descriptor)

    def begin(self, generation: int) -> None:
        """Begins this generation, whose checkpoint is durable: what is written from now on can be undone to there."""
        self._touched[:] = False
        self._journal.begin(generation)

    def undo(self, generation: int) -> None:
        """Make the rows those of the checkpoint of `generation`, the latest one.

        Raises:
            ArtifactError: the journal is damaged where it should not be.
        """
        self._journal.generation = generation
        self._journal.remove_others()
        for ids, rows in self._journal.records():
            with writing_vectors(self.path):
                write_file_rows(self._descriptor, self._row_bytes, ids, rows.reshape(-1).view(np.uint8))
        self.make_durable()
        self.begin(generation)

    def copy_vectors(self, path: Path) -> None:
        """Write the vectors alone to a file, made durable.

        Raises:
            DiskFullError, WriteError: the disk is full, or failed.
        """
        require_free_bytes(path.parent, self.num_rows * self.width * 4, f"the best vectors of nodes {path}")
        with writing_vectors(path), open_new_file(path) as file:
            for first, count in chunks(self.num_rows, self.width):
                file.write(np.ascontiguousarray(self.read(np.arange(first, first + count))).data)
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Finish what is being written, and close the file. Idempotent."""
        self._background.shutdown()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def _read(self, ids: Ids) -> Rows:
        rows = np.empty((len(ids), PARTS, self.width), np.float32)
        try:
            read_file_rows(self._descriptor, self._row_bytes, ids, rows.reshape(-1).view(np.uint8))
        except OSError as error:
            raise ReadError(error.errno, f"reading vectors of nodes in {self.path}: {error.strerror}") from error
        return rows

    def _write(self, ids: Ids, rows: Rows, new: Ids, before: Rows) -> None:
        self._journal.keep(new, before)
        faults.point("embeddings.write")
        with writing_vectors(self.path):
            write_file_rows(self._descriptor, self._row_bytes, ids, rows.reshape(-1).view(np.uint8))


def _adam(rows: Rows, gradients: Rows, lr: float, number: int) -> None:
    """Makes one step in place, in SparseAdam's order of operations, so that numbers are the same to the last bit."""
    vector, mean, square = (torch.from_numpy(rows[:, part]) for part in range(PARTS))
    gradient = torch.from_numpy(gradients)
    mean_change = gradient.sub(mean).mul_(1 - _BETAS[0])
    square_change = gradient.pow(2).sub_(square).mul_(1 - _BETAS[1])
    mean.add_(mean_change)
    square.add_(square_change)
    step_size = lr * math.sqrt(1 - _BETAS[1] ** number) / (1 - _BETAS[0] ** number)
    vector.add_(-step_size * mean.div(square.sqrt().add_(_EPS)))


def chunks(num_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """Yields (first, count) of rows."""
    step = max(1, _CHUNK_VALUES // width)
    for first in range(0, num_rows, step):
        yield first, min(step, num_rows - first)
