"""Training: one visible loop over any `BatchSource`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diskgnn.batch_source import BatchSource, schema_of
from diskgnn.draws import batch_key
from diskgnn.errors import OutputExistsError
from diskgnn.loading.options import LoaderOptions
from diskgnn.minibatch import AnyMiniBatch
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike
from diskgnn.system.device import checked_device
from diskgnn.tracing import UNTRACED, Stages
from diskgnn.training.checkpoints import checkpoint_exists, training_alone
from diskgnn.training.config import TrainingConfig
from diskgnn.training.device_memory import size_device_tier
from diskgnn.training.disk_embeddings import reading_ahead
from diskgnn.training.evaluate import evaluation
from diskgnn.training.interrupts import interrupts_deferred
from diskgnn.training.metrics import MetricsWriter, Record, end_record, epoch_record, start_record, step_record
from diskgnn.training.model_check import check_model
from diskgnn.training.model_spec import ModelSpec
from diskgnn.training.named_models import model_for
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.outputs import check_writable, traced
from diskgnn.training.ranks import Ranks, check_alike, device_of_rank, joined_ranks
from diskgnn.training.results import EvalResult, Spent, TrainResult
from diskgnn.training.sources import Evaluations, minibatches, open_sources
from diskgnn.training.state import TrainingState
from diskgnn.training.steps import Step, make_step
from diskgnn.training.tasks import Task, task_of


def train(
    train_source: BatchSource | PathLike,
    *,
    valid_source: BatchSource | None = None,
    test_source: BatchSource | None = None,
    task: str | Task | None = None,
    loss: str | None = None,
    model: str | nn.Module | None = None,
    hidden: int = 256,
    num_layers: int | None = None,
    heads: int = 4,
    dropout: float = 0.5,
    num_bases: int | None = None,
    decoder: str = "dot",
    embedding_memory: int | str = "2GiB",
    embeddings: str = "memory",
    lr: float = 0.003,
    weight_decay: float = 0.0,
    epochs: int = 10,
    device: str | torch.device = "cpu",
    seed: int = 0,
    checkpoint: PathLike | None = None,
    checkpoint_every_batches: int | None = None,
    resume: bool = False,
    metrics: PathLike | None = None,
    tensorboard: PathLike | None = None,
    callback: Callable[[Record], None] | None = None,
    record_every_batches: int = 50,
    amp: bool = False,
    averaging_period: int | None = None,
    evaluate_every: int = 1,
    trace: PathLike | None = None,
    loader_options: LoaderOptions | None = None,
    reporter: Reporter = SILENT,
) -> TrainResult:
    """Train a model for what the minibatches are for with Adam, and keep the weights of the best validation epoch.

    In processes that torchrun started, or that torch.distributed has joined, one model is trained by all of them
    together; see docs/guide/ranks.md. Rank 0 alone writes, and tells `callback` and `reporter`.

    Args:
        train_source: minibatches to train on, or a packed directory: then its train, valid and test sequences are
            used, through `diskgnn.Loader`s that are closed in the end. Or a folder that was prepared for several ranks.
        valid_source: minibatches to choose the best epoch by.
        test_source: minibatches to report the best epoch's scores on.
        task: 'classification', 'multilabel', 'regression' or 'link', to make sure: by default what the minibatches are
            for. Or a `Task` of your own (`diskgnn.training.tasks`).
        loss: 'mse' or 'l1' for regression; 'bce' or 'softmax' for links.
        model: 'sage', 'gat' or 'gcn'; on a graph with several types 'rgcn', 'rgat' or 'hgt'; the first by default. Or a
            module whose forward takes (blocks, x [U, D]) and returns [B, classes], labels or numbers; for links, a
            vector for each seed; with several types, blocks and x come by type, for types without features with the
            nodes' ids in place of x, and what is returned may be by node type. It is trained in place. x comes in the
            dtype of its parameters.
        hidden, num_layers, heads, dropout, num_bases, decoder, embedding_memory, embeddings: shape of a model given by
            name, see `diskgnn.training.model_spec.ModelSpec`; as many layers as blocks by default. With 'disk',
            `embeddings` of nodes without features lie in the folder of the checkpoint.
        lr, weight_decay: Adam's.
        epochs: epochs in all, those of a resumed checkpoint included.
        device: where the model is trained; under torchrun, 'cuda' is the GPU of LOCAL_RANK.
        seed: of torch's random number generators, which are set: initial weights, dropout.
        checkpoint: directory to keep a checkpoint in (see `training.checkpoints`): written after every epoch, every
            `checkpoint_every_batches` minibatches, and on Ctrl-C.
        resume: go on exactly where the checkpoint was written, if there is one. Where torchrun has started the ranks
            again because one of them died while they trained, they always do.
        metrics, tensorboard, callback: where records of `diskgnn.training.metrics` go: a JSON-lines file, a folder, a
            function; a step record every `record_every_batches` minibatches.
        amp: autocast to bfloat16.
        averaging_period: of several ranks: from the second epoch on, each takes steps of its own, and parameters are
            averaged every so many steps, while they train on (local SGD): for slow networks. By default gradients are
            averaged in every step.
        evaluate_every: evaluate after every so many epochs, and after the last.
        trace: file for the timeline of stages: what this thread does (wait, forward, backward, step, evaluate; on a GPU
            the time to launch them), and the source's threads if it says; the first `tracing.MAX_EVENTS` events. It is
            written however training ends.
        loader_options: how the `diskgnn.Loader`s read a packed directory.
        reporter: told of every minibatch.

    Raises:
        ConfigError: arguments, model and sources that do not fit each other, or the checkpoint.
        ArtifactError: the checkpoint is damaged, or of other minibatches.
        BusyError: another process trains with this checkpoint.
        DiskFullError: there is no room for the checkpoint or the metrics.
        OutputExistsError: `checkpoint` holds one already and `resume` is False.
        DivergedError: a loss is not finite; names the epoch and the minibatch.
        KeyboardInterrupt: after the checkpoint was written.

    Example:
        result = diskgnn.train("packed", model="sage", epochs=20, checkpoint="checkpoint")
        print(result.test_accuracy)
    """
    config = TrainingConfig(
        epochs=epochs, lr=lr, weight_decay=weight_decay, amp=amp, seed=seed, evaluate_every=evaluate_every,
        record_every_batches=record_every_batches, checkpoint=checkpoint,
        checkpoint_every_batches=checkpoint_every_batches, resume=resume,
    )  # fmt: skip
    spec = ModelSpec(
        None if isinstance(model, nn.Module) else model, hidden, num_layers, heads, dropout, num_bases, decoder,
        embedding_memory, embeddings,
    )  # fmt: skip
    device = checked_device(device_of_rank(device))
    with ExitStack() as opened:
        ranks = opened.enter_context(joined_ranks(device))
        if checkpoint is not None and ranks.replace_others_after(_taking(checkpoint)):
            config = replace(config, resume=True)
        ranks.by_first(lambda: _refuse_to_overwrite(config))
        given = {"valid": valid_source, "test": test_source}
        shard = ranks.shard if ranks.world_size > 1 else None
        source, evaluations = ranks.in_all(
            lambda: open_sources(train_source, given, device, loader_options, opened, shard)
        )
        check_alike(ranks, source)
        task = task_of(schema_of(source), task, loss) if task is None or isinstance(task, str) else task
        torch.manual_seed(config.seed)
        net, shape = ranks.in_all(lambda: _fitting_model(model, spec, task, source, device))
        num_batches = max(ranks.gathered(source.num_batches))
        identity = {**shape, "lr": config.lr, "weight_decay": config.weight_decay, "seed": config.seed,
                    "amp": config.amp, "num_batches": num_batches}  # fmt: skip
        if ranks.world_size > 1:
            identity["world_size"] = ranks.world_size
        if averaging_period is not None:
            identity["averaging_period"] = averaging_period
        if not ranks.is_first:  # the initial weights are rank 0's, dropout is each rank's own
            torch.manual_seed(batch_key(config.seed, "train/rank", ranks.shard.rank))
        size_device_tier(net, task, source, evaluations, device, amp=config.amp)
        optimizer = make_optimizer(net, config.lr, config.weight_decay)
        source = reading_ahead(source, net)
        state = TrainingState(net, optimizer, source, identity, config.checkpoint, ranks, num_batches)
        state.optimizers_differ = averaging_period is not None
        ranks.by_first(lambda: _take_checkpoint(config, ranks, opened))
        if not ranks.is_first:
            metrics = tensorboard = callback = trace = None
            reporter = SILENT
        timeline = UNTRACED if trace is None else opened.enter_context(traced(source, trace))
        step = make_step(
            net, optimizer, task, ranks, device, amp=config.amp, timeline=timeline, averaging_period=averaging_period
        )
        resumed_from = _resume(state, config)
        writer = opened.enter_context(MetricsWriter(metrics, tensorboard, callback, resumed_from, state.num_steps))
        writer.write(start_record({**identity, "epochs": config.epochs}, resumed_from), 0)
        try:
            _train_epochs(state, step, task, config, evaluations, device, _Listeners(writer, timeline, reporter))
        except KeyboardInterrupt as interrupt:
            if ranks.world_size == 1 or isinstance(interrupt, _AllStop):
                with interrupts_deferred():  # of an impatient second one
                    step.settle()
                    state.save(config.checkpoint)
            raise
        result = state.finished(resumed_from)
        writer.write(end_record(result), state.num_steps)
        return result


@dataclass(frozen=True)
class _Listeners:
    """Who is told of what training does."""

    writer: MetricsWriter
    timeline: Stages
    reporter: Reporter


class _AllStop(KeyboardInterrupt):
    """A process was interrupted, and all ranks have agreed to stop after the same step."""


def _taking(checkpoint: PathLike) -> str:
    return f"taking checkpoint {Path(checkpoint).absolute()}"


def _take_checkpoint(config: TrainingConfig, ranks: Ranks, opened: ExitStack) -> None:
    """Make sure that it can be written, now and not after the first epoch, and that nobody else writes it."""
    if config.checkpoint is not None:
        check_writable(config.checkpoint, "checkpoint")
        opened.enter_context(training_alone(config.checkpoint))
        ranks.note(_taking(config.checkpoint))


def _train_epochs(
    state: TrainingState,
    step: Step,
    task: Task,
    config: TrainingConfig,
    evaluations: Evaluations,
    device: torch.device,
    listeners: _Listeners,
) -> None:
    """The loop: train an epoch, evaluate, save; from where `state` stands."""
    source, writer, timeline, ranks = state.source, listeners.writer, listeners.timeline, state.ranks
    # Of several ranks none stops by itself: the others would wait for it.
    noted: AbstractContextManager[Sequence[int]] = interrupts_deferred() if ranks.world_size > 1 else nullcontext(())
    with noted as interrupts:
        for epoch in range(state.epoch, config.epochs):
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
            if config.evaluates_after(epoch):
                evaluated = _evaluate(state, task, evaluations, device, config, listeners)
                result = replace(result, evaluations=evaluated)
            with interrupts_deferred():
                state.end_epoch(result, task)
                writer.write(epoch_record(result), state.num_steps)
                state.save(config.checkpoint)


def _next(batches: Iterator[AnyMiniBatch], timeline: Stages, number: int) -> AnyMiniBatch | None:
    with timeline.stage("wait", number):
        return next(batches, None)


def _evaluate(
    state: TrainingState,
    task: Task,
    evaluations: Evaluations,
    device: torch.device,
    config: TrainingConfig,
    listeners: _Listeners,
) -> dict[str, EvalResult]:
    found = {}
    for split, opened in evaluations.items():
        with opened() as source, listeners.timeline.stage(f"evaluate {split}"):
            found[split] = evaluation(
                state.net,
                task,
                reading_ahead(source, state.net),
                device,
                amp=config.amp,
                reporter=listeners.reporter,
                ranks=state.ranks,
            )
    return found


def _refuse_to_overwrite(config: TrainingConfig) -> None:
    if config.checkpoint is not None and not config.resume and checkpoint_exists(config.checkpoint):
        raise OutputExistsError(
            f"{config.checkpoint} holds a checkpoint already; pass resume=True to go on from it, or choose "
            f"another directory"
        )


def _resume(state: TrainingState, config: TrainingConfig) -> tuple[int, int] | None:
    """Go on from the checkpoint, if there is one; the epoch and minibatch that it was written at."""
    exists = config.checkpoint is not None and state.ranks.by_first(lambda: checkpoint_exists(str(config.checkpoint)))
    if config.checkpoint is not None and exists:
        state.restore(config.checkpoint)
        resumed_from = (state.epoch, state.batch)
        if state.epoch >= config.epochs and state.ranks.is_first:
            warnings.warn(
                f"the run in {config.checkpoint} is complete already: {state.epoch} epochs; for more, raise `epochs`",
                stacklevel=3,
            )
        return resumed_from
    if config.checkpoint is not None and config.resume and state.ranks.is_first:
        warnings.warn(f"no checkpoint in {config.checkpoint}, starting from the beginning", stacklevel=3)
    state.start()
    return None


def _fitting_model(
    model: str | nn.Module | None, spec: ModelSpec, task: Task, source: BatchSource, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """The model on its device, as deep as the minibatches; and what it is, and is for."""
    schema = schema_of(source)
    if isinstance(model, nn.Module):
        net, name = model, type(model).__qualname__
        spec.checked_depth(source.num_layers)
    else:
        spec = spec.fitted(schema, source.num_layers)
        net, name = model_for(spec, schema, task), str(spec.name)
    net.to(device)
    check_model(net, task, source, device)
    return net, {
        "task": task.name, "loss": task.loss_name, "named_model": not isinstance(model, nn.Module), "model": name,
        **{field: value for field, value in asdict(spec).items() if field != "name"}, "schema": asdict(schema),
    }  # fmt: skip
