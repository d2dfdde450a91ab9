"""How many rows each tier has room for: a `CacheSpec` in rows of one graph's features."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from diskgnn.specs import CacheSpec, cache_rows
from diskgnn.storage import faults
from diskgnn.storage.row_format import FeatureFile

MAX_AUTO_STATIC_BYTES = 4 << 30
EVALUATION_SHARE = 4  # evaluation's cpu tier is this part of training's, unless given


@dataclass(frozen=True)
class TierRows:
    """Rows that the tiers above the disk have room for."""

    static: int  # of all sequences together
    train: int  # slots of the cpu tier of the train sequence
    evaluation: int  # slots of the cpu tier of each other sequence

    @staticmethod
    def of(cache: CacheSpec, features: FeatureFile, memory_bytes: int) -> TierRows:
        """The rows of `features` that `cache` stands for; `memory_bytes` is the budget of packing, see `static_rows`.

        Raises:
            ConfigError: see `specs.cache_rows`.
        """
        row_bytes, num_nodes = features.row_bytes, features.num_rows
        train = cache_rows(cache.cpu, row_bytes, num_nodes)
        evaluation = (
            train // EVALUATION_SHARE
            if cache.evaluation is None
            else cache_rows(cache.evaluation, row_bytes, num_nodes)
        )
        return TierRows(static_rows(cache.static, features, memory_bytes), train, evaluation)

    def cpu(self, split: str) -> int:
        """Slots of the cpu tier of the sequence of `split`."""
        return self.train if split == "train" else self.evaluation


def static_rows(static_cache: int | str, features: FeatureFile, memory_bytes: int) -> int:
    """Rows that `static_cache` stands for.

    'auto' is 0 without a GPU; with one, the least of half of its free memory, a quarter of `memory_bytes` and 4 GiB.
    """
    if static_cache == "auto":
        free_bytes = faults.reading("gpu.free", _free_gpu_bytes())
        static_bytes = min(free_bytes // 2, memory_bytes // 4, MAX_AUTO_STATIC_BYTES)
        return min(static_bytes // features.row_bytes, features.num_rows)
    return cache_rows(static_cache, features.row_bytes, features.num_rows)


def _free_gpu_bytes() -> int:
    """0 without a GPU."""
    if not _has_gpu_driver():
        return 0
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def _has_gpu_driver() -> bool:
    """Whether it is worth importing torch, which takes seconds, to ask for GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()  # AMD's
    return True
