"""`train`: a model, what it is trained on, and a checkpoint, ready for the loop."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from diskgnn.batches.batch_source import BatchSource, schema_of
from diskgnn.draws import batch_key
from diskgnn.embeddings.disk_embeddings import reading_ahead
from diskgnn.errors import DataWarning, callers_level
from diskgnn.loading.hops_options import HopsOptions
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.loading.tracing import UNTRACED
from diskgnn.nn.model_spec import ModelOptions, ModelSpec
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.specs.keywords import takes_options
from diskgnn.system.device import checked_device
from diskgnn.training import run_checkpoint
from diskgnn.training.config import TrainingConfig
from diskgnn.training.criterion import require_classes_of
from diskgnn.training.device_memory import size_device_tier
from diskgnn.training.interrupts import interrupts_deferred
from diskgnn.training.loop import Listeners, TrainingLoop
from diskgnn.training.metrics import MetricsWriter, Record, end_record, start_record
from diskgnn.training.model_check import check_model
from diskgnn.training.named_models import fitted_to, model_for, with_statistics
from diskgnn.training.node_tasks import NodeClassification
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.ranks import Ranks, check_alike, device_of_rank, joined_ranks
from diskgnn.training.result_files import output_places, traced
from diskgnn.training.results import TrainResult
from diskgnn.training.source_opening import check_epochs, classes_in, open_sources
from diskgnn.training.state import TrainingState
from diskgnn.training.steps import make_step
from diskgnn.training.task import Task, task_of

if TYPE_CHECKING:
    from typing_extensions import Unpack


@takes_options(ModelOptions, ModelSpec)
def train(
    train_source: BatchSource | PathLike,
    *,
    valid_source: BatchSource | None = None,
    test_source: BatchSource | None = None,
    task: str | Task | None = None,
    loss: str | None = None,
    model: str | nn.Module | None = None,
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
    best_by: str | None = None,
    patience: int | None = None,
    keep_going: bool = False,
    trace: PathLike | None = None,
    loader_options: LoaderOptions | HopsOptions | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
    **shape: Unpack[ModelOptions],
) -> TrainResult:
    """Train a model for what the minibatches are for with Adam, and keep the weights of the best validation epoch.

    In processes that torchrun started, or that torch.distributed has joined, one model is trained by all of them
    together; see docs/guide/ranks.md. Rank 0 alone writes, and tells `callback` and `reporter`.

    Args:
        train_source: minibatches to train on, or a packed directory: then its train, valid and test sequences are
            used, through `diskgnn.Loader`s that are closed in the end. Or a folder that was prepared for several ranks.
            Or a hops directory, which is read through `diskgnn.HopsLoader`s.
        valid_source: minibatches to choose the best epoch by.
        test_source: minibatches to report the best epoch's scores on.
        task: 'classification', 'multilabel', 'regression' or 'link', to make sure: by default what the minibatches are
            for. Or a `Task` of your own (`diskgnn.tasks`).
        loss: 'mse' or 'l1' for regression; 'bce' or 'softmax' for links.
        model: 'sage', 'gat' or 'gcn'; on a graph with several types 'rgcn', 'rgat' or 'hgt'; on either 'relational'; of
            hop features 'sign', 'sgc' or 'sehgnn'; the first by default, along paths of edge types 'sehgnn'. Or a
            module whose forward takes (blocks, x [U, D]) and returns [B, classes], labels or numbers; for links, a
            vector for each seed, and for pairs that have labels, too, of which its `decoder` makes rows; with several
            types, blocks and x come by type, for types without features with the nodes' ids in place of x, and what is
            returned may be by node type. Of hop features it takes x [B, H, D] alone, or x by segment, where their
            widths differ. One with `takes_batch = True` takes the minibatch as it is. It is trained in place. x comes
            in the dtype of its parameters.
        lr, weight_decay: Adam's.
        epochs: epochs in all, those of a resumed checkpoint included.
        device: where the model is trained; under torchrun, 'cuda' is the GPU of LOCAL_RANK.
        seed: of torch's random number generators, which are set: initial weights, dropout. And of the order of seeds
            in a hops directory, unless `loader_options` have one.
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
        best_by: the score of the validation split that the best epoch is the best by: one of the task's, such as
            'roc_auc', or 'loss'. By default accuracy for classification, average_precision for labels, mae for
            regression, mrr for links. A checkpoint keeps to it.
        patience: end after so many evaluations in a row without a better one.
        keep_going: take no step on minibatches whose loss or gradients are not finite, count them in
            `EpochResult.skipped_batches`, and train on. By default such a loss ends training. Waits for the device in
            every step.
        trace: file for the timeline of stages: what this thread does (wait, forward, backward, step, evaluate; on a GPU
            the time to launch them), and the source's threads if it says; the first `tracing.MAX_EVENTS` events. It is
            written however training ends.
        loader_options: how a directory is read: `LoaderOptions` of a packed one, `HopsOptions` of a hops directory.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told of every minibatch, in place of the bars; see `diskgnn.progress`.
        shape: `hidden`, `dropout` and what else `diskgnn.models.ModelSpec` says of a model given by name.

    Raises:
        ConfigError: arguments, model and sources that do not fit each other, or the checkpoint.
        ArtifactError: the checkpoint is damaged, or of other minibatches.
        BusyError: another process trains with this checkpoint.
        DiskFullError: there is no room for the checkpoint or the metrics.
        OutputExistsError: `checkpoint` holds one already and `resume` is False.
        DivergedError: a loss is not finite; names the epoch and the minibatch. Or a weight, or the loss of an
            evaluation. The checkpoint is from before.
        KeyboardInterrupt: after the checkpoint was written.

    Example:
        result = diskgnn.train("packed", model="sage", epochs=20, checkpoint="checkpoint")
        print(result.test_accuracy)
    """
    places = output_places(checkpoint=checkpoint, metrics=metrics, tensorboard=tensorboard, trace=trace)
    config = TrainingConfig(
        epochs=epochs, lr=lr, weight_decay=weight_decay, amp=amp, seed=seed, evaluate_every=evaluate_every,
        record_every_batches=record_every_batches, checkpoint=places["checkpoint"],
        checkpoint_every_batches=checkpoint_every_batches, resume=resume, best_by=best_by, patience=patience,
        keep_going=keep_going, averaging_period=averaging_period,
    )  # fmt: skip
    spec = ModelSpec(None if isinstance(model, nn.Module) else model, **shape)
    return _run(
        _Sources(train_source, {"valid": valid_source, "test": test_source}, loader_options), model, spec, (task, loss),
        config, checked_device(device_of_rank(device)),
        _Records(
            places["metrics"], places["tensorboard"], callback, places["trace"], reporter_for(reporter, progress)
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class _Sources:
    """Holds the sources that are trained and evaluated on."""

    train: BatchSource | PathLike
    given: dict[str, BatchSource | None]
    options: LoaderOptions | HopsOptions | None


@dataclass(frozen=True)
class _Records:
    """Holds the places where it is told what training does."""

    metrics: PathLike | None = None
    tensorboard: PathLike | None = None
    callback: Callable[[Record], None] | None = None
    trace: PathLike | None = None
    reporter: Reporter = SILENT


def _run(
    sources: _Sources,
    model: str | nn.Module | None,
    spec: ModelSpec,
    asked: tuple[str | Task | None, str | None],
    config: TrainingConfig,
    device: torch.device,
    records: _Records,
) -> TrainResult:
    with interrupts_deferred(patient=False) as interrupts, ExitStack() as opened:
        ranks = opened.enter_context(joined_ranks(device))
        config = run_checkpoint.going_on_after_a_death(config, ranks)
        shard = ranks.shard if ranks.world_size > 1 else None
        source, evaluations = ranks.in_all(
            lambda: open_sources(sources.train, sources.given, device, sources.options, opened, shard, config.seed)
        )
        check_epochs(source, config.epochs)
        check_alike(ranks, source)
        task = _task(*asked, source)
        if ranks.is_first:
            _warn_of_one_class(task)
        criterion = config.criterion(task.metrics, evaluations)
        if config.best_by is not None and isinstance(task, NodeClassification):
            require_classes_of(config.best_by, task.target_kind, lambda: classes_in(evaluations["valid"], ranks))
        net, identity = _seeded_model(model, spec, task, source, config, device, ranks)
        size_device_tier(net, task, source, evaluations, device, amp=config.amp)
        optimizer = make_optimizer(net, config.lr, config.weight_decay)
        source = reading_ahead(source, net)
        state = TrainingState(
            net, optimizer, source, identity, config.checkpoint, ranks, identity["num_batches"], config.keep_going
        )
        state.optimizers_differ = config.averaging_period is not None
        run_checkpoint.take(config, ranks, opened)
        opened.callback(state.close)  # before another run may write there
        records = records if ranks.is_first else _Records()
        timeline = UNTRACED if records.trace is None else opened.enter_context(traced(source, records.trace))
        step = make_step(net, optimizer, task, ranks, device, config, timeline)
        opened.callback(step.close)
        resumed_from = run_checkpoint.start(state, config)
        writer = opened.enter_context(
            MetricsWriter(records.metrics, records.tensorboard, records.callback, resumed_from, state.num_steps)
        )
        writer.write(start_record({**identity, "epochs": config.epochs}, resumed_from), 0)
        listeners = Listeners(writer, timeline, records.reporter)
        TrainingLoop(state, step, task, criterion, config, evaluations, device, listeners, interrupts).run()
        result = state.finished(resumed_from)
        writer.write(end_record(result), state.num_steps)
        return result


def _task(task: str | Task | None, loss: str | None, source: BatchSource) -> Task:
    return task_of(schema_of(source), task, loss) if task is None or isinstance(task, str) else task


def _warn_of_one_class(task: Task) -> None:
    if isinstance(task, NodeClassification) and task.num_outputs == 1:
        warnings.warn(
            "labels: all are of one class, so that any model is right: train on seeds of several classes",
            DataWarning,
            stacklevel=callers_level(),
        )


def _seeded_model(
    model: str | nn.Module | None,
    spec: ModelSpec,
    task: Task,
    source: BatchSource,
    config: TrainingConfig,
    device: torch.device,
    ranks: Ranks,
) -> tuple[nn.Module, dict[str, Any]]:
    """Returns the model with the weights that the seed says, and what a checkpoint of this run is of.

    The initial weights are those of rank 0; dropout is each rank's own.
    """
    torch.manual_seed(config.seed)
    net, shape = ranks.in_all(lambda: _fitting_model(model, spec, task, source, device))
    identity = {
        **shape, "lr": config.lr, "weight_decay": config.weight_decay, "seed": config.seed, "amp": config.amp,
        "num_batches": max(ranks.gathered(source.num_batches)),
    }  # fmt: skip
    if ranks.world_size > 1:
        identity["world_size"] = ranks.world_size
    if config.averaging_period is not None:
        identity["averaging_period"] = config.averaging_period
    if config.best_by:
        identity["best_by"] = config.best_by
    if not ranks.is_first:
        torch.manual_seed(batch_key(config.seed, "train/rank", ranks.shard.rank))
    return net, identity


def _fitting_model(
    model: str | nn.Module | None, spec: ModelSpec, task: Task, source: BatchSource, device: torch.device
) -> tuple[nn.Module, dict[str, Any]]:
    """Returns the model on its device, as deep as the minibatches; and what it is, and is for."""
    schema = schema_of(source)
    if isinstance(model, nn.Module):
        net, name = model, type(model).__qualname__
        if not schema.segments:
            spec.checked_depth(source.num_layers)
        spec = replace(spec, decoder=spec.decoder_for(schema))
    else:
        spec = fitted_to(spec, source)
        net, name = with_statistics(model_for(spec, schema, task), source), str(spec.name)
    net.to(device)
    check_model(net, task, source, device)
    return net, {
        "task": task.name, "loss": task.loss_name, "named_model": not isinstance(model, nn.Module), "model": name,
        **{field: value for field, value in asdict(spec).items() if field != "name"}, "schema": asdict(schema),
        "sampling": getattr(source, "sampling", None),
    }  # fmt: skip
