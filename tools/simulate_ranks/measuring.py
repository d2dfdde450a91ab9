"""The rates of this machine, measured on a packed directory."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice
from pathlib import Path

import numpy as np
import torch
from replay import Rates

import diskgnn
from diskgnn._native import DIRECT_ALIGNMENT, measure_reads
from diskgnn.storage import artifacts
from diskgnn.storage.packed import Packed
from diskgnn.training.model_spec import ModelSpec
from diskgnn.training.named_models import model_for
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.tasks import task_of

_READ_BYTES, _READ_DEPTH, _MAX_READ_BYTES = 1 << 20, 16, 2 << 30


def measure_at_once(processes: int, packed: Path, *, hidden: int, minibatches: int, threads: int) -> Rates:
    """The means of so many processes that are measured at the same time: they share disk, cores and memory."""
    work = partial(measure, hidden=hidden, minibatches=minibatches, threads=threads)
    if processes == 1:
        return work(packed)
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(work, [packed] * processes))
    names = ("read_bytes", "assembled_bytes", "edge_seconds")
    means = {name: statistics.mean(getattr(rates, name) for rates in found) for name in names}
    return replace(found[0], **means)


def measure(packed: Path, *, hidden: int, minibatches: int, threads: int) -> Rates:
    """Reading extents past the page cache; assembling with a consumer that does nothing; steps of SAGE in memory."""
    opened = Packed.open(packed)
    row_bytes = opened.config.one_row_set.rows.row_bytes
    with diskgnn.Loader(packed) as loader:
        batches = chain.from_iterable(map(loader.epoch, count()))
        deque(islice(batches, minibatches), maxlen=0)  # memory is touched for the first time: that is slow
        before = loader.stats()
        deque(islice(batches, minibatches), maxlen=0)
        found = loader.stats() - before
        kept = list(islice(batches, minibatches))
        schema, num_layers = loader.schema, loader.num_layers
    copied_seconds = found.gather_seconds + found.scatter_seconds
    torch.set_num_threads(threads)
    task = task_of(schema)
    net = model_for(ModelSpec(hidden=hidden).fitted(schema, num_layers), schema, task)
    optimizer, seconds = make_optimizer(net, 0.003, 0.0), []
    for batch in kept:
        started = time.perf_counter()
        loss = task.loss(task.outputs(net, batch), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        seconds.append((time.perf_counter() - started) / batch.num_edges)
    return Rates(
        read_bytes=_read_rate(opened.file(artifacts.extents_file("train"))),
        assembled_bytes=found.requested_rows * row_bytes / copied_seconds,
        edge_seconds=statistics.median(seconds),
        gradient_bytes=sum(each.numel() * each.element_size() for each in net.parameters()),
        cores=threads,
    )


def _read_rate(path: Path) -> float:
    num_bytes = min(path.stat().st_size, _MAX_READ_BYTES)
    bytes_each = _READ_BYTES if num_bytes >= _READ_BYTES else DIRECT_ALIGNMENT
    offsets = np.arange(num_bytes // bytes_each, dtype=np.uint64) * np.uint64(bytes_each)
    _, _, read_bytes, seconds = measure_reads(str(path), offsets, bytes_each, _READ_DEPTH, 5.0)
    return read_bytes / seconds
