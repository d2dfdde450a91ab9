"""Calls a function in each of several processes that torch.distributed has joined, over gloo."""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked_python import Python
from torch import distributed

from diskgnn import train


def in_ranks(world_size: int, call: Callable[..., Any], *arguments: Any) -> list[Any]:
    """[world_size] what `call(rank, *arguments)` returned in each; `call` is a function of a module."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "call").write_bytes(pickle.dumps((call, arguments)))
        ranks = [Python("-c", _PROGRAM, rank, world_size, folder, env=environment) for rank in range(world_size)]
        try:
            while any(rank.poll() is None for rank in ranks) and not any(rank.returncode for rank in ranks):
                time.sleep(0.02)
        finally:
            for rank in ranks:  # those that wait for one that has failed
                rank.kill()
                rank.wait()
        assert [rank.returncode for rank in ranks] == [0] * world_size
        return [torch.load(Path(folder, str(rank)), weights_only=False) for rank in range(world_size)]


_PROGRAM = """
import sys, rank_processes
_, rank, world_size, folder = sys.argv
rank_processes.run(int(rank), int(world_size), folder)
"""


def run(rank: int, world_size: int, folder: str) -> None:
    """Does in one process what `in_ranks` was asked for."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
    call, arguments = pickle.loads(Path(folder, "call").read_bytes())
    torch.save(call(rank, *arguments), f"{folder}/{rank}")
    distributed.destroy_process_group()


def environment_of(rank: int, world_size: int, store: distributed.TCPStore) -> dict[str, str]:
    """What torchrun tells a process, whose ranks find each other by `store`."""
    told = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "MASTER_ADDR": "localhost",
            "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}  # fmt: skip
    return {name: str(value) for name, value in told.items()}


def trained(rank: int, runs: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Of each run, by its name: weights; losses, scores and rows of all epochs; the best one."""
    found = {}
    for name, options in runs.items():
        result = train(**options)
        told = [(each.loss, each.scores(), each.requested_rows) for each in result.epochs]
        found[name] = result.model.state_dict(), told, result.best_epoch
    return found
