"""Calls a function in each of several processes that torch.distributed has joined, over gloo."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing

from diskgnn import train

# One process imports what each of them needs, and forks: that takes several times as long as what most tests do there.
multiprocessing.set_forkserver_preload(["torch.distributed", "torch._dynamo", "diskgnn.training.train"])


def in_ranks(world_size: int, call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """[world_size] what `call(rank, *arguments)` returned in each; `call` is a function of a module."""
    with tempfile.TemporaryDirectory() as folder:
        told = world_size, folder, call, arguments
        multiprocessing.start_processes(_run, told, nprocs=world_size, start_method="forkserver")
        return [torch.load(Path(folder) / str(rank), weights_only=False) for rank in range(world_size)]


def _run(rank: int, world_size: int, folder: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    torch.save(call(rank, *arguments), f"{folder}/{rank}")
    distributed.destroy_process_group()


def trained(rank: int, runs: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Of each run, by its name: weights; losses, scores and rows of all epochs; the best one."""
    found = {}
    for name, options in runs.items():
        result = train(**options)
        told = [(each.loss, each.scores(), each.requested_rows) for each in result.epochs]
        found[name] = result.model.state_dict(), told, result.best_epoch
    return found
