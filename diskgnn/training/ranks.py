"""The processes that train one model together (`torch.distributed`), or the one that trains alone.

All of them call the methods of `Ranks` in the same order, with the same number of steps between.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from diskgnn.batches.batch_source import BatchSource
from diskgnn.errors import ConfigError, DiskGNNError, WorkerLostError
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import shard_of_environment
from diskgnn.specs.shard import Shard

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")

# In what torch.distributed raises when another process has gone.
_NETWORK_ERRORS = ("gloo", "NCCL", "TCPStore", "Connection closed", "Connection reset", "Broken pipe")


class Ranks:
    """Speaks for one of `world_size` processes that train together.

    Args:
        rank, world_size: which of how many; those of torch's default process group, if there is more than one.
        notes: what outlives these processes when torchrun starts others in their place, if anything does.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, notes: Store | None = None) -> None:
        self.shard, self._notes = Shard(rank, world_size), notes

    @property
    def is_first(self) -> bool:
        """Returns True in the process that writes and tells."""
        return self.shard.rank == 0

    @property
    def world_size(self) -> int:
        """Returns how many processes there are."""
        return self.shard.world_size

    def gathered(self, value: T) -> list[T]:
        """Returns [world_size] what each rank gave, by rank."""
        if self.world_size == 1:
            return [value]
        found: list[Any] = [None] * self.world_size
        distributed.all_gather_object(found, value)
        return found

    def gathered_by_first(self, value: T) -> list[T]:
        """Returns `gathered` in the first rank, nothing in the others."""
        if self.world_size == 1:
            return [value]
        found: list[Any] = [None] * self.world_size
        distributed.gather_object(value, found if self.is_first else None)
        return found if self.is_first else []

    def sums(self, values: Sequence[float]) -> list[float]:
        """Returns [n] of each number, the sum over all ranks, in float64."""
        return self.summing(values)()

    def summing(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Begins `sums`; what is returned waits for it."""
        if self.world_size == 1:
            return lambda: list(values)
        total = torch.tensor(values, dtype=torch.float64, device=_collective_device())
        work = distributed.all_reduce(total, async_op=True)

        def wait() -> list[float]:
            work.wait()
            found: list[float] = total.tolist()
            return found

        return wait

    def note(self, what: str) -> None:
        """Tell the processes that torchrun may start in place of these that `what` was done."""
        if self._notes is not None:
            self._notes.set(f"diskgnn/{what}", "")

    def replace_others_after(self, what: str) -> bool:
        """Returns True if torchrun started these processes because one of others, which had noted `what`, has died.

        On several machines, where no notes are kept, whatever these others had done.
        """
        if not any(self.gathered(_num_restarts() > 0)):
            return False
        return self.by_first(lambda: self._notes is None or self._notes.check([f"diskgnn/{what}"]))

    def by_first(self, call: Callable[[], T]) -> T:
        """Returns what `call` returns in the first rank, in all of them; what it raises there is raised in all.

        Raises:
            WorkerLostError: in the others, for what is no error of ours.
        """
        if self.world_size == 1:
            return call()
        found: list[Any] = [None, None]
        error = None
        if self.is_first:
            try:
                found = [call(), None]
            except Exception as caught:
                error, found = caught, [None, _error_for_others(caught, 0)]
        distributed.broadcast_object_list(found)
        if found[1] is not None:
            raise error or found[1]
        result: T = found[0]
        return result

    def in_all(self, call: Callable[[], T]) -> T:
        """Returns what `call` returns here, once it has returned in every rank; what is raised in one is raised in all.

        Raises:
            WorkerLostError: in the others, for what is no error of ours.
        """
        if self.world_size == 1:
            return call()
        error: Exception | None = None
        try:
            result = call()
        except Exception as caught:
            error = caught
        told = self.gathered(None if error is None else _error_for_others(error, self.shard.rank))
        if errors := [each for each in told if each is not None]:
            raise error or errors[0]
        return result


def _error_for_others(error: Exception, rank: int) -> DiskGNNError:
    """Returns the error that other ranks raise for an error of this one."""
    if isinstance(error, DiskGNNError):
        with suppress(Exception):  # what cannot be sent is told in words
            return cast("DiskGNNError", pickle.loads(pickle.dumps(error)))
    return WorkerLostError(f"rank {rank} failed ({type(error).__name__}: {error}): see what it says itself")


@contextmanager
def _others_lost() -> Iterator[None]:
    """Turns what torch.distributed raises when another rank is gone into an error of ours: that rank says why."""
    try:
        yield
    except RuntimeError as error:
        if not any(word in str(error) for word in _NETWORK_ERRORS):
            raise
        raise WorkerLostError(
            "another rank has ended, and this one with it: see what the other says. With a `checkpoint`, the same run "
            "goes on with resume=True; torchrun --max-restarts does that by itself"
        ) from error


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Joins the ranks of torch's default process group, or of the one that torchrun's environment describes.

    The latter is left when the block ends: gloo, and NCCL between GPUs.

    Raises:
        WorkerLostError: another rank has ended.
    """
    keeps_notes = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    notes: Store | None = next(rendezvous("env://"))[0] if keeps_notes else None
    if distributed.is_available() and distributed.is_initialized():
        with _others_lost():
            yield Ranks(distributed.get_rank(), distributed.get_world_size(), notes)
        return
    shard = shard_of_environment()
    if shard is None or shard.world_size == 1:
        yield Ranks(notes=notes)
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = notes or next(rendezvous("env://"))[0]
    if os.environ.get("GROUP_WORLD_SIZE") == "1":
        # torchrun keeps its store when it starts the ranks again, and one could read where another that died had been.
        # Of several machines, each counts restarts by itself: there TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 does it.
        store = distributed.PrefixStore(f"attempt-{_num_restarts()}", store)  # type: ignore[attr-defined]
    distributed.init_process_group(backend, store=store, rank=shard.rank, world_size=shard.world_size)
    try:
        with _others_lost():
            yield Ranks(shard.rank, shard.world_size, notes)
    except DiskGNNError:  # all ranks refuse alike; threads that nobody joined would abort the process
        distributed.destroy_process_group()
        raise
    distributed.destroy_process_group()  # after another error the others are gone, and it could wait for them


def device_of_rank(device: str | torch.device) -> str | torch.device:
    """Returns for 'cuda' the GPU of this process among those of its machine, where torchrun started it; else
    `device`.
    """
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if str(device) == "cuda" and local is not None else device


def _num_restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def check_alike(ranks: Ranks, source: BatchSource) -> None:
    """Refuse packed directories that are not of one preparation for these ranks. Other sources are as they are.

    Raises:
        ConfigError: one is for another rank, or of another graph or other settings.
    """
    if ranks.world_size == 1:
        return
    packed: Packed | None = getattr(getattr(source, "sequence", None), "packed", None)
    found = ranks.gathered(None if packed is None else (packed.config.samples.spec.shard, _preparation(packed)))
    for rank, of_rank in enumerate(found):
        if of_rank is None or found[0] is None:
            continue
        shard, preparation = of_rank
        if shard != Shard(rank, ranks.world_size):
            raise ConfigError(
                f"rank {rank} of {ranks.world_size} has minibatches that were prepared for rank {shard.rank} of "
                f"{shard.world_size}: prepare them with `diskgnn prepare --ranks {ranks.world_size}`"
            )
        differing = [name for name, value in preparation.items() if found[0][1].get(name) != value]
        if differing:
            raise ConfigError(
                f"rank {rank} has minibatches of another preparation than rank 0: "
                + ", ".join(f"{name} is {preparation[name]}, expected {found[0][1].get(name)}" for name in differing)
                + "; prepare all ranks with one command"
            )


def _preparation(packed: Packed) -> dict[str, Any]:
    """Returns what is the same for all ranks."""
    config = packed.config.to_json()
    samples = {name: value for name, value in config["samples"].items() if name not in ("shard", "splits")}
    return {"graph": config["graph"], **samples, "splits": sorted(config["splits"])}


def _collective_device() -> torch.device:
    """Returns where a small tensor has to be that ranks add up: NCCL alone takes those of a GPU only."""
    return torch.device("cpu" if "cpu:" in str(distributed.get_backend_config()) else "cuda")
