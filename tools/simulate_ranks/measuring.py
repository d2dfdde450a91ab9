"""The rates of this machine, measured on a packed directory."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch
from replay import Rates
from torch import distributed, nn

import diskgnn
from diskgnn._native import DIRECT_ALIGNMENT, measure_reads
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.loading.tracing import UNTRACED
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.training.config import TrainingConfig
from diskgnn.training.named_models import model_for
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.ranks import Ranks
from diskgnn.training.steps import make_step
from diskgnn.training.task import Task, task_of

_PASSES = 4  # over the minibatches that are measured: machines are not as fast in each second
_READ_BYTES, _READ_DEPTH, _MAX_READ_BYTES = 1 << 20, 16, 2 << 30


def measure_at_once(processes: int, packed: Path, *, hidden: int, minibatches: int, threads: int) -> Rates:
    """The means of so many processes that are measured at the same time: they share disk, cores and memory."""
    work = partial(measure, packed, hidden=hidden, minibatches=minibatches, threads=threads)
    if processes == 1:
        return work(Ranks())
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool,
    ):
        found = list(pool.map(partial(_measure_one, work, f"{folder}/store", processes), range(processes)))
    names = ("read_bytes", "assembled_bytes", "edge_seconds", "step_seconds")
    means = {name: statistics.mean(getattr(rates, name) for rates in found) for name in names}
    return replace(found[0], **means)


def _measure_one(work: Callable[[Ranks], Rates], store: str, processes: int, rank: int) -> Rates:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=processes)
    try:
        return work(Ranks(rank, processes))
    finally:
        distributed.destroy_process_group()


def measure(packed: Path, ranks: Ranks, *, hidden: int, minibatches: int, threads: int) -> Rates:
    """Reading extents past the page cache; assembling with a consumer that does nothing; steps of SAGE in memory, of
    each rank alone at the same time, then of all together."""
    torch.set_num_threads(threads)
    opened = Packed.open(packed)
    row_bytes = opened.config.one_row_set.rows.row_bytes
    with diskgnn.Loader(opened) as loader:
        batches = chain.from_iterable(map(loader.epoch, count()))
        deque(islice(batches, minibatches), maxlen=0)  # memory is touched for the first time: that is slow
        ranks.gathered(None)
        before = loader.stats()
        deque(islice(batches, minibatches), maxlen=0)
        found = loader.stats() - before
        kept = list(islice(batches, minibatches))
        schema, num_layers = loader.schema, loader.num_layers
    copied_seconds = found.gather_seconds + found.scatter_seconds
    task = task_of(schema)
    net = model_for(ModelSpec(hidden=hidden).fitted(schema, num_layers), schema, task)
    edges = [batch.num_edges for batch in kept] * _PASSES
    edge_seconds = sum(_step_seconds(net, task, Ranks(), kept, ranks)) / sum(edges)
    step_seconds = 0.0
    if ranks.world_size > 1:
        computing = [each * edge_seconds for each in edges]
        step_seconds = beyond(ranks.gathered(_step_seconds(net, task, ranks, kept, ranks)), ranks.gathered(computing))
    return Rates(
        read_bytes=_read_rate(opened.file(artifacts.extents_file("train"))),
        assembled_bytes=found.requested_rows * row_bytes / copied_seconds,
        edge_seconds=edge_seconds,
        gradient_bytes=sum(each.numel() * each.element_size() for each in net.parameters()),
        step_seconds=step_seconds,
        cores=threads,
    )


def beyond(together: Sequence[Sequence[float]], computing: Sequence[Sequence[float]]) -> float:
    """What a step of all ranks takes on average beside what `replay` takes it for, from the seconds of each step by
    rank: that the slowest one computes by itself at its usual rate. It is what DDP and gloo cost, and what ranks wait
    because another one is slower than usual."""
    steps = [statistics.mean(map(max, zip(*each, strict=True))) for each in (together, computing)]
    return max(0.0, steps[0] - steps[1])


def _step_seconds(
    net: nn.Module, task: Task, together: Ranks, batches: Sequence[MiniBatch], beside: Ranks
) -> list[float]:
    """What training takes on each minibatch, _PASSES times, after one that does not count; `beside` begin at the same
    time."""
    config = TrainingConfig(
        epochs=1, lr=0.003, weight_decay=0.0, amp=False, seed=0, evaluate_every=1, record_every_batches=1,
        checkpoint=None, checkpoint_every_batches=None, resume=False,
    )  # fmt: skip
    optimizer, seconds = make_optimizer(net, config.lr, config.weight_decay), []
    step = make_step(net, optimizer, task, together, torch.device("cpu"), config, UNTRACED)
    step(batches[0], 0, False)
    beside.gathered(None)
    for number, batch in enumerate([*batches] * _PASSES):
        started = time.perf_counter()
        step(batch, number, False)
        seconds.append(time.perf_counter() - started)
    return seconds


def _read_rate(path: Path) -> float:
    num_bytes = min(path.stat().st_size, _MAX_READ_BYTES)
    bytes_each = _READ_BYTES if num_bytes >= _READ_BYTES else DIRECT_ALIGNMENT
    offsets = np.arange(num_bytes // bytes_each, dtype=np.uint64) * np.uint64(bytes_each)
    _, _, read_bytes, seconds = measure_reads(str(path), offsets, bytes_each, _READ_DEPTH, 5.0)
    return read_bytes / seconds
