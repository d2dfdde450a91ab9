"""The loop: train an epoch, evaluate, save."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import torch

from diskgnn.batches.batch_source import minibatches
from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.embeddings.disk_embeddings import reading_ahead
from diskgnn.errors import DataWarning, DivergedError, callers_level
from diskgnn.loading.tracing import Stages
from diskgnn.progress.reporter import Reporter
from diskgnn.training.config import TrainingConfig
from diskgnn.training.criterion import Criterion
from diskgnn.training.evaluate import evaluation
from diskgnn.training.finite import loss_warning
from diskgnn.training.interrupts import interrupts_deferred
from diskgnn.training.metrics import MetricsWriter, epoch_record, step_record
from diskgnn.training.results import EvalResult, Spent
from diskgnn.training.source_opening import Evaluations
from diskgnn.training.state import TrainingState
from diskgnn.training.steps import Step
from diskgnn.training.task import Task


@dataclass(frozen=True)
class Listeners:
    """Holds those who are told of what training does."""

    writer: MetricsWriter
    timeline: Stages
    reporter: Reporter


class _AllStop(KeyboardInterrupt):
    """A process was interrupted, and all ranks have agreed to stop after the same step."""


def train_epochs(
    state: TrainingState,
    step: Step,
    task: Task,
    criterion: Criterion,
    config: TrainingConfig,
    evaluations: Evaluations,
    device: torch.device,
    listeners: Listeners,
) -> None:
    """Train from where `state` stands to the end, which may be before the last epoch if `config` has patience.

    Raises:
        DivergedError: a loss is not finite, or a weight.
        KeyboardInterrupt: after the checkpoint was written.
    """
    source, writer, timeline, ranks = state.source, listeners.writer, listeners.timeline, state.ranks
    told: str | None = None  # of a loss that is too large
    # Of several ranks none stops by itself: the others would wait for it.
    noted: AbstractContextManager[Sequence[int]] = interrupts_deferred() if ranks.world_size > 1 else nullcontext(())
    with _saved_when_interrupted(state, step, config), noted as interrupts:
        for epoch in range(state.epoch, config.epochs):
            if not state.batch and config.stops_early(state.evaluations_since_best):
                break
            state.begin_epoch()
            step.begin_epoch(epoch)
            recorded = Spent.until_now(source)
            with (
                minibatches(source, epoch) as batches,
                listeners.reporter.stage(f"epoch {epoch}", state.num_batches, "minibatches") as advance,
            ):
                advance(state.batch)
                while (batch := _next(batches, timeline, state.batch)) is not None or state.lags:
                    with interrupts_deferred():
                        if batch is not None:
                            batch = batch.to(device, non_blocking=True)
                        loss, stops = step(batch, state.batch, bool(interrupts))
                        state.trained_on(state.batch if batch is None else batch.batch_index, loss)
                        if unrecorded := config.records_after(state.batch, state.num_batches):
                            mean_loss = state.mean_loss(unrecorded)
                            if ranks.is_first and not told and (told := loss_warning(mean_loss, source)):
                                _warn(told)
                            now = Spent.until_now(source)
                            spent = Spent.together(ranks.gathered(now - recorded))
                            writer.write(step_record(epoch, state.batch, mean_loss, spent), state.num_steps)
                            recorded = now
                        if config.saves_after(state.batch):
                            step.settle()
                            state.save(config.checkpoint)
                        if stops:
                            raise _AllStop
                    advance(1)
            step.settle()
            result = state.epoch_result()
            if result.skipped_batches and ranks.is_first:
                _warn(
                    f"the model was not trained on {result.skipped_batches} minibatches of epoch {epoch}, whose loss "
                    f"or gradients are not finite"
                )
            if config.evaluates_after(epoch):
                evaluated = _evaluate(state, task, evaluations, device, config, listeners)
                _require_finite(evaluated, epoch, config)
                result = replace(result, evaluations=evaluated)
            with interrupts_deferred():
                state.end_epoch(result, criterion)
                writer.write(epoch_record(result), state.num_steps)
                state.save(config.checkpoint)


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


def _next(batches: Iterator[AnyMiniBatch], timeline: Stages, number: int) -> AnyMiniBatch | None:
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


def _evaluate(
    state: TrainingState,
    task: Task,
    evaluations: Evaluations,
    device: torch.device,
    config: TrainingConfig,
    listeners: Listeners,
) -> dict[str, EvalResult]:
    found = {}
    for split, opened in evaluations.items():
        with opened() as source, listeners.timeline.stage(f"evaluate {split}"):
            found[split] = evaluation(
                state.net, task, reading_ahead(source, state.net), device, amp=config.amp,
                reporter=listeners.reporter, ranks=state.ranks,
            )  # fmt: skip
    return found
