"""Training from disk against training from a list of minibatches in memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import diskgnn
from benchmarks import limits
from benchmarks.settings import Settings
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.formats.packed import Packed
from diskgnn.nn.block_models import make_model

MAX_KEPT_BYTES = 3 << 30  # of minibatches in memory


def training(settings: Settings) -> dict[str, Any]:
    """Seconds per minibatch of the same model on the same minibatches: from the loader, and from a list in memory. And
    those of the processor, which say what loading takes of the cores that the model computes on."""
    packed = Packed.open(settings.packed)
    train = packed.sequence("train")
    bytes_each = train.max_inputs * 4 * settings.width + train.max_header_bytes  # x is float32 at most
    count = max(2, min(settings.train_minibatches, train.batches_per_epoch, MAX_KEPT_BYTES // bytes_each))
    torch.manual_seed(0)
    model = make_model("sage", settings.width, settings.hidden, settings.classes, len(settings.fanouts))
    step = _step_of(model, torch.optim.Adam(model.parameters()))
    turns = []
    with diskgnn.Loader(settings.packed) as source:
        kept = list(islice(source.epoch(0), count))
        # Those keep their buffers: others are taken, and their memory is touched for the first time, before it counts.
        deque(islice(source.epoch(0), 4), maxlen=0)
        for _ in range(settings.repeat):
            # Fresh blocks: what a block computes from itself and keeps is computed in both.
            fresh = (replace(batch, blocks=tuple(replace(block) for block in batch.blocks)) for batch in kept)
            from_memory, from_memory_cpu = _seconds_per_minibatch(fresh, step)
            from_disk, from_disk_cpu = _seconds_per_minibatch(islice(source.epoch(0), count), step)
            turns.append({
                "from_memory_seconds": from_memory, "from_memory_cpu_seconds": from_memory_cpu,
                "from_disk_seconds": from_disk, "from_disk_cpu_seconds": from_disk_cpu,
            })  # fmt: skip
    return {
        "minibatches": count,
        "turns": turns,
        **{name: median(turn[name] for turn in turns) for name in turns[0]},
        "of_memory": [turn["from_disk_seconds"] / turn["from_memory_seconds"] for turn in turns],
        "peak_bytes": limits.peak_bytes(),
    }


def _step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[MiniBatch], None]:
    def step(batch: MiniBatch) -> None:
        loss = F.cross_entropy(model(batch.blocks, batch.x.float()), batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _seconds_per_minibatch(batches: Iterator[MiniBatch], step: Callable[[MiniBatch], None]) -> tuple[float, float]:
    """By the clock, and of all threads on the processor."""
    step(next(batches))  # the cpu tier has been filled, threads have been started
    done = 0

    def others() -> None:
        nonlocal done
        for batch in batches:
            step(batch)
            done += 1

    began_cpu = time.process_time()
    seconds = limits.timed(others)
    return seconds / max(done, 1), (time.process_time() - began_cpu) / max(done, 1)
