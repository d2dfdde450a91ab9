"""Evaluation of a model over any `BatchSource`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from diskgnn.batch_source import BatchSource
from diskgnn.errors import ConfigError
from diskgnn.minibatch import Block, MiniBatch
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.training.metrics import Span
from diskgnn.training.models import BlockModel


@dataclass(frozen=True)
class EvalResult:
    """How well a model does on the seeds of one split."""

    loss: float  # mean over the seeds
    accuracy: float  # share of seeds whose class is the most likely one, in [0, 1]
    num_seeds: int
    seconds: float
    wait_seconds: float  # of `seconds`, spent waiting for minibatches
    read_bytes: int


@torch.no_grad()
def evaluate(
    model: nn.Module,
    source: BatchSource | PathLike,
    device: str | torch.device = "cpu",
    *,
    split: str = "test",
    amp: bool = False,
    loader_options: Mapping[str, Any] | None = None,
    reporter: Reporter = SILENT,
) -> EvalResult:
    """Loss and accuracy of `model` over one epoch of `source`.

    Args:
        model: takes (blocks, x [U, D]) and returns [B, classes]; left in the mode (train or eval) that it was in.
        source: minibatches, or a packed directory, of which `split` is evaluated.
        device: where to evaluate; the model is moved there.
        split: see `source`.
        amp: autocast to bfloat16.
        loader_options: more arguments of the `diskgnn.Loader` that reads a packed directory.
        reporter: told of every minibatch.

    Raises:
        ConfigError: the device is not there, or the model does not fit the minibatches.
    """
    device = checked_device(device)
    if not isinstance(source, BatchSource):
        prepared = len(artifacts.open_artifact(source, artifacts.PACKED).config["fanouts"])
        if isinstance(model, BlockModel) and len(model.layers) != prepared:
            raise ConfigError(
                f"the trained model has {len(model.layers)} layers, {source} has {prepared}: evaluate it on "
                f"what was prepared with {len(model.layers)} fanouts, or train on {source}"
            )
        with open_loader(source, split, device, **(loader_options or {})) as loader:
            return evaluate(model, loader, device, amp=amp, reporter=reporter)
    check_model(model.to(device), source, device)
    was_training, dtype = model.training, parameter_dtype(model)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    correct = torch.zeros((), dtype=torch.int64, device=device)
    num_seeds = 0
    span = Span(source)
    model.eval()
    try:
        with (
            minibatches(source, 0) as batches,
            reporter.stage("evaluate", source.num_batches, "minibatches") as advance,
        ):
            for batch in batches:
                batch = batch.to(device, non_blocking=True)
                with torch.autocast(device.type, torch.bfloat16, enabled=amp):
                    logits = model(batch.blocks, batch.x.to(dtype))
                    loss += F.cross_entropy(logits, batch.y, reduction="sum")
                correct += (logits.argmax(1) == batch.y).sum()
                num_seeds += len(batch.y)
                advance(1)
    finally:
        model.train(was_training)
    mean_loss, accuracy = loss.item() / num_seeds, correct.item() / num_seeds
    totals = span.totals()
    return EvalResult(
        mean_loss, accuracy, num_seeds, totals["seconds"], totals["wait_seconds"], int(totals["read_bytes"])
    )


def check_model(model: nn.Module, source: BatchSource, device: torch.device) -> None:
    """Try `model`, on `device`, on a made-up minibatch of one seed, whose blocks all differ in size.

    Raises:
        ConfigError: it is deeper or shallower than `source`'s minibatches, or their feature width or number of
            classes does not suit it.
    """
    layers, was_training = source.num_layers, model.training
    blocks = tuple(
        Block(torch.arange(num_dst + 1, dtype=torch.int32), torch.full((num_dst,), num_dst, dtype=torch.int32),
              num_dst + 1).to(device)
        for num_dst in range(layers, 0, -1)
    )  # fmt: skip
    x = torch.zeros(layers + 1, source.num_features, dtype=parameter_dtype(model), device=device)
    expected = (
        f"a module that takes ({layers} blocks, x with {source.num_features} columns) and returns one row "
        f"of {source.num_classes} classes per seed, {layers} layers deep as the fanouts"
    )
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            shape = tuple(model(blocks, x).shape)
    except Exception as error:
        raise ConfigError(
            f"model: expected {expected}; found that it raises {type(error).__name__}: {error}"
        ) from error
    finally:
        model.train(was_training)
    if len(shape) != 2 or shape[0] != 1 or shape[1] < source.num_classes:
        raise ConfigError(f"model: expected {expected}; found shape {shape} for one seed")


@contextmanager
def minibatches(source: BatchSource, epoch: int) -> Iterator[Iterator[MiniBatch]]:
    """The minibatches of an epoch; its iterator is closed when the block is left, however it is left.

    What the iterator itself started ends with it; a `Loader` keeps its threads, idle, until it is closed.
    """
    batches = source.epoch(epoch)
    try:
        yield batches
    finally:
        if (close := getattr(batches, "close", None)) is not None:
            close()


@contextmanager
def open_loader(packed: PathLike, split: str, device: torch.device, **options: Any) -> Iterator[BatchSource]:
    """A `Loader` over one split of a packed directory, closed when the block is left."""
    from diskgnn.loading.loader import Loader

    with Loader(packed, split, device=str(device), **options) as loader:
        yield loader


def checked_device(device: str | torch.device) -> torch.device:
    """`device`, if torch can use it.

    Raises:
        ConfigError: no device of that name, or none that this torch build and machine offer.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {str(device)!r} cannot be used here ({reason}); try --device cpu") from error
    return torch.device(device)


def parameter_dtype(net: nn.Module) -> torch.dtype:
    """The dtype that the model computes in: of its first floating-point parameter."""
    return next((p.dtype for p in net.parameters() if p.is_floating_point()), torch.float32)
