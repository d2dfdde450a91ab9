"""The work of one process of a comparison: prepare, load, train, evaluate or count.

Each step has a process of its own (see `processes`), so that memory, caches and counters are its own, too.
"""

from __future__ import annotations

import gc
import shutil
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from diskgnn.batches.batch_source import BatchSource, minibatches, schema_of
from diskgnn.compare import page_cache
from diskgnn.compare.comparison_record import EpochCost, SweepPoint
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.repeating import Measured, measure_repeatedly
from diskgnn.compare.variants import Variant, find
from diskgnn.formats.artifacts import GRAPH
from diskgnn.formats.manifest import open_artifact
from diskgnn.graph.graph import Graph
from diskgnn.loading.tracing import TRAIN_TRACK, TraceEvent
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.system.disk_rates import device_bytes

if TYPE_CHECKING:
    from torch import nn

TRACED_MINIBATCHES = 6
MAX_TRACED_EVENTS = 3000


class Fewest(NamedTuple):
    """The least that a cache of some size has to read."""

    rows: int
    row_bytes: int


def import_all(optimizing: bool = False) -> None:
    """Import modules before the clock starts: that can take longer than an epoch, and no loader is charged for it."""
    import torch

    import diskgnn.loading.loader
    import diskgnn.training.named_models
    import diskgnn.training.train  # noqa: F401

    if optimizing:  # making an optimizer imports this: a second more than all else, and as much memory again
        import torch._dynamo  # noqa: F401


def prepare(inputs: LoaderInputs, loader: str, variant: str) -> tuple[float, int]:
    """Returns the seconds of preparing, and bytes on disk afterwards."""
    chosen = find(loader, variant)
    assert chosen.prepare is not None
    started = time.perf_counter()
    chosen.prepare(inputs)
    seconds = time.perf_counter() - started
    files = [file for file in Path(inputs.folder).rglob("*") if file.is_file()]
    return seconds, sum(file.stat().st_size for file in files)


def load(inputs: LoaderInputs, loader: str, variant: str) -> EpochCost:
    """Returns what epoch 0 costs when nobody computes."""
    import_all()
    # One epoch: what prepares while it trains shall not prepare another beside the one that is measured.
    one_epoch, chosen = replace(inputs, sampling=replace(inputs.sampling, epochs=1)), find(loader, variant)
    return measure_repeatedly(lambda _: _load_once(one_epoch, chosen), partial(_forget, one_epoch)).cost


def _load_once(inputs: LoaderInputs, variant: Variant) -> Measured:
    import torch

    source, open_seconds = _open(inputs, variant)
    try:
        meter = _Meter(source)
        with minibatches(source, 0) as batches:
            for batch in batches:
                batch.to(inputs.device, non_blocking=True)
        if inputs.device != "cpu":
            torch.cuda.synchronize(inputs.device)
        return Measured(meter.cost(), open_seconds)
    finally:
        source.close()


def train(
    inputs: LoaderInputs, loader: str, variant: str, model: ModelSpec, lr: float, weights: str | None, trace: str | None
) -> Measured:
    """Returns what epochs of training cost; the weights after each go to folder `weights`, a timeline to file
    `trace`."""
    import_all(optimizing=True)
    chosen = find(loader, variant)

    def measure(number: int) -> Measured:
        saved = Path(weights) if weights is not None and number == 0 else None  # all runs come to the same weights
        measured = _train_once(inputs, chosen, model, lr, saved, None if trace is None else f"{trace}.{number}")
        return replace(measured, number=number)

    measured = measure_repeatedly(measure, partial(_forget, inputs))
    if trace is not None:
        Path(f"{trace}.{measured.number}").rename(trace)
    return measured


def _train_once(
    inputs: LoaderInputs, variant: Variant, model: ModelSpec, lr: float, weights: Path | None, trace: str | None
) -> Measured:
    import torch

    from diskgnn.training.train import train

    source, open_seconds = _open(inputs, variant)
    try:
        torch.manual_seed(inputs.sampling.seed)
        net = _model(model, source)
        epochs: list[dict[str, float]] = []

        def finish_epoch(record: dict[str, Any]) -> None:
            if record["event"] == "epoch":
                epochs.append({name: record[name] for name in ("epoch", "loss", "train_seconds")})
                if weights is not None:
                    torch.save(net.state_dict(), weights / f"{record['epoch']}.pt")

        meter = _Meter(source)
        train(
            source, model=net, lr=lr, epochs=inputs.epochs, device=inputs.device, seed=inputs.sampling.seed,
            callback=finish_epoch, trace=trace,
        )  # fmt: skip
        cost = meter.cost(inputs.epochs, sum(epoch["train_seconds"] for epoch in epochs))
        return Measured(cost, open_seconds, epochs)
    finally:
        source.close()


def _model(model: ModelSpec, source: BatchSource) -> nn.Module:
    """Returns a new one. `model` fits what `source` yields already, unless these are hops: they get one as wide."""
    from diskgnn.training.named_models import model_for, with_statistics
    from diskgnn.training.task import task_of

    schema = schema_of(source)
    if schema.segments:  # of hops: no other model is
        model = ModelSpec(hidden=model.hidden, dropout=model.dropout).fitted(schema, source.num_layers)
    return with_statistics(model_for(model, schema, task_of(schema)), source)


def prepare_evaluation(
    inputs: LoaderInputs, folder: Path, splits: Sequence[str], cache_bytes: int, memory_bytes: int
) -> None:
    """Pack the validation and test splits, once for all loaders."""
    from diskgnn.packing.pack import pack
    from diskgnn.sampling.sample import sample

    samples = folder / "samples"
    graph, eval_fanouts = inputs.graph, inputs.sampling.eval_fanouts
    sample(graph, samples, **inputs.drawn, eval_fanouts=eval_fanouts, splits=splits, memory=memory_bytes)
    pack(graph, samples, folder / "packed", cpu_cache=cache_bytes, eval_cpu_cache=cache_bytes, static_cache=0,
         memory=memory_bytes)  # fmt: skip
    shutil.rmtree(samples)


def evaluate(
    packed: Path, splits: Sequence[str], weights: Path, epochs: int, model: ModelSpec, device: str
) -> list[dict[str, float]]:
    """Returns per epoch the scores on each split with the weights that training had then: 'test_accuracy' and so on."""
    import torch

    from diskgnn.training.evaluate import evaluate
    from diskgnn.training.source_opening import open_loader
    from diskgnn.training.task import task_of

    scores: list[dict[str, float]] = [{} for _ in range(epochs)]
    for split in splits:
        with open_loader(packed, split, torch.device(device), None) as loader:
            net, task = _model(model, loader), task_of(schema_of(loader))
            for epoch, found in enumerate(scores):
                net.load_state_dict(torch.load(weights / f"{epoch}.pt", weights_only=True, map_location=device))
                measured = evaluate(net, loader, device, task=task).scores
                found.update({f"{split}_{name}": score for name, score in measured.items()})
    return scores


def count(
    inputs: LoaderInputs, folder: Path, cache_rows: int, sweep: Sequence[tuple[str, int]], memory_bytes: int
) -> tuple[Fewest, tuple[SweepPoint, ...]]:
    """Counts Belady's bound for `cache_rows`, and the sweep's points for its caches (as given, and in rows)."""
    from diskgnn.compare import counting

    types = counting.sample_inputs(Graph.open(inputs.graph), folder, inputs.drawn, memory_bytes)
    fewest = counting.rows_by_type(counting.BELADY, types, cache_rows)
    row_bytes = sum(rows * each.row_bytes for rows, each in zip(fewest, types, strict=True))
    return Fewest(sum(fewest), row_bytes), tuple(counting.sweep(types, sweep))


def _open(inputs: LoaderInputs, variant: Variant) -> tuple[BatchSource, float]:
    started = time.perf_counter()
    return variant.open(inputs), time.perf_counter() - started


def _forget(inputs: LoaderInputs) -> None:
    """Leave nothing of what was read in the page cache, and warn where something stays."""
    gc.collect()  # what is mapped stays
    if not page_cache.drop(page_cache.files_read(open_artifact(inputs.graph, GRAPH), Path(inputs.folder))):
        warnings.warn("between measurements, some of what was read stayed in the page cache", stacklevel=2)


_ROWS = ("requested_rows", "device_rows", "pinned_rows", "cpu_rows", "disk_rows", "filled_rows")  # of `LoadStats`


class _Meter:
    """Counts what a source and the kernel count from now on."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._started, self._before, self._device = time.perf_counter(), source.stats(), device_bytes()

    def cost(self, epochs: int = 1, seconds: float | None = None) -> EpochCost:
        """Returns the mean of `epochs` until now, which took `seconds` in all, or all the time since then."""
        seconds = time.perf_counter() - self._started if seconds is None else seconds
        spent, device = self._source.stats() - self._before, device_bytes()
        read_bytes = spent.read_bytes + spent.prepare_read_bytes  # who prepares meanwhile reads then, too
        device_spent = [round((after - before) / epochs) for after, before in zip(device, self._device, strict=True)]
        rows: dict[str, Any] = {name: round(getattr(spent, name) / epochs) for name in _ROWS}
        known = spent.read_requests > 0 or read_bytes == 0
        return EpochCost(
            minibatches=self._source.num_batches,
            seconds=seconds / epochs,
            wait_seconds=spent.wait_seconds / epochs,
            **rows,
            read_bytes=round(read_bytes / epochs),
            device_read_bytes=device_spent[0] if device_spent else None,
            read_requests=round(spent.read_requests / epochs) if known else None,
            device_write_bytes=device_spent[1] if device_spent else None,
        )


def excerpt(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    """Returns what happened while a few minibatches from the middle of the first epoch were trained on, on all tracks.

    The middle of what was traced of it: a timeline of many minibatches is full before the epoch ends. A short epoch
    from its start: all of it may be read before the first minibatch is trained on.
    """
    num_batches = 1 + max((event.minibatch for event in events if event.track == TRAIN_TRACK), default=-1)
    first = num_batches // 2 if num_batches > 2 * TRACED_MINIBATCHES else 0
    numbers = range(first, min(first + TRACED_MINIBATCHES, num_batches))
    trained: dict[tuple[str, int], TraceEvent] = {}
    for event in events:
        if event.track == TRAIN_TRACK and event.minibatch in numbers:
            trained.setdefault((event.stage, event.minibatch), event)  # of the first epoch
    if not trained:
        return []
    start, end = min(e.start_ns for e in trained.values()), max(e.end_ns for e in trained.values())
    if first == 0:
        start = min(event.start_ns for event in events)
    shown = [event for event in events if event.end_ns > start and event.start_ns < end][:MAX_TRACED_EVENTS]
    return [replace(event, start_ns=max(event.start_ns, start), end_ns=min(event.end_ns, end)) for event in shown]
