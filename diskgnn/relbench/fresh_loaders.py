"""PyG's `NeighborLoader` for loops that may leave an epoch early."""

from __future__ import annotations

from typing import Any

import torch

from diskgnn import pyg


class NeighborLoader(pyg.NeighborLoader):
    """`diskgnn.pyg.NeighborLoader` that draws shuffled epochs anew, as PyG does, and prepares no epoch as a whole.

    Where seeds are shuffled, minibatches are prepared in windows as the loop goes: a loop that leaves an epoch after
    some of its minibatches has prepared little more than these. Where they are not, as in evaluation, the only epoch is
    prepared once and read again.

    Args:
        args, kwargs: those of `diskgnn.pyg.NeighborLoader`. `prepared_epochs` is 0 by default if `shuffle` is True.
        seed: of draws and of shuffling; by default torch's when the loader is made, which `seed_everything` sets.

    Raises:
        ConfigError: what cannot be prepared, with the way round it.
    """

    def __init__(self, *args: Any, prepared_epochs: int | None = None, seed: int | None = None, **kwargs: Any) -> None:
        if prepared_epochs is None and kwargs.get("shuffle"):
            prepared_epochs = 0
        seed = torch_seed() if seed is None else seed
        super().__init__(*args, prepared_epochs=prepared_epochs, seed=seed, **kwargs)


def torch_seed() -> int:
    """Returns the seed of torch's draws, so that scripts which only set that differ as they would with PyG."""
    return torch.initial_seed() & (2**63 - 1)
