"""The rates of this machine, measured on a packed directory."""

from __future__ import annotations

import statistics
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from replay import Rates

import diskgnn
from diskgnn._native import DIRECT_ALIGNMENT, measure_reads
from diskgnn.storage import artifacts
from diskgnn.storage.packed import Packed
from diskgnn.tracing import UNTRACED
from diskgnn.training.model_spec import ModelSpec
from diskgnn.training.named_models import model_for
from diskgnn.training.optimizers import make_optimizer
from diskgnn.training.tasks import task_of
from diskgnn.training.train import train_step

_READ_BYTES, _READ_DEPTH, _MAX_READ_BYTES = 1 << 20, 16, 2 << 30


def measure(packed: Path, *, hidden: int, minibatches: int, threads: int) -> Rates:
    """Reading extents past the page cache; assembling with a consumer that does nothing; steps of SAGE in memory."""
    opened = Packed.open(packed)
    row_bytes = opened.config.one_row_set.rows.row_bytes
    with diskgnn.Loader(packed) as loader:
        kept = list(islice(loader.epoch(0), minibatches))
        before = loader.stats()
        for _ in islice(loader.epoch(1), minibatches):
            pass
        found = loader.stats() - before
        schema, num_layers = loader.schema, loader.num_layers
    copied_seconds = found.gather_seconds + found.scatter_seconds
    torch.set_num_threads(threads)
    task = task_of(schema)
    net = model_for(ModelSpec(hidden=hidden).fitted(schema, num_layers), schema, task)
    optimizer, seconds = make_optimizer(net, 0.003, 0.0), []
    for batch in kept:
        started = time.perf_counter()
        train_step(net, optimizer, task, batch, False, UNTRACED).item()
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
