"""Says how a `Loader` reads, as a value that `diskgnn.train` and `diskgnn.evaluate` hand on to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diskgnn.errors import ConfigError
from diskgnn.storage.ranks import local_ranks
from diskgnn.storage.read_engine import check_engine
from diskgnn.system.memory import available_cores
from diskgnn.units import whole_number

if TYPE_CHECKING:
    import torch

_MAX_DEFAULT_THREADS = 4


@dataclass(frozen=True, eq=False)
class LoaderOptions:
    """Holds the keyword arguments of `diskgnn.Loader` but `device`, `rank` and `world_size`: see there.

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
        """Returns how many minibatches are assembled ahead of the user.

        By default 1 on a cpu, where each costs memory that training needs and computing outlasts reading. By default 2
        on a GPU, where one more is in GPU memory already.
        """
        return self.prefetch or (2 if device.type == "cuda" else 1)

    @property
    def gather_threads(self) -> int:
        """Returns how many threads copy rows; by default half of this process's share of the cores, at most 4."""
        return self.threads or max(1, min(_MAX_DEFAULT_THREADS, available_cores() // (2 * local_ranks())))
