"""Trained vectors of nodes that lie on disk: modules of a model, their place in its checkpoint, their read-ahead.

`embedding_table.py` has the file of one table, `embedding_journal.py` what undoes its writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from diskgnn.batches.batch_source import BatchSource, minibatches
from diskgnn.batches.minibatch import AnyBatch, TypedMiniBatch
from diskgnn.embeddings.embedding_journal import Ids, Rows
from diskgnn.embeddings.embedding_table import PARTS, EmbeddingTable, FetchedRows, chunks
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync

FOLDER = "embeddings"  # in the folder of the checkpoint
_MOST_AHEAD = 2  # minibatches whose rows are fetched and not asked for yet


class DiskEmbedding(nn.Module):
    """Holds a vector for each node of a type, in an `EmbeddingTable`: ids [U] to rows [U, width].

    Until it has a table, all are 0. It has no parameters: `DiskEmbeddings.step` trains it.
    """

    def __init__(self, name: str, num_rows: int, width: int) -> None:
        super().__init__()
        self.name, self.num_embeddings, self.embedding_dim = name, num_rows, width
        self.seed = int(torch.randint(1 << 62, ()))  # of the vectors to start from
        self.table: EmbeddingTable | None = None
        self.kept: npt.NDArray[np.float32] | None = None  # [num_embeddings, width] those of an epoch, to read alone
        self.steps = 0
        self._ahead: list[FetchedRows] = []  # of the next minibatches
        self._pending: list[tuple[FetchedRows, Tensor]] = []  # what was handed out to be trained

    def read_ahead(self, ids: Tensor) -> None:
        """Reads the rows of these ids ahead; they will be asked for, once each, in the order of these calls."""
        if self.table is None or self.kept is not None:
            return
        self._ahead.append(self.table.fetch(torch.unique(ids.cpu()).numpy()))
        self._forget(len(self._ahead) - _MOST_AHEAD)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of these ids; in training they may repeat."""
        wanted, places = torch.unique(ids.cpu(), return_inverse=True)
        if self.table is None or self.kept is not None:
            return self._read(wanted.numpy())[places].to(ids.device)
        fetched = self._fetched(wanted.numpy())
        found = torch.from_numpy(fetched.rows()[:, 0].copy())
        if self.training and torch.is_grad_enabled():
            found.requires_grad_()
            self._pending.append((fetched, found))
        else:
            self.table.drop(fetched)
        return found[places].to(ids.device)

    def _fetched(self, ids: Ids) -> FetchedRows:
        """Returns what was read ahead if it is these; what should have been asked for before them is dropped."""
        assert self.table is not None
        place = next((place for place, each in enumerate(self._ahead) if np.array_equal(each.ids, ids)), None)
        if place is None:
            return self.table.fetch(ids)
        self._forget(place)
        return self._ahead.pop(0)

    def _forget(self, count: int) -> None:
        for _ in range(count):
            assert self.table is not None
            self.table.drop(self._ahead.pop(0))

    def all_vectors(self) -> Iterator[Rows]:
        """Yields the vectors that are read now, some at a time in the order of their ids."""
        for first, count in chunks(self.num_embeddings, self.embedding_dim):
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
        for fetched, rows in pending:
            assert self.table is not None
            if rows.grad is None:
                self.table.drop(fetched)
                continue
            self.steps += 1
            self.table.step(fetched, rows.grad.numpy(), lr, self.steps)

    def gradients(self) -> list[Tensor]:
        """Returns the gradients of the rows that were handed out."""
        return [rows.grad for _, rows in self._pending if rows.grad is not None]

    def forget_gradients(self) -> None:
        """Forget what was handed out, and train nothing."""
        for fetched, _ in self._pending:
            assert self.table is not None
            self.table.drop(fetched)
        self._pending = []

    def first_vectors(self, first: int, count: int) -> Rows:
        """Returns [count, width] the vectors to start from, for chunks that are asked for in order."""
        if first == 0:
            self._generator = torch.Generator().manual_seed(self.seed)
        values = torch.empty(count, self.embedding_dim).normal_(std=self.embedding_dim**-0.5, generator=self._generator)
        found: Rows = values.numpy()
        return found


class DiskEmbeddings:
    """Holds all `DiskEmbedding`s of a model, in the folder of its checkpoint; nothing where there are none."""

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
            path = _checked(self._folder / name, module.num_embeddings * PARTS * module.embedding_dim * 4)
            module.table = EmbeddingTable(path, module.num_embeddings, module.embedding_dim, saved["generation"])
            module.table.undo(saved["generation"])
            module.steps = saved["steps"][name]

    def saving(self) -> dict[str, Any]:
        """Returns what the next checkpoint says; the rows are durable by then."""
        for module in self._modules.values():
            assert module.table is not None
            module.table.make_durable()
        steps = {name: module.steps for name, module in self._modules.items()}
        return {"generation": self._generation + 1, "steps": steps}

    def saved(self) -> None:
        """Notes that the checkpoint is durable."""
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
        """Reads the vectors of `epoch`, which was kept, from now on; None: those of the last checkpoint.

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
            _checked(path, module.num_embeddings * PARTS * width * 4)
            if any(file.stat().st_size for file in path.parent.glob(f"{name}.undo-*")):
                raise ConfigError(
                    f"checkpoint: the run in {checkpoint} was stopped after its last checkpoint; go on with it first "
                    "(resume=True), then its vectors are those of a checkpoint"
                )
            rows = np.memmap(path, np.float32, "r", shape=(module.num_embeddings, PARTS, width))
            module.kept = rows[:, 0]

    def read_ahead(self, batch: AnyBatch) -> None:
        """Reads the vectors of a minibatch ahead; the model will be called with it after those that this was told of
        before.
        """
        nodes = batch.input_nodes if isinstance(batch, TypedMiniBatch) else None
        for name, module in self._modules.items():
            if nodes is not None and name in nodes:
                module.read_ahead(nodes[name])

    def step(self, lr: float) -> None:
        """Train the rows that have gradients."""
        for module in self._modules.values():
            module.step(lr)

    def gradients(self) -> list[Tensor]:
        """Returns the gradients of all rows that were handed out."""
        return [gradient for module in self._modules.values() for gradient in module.gradients()]

    def forget_gradients(self) -> None:
        """Forget what was handed out, and train nothing."""
        for module in self._modules.values():
            module.forget_gradients()

    def close(self) -> None:
        """Close all files. Idempotent."""
        for module in self._modules.values():
            if module.table is not None:
                module.table.close()


class ReadingAhead:
    """Takes a source's next minibatch while one is computed, so that its nodes' vectors are read meanwhile.

    `state_dict` is that of what was received. Everything else is the source's.
    """

    def __init__(self, source: BatchSource, tables: DiskEmbeddings) -> None:
        self._source, self._tables, self._state = source, tables, source.state_dict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def state_dict(self) -> dict[str, Any]:
        """See `BatchSource.state_dict`."""
        return self._state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `BatchSource.load_state_dict`."""
        self._source.load_state_dict(state)
        self._state = self._source.state_dict()

    def epoch(self, epoch: int) -> Iterator[AnyBatch]:
        """See `BatchSource.epoch`."""
        with minibatches(self._source, epoch) as batches:
            coming, state = self._next(batches)
            while coming is not None:
                batch, self._state = coming, state
                coming, state = self._next(batches)
                yield batch

    def _next(self, batches: Iterator[AnyBatch]) -> tuple[AnyBatch | None, dict[str, Any]]:
        batch = next(batches, None)
        if batch is not None:
            self._tables.read_ahead(batch)
        return batch, self._source.state_dict()


def reading_ahead(source: BatchSource, net: nn.Module) -> BatchSource:
    """Returns the source, with its minibatches' vectors read ahead where the model has some on disk."""
    tables = DiskEmbeddings(net)
    ahead: Any = ReadingAhead(source, tables) if tables else source
    found: BatchSource = ahead
    return found


def _checked(path: Path, num_bytes: int) -> Path:
    if not path.is_file() or path.stat().st_size != num_bytes:
        found = path.stat().st_size if path.is_file() else "none"
        raise ArtifactError(f"{path}: expected a file of {num_bytes} bytes, found {found}; train again")
    return path
