"""One step of training: of a process alone, or of several ranks together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from diskgnn.batches.hop_batch import HopBatch
from diskgnn.batches.minibatch import AnyBatch
from diskgnn.embeddings.disk_embeddings import DiskEmbeddings
from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.loading.tracing import Stages
from diskgnn.training.averaging import OverlappedAverager
from diskgnn.training.config import TrainingConfig
from diskgnn.training.optimizers import Optimizer, step_if_finite
from diskgnn.training.ranks import Ranks
from diskgnn.training.task import Task


class Step(Protocol):
    """Trains a model on one minibatch of each rank."""

    def begin_epoch(self, epoch: int) -> None:
        """Notes that the next steps are of this epoch."""
        ...

    def __call__(self, batch: AnyBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        """Makes one step.

        Args:
            batch: of this rank; None where others have one more.
            number: of the step in its epoch.
            stopping: whether this process is to stop.

        Returns:
            The loss [] of the minibatch, without waiting for the device; whether all ranks are to stop after this step.
        """
        ...

    def settle(self) -> None:
        """Have all ranks come to one model, to be saved or evaluated."""
        ...

    def close(self) -> None:
        """Lets go of the connection between ranks, before they leave it. No step follows."""
        ...


def make_step(
    net: nn.Module,
    optimizer: Optimizer,
    task: Task,
    ranks: Ranks,
    device: torch.device,
    config: TrainingConfig,
    timeline: Stages,
) -> Step:
    """Makes what trains `net`.

    Raises:
        ConfigError: the model has vectors that several ranks cannot train, or there is nothing to average.
    """
    compute = _Computing(net, optimizer, device, config.amp, timeline, config.keep_going)
    loss, averaging_period = _MinibatchLoss(net, task), config.averaging_period
    if ranks.world_size == 1:
        if averaging_period is not None:
            raise ConfigError("averaging_period: expected several ranks, found one process; start them with torchrun")
        return _StepAlone(loss, compute)
    _refuse_vectors(net, device)
    together = _StepTogether(loss, compute, ranks)
    if averaging_period is None:
        return together
    if loss.has_tables:
        raise ConfigError("averaging_period: vectors of nodes are too many to average; leave it out")
    return _StepApart(loss, compute, together, OverlappedAverager(list(net.parameters()), averaging_period))


@dataclass
class _Computing:
    """Computes the part of a process in a step, whatever others do."""

    net: nn.Module
    optimizer: Optimizer
    device: torch.device
    amp: bool
    timeline: Stages
    keep_going: bool  # steps whose gradients are not finite are left out
    _buffers: list[Tensor] = field(default_factory=list)  # before the forward: running means take in NaN, too

    def forward(self, loss: nn.Module, batch: AnyBatch | None, number: int) -> Tensor:
        """Returns [] the loss of a minibatch."""
        faults.point("training.step")
        if self.keep_going:
            self._buffers = [buffer.clone() for buffer in self.net.buffers()]
        with (
            self.timeline.stage("forward", number),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp),
        ):
            found: Tensor = loss(batch)
        return found

    def backward(self, loss: Tensor, number: int) -> bool:
        """Change the parameters by the gradients of `loss`; False if that step was left out."""
        self.optimizer.zero_grad(set_to_none=True)
        with self.timeline.stage("backward", number):
            loss.backward()  # type: ignore[no-untyped-call]
        with self.timeline.stage("step", number):
            if not self.keep_going:
                self.optimizer.step()
            elif not step_if_finite(self.net, self.optimizer):
                with torch.no_grad():
                    for buffer, before in zip(self.net.buffers(), self._buffers, strict=True):
                        buffer.copy_(before)
                return False
        return True


def _loss_to_record(loss: Tensor, *, trained: bool) -> Tensor:
    """Returns [] what is recorded of a minibatch: NaN where its step was left out."""
    return loss.detach() if trained else torch.full_like(loss.detach(), math.nan)


class _StepAlone:
    def __init__(self, loss: _MinibatchLoss, compute: _Computing) -> None:
        self._loss, self._compute = loss, compute

    def __call__(self, batch: AnyBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        loss = self._compute.forward(self._loss, batch, number)
        return _loss_to_record(loss, trained=self._compute.backward(loss, number)), stopping

    def begin_epoch(self, epoch: int) -> None:
        """Nothing depends on it."""

    def settle(self) -> None:
        """There is one model."""

    def close(self) -> None:
        """There is no connection."""


class _StepTogether:
    """The step that one process would take on the minibatches of all ranks as one: DDP averages gradients, each loss
    counts as much as its minibatch has predictions. A rank without a minibatch takes part, and counts nothing.

    Gradients that no rank has are averaged of nothing and left as they are (`find_unused_parameters`); then DDP does
    not rearrange its buckets after the first step either, so a run that goes on adds up in the order of one that was
    never stopped.
    """

    def __init__(self, loss: _MinibatchLoss, compute: _Computing, ranks: Ranks) -> None:
        self._loss, self._compute, self._ranks = loss, compute, ranks
        self._shared_loss: nn.Module | None = DistributedDataParallel(loss, find_unused_parameters=True)

    def begin_epoch(self, epoch: int) -> None:
        """Nothing depends on it."""

    def settle(self) -> None:
        """Give all ranks the buffers of the model in rank 0, such as running means: DDP does before each step."""
        for buffer in self._loss.net.buffers():
            distributed.broadcast(buffer, 0)

    def close(self) -> None:
        """Ends DDP. Were it the last to know of the process group, it would wait for the group's threads with the GIL
        held, which these need to let go of their tensors.
        """
        self._shared_loss = None

    def __call__(self, batch: AnyBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        weight = 0 if batch is None else _num_predictions(batch)
        agreed = self._ranks.summing([weight, stopping])  # while the model computes
        assert self._shared_loss is not None, "closed"
        loss = self._compute.forward(self._shared_loss, batch, number)
        total, stops = agreed()
        share = weight * self._ranks.world_size / max(total, 1)
        trained = self._compute.backward(loss * share, number)
        return None if batch is None else _loss_to_record(loss, trained=trained), stops > 0


class _StepApart:
    """Local SGD: after an epoch of steps together, each rank takes steps of its own, and parameters are averaged every
    few of them (post-local SGD: Lin et al., Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020).
    """

    def __init__(
        self, loss: _MinibatchLoss, compute: _Computing, together: _StepTogether, averager: OverlappedAverager
    ) -> None:
        self._loss, self._compute, self._together, self._averager = loss, compute, together, averager
        self._epoch = 0

    def begin_epoch(self, epoch: int) -> None:
        """The first one is of steps together."""
        self._epoch = epoch

    def __call__(self, batch: AnyBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        if self._epoch == 0:
            return self._together(batch, number, stopping)
        loss = None
        if batch is not None:
            loss = self._compute.forward(self._loss, batch, number)
            loss = _loss_to_record(loss, trained=self._compute.backward(loss, number))
        stops = self._averager.after_step(stopping) if (number + 1) % self._averager.period == 0 else False
        return loss, stops

    def settle(self) -> None:
        """Average now, in all ranks."""
        self._together.settle()
        if self._epoch:
            self._averager.settle()

    def close(self) -> None:
        """See `_StepTogether`."""
        self._together.close()


class _MinibatchLoss(nn.Module):
    """All that gradients come from, a decoder that is no part of the model's forward included: what DDP wraps."""

    def __init__(self, net: nn.Module, task: Task) -> None:
        super().__init__()
        self.net, self._task = net, task
        device = next((each.device for each in net.parameters()), None)  # DDP takes parameters of one kind of device
        self.unused = nn.Parameter(torch.empty(0, device=device))  # it warns where it looks for such and finds none
        self._tables = [module for module in net.modules() if isinstance(module, nn.Embedding) and module.sparse]

    @property
    def has_tables(self) -> bool:
        """Returns True if some parameters have sparse gradients."""
        return bool(self._tables)

    def forward(self, batch: AnyBatch | None) -> Tensor:
        """Returns [] the mean over the minibatch; 0 of none."""
        if batch is not None:
            return self._task.loss(self._task.outputs(self.net, batch), batch)
        # DDP waits for a gradient; of tables it takes none but sparse ones, from every rank.
        dense = next(p for p in self.net.parameters() if all(p is not table.weight for table in self._tables))
        nothing = dense.flatten()[:0].sum()
        ids = torch.empty(0, dtype=torch.int64, device=dense.device)
        return sum((table(ids).sum() for table in self._tables), nothing)


def _num_predictions(batch: AnyBatch) -> int:
    """Returns how many seeds, known numbers of seeds, or pairs of nodes the loss is a mean over."""
    if batch.y is None or not batch.y.is_floating_point():
        pairs = None if isinstance(batch, HopBatch) else batch.pairs
        return len(batch.seeds) if pairs is None else len(pairs.label)
    return int((~batch.y.isnan()).sum())


def _refuse_vectors(net: nn.Module, device: torch.device) -> None:
    if DiskEmbeddings(net):
        raise ConfigError(
            "embeddings: vectors on disk are trained by one process, and each rank would have its own; train alone, or "
            "keep them in memory with embeddings='memory'"
        )
    if device.type == "cuda" and any(isinstance(module, nn.Embedding) and module.sparse for module in net.modules()):
        raise ConfigError(
            "embeddings: NCCL averages no sparse gradients, which vectors of nodes have; train on the cpu, on one GPU, "
            "or give these nodes features"
        )
