"""Trained vectors of nodes that lie on disk, with the state of their optimizer: for tables larger than memory.

A table is a file of rows: the vector of a node, and Adam's two moments of it, side by side, so that a minibatch reads
and writes each of its rows once. Reads and writes go through the page cache, which is memory that the kernel takes back
when others need it. All pages of a minibatch are asked for before the first is read, so the disk works on many at once.

**Checkpoints.** The file holds what training has come to; a checkpoint holds a number, its generation. Before a row is
written for the first time after a checkpoint, the row as it was goes to a journal of that generation. Going on from a
checkpoint puts back what its journal holds. So what a kill or a power cut interrupts is undone, whenever it comes:

    write rows      journal (old rows, made durable) -> rows
    checkpoint g    rows made durable -> checkpoint file with generation g -> an empty journal g, the one before removed
    resume from g   journal g, if there is one -> rows

A journal grows to what was touched since the last checkpoint, at most to the size of the table.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.storage import faults
from diskgnn.storage.checked_files import sync
from diskgnn.storage.disk_space import require_free_bytes

FOLDER = "embeddings"  # in the folder of the checkpoint
_PARTS = 3  # of a row: the vector and two moments
_BETAS, _EPS = (0.9, 0.999), 1e-8  # torch.optim.SparseAdam's
_CHUNK_VALUES = 1 << 20  # of vectors that are made or copied at a time; a multiple of 16
_HEADER = struct.Struct("<QI")  # of a record in a journal: how many rows, and the checksum of what follows
_PAGE_BYTES = 4096

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class EmbeddingTable:
    """The file of one table, and its journal.

    Args:
        path: of the rows; journals and copies lie beside it.
        num_rows, width: vectors, and numbers in each.
        generation: of the checkpoint that the rows are of.
    """

    def __init__(self, path: Path, num_rows: int, width: int, generation: int) -> None:
        self.path, self.generation = path, generation
        self._rows = np.memmap(path, np.float32, "r+", shape=(num_rows, _PARTS, width))
        self._touched = np.zeros(num_rows, np.bool_)  # since the checkpoint
        self._descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    @staticmethod
    def create(path: Path, num_rows: int, width: int, vectors: Callable[[int, int], Rows]) -> EmbeddingTable:
        """A new table, of generation 0; `vectors(first, count)` gives those to start from.

        Raises:
            DiskFullError: there is no room for it.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in path.parent.glob(f"{path.name}*"):
            old.unlink()
        require_free_bytes(path.parent, num_rows * _PARTS * width * 4, f"vectors of nodes {path}")
        with path.open("wb") as file:
            for first, count in _chunks(num_rows, width):
                rows = np.zeros((count, _PARTS, width), np.float32)
                rows[:, 0] = vectors(first, count)
                file.write(rows.data)
        return EmbeddingTable(path, num_rows, width, 0)

    def read(self, ids: Ids) -> Rows:
        """[n, width] vectors."""
        self._ask_for(ids)
        found: Rows = self._rows[ids, 0]
        return found

    def step(self, ids: Ids, gradients: Rows, lr: float, number: int) -> None:
        """`torch.optim.SparseAdam`'s step of this number, counted from 1, for rows that are each there once."""
        rows = self._rows[ids]
        self._journal(ids, rows)
        vector, mean, square = (torch.from_numpy(rows[:, part]) for part in range(_PARTS))
        # In SparseAdam's order of operations, so that numbers are the same to the last bit.
        gradient = torch.from_numpy(gradients)
        mean_change = gradient.sub(mean).mul_(1 - _BETAS[0])
        square_change = gradient.pow(2).sub_(square).mul_(1 - _BETAS[1])
        mean.add_(mean_change)
        square.add_(square_change)
        step_size = lr * math.sqrt(1 - _BETAS[1] ** number) / (1 - _BETAS[0] ** number)
        vector.add_(-step_size * mean.div(square.sqrt().add_(_EPS)))
        faults.point("embeddings.write")
        self._rows[ids] = rows

    def make_durable(self) -> None:
        """Everything written is on the disk when this returns."""
        self._rows.flush()

    def begin(self, generation: int) -> None:
        """The checkpoint of this generation is durable: what is written from now on can be undone to there."""
        before = self._journal_file
        self.generation = generation
        self._touched[:] = False
        before.unlink(missing_ok=True)

    def undo(self, generation: int) -> None:
        """Make the rows those of the checkpoint of `generation`, the latest one.

        Raises:
            ArtifactError: the journal is damaged where it should not be.
        """
        self.generation = generation
        for file in self.path.parent.glob(f"{self.path.name}.undo-*"):
            if file != self._journal_file:
                file.unlink()
        for ids, rows in self._journalled():
            self._rows[ids] = rows
        self.make_durable()
        self.begin(generation)

    def copy_vectors(self, path: Path) -> None:
        """Write the vectors alone to a file, made durable."""
        num_rows, _, width = self._rows.shape
        require_free_bytes(path.parent, num_rows * width * 4, f"the best vectors of nodes {path}")
        with path.open("wb") as file:
            for first, count in _chunks(num_rows, width):
                file.write(np.ascontiguousarray(self._rows[first : first + count, 0]).data)
            file.flush()
            os.fsync(file.fileno())

    @property
    def _journal_file(self) -> Path:
        return self.path.with_name(f"{self.path.name}.undo-{self.generation}")

    def _journal(self, ids: Ids, rows: Rows) -> None:
        """Keep rows as they are now, of those that were not touched since the checkpoint, if there is one."""
        if self.generation == 0:
            return
        new = ~self._touched[ids]
        if not new.any():
            return
        content = ids[new].tobytes() + rows[new].tobytes()
        with self._journal_file.open("ab") as file:
            file.write(_HEADER.pack(int(new.sum()), zlib.crc32(content)) + content)
            file.flush()
            os.fdatasync(file.fileno())
        self._touched[ids] = True

    def _journalled(self) -> Iterator[tuple[Ids, Rows]]:
        """The records of the journal. One that is cut short was being written: its rows are as they were."""
        if not self._journal_file.exists():
            return
        _, parts, width = self._rows.shape
        with self._journal_file.open("rb") as file:
            while len(header := file.read(_HEADER.size)) == _HEADER.size:
                count, checksum = _HEADER.unpack(header)
                content = file.read(min(count * (8 + parts * width * 4), os.fstat(file.fileno()).st_size))
                if zlib.crc32(content) != checksum:
                    if file.read(1):
                        raise ArtifactError(f"{self._journal_file} is damaged; train again")
                    return
                ids = np.frombuffer(content, np.int64, count)
                yield ids, np.frombuffer(content, np.float32, offset=8 * count).reshape(count, parts, width)

    def _ask_for(self, ids: Ids) -> None:
        """Have the kernel read the pages of these rows, all at once."""
        row_bytes = self._rows[0].nbytes
        starts = ids * row_bytes
        pages = np.unique(np.concatenate([starts // _PAGE_BYTES, (starts + row_bytes - 1) // _PAGE_BYTES]))
        breaks = np.flatnonzero(np.diff(pages) != 1)
        firsts, lasts = pages[np.concatenate([[0], breaks + 1])], pages[np.concatenate([breaks, [len(pages) - 1]])]
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            length = (last - first + 1) * _PAGE_BYTES
            os.posix_fadvise(self._descriptor, first * _PAGE_BYTES, length, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class DiskEmbedding(nn.Module):
    """A vector for each node of a type, in an `EmbeddingTable`: ids [U] to rows [U, width].

    Until it has a table, all are 0. It has no parameters: `DiskEmbeddings.step` trains it.
    """

    def __init__(self, name: str, num_rows: int, width: int) -> None:
        super().__init__()
        self.name, self.num_embeddings, self.embedding_dim = name, num_rows, width
        self.seed = int(torch.randint(1 << 62, ()))  # of the vectors to start from
        self.table: EmbeddingTable | None = None
        self.kept: npt.NDArray[np.float32] | None = None  # [num_embeddings, width] those of an epoch, to read alone
        self.steps = 0
        self._pending: list[tuple[Ids, Tensor]] = []  # what was handed out to be trained

    def forward(self, ids: Tensor) -> Tensor:
        """Rows of these ids; in training they may repeat."""
        wanted, places = torch.unique(ids.cpu(), return_inverse=True)
        found = self._read(wanted.numpy())
        if not (self.training and torch.is_grad_enabled()):
            return found[places].to(ids.device)
        found.requires_grad_()
        self._pending.append((wanted.numpy(), found))
        return found[places].to(ids.device)

    def all_vectors(self) -> Iterator[Rows]:
        """Those that are read now, some at a time in the order of their ids."""
        for first, count in _chunks(self.num_embeddings, self.embedding_dim):
            yield self._read(np.arange(first, first + count)).numpy()

    def _read(self, ids: Ids) -> Tensor:
        if self.kept is not None:
            return torch.from_numpy(np.array(self.kept[ids]))
        if self.table is None or not len(ids):
            return torch.zeros(len(ids), self.embedding_dim)
        return torch.from_numpy(self.table.read(ids))

    def step(self, lr: float) -> None:
        """Train the rows that have gradients; forget what was handed out."""
        pending, self._pending = self._pending, []
        for ids, rows in pending:
            if rows.grad is None:
                continue
            self.steps += 1
            if self.table is not None and len(ids):
                self.table.step(ids, rows.grad.numpy(), lr, self.steps)

    def first_vectors(self, first: int, count: int) -> Rows:
        """[count, width] those to start from, for chunks that are asked for in order."""
        if first == 0:
            self._generator = torch.Generator().manual_seed(self.seed)
        values = torch.empty(count, self.embedding_dim).normal_(std=self.embedding_dim**-0.5, generator=self._generator)
        found: Rows = values.numpy()
        return found


class DiskEmbeddings:
    """All `DiskEmbedding`s of a model, in the folder of its checkpoint; nothing where there are none."""

    def __init__(self, net: nn.Module) -> None:
        self._modules = {module.name: module for module in net.modules() if isinstance(module, DiskEmbedding)}
        self._folder: Path | None = None

    def __bool__(self) -> bool:
        return bool(self._modules)

    def create(self, checkpoint: Path | None) -> None:
        """Start from new vectors.

        Raises:
            ConfigError: there is no folder for them.
            DiskFullError: there is no room for them.
        """
        if not self._modules:
            return
        if checkpoint is None:
            raise ConfigError("checkpoint: vectors of nodes on disk lie in its folder, found none; give one")
        self._folder = checkpoint / FOLDER
        for name, module in self._modules.items():
            path = self._folder / name
            module.table = EmbeddingTable.create(
                path, module.num_embeddings, module.embedding_dim, module.first_vectors
            )

    def restore(self, checkpoint: Path, saved: Mapping[str, Any]) -> None:
        """Go on from a checkpoint that holds what `saving` gave.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        self._folder = checkpoint / FOLDER
        for name, module in self._modules.items():
            path = _checked(self._folder / name, module.num_embeddings * _PARTS * module.embedding_dim * 4)
            module.table = EmbeddingTable(path, module.num_embeddings, module.embedding_dim, saved["generation"])
            module.table.undo(saved["generation"])
            module.steps = saved["steps"][name]

    def saving(self) -> dict[str, Any]:
        """What the next checkpoint says; the rows are durable by then."""
        for module in self._modules.values():
            assert module.table is not None
            module.table.make_durable()
        steps = {name: module.steps for name, module in self._modules.items()}
        return {"generation": self._generation + 1, "steps": steps}

    def saved(self) -> None:
        """The checkpoint is durable."""
        generation = self._generation + 1
        faults.point("embeddings.saved")
        for module in self._modules.values():
            assert module.table is not None
            module.table.begin(generation)

    @property
    def _generation(self) -> int:
        return next((module.table.generation for module in self._modules.values() if module.table), 0)

    def keep_best(self, epoch: int) -> None:
        """Copy all vectors, as those of `epoch`."""
        for name, module in self._modules.items():
            assert module.table is not None
            assert self._folder is not None
            module.table.copy_vectors(self._folder / f"{name}.best-{epoch}")
        if self._folder is not None:
            sync(self._folder)

    def forget_worse(self, best_epoch: int | None) -> None:
        """Delete the copies of other epochs than the best one, once a checkpoint says which that is."""
        for name in self._modules:
            assert self._folder is not None
            for file in self._folder.glob(f"{name}.best-*"):
                if file.name != f"{name}.best-{best_epoch}":
                    file.unlink()

    def read_best(self, checkpoint: Path, epoch: int | None) -> None:
        """From now on, vectors are those of `epoch`, which was kept; None: those of the last checkpoint.

        Raises:
            ArtifactError: a file is missing or has another size.
            ConfigError: the run has gone on since that checkpoint, and was stopped.
        """
        for name, module in self._modules.items():
            path, width = checkpoint / FOLDER / name, module.embedding_dim
            if epoch is not None:
                best = _checked(path.with_name(f"{name}.best-{epoch}"), module.num_embeddings * width * 4)
                module.kept = np.memmap(best, np.float32, "r", shape=(module.num_embeddings, width))
                continue
            _checked(path, module.num_embeddings * _PARTS * width * 4)
            if any(file.stat().st_size for file in path.parent.glob(f"{name}.undo-*")):
                raise ConfigError(
                    f"checkpoint: the run in {checkpoint} was stopped after its last checkpoint; go on with it first "
                    "(resume=True), then its vectors are those of a checkpoint"
                )
            rows = np.memmap(path, np.float32, "r", shape=(module.num_embeddings, _PARTS, width))
            module.kept = rows[:, 0]

    def step(self, lr: float) -> None:
        """Train the rows that have gradients."""
        for module in self._modules.values():
            module.step(lr)

    def close(self) -> None:
        """Close all files. Idempotent."""
        for module in self._modules.values():
            if module.table is not None:
                module.table.close()


def _chunks(num_rows: int, width: int) -> Iterator[tuple[int, int]]:
    """(first, count) of rows."""
    step = max(1, _CHUNK_VALUES // width)
    for first in range(0, num_rows, step):
        yield first, min(step, num_rows - first)


def _checked(path: Path, num_bytes: int) -> Path:
    if not path.is_file() or path.stat().st_size != num_bytes:
        found = path.stat().st_size if path.is_file() else "none"
        raise ArtifactError(f"{path}: expected a file of {num_bytes} bytes, found {found}; train again")
    return path
