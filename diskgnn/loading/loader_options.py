"""Says how a `Loader` reads, as a value that `diskgnn.train` and `diskgnn.evaluate` hand on to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from diskgnn.errors import ConfigError
from diskgnn.files.read_engine import check_engine
from diskgnn.formats.rank_directories import local_ranks
from diskgnn.system.memory import available_cores
from diskgnn.units import whole_number

if TYPE_CHECKING:
    import torch

_MAX_DEFAULT_THREADS = 4


class ReadingOptions(TypedDict, total=False):
    """Fields of `LoaderOptions`, as keywords."""

    device_cache: int | str | None
    zero_copy: bool | None
    dtype: torch.dtype | None
    scale: float | Sequence[float] | torch.Tensor | None
    zero_point: float | Sequence[float] | torch.Tensor
    prefetch: int | None
    shuffle_seed: int | None
    engine: str
    verify: bool
    threads: int | None
    stream: bool


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """Says how a `diskgnn.Loader` reads.

    Attributes:
        device_cache: static rows kept on the device, bytes or '4GiB'; host memory has the others. By default as another
            loader of the directory has it, else all that fit half of the free GPU memory; none on a cpu.
            `diskgnn.train` tries the model first, and takes all that it leaves.
        zero_copy: the device gathers static rows from host memory, page-locked, by itself; otherwise the host gathers
            them. By default on a GPU (which takes Triton; it comes with torch).
        dtype: of x. By default that of the data set, and float32 where `convert` quantised it to int8 or int4;
            torch.float32 widens float16 and bfloat16 on the device. Quantised rows also become torch.float16 or
            torch.bfloat16.
        scale: of int8 rows that were not quantised by `convert`, one number or one per column: x is
            (row - zero_point) * scale in float32, computed on the device.
        zero_point: what is subtracted from such rows before that.
        prefetch: minibatches assembled ahead of the user; by default 1 on a cpu, where each costs memory that training
            needs and computing outlasts reading, and 2 on a GPU, where one more is on the GPU already.
        shuffle_seed: yield the minibatches of epoch e in an order that follows from this number and e, instead of the
            prepared one; for directories prepared without a cpu tier.
        engine: 'io_uring', 'threads', or 'auto': io_uring where it is allowed.
        verify: compare the rows of extents, and all that a seek reads of them, with their checksums; what else is read
            always is. Without it, a seek reads less, and damaged rows go unnoticed.
        threads: threads that copy rows; by default half of the cores, at most 4. Under torchrun, the ranks of a machine
            share its cores (LOCAL_WORLD_SIZE).
        stream: `packed` may be the URL of an object store, such as 's3://bucket/packed'. Extents are read there in
            every epoch, at most 8 requests of 4 MiB at a time, and 48 MiB ahead (32 MiB more are on the way); what the
            tiers start with is copied to TMPDIR until the loader is dropped. A request that fails is made again, see
            `StoreError`. `diskgnn.fetch` copies a directory once instead.

    Raises:
        ConfigError: `engine`, `prefetch` or `threads` make no sense, or `engine` cannot be used here; `stream` without
            `verify`.

    Example:
        diskgnn.train("packed", device="cuda", loader_options=LoaderOptions(device_cache="4GiB"))
    """

    device_cache: int | str | None = None
    zero_copy: bool | None = None
    dtype: torch.dtype | None = None
    scale: float | Sequence[float] | torch.Tensor | None = None
    zero_point: float | Sequence[float] | torch.Tensor = 0.0
    prefetch: int | None = None
    shuffle_seed: int | None = None
    engine: str = "auto"
    verify: bool = True
    threads: int | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        check_engine(self.engine)
        if self.stream and not self.verify:
            raise ConfigError("verify: what is streamed from a store is compared with its checksums; leave it on")
        for name in ("prefetch", "threads"):
            if (given := getattr(self, name)) is not None:
                whole_number(name, given)

    def prefetch_for(self, device: torch.device) -> int:
        """Returns how many minibatches are assembled ahead of the user: `prefetch`, or its default."""
        return self.prefetch or (2 if device.type == "cuda" else 1)

    @property
    def gather_threads(self) -> int:
        """Returns how many threads copy rows: `threads`, or its default."""
        return self.threads or max(1, min(_MAX_DEFAULT_THREADS, available_cores() // (2 * local_ranks())))
