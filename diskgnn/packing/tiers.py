"""The tiers above the disk: how many rows each has room for, and how its bytes are divided among row sets.

What each further byte saves is known before anything is read, so bytes go to where training reads least. For the cpu
tier, `Reuse.misses` counts what a set would read with any number of slots. That is convex, or nearly so, so bytes go to
where the next one saves most until none are left. For static rows it is simpler: a row saves as many reads as there are
accesses to it.

The counts are exact and take milliseconds. That is why no sampled sequence is simulated (as SHARDS does: Waldspurger et
al., FAST 2015).
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from diskgnn.errors import callers_level
from diskgnn.files import faults
from diskgnn.formats.row_format import FeatureFile
from diskgnn.ordered import Threads
from diskgnn.specs.caches import CacheSpec, cache_rows
from diskgnn.system.memory import limit_bytes
from diskgnn.system.resources import Resources
from diskgnn.units import format_size, parse_size

MAX_AUTO_STATIC_BYTES = 4 << 30
EVALUATION_SHARE = 4  # evaluation's cpu tier is this part of training's, unless given
_NUM_SIZES = 16  # at which a set is counted, before and after the interval that matters is known


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
    def of(cache: CacheSpec, features: Sequence[FeatureFile], resources: Resources) -> TierBudgets:
        """Converts `cache` to bytes, for rows of these features.

        `resources` are those of packing: a static cache of 'auto' is 0 without a GPU; with one, the least of
        half of its free memory, a quarter of its memory and 4 GiB.

        Raises:
            ConfigError: see `caches.cache_rows`.
        """
        if cache.static == "auto":
            free_bytes = faults.reading("gpu.free", _free_gpu_bytes())
            static_bytes = resources.divided(1, part=4, most_bytes=min(free_bytes // 2, MAX_AUTO_STATIC_BYTES))
        else:
            static_bytes = _budget_bytes("static_cache", cache.static, features)
        train_bytes = _budget_bytes("cpu_cache", cache.cpu, features)
        evaluation_bytes = (
            train_bytes // EVALUATION_SHARE if cache.evaluation is None
            else _budget_bytes("eval_cpu_cache", cache.evaluation, features)
        )  # fmt: skip
        most_bytes = min(max(train_bytes, evaluation_bytes), sum(file.num_bytes for file in features))
        if most_bytes > limit_bytes():
            warnings.warn(
                f"cpu_cache: expected less than the {format_size(limit_bytes())} that a process may have here, found "
                f"{format_size(most_bytes)}: what is prepared cannot be trained on here, only with more memory",
                stacklevel=callers_level(),
            )
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


@dataclass(frozen=True)
class Division:
    """A budget divided among row sets."""

    rows: tuple[int, ...]  # of each set
    read_bytes: int  # of rows, from disk, in one cycle of the sequence
    even_rows: tuple[int, ...]  # the same share of the rows that each set needs, with the same budget
    even_read_bytes: int

    def to_array(self) -> npt.NDArray[np.int64]:
        """Returns it as an array [2, K + 1]."""
        return np.array([[*self.rows, self.read_bytes], [*self.even_rows, self.even_read_bytes]], np.int64)

    @staticmethod
    def from_array(array: npt.NDArray[np.int64]) -> Division:
        """Returns what `to_array` made an array of."""
        rows, even_rows = array.tolist()
        return Division(tuple(rows[:-1]), rows[-1], tuple(even_rows[:-1]), even_rows[-1])


class Misses(Protocol):
    """The reads of one sequence from one row set, without static rows: counted (`Reuse`), or predicted."""

    @property
    def num_rows(self) -> int:
        """Returns the number of different rows that the sequence needs."""
        ...

    def total_misses(self, cache_rows: int) -> int:
        """Returns the rows that a cycle reads with `cache_rows` slots."""
        ...


class Demand(NamedTuple):
    """A row set that wants slots of the cpu tier."""

    reuse: Misses
    row_bytes: int


class _Step(NamedTuple):
    """`rows` more of a set, each of which saves `saved_per_byte` bytes of reading per byte."""

    saved_per_byte: float
    number: int  # of the set
    rows: int


def divide_cpu_rows(demands: Sequence[Demand], budget_bytes: int, *, threads: int = 1) -> Division:
    """Divides the cpu tier of one sequence: slots for each row set, together at most `budget_bytes`, none of them
    unused.

    A single set gets everything. Otherwise each set is counted with 16 numbers of slots, and the budget is divided
    along the lower convex hulls of what was read. Then each set is counted with 16 more numbers, between the neighbours
    of what it got, and the budget is divided again. If the even division reads less after all, that is returned. That
    happens only to sets whose counts are far from convex.

    Counting takes some 10 ns per pair of minibatches that share rows, set and number of slots, in `threads` threads.

    Example:
        >>> divide_cpu_rows([Demand(papers, 1536), Demand(authors, 512)], 1 << 30).rows
        (524288, 524288)
    """
    most = [min(reuse.num_rows, budget_bytes // row_bytes) for reuse, row_bytes in demands]
    even_rows = _divide_evenly(demands, budget_bytes)
    if len(demands) == 1:
        even_rows = rows = tuple(most)
    else:
        rows = _divide_by_saving(demands, most, budget_bytes, threads)
    read_bytes, even_read_bytes = _read_bytes(demands, rows), _read_bytes(demands, even_rows)
    if even_read_bytes < read_bytes:
        rows, read_bytes = even_rows, even_read_bytes
    return Division(rows, read_bytes, even_rows, even_read_bytes)


def divide_static_rows(counted: Sequence[tuple[npt.NDArray[np.int64], int]], budget_bytes: int) -> Division:
    """Divides static rows among row sets, together at most `budget_bytes`: the rows that are accessed most often.

    Args:
        counted: for each set, how many rows are accessed 0, 1, 2, ... times (`accesses.count_histogram`), and its row
            bytes.
        budget_bytes: bytes of all sets together.
    """
    steps = [
        _Step(count, number, int(rows))
        for number, (histogram, _) in enumerate(counted)
        for count, rows in enumerate(histogram)
        if count > 0 and rows > 0
    ]
    row_bytes = [width for _, width in counted]
    needed = [int(histogram[1:].sum()) for histogram, _ in counted]
    rows = _take_steps(steps, row_bytes, budget_bytes)
    even_rows = _even_rows(needed, row_bytes, budget_bytes)
    return Division(rows, _static_read_bytes(counted, rows), even_rows, _static_read_bytes(counted, even_rows))


def _divide_by_saving(
    demands: Sequence[Demand], most: Sequence[int], budget_bytes: int, threads: int
) -> tuple[int, ...]:
    row_bytes = [demand.row_bytes for demand in demands]
    # Closer together where there are few, as the first slots save most.
    shares = np.linspace(0, 1, _NUM_SIZES + 1) ** 2
    sizes = [np.unique((shares * rows).astype(np.int64)) for rows in most]
    rows = _take_steps(_steps(demands, sizes, threads), row_bytes, budget_bytes)
    for number, found in enumerate(rows):
        before, after = sizes[number][sizes[number] < found][-1:], sizes[number][sizes[number] > found][:1]
        ends = np.concatenate([before, [found], after])
        between = np.linspace(ends[0], ends[-1], _NUM_SIZES + 1).astype(np.int64)
        sizes[number] = np.unique(np.concatenate([[0], ends, between, [most[number]]]))
    return _take_steps(_steps(demands, sizes, threads), row_bytes, budget_bytes)


def _steps(demands: Sequence[Demand], sizes: Sequence[npt.NDArray[np.int64]], threads: int) -> list[_Step]:
    """Returns the steps from size to size of all sets, along the hull of what each reads."""
    with Threads(threads) as pool:
        counted = [list(pool.map(demand.reuse.total_misses, each)) for demand, each in zip(demands, sizes, strict=True)]
    steps = []
    for number, (rows, misses) in enumerate(zip(sizes, counted, strict=True)):
        hull = _lower_hull(rows, misses)
        for left, right in pairwise(hull):
            more_rows = int(rows[right] - rows[left])
            steps.append(_Step((misses[left] - misses[right]) / more_rows, number, more_rows))
    return steps


def _lower_hull(x: npt.NDArray[np.int64], y: Sequence[int]) -> list[int]:
    """Returns the points of the lower convex hull; `x` ascends. Collinear points stay."""
    hull: list[int] = []
    for point in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2:]
            if (y[b] - y[a]) * int(x[point] - x[b]) <= (y[point] - y[b]) * int(x[b] - x[a]):
                break
            hull.pop()
        hull.append(point)
    return hull


def _take_steps(steps: Sequence[_Step], row_bytes: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    """Returns the rows of each set if the steps that save most are taken first, the last one in part; ties by set."""
    rows = [0] * len(row_bytes)
    left_bytes = budget_bytes
    for step in sorted(steps, key=lambda step: (-step.saved_per_byte, step.number)):
        if step.saved_per_byte <= 0:
            break
        taken = min(step.rows, left_bytes // row_bytes[step.number])
        rows[step.number] += taken
        left_bytes -= taken * row_bytes[step.number]
    return tuple(rows)


def _divide_evenly(demands: Sequence[Demand], budget_bytes: int) -> tuple[int, ...]:
    return _even_rows([reuse.num_rows for reuse, _ in demands], [width for _, width in demands], budget_bytes)


def _even_rows(needed: Sequence[int], row_bytes: Sequence[int], budget_bytes: int) -> tuple[int, ...]:
    all_bytes = sum(rows * width for rows, width in zip(needed, row_bytes, strict=True))
    return tuple(rows if all_bytes <= budget_bytes else rows * budget_bytes // all_bytes for rows in needed)


def _read_bytes(demands: Sequence[Demand], rows: Sequence[int]) -> int:
    return sum(reuse.total_misses(each) * width for (reuse, width), each in zip(demands, rows, strict=True))


def _static_read_bytes(counted: Sequence[tuple[npt.NDArray[np.int64], int]], rows: Sequence[int]) -> int:
    """Returns the bytes read if the most accessed rows of each set are static."""
    read_bytes = 0
    for (histogram, row_bytes), static in zip(counted, rows, strict=True):
        hottest_first = histogram[:0:-1]
        static_of_count = np.diff(np.minimum(np.cumsum(hottest_first), static), prepend=0)
        counts = np.arange(len(histogram) - 1, 0, -1)
        read_bytes += int(((hottest_first - static_of_count) * counts).sum()) * row_bytes
    return read_bytes
