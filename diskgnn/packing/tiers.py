"""Computes the size of each tier: a `CacheSpec` in bytes, and in rows of one graph's features."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from diskgnn.files import faults
from diskgnn.formats.row_format import FeatureFile
from diskgnn.specs.caches import CacheSpec, cache_rows
from diskgnn.units import parse_size

MAX_AUTO_STATIC_BYTES = 4 << 30
EVALUATION_SHARE = 4  # evaluation's cpu tier is this part of training's, unless given


@dataclass(frozen=True)
class TierRows:
    """Rows of one row set that the tiers above the disk have room for."""

    static: int  # of all sequences together
    # Slots of the cpu tier of each sequence:
    train: int
    valid: int
    test: int

    def cpu(self, split: str) -> int:
        """Returns the slots of the cpu tier of the sequence of `split`."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]


@dataclass(frozen=True)
class TierBudgets:
    """Bytes that the tiers above the disk may take, of all row sets together."""

    static: int  # of all sequences together
    train: int  # of the cpu tier of the train sequence
    evaluation: int  # of the cpu tier of each other sequence
    static_is_auto: bool = False  # chosen by what is free now: what was chosen before would do as well

    @staticmethod
    def of(cache: CacheSpec, features: Sequence[FeatureFile], memory_bytes: int) -> TierBudgets:
        """Converts `cache` to bytes, for rows of these features.

        `memory_bytes` is the budget of packing: a static cache of 'auto' is 0 without a GPU; with one, the least of
        half of its free memory, a quarter of `memory_bytes` and 4 GiB.

        Raises:
            ConfigError: see `caches.cache_rows`.
        """
        if cache.static == "auto":
            free_bytes = faults.reading("gpu.free", _free_gpu_bytes())
            static_bytes = max(0, min(free_bytes // 2, memory_bytes // 4, MAX_AUTO_STATIC_BYTES))
        else:
            static_bytes = _budget_bytes("static_cache", cache.static, features)
        train_bytes = _budget_bytes("cpu_cache", cache.cpu, features)
        evaluation_bytes = (
            train_bytes // EVALUATION_SHARE if cache.evaluation is None
            else _budget_bytes("eval_cpu_cache", cache.evaluation, features)
        )  # fmt: skip
        return TierBudgets(static_bytes, train_bytes, evaluation_bytes, cache.static == "auto")

    def cpu(self, split: str) -> int:
        """Returns the bytes of the cpu tier of the sequence of `split`."""
        return self.train if split == "train" else self.evaluation

    def rows_of(self, features: FeatureFile) -> TierRows:
        """Returns the rows that the tiers have room for if all rows are of `features`."""
        budgets = self.static, self.train, self.evaluation, self.evaluation
        return TierRows(*(min(num_bytes // features.row_bytes, features.num_rows) for num_bytes in budgets))


# Bytes to be divided among the row sets, or the rows [K] of each where they are known.
Tiers = TierBudgets | Sequence[TierRows]


def _budget_bytes(name: str, cache: int | str, features: Sequence[FeatureFile]) -> int:
    """Returns the bytes that `cache` stands for: a size, or a share of all rows."""
    rows = [cache_rows(cache, file.row_bytes, file.num_rows, name) for file in features]
    if len(features) > 1 and not (isinstance(cache, str) and cache.strip().endswith("%")):
        return min(parse_size(cache), sum(file.num_bytes for file in features))
    return sum(num_rows * file.row_bytes for num_rows, file in zip(rows, features, strict=True))


def _free_gpu_bytes() -> int:
    if not _has_gpu_driver():
        return 0
    import torch

    return int(torch.cuda.mem_get_info()[0]) if torch.cuda.is_available() else 0


def _has_gpu_driver() -> bool:
    """Returns True if it is worth importing torch, which takes seconds, to ask for GPUs."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Path("/dev/kfd").exists()  # AMD's
    return True
