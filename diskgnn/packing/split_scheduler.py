"""Computes the schedules of one split after another, from its accesses and when each row is needed next.

It writes nothing but scratch files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.formats.samples import Samples
from diskgnn.packing.accesses import Accesses
from diskgnn.packing.placement import Schedule
from diskgnn.packing.reuse import MAX_BATCHES, SCRATCH_SUFFIXES, Reuse, most_scratch_bytes
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.static_choice import Nodes
from diskgnn.packing.tier_budgets import Demand, Division, divide_cpu_rows
from diskgnn.packing.tiers import TierBudgets, Tiers
from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter


@dataclass(frozen=True)
class SplitSchedules:
    """The schedules of one split. `SplitScheduler.remove` deletes their scratch files."""

    schedules: Sequence[Schedule]  # [K]
    division: Division | None  # of a budget for the cpu tiers of several row sets

    @property
    def read_bytes(self) -> int:
        """Bytes read from scratch files so far."""
        return sum(schedule.reuse.accesses.read_bytes for schedule in self.schedules)


class SplitScheduler:
    """Schedules one split after another. Node-sized memory is 4 bytes for each row of all row sets."""

    def __init__(
        self,
        writer: ArtifactWriter,
        samples: Samples,
        row_sets: Sequence[RowSet],
        resources: Resources,
        *,
        scratch_memory_bytes: int = 0,
        once: bool = False,
    ) -> None:
        """Starts without schedules.

        `scratch_memory_bytes` may be in memory instead of in scratch files; `once` is passed on to `Reuse`.
        """
        self._writer, self._samples, self._row_sets, self._resources = writer, samples, row_sets, resources
        self._scratch_memory_bytes, self._once = scratch_memory_bytes, once
        self._claimed_bytes = 0  # of the disk, for the split that is being scheduled

    def schedules_of(
        self,
        split: str,
        tiers: Tiers,
        static_nodes: Callable[[Sequence[Accesses]], Sequence[Nodes]],
        advance: Advance,
    ) -> SplitSchedules:
        """Returns the schedules of `split`.

        Args:
            split: train, valid or test.
            tiers: bytes, or rows [K] if those of each row set are known.
            static_nodes: called with the accesses [K]; returns which rows [K] are static.
            advance: called for each minibatch.

        Raises:
            ConfigError: it has too many minibatches.
        """
        num_batches = self._samples.config.splits[split].num_batches
        if num_batches > MAX_BATCHES:
            raise ConfigError(f"{split}: {num_batches} minibatches; at most {MAX_BATCHES} can be placed")
        accesses = self._accesses(split, advance)
        reuses = [
            Reuse(found, static, threads=self._resources.threads, once=self._once)
            for found, static in zip(accesses, static_nodes(accesses), strict=True)
        ]
        return self._schedules(split, reuses, tiers)

    def remove(self, split: str) -> None:
        """Deletes the scratch files of `split`, also those that a killed run left."""
        for row_set in self._row_sets:
            for path in self._scratch_files(split, row_set):
                path.unlink(missing_ok=True)
        self._writer.disk.release(self._claimed_bytes)
        self._claimed_bytes = 0

    def _scratch_path(self, split: str, row_set: RowSet) -> Path:
        return self._writer.path(f"{split}-{row_set.config.name}.accesses")

    def _scratch_files(self, split: str, row_set: RowSet) -> list[Path]:
        path = self._scratch_path(split, row_set)
        return [path.with_suffix(suffix) for suffix in SCRATCH_SUFFIXES]

    def _accesses(self, split: str, advance: Advance) -> list[Accesses]:
        num_batches = self._samples.config.splits[split].num_batches

        def needed() -> Iterator[list[npt.NDArray[Any]]]:
            for minibatch in self._samples.read(split):
                nodes = [row_set.needed(minibatch) for row_set in self._row_sets]
                scratch_bytes = sum(most_scratch_bytes(len(each), each.itemsize, num_batches) for each in nodes)
                self._writer.disk.claim(scratch_bytes)
                self._claimed_bytes += scratch_bytes
                yield nodes
                advance(1)

        scratch = [self._scratch_path(split, row_set) for row_set in self._row_sets]
        sizes = [row_set.num_rows for row_set in self._row_sets]
        return Accesses.sort_all(
            needed(), list(zip(sizes, scratch, strict=True)), threads=self._resources.threads,
            memory_bytes=self._scratch_memory_bytes,
        )  # fmt: skip

    def _schedules(self, split: str, reuses: Sequence[Reuse], tiers: Tiers) -> SplitSchedules:
        division = None
        if not isinstance(tiers, TierBudgets):
            rows = tuple(each.cpu(split) for each in tiers)
        elif len(reuses) == 1:  # nothing to divide, and to count for it
            rows = (tiers.cpu(split) // self._row_sets[0].row_bytes,)
        else:
            demands = [Demand(reuse, row_set.row_bytes) for reuse, row_set in zip(reuses, self._row_sets, strict=True)]
            division = divide_cpu_rows(demands, tiers.cpu(split), threads=self._resources.threads)
            rows = division.rows
        return SplitSchedules(
            [Schedule(reuse, num_rows) for reuse, num_rows in zip(reuses, rows, strict=True)], division
        )
