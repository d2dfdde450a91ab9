"""How a `Loader` reads a packed directory: what `diskgnn.train` and `diskgnn.evaluate` hand on to theirs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoaderOptions:
    """The keyword arguments of `Loader`, but for where minibatches go: see there."""

    device_cache: int | str | None = None
    zero_copy: bool | None = None
    dtype: torch.dtype | None = None
    scale: float | Sequence[float] | torch.Tensor | None = None
    zero_point: float | Sequence[float] | torch.Tensor = 0.0
    prefetch: int | None = None
    shuffle_seed: int | None = None
    engine: str = "auto"
    verify: bool = False
    threads: int | None = None
