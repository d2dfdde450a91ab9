"""Evaluation of a model over any `BatchSource`."""

from __future__ import annotations

import os

import torch
from torch import nn

from diskgnn.batch_source import BatchSource, schema_of
from diskgnn.errors import ConfigError
from diskgnn.loading.options import LoaderOptions
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike
from diskgnn.storage.packed import Packed
from diskgnn.system.device import checked_device
from diskgnn.training.model_check import check_model
from diskgnn.training.models import BlockModel
from diskgnn.training.results import EvalResult, Spent
from diskgnn.training.sources import minibatches, open_loader
from diskgnn.training.tasks import Task, task_of
from diskgnn.training.typed_models import TypedModel


def evaluate(
    model: nn.Module,
    source: BatchSource | PathLike,
    device: str | torch.device = "cpu",
    *,
    split: str = "test",
    task: str | Task | None = None,
    amp: bool = False,
    loader_options: LoaderOptions | None = None,
    reporter: Reporter = SILENT,
) -> EvalResult:
    """Loss and scores of `model` over one epoch of `source`.

    Args:
        model: as `diskgnn.train` takes it; left in the mode (train or eval) that it was in.
        source: minibatches, or a packed directory, of which `split` is evaluated.
        device: where to evaluate; the model is moved there.
        split: see `source`.
        task: as `diskgnn.train` takes it.
        amp: autocast to bfloat16.
        loader_options: how the `diskgnn.Loader` reads a packed directory.
        reporter: told of every minibatch.

    Raises:
        ConfigError: the device is not there, or the model does not fit the minibatches.
        ArtifactError: `source` is no packed directory, or has no such split.

    Example:
        >>> result = diskgnn.evaluate(diskgnn.load_model("checkpoint"), "packed", split="test")
        >>> print(result.loss, result.accuracy)
    """
    device = checked_device(device)
    if isinstance(source, (str, os.PathLike)):
        packed = Packed.open(source)
        prepared = packed.config.samples.spec.num_layers
        if isinstance(model, BlockModel | TypedModel) and len(model.layers) != prepared:
            raise ConfigError(
                f"the trained model has {len(model.layers)} layers, {source} has {prepared}: evaluate it on "
                f"what was prepared with {len(model.layers)} fanouts, or train on {source}"
            )
        with open_loader(packed, split, device, loader_options) as loader:
            return evaluate(model, loader, device, task=task, amp=amp, reporter=reporter)
    task = task_of(schema_of(source), task) if task is None or isinstance(task, str) else task
    check_model(model.to(device), task, source, device)
    return evaluation(model, task, source, device, amp=amp, reporter=reporter)


@torch.no_grad()
def evaluation(
    model: nn.Module, task: Task, source: BatchSource, device: torch.device, *, amp: bool, reporter: Reporter
) -> EvalResult:
    """How well a model that fits does at `task` over one epoch of `source`."""
    was_training, tally, began = model.training, task.tally(device), Spent.until_now(source)
    model.eval()
    try:
        with (
            minibatches(source, 0) as batches,
            reporter.stage("evaluate", source.num_batches, "minibatches") as advance,
        ):
            for batch in batches:
                batch = batch.to(device, non_blocking=True)
                with torch.autocast(device.type, torch.bfloat16, enabled=amp):
                    tally.add(task.outputs(model, batch), batch)
                advance(1)
    finally:
        model.train(was_training)
    loss, scores = tally.loss(), tally.scores()  # waits for the device, so that the seconds are all there
    spent = Spent.until_now(source) - began
    return EvalResult(loss, scores, tally.num_seeds, spent.seconds, spent.load.wait_seconds, spent.load.read_bytes)
