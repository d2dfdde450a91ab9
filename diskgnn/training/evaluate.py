"""Evaluation of a model over any `BatchSource`."""

from __future__ import annotations

import io
import math
import os
import warnings
from collections.abc import Callable

import torch
from torch import nn

from diskgnn.batches.batch_source import BatchSource, minibatches, schema_of
from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats.hops import is_hops
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import open_rank, ranks_in
from diskgnn.formats.samples_config import drawing_to_json
from diskgnn.loading.hops_options import HopsOptions
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.nn.block_models import BlockModel
from diskgnn.nn.relational_models import require_tables, require_time_unit
from diskgnn.nn.typed_models import TypedLayers
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.shard import Shard
from diskgnn.system.device import checked_device
from diskgnn.training.checkpoints import check_trained_on, load_model, load_task, warn_of_other_times
from diskgnn.training.model_check import check_model
from diskgnn.training.ranks import Ranks
from diskgnn.training.results import EvalResult, Spent
from diskgnn.training.source_opening import open_loader, require_minibatches
from diskgnn.training.task import Tally, Task, task_of
from diskgnn.units import counted


def evaluate(
    model: nn.Module | PathLike,
    source: BatchSource | PathLike,
    device: str | torch.device = "cpu",
    *,
    split: str = "test",
    task: str | Task | None = None,
    amp: bool = False,
    loader_options: LoaderOptions | HopsOptions | None = None,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> EvalResult:
    """Computes loss and scores of `model` over one epoch of `source`.

    Args:
        model: as `diskgnn.train` takes it; left in the mode (train or eval) that it was in. Or what `diskgnn.train`
            left in a checkpoint directory, which says the task, too.
        source: minibatches, or a packed or hops directory, of which `split` is evaluated, or a folder of several
            ranks'.
        device: where to evaluate; the model is moved there.
        split: see `source`.
        task: as `diskgnn.train` takes it.
        amp: autocast to bfloat16.
        loader_options: how a directory is read, see `diskgnn.train`.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told of every minibatch, in place of the bars; see `diskgnn.progress`.

    Warns:
        DataWarning: the model was trained by times, and the minibatches were drawn without. Or features or classes have
            names in training or in `source` only, so that nobody can compare them.

    Raises:
        ConfigError: the device is not there, or the model does not fit the minibatches. Or features or classes of these
            mean something else than in training, as a checkpoint says.
        ArtifactError: `source` is no such directory, or has no such split; or there is no checkpoint.

    Example:
        >>> result = diskgnn.evaluate("checkpoint", "packed", split="test")
        >>> print(result.loss, result.accuracy)
    """
    reporter = reporter_for(reporter, progress)
    device, checkpoint = checked_device(device), None
    if not isinstance(model, nn.Module):
        checkpoint, task = model, load_task(model) if task is None else task
        model = load_model(checkpoint)
    if isinstance(source, (str, os.PathLike)) and is_hops(source):
        with open_loader(source, split, device, loader_options, Shard()) as loader:
            return _of_source(model, checkpoint, loader, str(source), task, device, amp=amp, reporter=reporter)
    if not isinstance(source, (str, os.PathLike)):
        require_minibatches("source", source)
        return _of_source(model, checkpoint, source, "the source", task, device, amp=amp, reporter=reporter)
    tally: Tally | None = None
    spent = Spent()
    for packed in _all_ranks(source, stream=isinstance(loader_options, LoaderOptions) and loader_options.stream):
        prepared = packed.config.samples.spec.num_layers
        if isinstance(model, BlockModel | TypedLayers) and len(model.layers) != prepared:
            raise ConfigError(
                f"the trained model has {counted(len(model.layers), 'layer')}, {source} has {prepared}: evaluate it on "
                f"what was prepared with {counted(len(model.layers), 'fanout')}, or train on {source}"
            )
        if checkpoint is not None:
            check_trained_on(checkpoint, packed.config.schema(), str(source))
            warn_of_other_times(checkpoint, drawing_to_json(packed.config.samples.spec), str(source))
        with open_loader(packed, split, device, loader_options) as loader:
            task = _fitting(model, task, loader, device)
            tally = tally or task.tally(device)
            spent += _count(tally, model, task, loader, device, amp=amp, reporter=reporter)
    assert tally is not None
    return _warn_if_meaningless(_result(Ranks(), tally, spent))


def _of_source(
    model: nn.Module, checkpoint: PathLike | None, source: BatchSource, name: str, task: str | Task | None,
    device: torch.device, *, amp: bool, reporter: Reporter,
) -> EvalResult:  # fmt: skip
    if checkpoint is not None:
        check_trained_on(checkpoint, schema_of(source), name)
        warn_of_other_times(checkpoint, getattr(source, "sampling", None), name)
    task = _fitting(model, task, source, device)
    return _warn_if_meaningless(evaluation(model, task, source, device, amp=amp, reporter=reporter))


def _warn_if_meaningless(result: EvalResult) -> EvalResult:
    """Returns `result`, and warns if it means nothing."""
    if result.num_seeds and not math.isfinite(result.loss):
        warnings.warn(
            f"the loss is {result.loss}, so its scores mean nothing; look for NaN and extreme features (`diskgnn "
            f"inspect GRAPH`)",
            DataWarning,
            stacklevel=callers_level(),
        )
    return result


def _all_ranks(path: PathLike, *, stream: bool) -> list[Packed]:
    """Returns the packed directory, or those of all ranks in a folder of them: this process has them all to
    itself."""
    ranks = ranks_in(path)
    return (
        [open_rank(path, Shard(rank, ranks[0].world_size), stream=stream) for rank in range(ranks[0].world_size)]
        if ranks
        else [Packed.open(path, stream=stream)]
    )


def _fitting(model: nn.Module, task: str | Task | None, source: BatchSource, device: torch.device) -> Task:
    """Returns the task, which `model` fits."""
    schema = schema_of(source)
    require_tables(model, schema.tables, "the source")
    if schema.timed is not None:
        require_time_unit(model, schema.time_unit, "the source")
    task = task_of(schema, task) if task is None or isinstance(task, str) else task
    check_model(model.to(device), task, source, device)
    return task


def evaluation(
    model: nn.Module,
    task: Task,
    source: BatchSource,
    device: torch.device,
    *,
    amp: bool,
    reporter: Reporter,
    ranks: Ranks | None = None,
    between: Callable[[], object] = lambda: None,
) -> EvalResult:
    """Measures how well a model that fits does at `task` over one epoch of `source`: of all ranks' sources together, in
    each. Calls `between` after each minibatch.
    """
    ranks, tally = ranks or Ranks(), task.tally(device)
    spent = _count(tally, model, task, source, device, amp=amp, reporter=reporter, between=between)
    return _result(ranks, tally, Spent.together(ranks.gathered(spent)))


def _result(ranks: Ranks, tally: Tally, spent: Spent) -> EvalResult:
    """Merges the tallies of all ranks, exactly as if one had counted everything."""
    tallies = [tally]
    if ranks.world_size > 1:
        content = io.BytesIO()
        torch.save(tally, content)
        found = ranks.gathered_by_first(content.getvalue())
        tallies = [torch.load(io.BytesIO(each), "cpu", weights_only=False) for each in found]

    def scored() -> tuple[float, dict[str, float], int]:
        total, *others = tallies
        for other in others:
            total.merge(other)
        return total.loss(), total.scores(), total.num_seeds

    loss, scores, num_seeds = ranks.by_first(scored)
    return EvalResult(loss, scores, num_seeds, spent.seconds, spent.load.wait_seconds, spent.load.read_bytes)


@torch.no_grad()
def _count(
    tally: Tally,
    model: nn.Module,
    task: Task,
    source: BatchSource,
    device: torch.device,
    *,
    amp: bool,
    reporter: Reporter,
    between: Callable[[], object] = lambda: None,
) -> Spent:
    """Add one epoch of `source` to `tally`; what it took."""
    was_training, began = model.training, Spent.until_now(source)
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
                between()
    finally:
        model.train(was_training)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # so that the seconds are all there
    return Spent.until_now(source) - began
