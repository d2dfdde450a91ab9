"""Epochs of minibatches as PyG's loaders read them: all prepared before, or in windows while they are asked for."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch

from diskgnn.batches.minibatch import AnyMiniBatch
from diskgnn.formats.packed import Packed
from diskgnn.fresh.fresh_windows import FreshWindows
from diskgnn.loading.loader import Loader
from diskgnn.system.allocators import return_freed_memory


class PackedBatches:
    """Epochs that were prepared; after these, the first one comes again.

    Attributes:
        packed: where they are.
    """

    def __init__(self, packed: Packed, device: str | torch.device) -> None:
        self.packed, self._device = packed, device
        self._loader: Loader | None = None

    def __repr__(self) -> str:
        return repr(self.packed)

    def epoch(self, epoch: int) -> Iterator[AnyMiniBatch]:
        """Yields the minibatches of one epoch."""
        if self._loader is None:
            self._loader = Loader(self.packed, device=self._device)
        return self._loader.epoch(epoch)

    def close(self) -> None:
        """Stop reading ahead and free the tiers; the next epoch opens them again."""
        if self._loader is not None:
            self._loader.close()
            self._loader = None
            return_freed_memory()


class WindowedBatches:
    """Epochs that are prepared in windows, as far as they are asked for."""

    def __init__(self, windows: FreshWindows) -> None:
        self._windows = windows
        self._turn = 0

    def __repr__(self) -> str:
        return "a window of minibatches"

    def epoch(self, epoch: int) -> Iterator[AnyMiniBatch]:
        """Yields the minibatches of one epoch. One that is left early prepares no more of it."""
        self._turn += 1
        turn, num_batches = self._turn, self._windows.num_batches
        following = epoch * num_batches
        try:
            for position in range(following, following + num_batches):
                following = position + 1
                yield self._windows.at(position)
        except GeneratorExit:
            if turn == self._turn and not sys.is_finalizing() and following % num_batches:
                self._windows.leave(following)
            raise

    def close(self) -> None:
        """Stop preparing, delete the windows, and give their memory back."""
        self._turn += 1
        self._windows.pause()
