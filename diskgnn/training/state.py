"""The state of training: all that a checkpoint holds, and that a resumed run goes on from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.batches.batch_source import BatchSource
from diskgnn.embeddings.disk_embeddings import DiskEmbeddings
from diskgnn.errors import ConfigError, DivergedError
from diskgnn.paths import PathLike
from diskgnn.training.checkpoints import (
    changes_named,
    check_config,
    checkpoint_exists,
    load_checkpoint,
    save_checkpoint,
)
from diskgnn.training.criterion import Criterion
from diskgnn.training.finite import all_finite, feature_warning
from diskgnn.training.optimizers import Optimizer
from diskgnn.training.ranks import Ranks
from diskgnn.training.results import EpochResult, Spent, TrainResult


@dataclass
class _Best:
    """The epoch of the best validation score, and the weights that it ended with."""

    epoch: int
    weights: dict[str, Tensor]


class TrainingState:
    """Holds a run of training between two steps.

    Args:
        net: the model, on its device.
        optimizer: of its parameters.
        source: minibatches to train on.
        identity: what the run is of; a checkpoint of something else is refused.
        checkpoint: its folder, where vectors of nodes on disk lie, too.
        ranks: those that train together, this one among them.
        num_batches: steps in an epoch: as many minibatches as the source has, or another rank's, which has more.
        keep_going: losses that are not finite are counted, and left out of means.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        source: BatchSource,
        identity: Mapping[str, Any],
        checkpoint: PathLike | None = None,
        ranks: Ranks | None = None,
        num_batches: int | None = None,
        keep_going: bool = False,
    ) -> None:
        self.ranks, self._keep_going = ranks or Ranks(), keep_going
        self.optimizers_differ = False  # between ranks
        self.num_batches = source.num_batches if num_batches is None else num_batches
        self.net, self.optimizer, self.source, self.identity = net, optimizer, source, dict(identity)
        self._checkpoint = None if checkpoint is None else Path(checkpoint)
        self.epoch = 0
        self.batch = 0  # minibatches of this epoch trained on; of several ranks, steps
        self.history: list[EpochResult] = []
        self._device = next((parameter.device for parameter in net.parameters()), torch.device("cpu"))
        self._losses = torch.zeros(source.num_batches, device=self._device)  # of this epoch's minibatches, here
        self._source_state = source.state_dict()  # after the last minibatch trained on
        self._best: _Best | None = None  # None without validation
        self._tables = DiskEmbeddings(net)
        self._spent_before = Spent()  # on this epoch, by the runs that this one resumes
        self._began = Spent.until_now(source)  # this epoch, here

    @property
    def num_steps(self) -> int:
        """Returns the number of minibatches trained on since the beginning; of several ranks, steps."""
        return self.epoch * self.num_batches + self.batch

    @property
    def lags(self) -> bool:
        """Returns True if other ranks have a step of this epoch left where this one has no minibatch for it."""
        return self.ranks.world_size > 1 and self.batch < self.num_batches

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

    def trained_on(self, number: int, loss: Tensor | None) -> None:
        """Notes that step `number` of this epoch is done: on a minibatch that had this loss []; or on other ranks'
        alone.
        """
        if loss is not None:
            self._losses[number] = loss
        self.batch, self._source_state = number + 1, self.source.state_dict()

    def mean_loss(self, last: int) -> float:
        """Returns the mean over the minibatches of the `last` steps.

        Raises:
            DivergedError: a loss of this epoch is not finite.
        """
        self.raise_if_diverged()
        return self._mean_loss(self.batch - last)

    def _mean_loss(self, first: int) -> float:
        losses = self._losses[first : self.batch].double()
        finite = losses[losses.isfinite()]
        total, count = self.ranks.sums([finite.sum().item(), len(finite)])
        return total / count if count else math.nan

    def epoch_result(self) -> EpochResult:
        """Returns the result of the epoch that was just trained.

        Raises:
            DivergedError: a loss or a weight is not finite; with `keep_going`, all losses are not.
        """
        self.require_finite()  # waits for the device, so that the seconds are all there
        loss, losses = self._mean_loss(0), self._losses[: self.batch]
        skipped = int(self.ranks.sums([int((~losses.isfinite()).sum())])[0])
        if skipped and math.isnan(loss):
            raise DivergedError(f"no minibatch of epoch {self.epoch} has a finite loss; {self._remedy()}")
        spent = Spent.together(self.ranks.gathered(self._spent))
        return EpochResult(self.epoch, loss, spent.seconds, spent.load, skipped_batches=skipped)

    def end_epoch(self, result: EpochResult, criterion: Criterion) -> None:
        """Keep the result, and the weights if no earlier epoch was as good on the validation split."""
        score = result.score("valid", criterion.name)
        if score is None and criterion.is_required and "valid" in result.evaluations:
            found = ", ".join(result.evaluations["valid"].scores)
            raise ConfigError(
                f"best_by: expected {criterion.name} of the valid split, which has only {found}: its seeds are all of "
                f"one class, or their logits more than evaluation keeps. Choose another score, such as best_by='loss'"
            )
        if score is not None:
            best = None if self._best is None else self.history[self._best.epoch].score("valid", criterion.name)
            if criterion.is_better(score, best):
                self._best = _Best(self.epoch, _copied_weights(self.net))
                self._tables.keep_best(self.epoch)
        self.history.append(result)
        self.epoch, self.batch = self.epoch + 1, 0
        self._spent_before, self._began = Spent(), Spent.until_now(self.source)

    @property
    def evaluations_since_best(self) -> int:
        """Returns how many evaluations of the validation split came after the best one."""
        later = self.history if self._best is None else self.history[self._best.epoch + 1 :]
        return sum("valid" in result.evaluations for result in later)

    def finished(self, resumed_from: tuple[int, int] | None) -> TrainResult:
        """Returns the result of the whole run; the model gets the weights of the best epoch."""
        best_epoch = len(self.history) - 1
        if self._best is not None:
            best_epoch = self._best.epoch
            self.net.load_state_dict(self._best.weights)
        if self._tables:
            assert self._checkpoint is not None
            self._tables.read_best(self._checkpoint, None if self._best is None else best_epoch)
            self._tables.close()
        return TrainResult(tuple(self.history), best_epoch, self.net.eval(), resumed_from)

    def close(self) -> None:
        """Wait until what is being written is; nothing is, after `finished`. Idempotent."""
        self._tables.close()

    def raise_if_diverged(self) -> None:
        """Look at this epoch's losses, unless training keeps going; waits for the device.

        Raises:
            DivergedError: one is not finite.
        """
        if self._keep_going:
            return
        losses = self._losses[: self.batch]
        finite = torch.isfinite(losses).cpu()
        number = None if finite.all() else int(finite.int().argmin())
        found = self.ranks.gathered(None if number is None else (number, losses[number].item()))
        if bad := [(each[0], rank, each[1]) for rank, each in enumerate(found) if each is not None]:
            batch, rank, loss = min(bad, key=lambda each: each[:2])
            of_rank = f" of rank {rank}" * (self.ranks.world_size > 1)
            raise DivergedError(
                f"the loss of epoch {self.epoch}, minibatch {batch}{of_rank} is {loss}; {self._remedy()}; "
                f"keep_going=True leaves such minibatches out"
            )

    def _remedy(self) -> str:
        features = feature_warning(self.source) or (
            "use a lower learning rate, look for NaN and extreme features (`diskgnn inspect GRAPH`), or for damaged "
            "files (`diskgnn verify PACKED`)"
        )
        is_kept = self._checkpoint is not None and checkpoint_exists(self._checkpoint)
        return features + f". The checkpoint in {self._checkpoint} is from before that" * is_kept

    def require_finite(self) -> None:
        """Look at this epoch's losses, and at the weights, which the last step may have spoiled.

        Raises:
            DivergedError: one is not finite, in any rank.
        """
        self.raise_if_diverged()
        if not all(self.ranks.gathered(all_finite(self.net.state_dict().values()))):
            raise DivergedError(
                f"the weights are not finite after minibatch {self.batch - 1} of epoch {self.epoch}; {self._remedy()}"
            )

    def save(self, directory: PathLike | None) -> None:
        """Write the checkpoint in `directory`, if there is one to keep it in.

        Raises:
            DivergedError: a loss or a weight is not finite: the checkpoint before is worth more.
            ConfigError, DiskFullError: it cannot be written.
        """
        if directory is None:
            return
        self.require_finite()
        of_ranks = self.ranks.gathered(self._of_this_rank())
        content = {
            "config": self.identity,
            **of_ranks[0],
            "history": [asdict(result) for result in self.history],
            "model": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "best": None if self._best is None else {"epoch": self._best.epoch, "model": self._best.weights},
        }
        if self.ranks.world_size > 1:
            content["other_ranks"] = of_ranks[1:]
        if self._tables:
            content["embeddings"] = self._tables.saving()
        self.ranks.by_first(lambda: save_checkpoint(directory, content))
        if self._tables:
            self._tables.saved()
            self._tables.forget_worse(None if self._best is None else self._best.epoch)

    def _of_this_rank(self) -> dict[str, Any]:
        """Returns the part of a checkpoint that each rank has its own of."""
        device = self._device
        return {
            "position": {"epoch": self.epoch, "batch": self.batch, "source": self._source_state},
            "epoch_so_far": {"losses": self._losses[: self.batch].cpu(), "spent": asdict(self._spent)},
            "rng": {
                "cpu": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
            },
            **({"optimizer": self.optimizer.state_dict()} if self.optimizers_differ else {}),
        }

    def restore(self, directory: PathLike) -> None:
        """Put everything back as it was when the checkpoint in `directory` was written.

        Raises:
            ConfigError: it is of another run: another model, data set or hyperparameter.
            ArtifactError: it is damaged, or of other minibatches.
        """
        saved = self.ranks.by_first(lambda: load_checkpoint(directory))
        with changes_named(directory):
            check_config(directory, saved["config"], self.identity)
            self._restore(directory, saved)

    def _restore(self, directory: PathLike, saved: Mapping[str, Any]) -> None:
        of_this_rank = [saved, *saved.get("other_ranks", [])][self.ranks.shard.rank]
        try:
            self.net.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(of_this_rank.get("optimizer", saved["optimizer"]))
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"the checkpoint in {directory} is of another model: {error}") from error
        if self._tables:
            self._tables.restore(Path(directory), saved["embeddings"])
        position, so_far, rng = of_this_rank["position"], of_this_rank["epoch_so_far"], of_this_rank["rng"]
        best = saved["best"]
        self.source.load_state_dict(position["source"])
        self.epoch, self.batch, self._source_state = position["epoch"], position["batch"], position["source"]
        if {type(self.epoch), type(self.batch)} != {int} or self.epoch < 0 or not 0 <= self.batch <= self.num_batches:
            raise ValueError(f"it stands at epoch {self.epoch!r}, minibatch {self.batch!r}")
        self._losses[: self.batch] = so_far["losses"].to(self._device)
        self._spent_before, self._began = Spent.parse(so_far["spent"]), Spent.until_now(self.source)
        self.history = [EpochResult.parse(result) for result in saved["history"]]
        if best is not None and not (
            best["epoch"] in range(len(self.history)) and _are_weights(self.net, best["model"])
        ):
            raise ValueError("the best epoch is none of this run's")
        self._best = None if best is None else _Best(best["epoch"], best["model"])
        torch.set_rng_state(rng["cpu"])
        if self._device.type == "cuda" and rng["cuda"] is not None:
            torch.cuda.set_rng_state(rng["cuda"], self._device)


def _are_weights(net: nn.Module, saved: Mapping[str, Any]) -> bool:
    """Returns whether `saved` has what `net.state_dict()` has, in the same shapes."""
    own = net.state_dict()
    return own.keys() == saved.keys() and all(
        isinstance(saved[name], Tensor) and saved[name].shape == tensor.shape for name, tensor in own.items()
    )


def _copied_weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}
