"""Epochs of one packed directory: loading alone, training from disk, and the same steps with nothing to load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn import Loader
from diskgnn.batches.minibatch import MiniBatch
from diskgnn.nn.block_models import make_model
from gpu_benchmark.rates import synchronize

KEPT_SHARE = 0.4  # of free GPU memory, for minibatches that are computed on again and again
MODELS = {"SAGE": ("sage", 256), "GAT": ("gat", 128)}  # 4 heads x 32


@dataclass(frozen=True)
class Tier:
    """Where the loader keeps static rows, and who gathers them."""

    name: str
    device_cache: int | str
    zero_copy: bool


def step_of(model: str, batch: MiniBatch, num_classes: int, hidden: int | None) -> Callable[[MiniBatch], Tensor]:
    """One training step of a fresh model that fits `batch`, on its device."""
    name, width = MODELS[model]
    torch.manual_seed(0)
    net: nn.Module = make_model(name, batch.x.shape[1], hidden or width, num_classes, len(batch.blocks))
    net.to(batch.x.device)
    optimizer = torch.optim.Adam(net.parameters())

    def step(batch: MiniBatch) -> Tensor:
        loss = F.cross_entropy(net(batch.blocks, batch.x), batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def fresh(batches: Iterable[MiniBatch]) -> Iterator[MiniBatch]:
    """The same minibatches, with nothing computed from their blocks yet."""
    return (replace(batch, blocks=tuple(replace(block) for block in batch.blocks)) for batch in batches)


def timed_epoch(batches: Iterable[MiniBatch], step: Callable[[MiniBatch], object], device: torch.device) -> float:
    """Seconds until all steps are done on the device."""
    synchronize(device)
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    synchronize(device)
    return time.perf_counter() - began


@contextmanager
def opened(packed: Path, device: torch.device, tier: Tier) -> Iterator[Loader]:
    """A loader with its tiers filled, its kernel compiled and its memory allocated."""
    tiers = {"device_cache": tier.device_cache, "zero_copy": tier.zero_copy}
    with Loader(packed, device=device, dtype=torch.float32, **tiers) as loader:
        for _ in islice(loader.epoch(0), 4):
            pass
        yield loader


def measured(loader: Loader, step: Callable[[MiniBatch], object], epoch: int = 0) -> dict[str, float]:
    """Seconds of an epoch of `step`, and what the loop waited."""
    before = loader.stats()
    batches = loader.epoch(epoch)  # seeks, and fills the cpu tier
    seconds = timed_epoch(batches, step, loader.device)
    found = loader.stats() - before
    read_bytes = found.read_bytes - found.restored_bytes
    return {"seconds": seconds, "wait_seconds": found.wait_seconds, "read_bytes": read_bytes}


def kept_minibatches(packed: Path, device: torch.device, tier: Tier) -> list[MiniBatch]:
    """As many minibatches of the epoch as may be kept on the device, with input nodes."""
    with opened(packed, device, tier) as loader:
        largest = loader.sequence.largest_minibatch()
        count = loader.num_batches
        if device.type == "cuda":
            free_bytes = torch.cuda.mem_get_info(device)[0]
            count = min(
                count, int(KEPT_SHARE * free_bytes / (largest.x.nbytes + loader.sequence.device_bytes_ahead / 2))
            )
        return list(islice(loader.epoch(0), max(2, count)))


def bounds(
    kept: list[MiniBatch], features: Tensor, model: str, num_classes: int, num_batches: int, hidden: int | None
) -> dict[str, float]:
    """Seconds of an epoch with everything on the device: computing alone, and gathering x from `features` as well."""
    device = features.device
    step = step_of(model, kept[0], num_classes, hidden)
    timed_epoch(fresh(islice(kept, 3)), step, device)  # memory is allocated, kernels are chosen
    scale = num_batches / len(kept)

    def gathered(batch: MiniBatch) -> MiniBatch:
        assert batch.input_nodes is not None
        return replace(batch, x=features.index_select(0, batch.input_nodes).float())

    bare = [replace(batch, x=batch.x[:0]) for batch in kept]
    return {
        "compute_seconds": scale * timed_epoch(fresh(kept), step, device),
        "in_memory_seconds": scale * timed_epoch(map(gathered, fresh(bare)), step, device),
    }


def nothing(batch: Any) -> None:
    """An idle consumer."""
