"""Training: one visible loop over any `BatchSource`."""

from __future__ import annotations

import math
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batch_source import BatchSource
from diskgnn.errors import ConfigError, DivergedError, OutputExistsError, at_least_one
from diskgnn.minibatch import MiniBatch
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.tracing import UNTRACED, Stages, Timeline, write_trace
from diskgnn.training.checkpoints import (
    check_config,
    check_writable,
    checkpoint_exists,
    load_checkpoint,
    save_checkpoint,
    writing,
)
from diskgnn.training.device_memory import free_for_rows
from diskgnn.training.evaluate import check_model, checked_device, evaluate, minibatches, open_loader, parameter_dtype
from diskgnn.training.metrics import EpochResult, MetricsWriter, Record, Span


@dataclass(frozen=True)
class TrainResult:
    """What training did. Accuracies are those of `best_epoch`; the model has its weights."""

    epochs: tuple[EpochResult, ...]
    best_epoch: int  # of the highest validation accuracy; the last one without validation
    valid_accuracy: float | None
    test_accuracy: float | None
    model: nn.Module
    resumed_from: tuple[int, int] | None  # epoch and minibatch


@dataclass
class _Progress:
    """Where training stands: what a checkpoint holds beyond model, optimizer and random number generators."""

    losses: Tensor  # [num_batches] float32 on the device: of this epoch's minibatches
    span: Span  # of this epoch, from before a resume on
    source: dict[str, Any]  # the train source's state after the last minibatch trained on
    epoch: int = 0
    batch: int = 0  # minibatches of this epoch trained on
    history: list[EpochResult] = field(default_factory=list)
    best: dict[str, Any] | None = None  # epoch, model (state dict); None without validation


def train(
    train_source: BatchSource | PathLike,
    *,
    valid_source: BatchSource | None = None,
    test_source: BatchSource | None = None,
    model: str | nn.Module = "sage",
    hidden: int = 256,
    num_layers: int | None = None,
    heads: int = 4,
    dropout: float = 0.5,
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
    evaluate_every: int = 1,
    trace: PathLike | None = None,
    loader_options: Mapping[str, Any] | None = None,
    reporter: Reporter = SILENT,
) -> TrainResult:
    """Train a node classifier with cross-entropy and Adam, and keep the weights of the best validation epoch.

    Args:
        train_source: minibatches to train on, or a packed directory: then its train, valid and test sequences are
            used, through `diskgnn.Loader`s that are closed in the end.
        valid_source: minibatches to choose the best epoch by.
        test_source: minibatches to report the best epoch's accuracy on.
        model: 'sage', 'gat' or 'gcn', or a module whose forward takes (blocks, x [U, D]) and returns [B, classes];
            it is trained in place. x comes in the dtype of its parameters.
        hidden, num_layers, heads, dropout: shape of a model given by name; as many layers as blocks by default.
        lr, weight_decay: Adam's.
        epochs: epochs in all, those of a resumed checkpoint included.
        device: where the model is trained.
        seed: of torch's random number generators, which are set: initial weights, dropout.
        checkpoint: directory to keep a checkpoint in (see `training.checkpoints`): written after every epoch, every
            `checkpoint_every_batches` minibatches, and on Ctrl-C.
        resume: go on exactly where the checkpoint was written, if there is one.
        metrics, tensorboard, callback: where records of `diskgnn.training.metrics` go: a JSON-lines file, a folder, a
            function; a step record every `record_every_batches` minibatches.
        amp: autocast to bfloat16.
        evaluate_every: evaluate after every so many epochs, and after the last.
        trace: file for the timeline of stages: what this thread does (wait, forward, backward, step, evaluate; on a GPU
            the time to launch them), and the source's threads if it says; the first `tracing.MAX_EVENTS` events. It is
            written however training ends.
        loader_options: more arguments of the `diskgnn.Loader`s that read a packed directory: device_cache, ...

    Raises:
        ConfigError: arguments, model and sources that do not fit each other, or the checkpoint.
        ArtifactError: the checkpoint is damaged, or of other minibatches.
        DiskFullError: there is no room for the checkpoint or the metrics.
        OutputExistsError: `checkpoint` holds one already and `resume` is False.
        DivergedError: a loss is not finite; names the epoch and the minibatch.
        KeyboardInterrupt: after the checkpoint was written.
    """
    for name, value in (("epochs", epochs), ("evaluate_every", evaluate_every),
                        ("record_every_batches", record_every_batches),
                        ("checkpoint_every_batches", checkpoint_every_batches),
                        ("num_layers (--layers)", num_layers)):  # fmt: skip
        at_least_one(name, value)
    for name, rate in (("lr", lr), ("weight_decay", weight_decay)):
        if not 0 <= rate < math.inf:
            raise ConfigError(f"{name}: expected a finite number that is not negative, found {rate}")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout: expected a number in [0, 1), found {dropout}")
    if checkpoint is None and (resume or checkpoint_every_batches is not None):
        raise ConfigError(
            "--resume and --checkpoint-every (checkpoint_every_batches) need --checkpoint DIR (checkpoint)"
        )
    if checkpoint is not None and not resume and checkpoint_exists(checkpoint):
        raise OutputExistsError(
            f"{checkpoint} holds a checkpoint already; pass --resume (resume=True) to go on from it, or choose "
            f"another directory"
        )
    device = checked_device(device)
    with ExitStack() as resources:
        source, evaluations = _open_sources(
            train_source, valid_source, test_source, device, loader_options or {}, resources
        )
        config = {
            "model": model if isinstance(model, str) else type(model).__qualname__,
            "named_model": isinstance(model, str),
            "hidden": hidden, "num_layers": num_layers or source.num_layers, "heads": heads, "dropout": dropout,
            "lr": lr, "weight_decay": weight_decay, "seed": seed, "amp": amp, "num_batches": source.num_batches,
            "feature_width": source.num_features, "num_classes": source.num_classes,
        }  # fmt: skip
        torch.manual_seed(seed)
        net = _fitting_model(model, config, source, device)
        _size_device_tier(net, source, evaluations, device, amp)
        optimizer = torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay)
        progress = _Progress(torch.zeros(source.num_batches, device=device), Span(source), source.state_dict())
        resumed_from = None
        if checkpoint is not None and checkpoint_exists(checkpoint):
            _restore(checkpoint, config, net, optimizer, source, progress)
            resumed_from = (progress.epoch, progress.batch)
            if progress.epoch >= epochs:
                warnings.warn(
                    f"the run in {checkpoint} is complete already: {progress.epoch} epochs; more with --epochs",
                    stacklevel=2,
                )
        elif resume:
            warnings.warn(f"no checkpoint in {checkpoint}, starting from the beginning", stacklevel=2)

        def save() -> None:
            if checkpoint is not None:
                _raise_if_diverged(progress)
                save_checkpoint(checkpoint, _checkpoint(config, net, optimizer, progress))

        if checkpoint is not None:
            check_writable(checkpoint)  # now, not after the first epoch
        timeline = UNTRACED if trace is None else resources.enter_context(_traced(source, trace))
        total = source.num_batches
        writer = resources.enter_context(
            MetricsWriter(metrics, tensorboard, callback, resumed_from, progress.epoch * total + progress.batch)
        )
        writer.write(_first_record({**config, "epochs": epochs}, resumed_from), 0)
        try:
            for epoch in range(progress.epoch, epochs):
                net.train()
                progress.span, since_record = Span(source, progress.span.earlier), Span(source)
                with (
                    minibatches(source, epoch) as batches,
                    reporter.stage(f"epoch {epoch}", total, "minibatches") as advance,
                ):
                    advance(progress.batch)
                    while (batch := _next(batches, timeline, progress.batch)) is not None:
                        with _interrupts_deferred():
                            loss = _step(net, optimizer, batch.to(device, non_blocking=True), amp, timeline)
                            progress.losses[batch.batch_index] = loss
                            progress.batch, progress.source = batch.batch_index + 1, source.state_dict()
                            done = progress.batch
                            if done % record_every_batches == 0 or done == total:
                                _raise_if_diverged(progress)
                                first = (done - 1) // record_every_batches * record_every_batches
                                writer.write(_step_record(progress, first, since_record), epoch * total + done)
                                since_record = Span(source)
                            if checkpoint_every_batches and done % checkpoint_every_batches == 0:
                                save()
                        advance(1)
                result = _epoch_result(progress)
                if (epoch + 1) % evaluate_every == 0 or epoch + 1 == epochs:
                    for split, opened in evaluations.items():
                        with opened() as eval_source, timeline.stage(f"evaluate {split}"):
                            found = evaluate(net, eval_source, device, amp=amp, reporter=reporter)
                        scores: Any = {f"{split}_loss": found.loss, f"{split}_accuracy": found.accuracy}
                        result = replace(result, **scores)
                with _interrupts_deferred():
                    if _is_best(result, progress.history):
                        progress.best = {"epoch": epoch, "model": _copied_weights(net)}
                    progress.history.append(result)
                    progress.epoch, progress.batch, progress.span = epoch + 1, 0, Span(source)
                    writer.write({"event": "epoch", **asdict(result)}, progress.epoch * total)
                    save()
        except KeyboardInterrupt:
            with _interrupts_deferred():  # of an impatient second one
                save()
            raise
        finished = _train_result(net, progress, resumed_from)
        writer.write({"event": "end", "best_epoch": finished.best_epoch, "valid_accuracy": finished.valid_accuracy,
                      "test_accuracy": finished.test_accuracy}, progress.epoch * total)  # fmt: skip
        return finished


def _next(batches: Iterator[MiniBatch], timeline: Stages, number: int) -> MiniBatch | None:
    with timeline.stage("wait", number):
        return next(batches, None)


def _step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: MiniBatch, amp: bool, timeline: Stages) -> Tensor:
    with (
        timeline.stage("forward", batch.batch_index),
        torch.autocast(batch.x.device.type, torch.bfloat16, enabled=amp),
    ):
        loss = F.cross_entropy(net(batch.blocks, batch.x.to(parameter_dtype(net))), batch.y)
    optimizer.zero_grad(set_to_none=True)
    with timeline.stage("backward", batch.batch_index):
        loss.backward()  # type: ignore[no-untyped-call]
    with timeline.stage("step", batch.batch_index):
        optimizer.step()
    return loss.detach()


@contextmanager
def _traced(source: BatchSource, path: PathLike) -> Iterator[Timeline]:
    """A timeline that is written to `path`, which is tried now, when the block ends."""
    with writing(path, "--trace"):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_trace([], path)
    timeline = Timeline(source)
    try:
        yield timeline
    finally:
        with writing(path, "--trace"):
            write_trace(timeline.events(), path)


@contextmanager
def _interrupts_deferred() -> Iterator[None]:
    """Ctrl-C, and SIGTERM where the caller handles it, take effect when the block ends: a step is done wholly or not
    at all, so that it can be saved."""
    previous: dict[int, Any] = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number)) and threading.current_thread() is threading.main_thread()
    }
    received: list[int] = []
    for number in previous:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for number in received:
        signal.raise_signal(number)


def _open_sources(
    train_source: BatchSource | PathLike,
    valid_source: BatchSource | None,
    test_source: BatchSource | None,
    device: torch.device,
    loader_options: Mapping[str, Any],
    resources: ExitStack,
) -> tuple[BatchSource, dict[str, Callable[[], AbstractContextManager[BatchSource]]]]:
    """The train source, and how to open those to evaluate on: a packed one holds memory only while it is used."""
    evaluations: dict[str, Callable[[], AbstractContextManager[BatchSource]]] = {}
    if not isinstance(train_source, BatchSource):
        path = train_source
        packed = artifacts.open_artifact(path, artifacts.PACKED)
        for split in ("valid", "test"):
            if artifacts.extents_file(split) in packed.files:
                evaluations[split] = partial(open_loader, path, split, device, **loader_options)
        train_source = resources.enter_context(open_loader(path, "train", device, **loader_options))
    for split, source in (("valid", valid_source), ("test", test_source)):
        if source is None:
            continue
        for name in ("num_layers", "feature_width", "num_classes"):
            wanted, found = getattr(train_source, name), getattr(source, name)
            if wanted != found:
                raise ConfigError(f"{split}_source: expected {name}={wanted} as in training, found {found}")
        evaluations[split] = partial(_kept_open, source)
    return train_source, evaluations


def _size_device_tier(
    net: nn.Module,
    source: BatchSource,
    evaluations: Mapping[str, Callable[[], AbstractContextManager[BatchSource]]],
    device: torch.device,
    amp: bool,
) -> None:
    """Let the device tier have what the model leaves of the GPU's memory, unless its size was given."""
    from diskgnn.loading.loader import Loader

    if device.type != "cuda" or not isinstance(source, Loader):
        return
    if source.num_static == 0 or source.device_cache is not None:
        return
    with ExitStack() as opened:
        others = [opened.enter_context(source()) for source in evaluations.values()]
        loaders = [loader for loader in others if isinstance(loader, Loader)]
        source.device_cache = free_for_rows(net, source, loaders, amp=amp)


def _kept_open(source: BatchSource) -> AbstractContextManager[BatchSource]:
    return nullcontext(source)


def _fitting_model(
    model: str | nn.Module, config: Mapping[str, Any], source: BatchSource, device: torch.device
) -> nn.Module:
    """The model on its device, as deep as the minibatches."""
    layers = source.num_layers
    if config["num_layers"] != layers:
        raise ConfigError(
            f"the model has {config['num_layers']} layers, but the minibatches were sampled with {layers} "
            f"fanouts: use --layers {layers}, or prepare again with {config['num_layers']} fanouts"
        )
    if isinstance(model, str):
        from diskgnn.training.models import make_model

        net: nn.Module = make_model(
            model, source.num_features, config["hidden"], source.num_classes, layers,
            heads=config["heads"], dropout=config["dropout"],
        )  # fmt: skip
    else:
        net = model
    net.to(device)
    check_model(net, source, device)
    return net


def _copied_weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in net.state_dict().items()}


def _raise_if_diverged(progress: _Progress) -> None:
    finite = torch.isfinite(progress.losses[: progress.batch]).cpu()
    if not finite.all():
        batch = int(finite.int().argmin())
        raise DivergedError(
            f"the loss of epoch {progress.epoch}, minibatch {batch} is {progress.losses[batch].item()}; use a "
            f"lower learning rate, look for NaN features (`diskgnn inspect GRAPH`), or for damaged files "
            f"(`diskgnn verify PACKED`)"
        )


def _first_record(config: Mapping[str, Any], resumed_from: tuple[int, int] | None) -> Record:
    now = datetime.now(timezone.utc).isoformat()
    if resumed_from is None:
        return {"event": "start", "time": now, **config}
    return {"event": "resume", "time": now, "epoch": resumed_from[0], "batch": resumed_from[1], **config}


def _step_record(progress: _Progress, first: int, since_record: Span) -> Record:
    totals = since_record.totals()
    return {
        "event": "step",
        "epoch": progress.epoch,
        "batch": progress.batch,
        "loss": progress.losses[first : progress.batch].double().mean().item(),
        **{name: totals[name] for name in ("seconds", "wait_seconds", "read_bytes", "requested_rows")},
    }


def _epoch_result(progress: _Progress) -> EpochResult:
    loss = progress.losses.double().mean().item()  # waits for the device, so that the seconds are all there
    totals = progress.span.totals()
    rows = int(totals["requested_rows"])
    return EpochResult(
        epoch=progress.epoch,
        loss=loss,
        train_seconds=totals["seconds"],
        wait_seconds=totals["wait_seconds"],
        read_bytes=int(totals["read_bytes"]),
        requested_rows=rows,
        hit_rate_device=totals["device_rows"] / max(rows, 1),
        hit_rate_pinned=totals["pinned_rows"] / max(rows, 1),
        hit_rate_cpu=totals["cpu_rows"] / max(rows, 1),
    )


def _is_best(result: EpochResult, history: Sequence[EpochResult]) -> bool:
    accuracy = result.valid_accuracy
    return accuracy is not None and all(accuracy > (earlier.valid_accuracy or 0.0) for earlier in history)


def _train_result(net: nn.Module, progress: _Progress, resumed_from: tuple[int, int] | None) -> TrainResult:
    best = progress.history[-1]
    if progress.best is not None:
        best = progress.history[progress.best["epoch"]]
        net.load_state_dict(progress.best["model"])
    return TrainResult(
        tuple(progress.history), best.epoch, best.valid_accuracy, best.test_accuracy, net.eval(), resumed_from
    )


def _checkpoint(
    config: Mapping[str, Any], net: nn.Module, optimizer: torch.optim.Optimizer, progress: _Progress
) -> dict[str, Any]:
    device = progress.losses.device
    return {
        "config": dict(config),
        "position": {"epoch": progress.epoch, "batch": progress.batch, "source": progress.source},
        "epoch_so_far": {"losses": progress.losses[: progress.batch].cpu(), "counters": progress.span.totals()},
        "history": [asdict(result) for result in progress.history],
        "model": net.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": {
            "cpu": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        },
        "best": progress.best,
    }


def _restore(
    directory: PathLike,
    config: Mapping[str, Any],
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: BatchSource,
    progress: _Progress,
) -> None:
    """Put everything back as it was when the checkpoint in `directory` was written."""
    saved = load_checkpoint(directory)
    check_config(directory, saved["config"], config)
    device = progress.losses.device
    try:
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the checkpoint in {directory} is of another model: {error}") from error
    source.load_state_dict(saved["position"]["source"])
    progress.epoch, progress.batch = saved["position"]["epoch"], saved["position"]["batch"]
    progress.source = saved["position"]["source"]
    progress.losses[: progress.batch] = saved["epoch_so_far"]["losses"].to(device)
    progress.span = Span(source, saved["epoch_so_far"]["counters"])
    progress.history = [EpochResult(**result) for result in saved["history"]]
    progress.best = saved["best"]
    torch.set_rng_state(saved["rng"]["cpu"])
    if device.type == "cuda" and saved["rng"]["cuda"] is not None:
        torch.cuda.set_rng_state(saved["rng"]["cuda"], device)
