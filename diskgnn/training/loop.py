"""The loop: train an epoch, evaluate, save."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch

from diskgnn.batches.batch_source import BatchSource, minibatches, release_memory
from diskgnn.batches.minibatch import AnyBatch
from diskgnn.embeddings.disk_embeddings import reading_ahead
from diskgnn.errors import DataWarning, DivergedError, callers_level
from diskgnn.formats.rank_directories import local_ranks
from diskgnn.loading.tracing import Stages
from diskgnn.progress.reporter import Advance, Reporter
from diskgnn.system.memory import available_bytes, peak_resident_bytes, resident_bytes
from diskgnn.training.config import TrainingConfig
from diskgnn.training.criterion import Criterion
from diskgnn.training.evaluate import evaluation
from diskgnn.training.finite import loss_warning
from diskgnn.training.interrupts import Interrupts, interrupts_deferred
from diskgnn.training.metrics import MetricsWriter, epoch_record, step_record
from diskgnn.training.results import EvalResult, Spent
from diskgnn.training.source_opening import Evaluations
from diskgnn.training.state import TrainingState
from diskgnn.training.steps import Step
from diskgnn.training.task import Task

_ROOM = 1.25  # times what is needed: others take memory, too


@dataclass(frozen=True)
class Listeners:
    """Holds those who are told of what training does."""

    writer: MetricsWriter
    timeline: Stages
    reporter: Reporter


class _AllStop(KeyboardInterrupt):
    """A process was interrupted, and all ranks have agreed to stop after the same step."""


@dataclass
class TrainingLoop:
    """Trains from where `state` stands to the end, which may be before the last epoch if `config` has patience.

    A loop in a `with` block of its own function is not safe from Ctrl-C: from Python 3.12 on, what is raised where the
    loop goes back leaves the block without its `__exit__`. So these blocks call what loops.
    """

    state: TrainingState
    step: Step
    task: Task
    criterion: Criterion
    config: TrainingConfig
    evaluations: Evaluations
    device: torch.device
    listeners: Listeners
    interrupts: Interrupts
    has_warned_of_loss: bool = False
    earlier_peak_bytes: int = field(default_factory=peak_resident_bytes)  # of this process, before it trained

    def run(self) -> None:
        """Trains the epochs that are left.

        Raises:
            DivergedError: a loss is not finite, or a weight.
            KeyboardInterrupt: after the checkpoint was written.
        """
        # Of several ranks none stops by itself: the others would wait for it.
        held: AbstractContextManager[Interrupts] = (
            interrupts_deferred() if self.state.ranks.world_size > 1 else nullcontext(self.interrupts)
        )
        with _saved_when_interrupted(self.state, self.step, self.config), held as self.interrupts:
            self._train()

    def _train(self) -> None:
        for epoch in range(self.state.epoch, self.config.epochs):
            if not self.state.batch and self.config.stops_early(self.state.evaluations_since_best):
                break
            self._train_epoch(epoch)

    def _train_epoch(self, epoch: int) -> None:
        state, step, config = self.state, self.step, self.config
        state.begin_epoch()
        step.begin_epoch(epoch)
        began = Spent.until_now(state.source)
        with (
            minibatches(state.source, epoch) as batches,
            self.listeners.reporter.stage(f"epoch {epoch}", state.num_batches, "minibatches") as advance,
        ):
            self._train_minibatches(epoch, batches, began, advance)
        step.settle()
        result = state.epoch_result()
        if result.skipped_batches and state.ranks.is_first:
            _warn(
                f"the model was not trained on {result.skipped_batches} minibatches of epoch {epoch}, whose loss or "
                f"gradients are not finite"
            )
        if config.evaluates_after(epoch):
            evaluated = self._evaluate()
            _require_finite(evaluated, epoch, config)
            result = replace(result, evaluations=evaluated)
        with interrupts_deferred():
            state.end_epoch(result, self.criterion)
            self.listeners.writer.write(epoch_record(result), state.num_steps)
            state.save(config.checkpoint)
        self._stop_if_interrupted()

    def _train_minibatches(self, epoch: int, batches: Iterator[AnyBatch], recorded: Spent, advance: Advance) -> None:
        state, step, config, ranks = self.state, self.step, self.config, self.state.ranks
        advance(state.batch)
        while (batch := _next(batches, self.listeners.timeline, state.batch)) is not None or state.lags:
            with interrupts_deferred():
                if batch is not None:
                    batch = batch.to(self.device, non_blocking=True)
                loss, stops = step(batch, state.batch, bool(self.interrupts))
                state.trained_on(state.batch if batch is None else batch.batch_index, loss)
                if unrecorded := config.records_after(state.batch, state.num_batches):
                    mean_loss = state.mean_loss(unrecorded)
                    self._warn_of_loss(mean_loss)
                    now = Spent.until_now(state.source)
                    spent = Spent.together(ranks.gathered(now - recorded))
                    self.listeners.writer.write(step_record(epoch, state.batch, mean_loss, spent), state.num_steps)
                    recorded = now
                if config.saves_after(state.batch):
                    step.settle()
                    state.save(config.checkpoint)
                if stops and ranks.world_size > 1:
                    raise _AllStop
            advance(1)
            self._stop_if_interrupted()

    def _stop_if_interrupted(self) -> None:
        if self.state.ranks.world_size == 1:
            self.interrupts.check()

    def _evaluate(self) -> dict[str, EvalResult]:
        state, listeners, found = self.state, self.listeners, dict[str, EvalResult]()
        if not self.evaluations:
            return found
        freed_bytes = self._free_memory()
        for split, opened in self.evaluations.items():
            with opened() as source, listeners.timeline.stage(f"evaluate {split}"):
                _make_room(state.source, source, freed_bytes)
                found[split] = evaluation(
                    state.net, self.task, reading_ahead(source, state.net), self.device, amp=self.config.amp,
                    reporter=listeners.reporter, ranks=state.ranks, between=self._stop_if_interrupted,
                )  # fmt: skip
                release_memory(source)  # of one that stays open
        return found

    def _free_memory(self) -> int:
        """Has the source that was trained on free memory; returns what training took beside the tiers."""
        peak, before = peak_resident_bytes(), resident_bytes()
        release_memory(self.state.source)
        # Where something else took more, such as `prepare` in this process, the peak says nothing of training.
        most = peak if peak > self.earlier_peak_bytes else before
        return max(0, most - resident_bytes())

    def _warn_of_loss(self, mean_loss: float) -> None:
        if self.state.ranks.is_first and not self.has_warned_of_loss:
            if warning := loss_warning(mean_loss, self.state.source):
                _warn(warning)
            self.has_warned_of_loss = bool(warning)


def _make_room(trained: BatchSource, evaluated: BatchSource, freed_bytes: int) -> None:
    """Has the source that was trained on lend of its tier to the one that is evaluated on, where memory is short.

    Evaluation takes the bytes that were freed, at most, and a tier of its own; so does each rank of this machine.
    """
    tier_bytes = getattr(evaluated, "tier_bytes", 0)
    if available_bytes() < _ROOM * local_ranks() * (freed_bytes + tier_bytes):
        release_memory(trained, tier_bytes)


@contextmanager
def _saved_when_interrupted(state: TrainingState, step: Step, config: TrainingConfig) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if state.ranks.world_size == 1 or isinstance(interrupt, _AllStop):
            with interrupts_deferred():  # of an impatient second one
                step.settle()
                state.save(config.checkpoint)
        raise


def _next(batches: Iterator[AnyBatch], timeline: Stages, number: int) -> AnyBatch | None:
    with timeline.stage("wait", number):
        return next(batches, None)


def _require_finite(evaluated: dict[str, EvalResult], epoch: int, config: TrainingConfig) -> None:
    """Raises DivergedError if what was evaluated means nothing, unless training keeps going."""
    for split, result in evaluated.items():
        if result.num_seeds and not math.isfinite(result.loss):
            found = (
                f"the loss of the {split} split after epoch {epoch} is {result.loss}, so its scores mean nothing; look "
                f"for NaN and extreme features (`diskgnn inspect GRAPH`)"
            )
            if not config.keep_going:
                raise DivergedError(f"{found}; keep_going=True trains on nevertheless")
            _warn(found)


def _warn(what: str) -> None:
    warnings.warn(what, DataWarning, stacklevel=callers_level())
