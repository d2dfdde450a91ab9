"""Where training stands: all that a checkpoint holds, and that a resumed run goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.batch_source import BatchSource
from diskgnn.errors import ConfigError, DivergedError
from diskgnn.specs import PathLike
from diskgnn.training.checkpoints import check_config, load_checkpoint, save_checkpoint
from diskgnn.training.disk_embeddings import DiskEmbeddings
from diskgnn.training.optimizers import Optimizer
from diskgnn.training.results import EpochResult, Spent, TrainResult
from diskgnn.training.tasks import Task


@dataclass
class _Best:
    """The epoch of the best validation score, and the weights that it ended with."""

    epoch: int
    weights: dict[str, Tensor]


class TrainingState:
    """A run of training between two steps.

    Args:
        net: the model, on its device.
        optimizer: of its parameters.
        source: minibatches to train on.
        identity: what the run is of; a checkpoint of something else is refused.
        checkpoint: its folder, where vectors of nodes on disk lie, too.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        source: BatchSource,
        identity: Mapping[str, Any],
        checkpoint: PathLike | None = None,
    ) -> None:
        self.net, self.optimizer, self.source, self.identity = net, optimizer, source, dict(identity)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self.epoch = 0
        self.batch = 0  # minibatches of this epoch trained on
        self.history: list[EpochResult] = []
        self._device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
        self._losses = torch.zeros(source.num_batches, device=self._device)  # of this epoch's minibatches
        self._source_state = source.state_dict()  # after the last minibatch trained on
        self._best: _Best | None = None  # None without validation
        self._tables = DiskEmbeddings(net)
        self._spent_before = Spent()  # on this epoch, by the runs that this one resumes
        self._began = Spent.until_now(source)  # this epoch, here

    @property
    def num_steps(self) -> int:
        """Minibatches trained on since the beginning."""
        return self.epoch * self.source.num_batches + self.batch

    @property
    def _spent(self) -> Spent:
        return self._spent_before + (Spent.until_now(self.source) - self._began)

    def start(self) -> None:
        """Make what a new run needs on disk.

        Raises:
            ConfigError, DiskFullError: see `DiskEmbeddings.create`.
        """
        self._tables.create(self._checkpoint)

    def begin_epoch(self) -> None:
        """Start the clock, and put the model into training mode."""
        self.net.train()
        self._began = Spent.until_now(self.source)

    def trained_on(self, number: int, loss: Tensor) -> None:
        """A step is done: on minibatch `number` of this epoch, which had this loss []."""
        self._losses[number] = loss
        self.batch, self._source_state = number + 1, self.source.state_dict()

    def mean_loss(self, last: int) -> float:
        """Mean over the `last` minibatches trained on.

        Raises:
            DivergedError: a loss of this epoch is not finite.
        """
        self.raise_if_diverged()
        return self._losses[self.batch - last : self.batch].double().mean().item()

    def epoch_result(self) -> EpochResult:
        """Of the epoch that was just trained."""
        loss = self._losses.double().mean().item()  # waits for the device, so that the seconds are all there
        spent = self._spent
        return EpochResult(self.epoch, loss, spent.seconds, spent.load)

    def end_epoch(self, result: EpochResult, task: Task) -> None:
        """Keep the result, and the weights if no earlier epoch was as good on the validation split."""
        score = result.score("valid", task.metric)
        if score is not None:
            best = None if self._best is None else self.history[self._best.epoch].score("valid", task.metric)
            if best is None or (score > best if task.higher_is_better else score < best):
                self._best = _Best(self.epoch, _copied_weights(self.net))
                self._tables.keep_best(self.epoch)
        self.history.append(result)
        self.epoch, self.batch = self.epoch + 1, 0
        self._spent_before, self._began = Spent(), Spent.until_now(self.source)

    def finished(self, resumed_from: tuple[int, int] | None) -> TrainResult:
        """The whole run; the model gets the weights of the best epoch."""
        best_epoch = len(self.history) - 1
        if self._best is not None:
            best_epoch = self._best.epoch
            self.net.load_state_dict(self._best.weights)
        if self._tables:
            assert self._checkpoint is not None
            self._tables.read_best(self._checkpoint, None if self._best is None else best_epoch)
            self._tables.close()
        return TrainResult(tuple(self.history), best_epoch, self.net.eval(), resumed_from)

    def raise_if_diverged(self) -> None:
        """Look at this epoch's losses; waits for the device.

        Raises:
            DivergedError: one is not finite.
        """
        finite = torch.isfinite(self._losses[: self.batch]).cpu()
        if not finite.all():
            batch = int(finite.int().argmin())
            raise DivergedError(
                f"the loss of epoch {self.epoch}, minibatch {batch} is {self._losses[batch].item()}; use a "
                f"lower learning rate, look for NaN features (`diskgnn inspect GRAPH`), or for damaged files "
                f"(`diskgnn verify PACKED`)"
            )

    def save(self, directory: PathLike | None) -> None:
        """Write the checkpoint in `directory`, if there is one to keep it in.

        Raises:
            DivergedError: a loss is not finite: the checkpoint before is worth more.
            ConfigError, DiskFullError: it cannot be written.
        """
        if directory is None:
            return
        self.raise_if_diverged()
        device = self._device
        content = {
            "config": self.identity,
            "position": {"epoch": self.epoch, "batch": self.batch, "source": self._source_state},
            "epoch_so_far": {"losses": self._losses[: self.batch].cpu(), "spent": asdict(self._spent)},
            "history": [asdict(result) for result in self.history],
            "model": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            },
            "best": None if self._best is None else {"epoch": self._best.epoch, "model": self._best.weights},
        }
        if self._tables:
            content["embeddings"] = self._tables.saving()
        save_checkpoint(directory, content)
        if self._tables:
            self._tables.saved()
            self._tables.forget_worse(None if self._best is None else self._best.epoch)

    def restore(self, directory: PathLike) -> None:
        """Put everything back as it was when the checkpoint in `directory` was written.

        Raises:
            ConfigError: it is of another run: another model, data set or hyperparameter.
            ArtifactError: it is damaged, or of other minibatches.
        """
        saved = load_checkpoint(directory)
        check_config(directory, saved["config"], self.identity)
        try:
            self.net.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"the checkpoint in {directory} is of another model: {error}") from error
        if self._tables:
            self._tables.restore(Path(directory), saved["embeddings"])
        position, so_far, best, rng = saved["position"], saved["epoch_so_far"], saved["best"], saved["rng"]
        self.source.load_state_dict(position["source"])
        self.epoch, self.batch, self._source_state = position["epoch"], position["batch"], position["source"]
        self._losses[: self.batch] = so_far["losses"].to(self._device)
        self._spent_before, self._began = Spent.parse(so_far["spent"]), Spent.until_now(self.source)
        self.history = [EpochResult.parse(result) for result in saved["history"]]
        self._best = None if best is None else _Best(best["epoch"], best["model"])
        torch.set_rng_state(rng["cpu"])
        if self._device.type == "cuda" and rng["cuda"] is not None:
            torch.cuda.set_rng_state(rng["cuda"], self._device)


def _copied_weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
