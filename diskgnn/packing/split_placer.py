"""Places one split after another, and writes the header of each extent.

Each split is a step: its accesses are sorted, each row set is scheduled by itself, and what the schedules say of a
minibatch goes to its header. Until its headers are written, a killed run begins the split anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.errors import ConfigError
from diskgnn.files.disk_space import reserve
from diskgnn.formats import artifacts
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.ordered import Threads, in_order
from diskgnn.packing.accesses import Accesses
from diskgnn.packing.headers import HeadersFile, HeaderWriter, WantedExtents
from diskgnn.packing.kept_numbers import KeptNumbers
from diskgnn.packing.pack_folder import PackFolder
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.packing_need import COPIES, minibatch_bytes_of, samples_bytes, scratch_memory_bytes
from diskgnn.packing.placed import Placed, PlacedSplit, placing_step
from diskgnn.packing.placement import Schedule
from diskgnn.packing.reuse import MAX_BATCHES, Reuse
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.static_choice import Nodes, choose_static
from diskgnn.packing.tiers import Demand, Division, TierBudgets, divide_cpu_rows
from diskgnn.progress.reporter import Advance
from diskgnn.system.allocators import pages_kept, return_freed_memory
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.runner import Scratch
from diskgnn.work.step_file import StepFile
from diskgnn.work.work_folder import State

_MAX_WAITING = 2  # minibatches that are placed and whose headers are not written yet


class SplitPlacer:
    """Places the splits of a request. The static rows are chosen by the first split, and serve all.

    Node-sized memory is 4 bytes for each row of all row sets.

    Args:
        folder: the packed directory.
        request, config: what is packed, and the directory as far as it is known before placing.
        labels: returns the labels of a split.
        kept_numbers: of the graph, for headers.
    """

    def __init__(
        self,
        folder: PackFolder,
        request: PackRequest,
        config: PackedConfig,
        *,
        labels: Callable[[str], SplitLabels | None],
        kept_numbers: KeptNumbers,
    ) -> None:
        self.folder, self._request, self._config = folder, request, config
        self._labels, self._kept_numbers = labels, kept_numbers
        self.static_nodes = request.chosen_static  # [K], None until they are chosen
        self.divisions: dict[str, Division] = {}
        self._note_bytes = 0
        self._first_step: str | None = None  # which chose the static rows

    def placed(self, splits: Sequence[PlacedSplit], files: Collection[str] | None = None) -> Placed:
        """Returns all that was placed; `files` are those that are wanted, see `Placed`."""
        assert self.static_nodes is not None
        return Placed(
            self._request.row_sets, tuple(self.static_nodes), splits, self.divisions, self._note_bytes,
            self._config.by_reference, files,
        )  # fmt: skip

    def place(self, split: str, *, numbers: Collection[int] | None = None, is_written: bool = True) -> PlacedSplit:
        """Places `split`: its headers go to their final offsets, the nodes of its rows to files beside them.

        Args:
            split: train, valid or test.
            numbers: the minibatches that get an extent; all by default.
            is_written: write the extents; otherwise only the index is made.

        Raises:
            ConfigError: it has too many minibatches.
            DamagedStepError: what a killed run left is not what it wrote.
        """
        num_batches = self._request.samples.config.splits[split].num_batches
        if num_batches > MAX_BATCHES:
            raise ConfigError(f"{split}: {num_batches} minibatches; at most {MAX_BATCHES} can be placed")
        folder, row_bytes = self.folder, self._config.stored_row_bytes
        numbers = range(num_batches) if numbers is None else frozenset(numbers)
        tails = self._tail_pages(split, len(numbers) if is_written else 0)
        names = [row_set.config.name for row_set in self._request.row_sets]
        nodes = [
            ArrayFile(folder.writer, f"{split}-{name}.nodes", row_set.id_dtype, None, ends=False)
            for name, row_set in zip(names, self._request.row_sets, strict=True)
        ]
        wanted = WantedExtents(
            split, numbers, HeadersFile(folder, split, row_bytes, tails) if is_written else None, nodes
        )

        def place(state: State, output: Output) -> Generator[int, None, None]:
            del output
            self._write_headers(wanted, state)
            yield from ()

        # Later splits follow from the first one, which chose the static rows: with 'auto', others than another run may.
        after = [] if self._first_step is None else [self._first_step]
        step, files = placing_step(split), [*wanted.files, *self._files_of_rows(split, names)]
        state = folder.work.fold(step, place, {}, files=files, after=after)
        self._first_step = self._first_step or step
        self.static_nodes = self._static_in(state)
        self._note_bytes += folder.work.note_bytes(state)
        if "division" in state:
            self.divisions[split] = Division.from_array(state["division"])
        return PlacedSplit.of(split, state, row_bytes, nodes, tails)

    def _write_headers(self, wanted: WantedExtents, state: State) -> None:
        """Schedules all row sets, and writes the headers of a split; what was found goes to `state`."""
        split, folder, samples = wanted.split, self.folder, self._request.samples
        num_batches = samples.config.splits[split].num_batches
        with (
            folder.work.scratch(f"accesses-{split}") as scratch,
            folder.resources.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance,
            pages_kept(COPIES * minibatch_bytes_of(samples)),
            closing(samples.read(split)) as minibatches,
        ):
            schedules = self._schedules(split, scratch, state, advance)
            # `compress` keeps no minibatch while the next ones are there.
            with_extents = compress(minibatches, (number in wanted.numbers for number in range(num_batches)))
            headers = HeaderWriter(
                self._config, self._request.row_sets, self._labels(split), wanted,
                self._kept_numbers.added_to(with_extents), [len(each) for each in self._static_in(state)],
            )  # fmt: skip

            def placed() -> Iterator[Callable[[], None]]:
                for number, *placements in zip(range(num_batches), *schedules, strict=True):  # maybe no row sets
                    if number in wanted.numbers:
                        yield partial(headers.write, placements)
                    advance(1)

            with Threads(1) as pool:  # placing and encoding keep a core busy each
                for _ in in_order(pool, placed(), _MAX_WAITING):
                    pass
            if self._kept_numbers.group_bytes:
                return_freed_memory()  # small pieces of whole groups; windows of features come next
            state |= headers.state()
            for k, schedule in enumerate(schedules):
                state |= {f"initial_{k}": schedule.initial_cpu_nodes, f"slots_{k}": schedule.next_cycle_slots}
                folder.traffic.add(read=schedule.reuse.accesses.read_bytes)
        folder.traffic.add(read=2 * samples_bytes(samples, split))  # for the accesses, and for the headers

    def _schedules(self, split: str, scratch: Scratch, state: State, advance: Advance) -> list[Schedule]:
        """Returns [K] the schedules of `split`; what was chosen for them goes to `state`."""
        tiers, row_sets, threads = self._request.tiers, self._request.row_sets, self.folder.resources.threads
        accesses = self._accesses(split, scratch, advance)
        if self.static_nodes is None:
            chosen = choose_static(row_sets, tiers, lambda: [each.counts() for each in accesses])
            state |= {f"static_{k}": nodes for k, nodes in enumerate(chosen)}
        reuses = [
            Reuse(found, static, threads=threads, once=self._request.once)
            for found, static in zip(accesses, self._static_in(state), strict=True)
        ]
        if not isinstance(tiers, TierBudgets):
            rows = tuple(each.cpu(split) for each in tiers)
        elif len(reuses) == 1:  # nothing to divide, and to count for it
            rows = (tiers.cpu(split) // row_sets[0].row_bytes,)
        else:
            demands = [Demand(reuse, row_set.row_bytes) for reuse, row_set in zip(reuses, row_sets, strict=True)]
            division = divide_cpu_rows(demands, tiers.cpu(split), threads=threads)
            state["division"], rows = division.to_array(), division.rows
        return [Schedule(reuse, num_rows) for reuse, num_rows in zip(reuses, rows, strict=True)]

    def _accesses(self, split: str, scratch: Scratch, advance: Advance) -> list[Accesses]:
        samples, row_sets = self._request.samples, self._request.row_sets

        def needed() -> Iterator[list[npt.NDArray[Any]]]:
            for minibatch in samples.read(split):
                yield [row_set.needed(minibatch) for row_set in row_sets]
                advance(1)

        resources = self.folder.resources
        return Accesses.sort_all(
            needed(), {row_set.config.name: row_set.num_rows for row_set in row_sets}, scratch,
            threads=resources.threads, memory_bytes=scratch_memory_bytes(resources, self._kept_numbers.group_bytes),
        )  # fmt: skip

    def _static_in(self, state: State) -> Sequence[Nodes]:
        """Returns [K] the static rows: those that are chosen already, or that the first split chose in its `state`."""
        if self.static_nodes is not None:
            return self.static_nodes
        return [state[f"static_{k}"] for k in range(len(self._request.row_sets))]

    def _tail_pages(self, split: str, num_pages: int) -> npt.NDArray[np.uint8]:
        """Maps a page for each extent. The kernel may write these to disk, so their number is not limited by memory."""
        if num_pages == 0:
            return np.empty(0, np.uint8)
        path = self.folder.tails.path(f"{split}.tails")
        reserve(path, num_pages * DIRECT_ALIGNMENT, self.folder.tails.claim)
        return np.memmap(path, np.uint8, "r+")

    def _files_of_rows(self, split: str, names: Sequence[str]) -> list[StepFile]:
        """Returns the files whose rows follow from this step: those of a killed run go when it begins anew, since they
        take space."""
        files = [artifacts.initial_cpu_rows_file(split, name) for name in names]
        if self._first_step is None:
            files += [artifacts.static_file(name) for name in names]
        return [StepFile(self.folder.writer, file, ends=False) for file in files]
