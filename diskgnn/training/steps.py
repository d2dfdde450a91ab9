"""One step of training: of a process alone, or of several ranks together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diskgnn.errors import ConfigError
from diskgnn.minibatch import AnyMiniBatch
from diskgnn.storage import faults
from diskgnn.tracing import Stages
from diskgnn.training.disk_embeddings import DiskEmbeddings
from diskgnn.training.optimizers import Optimizer
from diskgnn.training.ranks import Ranks
from diskgnn.training.tasks import Task

# (a minibatch, or None where the others have one more; its number; whether this process is to stop): the loss [] of the
# minibatch without waiting for the device, and whether any process is to stop after this step.
Step = Callable[[AnyMiniBatch | None, int, bool], tuple[Tensor | None, bool]]


def make_step(
    net: nn.Module, optimizer: Optimizer, task: Task, ranks: Ranks, device: torch.device, *, amp: bool, timeline: Stages
) -> Step:
    """What trains `net` on one minibatch of each rank.

    Raises:
        ConfigError: the model has vectors that several ranks cannot train.
    """
    if ranks.world_size == 1:
        return _StepAlone(net, optimizer, task, amp, timeline)
    return _StepTogether(net, optimizer, task, ranks, device, amp, timeline)


class _StepAlone:
    def __init__(self, net: nn.Module, optimizer: Optimizer, task: Task, amp: bool, timeline: Stages) -> None:
        self._net, self._optimizer, self._task, self._amp, self._timeline = net, optimizer, task, amp, timeline

    def __call__(self, batch: AnyMiniBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        assert batch is not None
        faults.point("training.step")
        timeline, task = self._timeline, self._task
        with (
            timeline.stage("forward", number),
            torch.autocast(batch.seeds.device.type, torch.bfloat16, enabled=self._amp),
        ):
            loss = task.loss(task.outputs(self._net, batch), batch)
        self._optimizer.zero_grad(set_to_none=True)
        with timeline.stage("backward", number):
            loss.backward()  # type: ignore[no-untyped-call]
        with timeline.stage("step", number):
            self._optimizer.step()
        return loss.detach(), stopping


class _StepTogether:
    """The step that one process would take on the minibatches of all ranks as one: DDP averages gradients, each loss
    counts as much as its minibatch has seeds. A rank without a minibatch takes part, and counts nothing.

    Gradients that no rank has are averaged of nothing and left as they are (`find_unused_parameters`); then DDP does
    not rearrange its buckets after the first step either, so a run that goes on adds up in the order of one that was
    never stopped.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: Optimizer,
        task: Task,
        ranks: Ranks,
        device: torch.device,
        amp: bool,
        timeline: Stages,
    ) -> None:
        _refuse_vectors(net, device)
        self._optimizer, self._ranks, self._device, self._amp, self._timeline = optimizer, ranks, device, amp, timeline
        self._loss = DistributedDataParallel(_MinibatchLoss(net, task), find_unused_parameters=True)

    def __call__(self, batch: AnyMiniBatch | None, number: int, stopping: bool) -> tuple[Tensor | None, bool]:
        faults.point("training.step")
        weight = 0 if batch is None else _num_predictions(batch)
        agreed = self._ranks.summing([weight, stopping])  # while the model computes
        with (
            self._timeline.stage("forward", number),
            torch.autocast(self._device.type, torch.bfloat16, enabled=self._amp),
        ):
            loss = self._loss(batch)
        self._optimizer.zero_grad(set_to_none=True)
        with self._timeline.stage("backward", number):
            total, stops = agreed()
            (loss * (weight * self._ranks.world_size / total)).backward()
        with self._timeline.stage("step", number):
            self._optimizer.step()
        return None if batch is None else loss.detach(), stops > 0


class _MinibatchLoss(nn.Module):
    """What DDP wraps: all that gradients come from, a decoder that is no part of the model's forward included."""

    def __init__(self, net: nn.Module, task: Task) -> None:
        super().__init__()
        self.net, self._task = net, task
        self.unused = nn.Parameter(torch.empty(0))  # DDP warns where it looks for such parameters and finds none
        self._tables = [module for module in net.modules() if isinstance(module, nn.Embedding) and module.sparse]

    def forward(self, batch: AnyMiniBatch | None) -> Tensor:
        """[] the mean over the minibatch; 0 of none."""
        if batch is not None:
            return self._task.loss(self._task.outputs(self.net, batch), batch)
        # DDP waits for a gradient; of tables it takes none but sparse ones, from every rank.
        dense = next(p for p in self.net.parameters() if all(p is not table.weight for table in self._tables))
        nothing = dense.flatten()[:0].sum()
        ids = torch.empty(0, dtype=torch.int64, device=dense.device)
        return sum((table(ids).sum() for table in self._tables), nothing)


def _num_predictions(batch: AnyMiniBatch) -> int:
    """Seeds, or pairs of nodes: what the loss is a mean over."""
    return len(batch.seeds) if batch.pairs is None else len(batch.pairs.label)


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
