"""The first half of packing: places one split after another, and writes the header of each extent.

A run that goes on after a kill finds the splits that were placed to the end. A split that was cut off is placed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter
from diskgnn.formats import artifacts
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples import Samples
from diskgnn.ordered import in_order
from diskgnn.packing.accesses import Accesses
from diskgnn.packing.adopting import PLACING
from diskgnn.packing.edge_ids import EdgeIds
from diskgnn.packing.header_encoder import HeaderEncoder
from diskgnn.packing.header_writer import HeaderWriter
from diskgnn.packing.placed import Placed, PlacedHeaders, PlacedSplit
from diskgnn.packing.reserving import scratch_pages
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_scheduler import SplitScheduler
from diskgnn.packing.static_choice import choose_static
from diskgnn.packing.tier_budgets import Division
from diskgnn.packing.tiers import Tiers
from diskgnn.system.resources import Resources
from diskgnn.work.runner import Output, Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_MAX_WAITING = 2  # minibatches that are placed and whose headers are not written yet


class SplitPlacer:
    """Places one split after another. The static rows are chosen by the first split, and serve all.

    Each row set is placed by itself. Node-sized memory is 5 bytes for each row of all row sets.
    """

    def __init__(
        self,
        work: Work,
        writer: ArtifactWriter,
        pages: PageWriter,
        samples: Samples,
        config: PackedConfig,
        row_sets: tuple[RowSet, ...],
        resources: Resources,
        *,
        scratch_memory_bytes: int = 0,
        once: bool = False,
        static_nodes: Sequence[npt.NDArray[np.int64]] | None = None,
        labels: Callable[[str], SplitLabels | None],
        edge_ids: EdgeIds | None = None,
    ) -> None:
        """Prepares placing; nothing is written yet.

        Args:
            work, writer, pages: of the packed directory.
            samples: the samples that are placed.
            config: config of the directory, as far as it is known before placing.
            row_sets: [K].
            resources: what placing may spend.
            scratch_memory_bytes: what may be in memory instead of in scratch files.
            once: passed on to `Reuse`.
            static_nodes: [K] static rows, if they are chosen already.
            labels: returns the labels of a split.
            edge_ids: edge ids of the graph; None if headers do not keep them.
        """
        self._work, self.writer, self.pages, self.samples, self.config = work, writer, pages, samples, config
        self.row_sets, self.resources = row_sets, resources
        self._scheduler = SplitScheduler(
            writer, samples, row_sets, resources, scratch_memory_bytes=scratch_memory_bytes, once=once
        )
        self.static_nodes: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64) for _ in row_sets]
        self._given_static, self._labels, self._edge_ids = static_nodes, labels, edge_ids
        self.needed: list[npt.NDArray[np.bool_]] = [np.zeros(row_set.num_rows, np.bool_) for row_set in row_sets]
        self._divisions: dict[str, Division] = {}
        self._read_bytes = 0
        self._splits: list[PlacedSplit] = []
        for split in samples.splits:  # what a killed run left of sorting accesses
            self._scheduler.remove(split)
        writer.disk.look()

    def place_all(self, tiers: Tiers) -> Placed:
        """Places every split of the samples. `tiers` are rows [K] if those of each row set are known.

        Raises:
            DamagedStepError: what a killed run left is not what it wrote.
        """
        self._take(self._work.fold(PLACING, partial(self._place_missing, tiers), {}))
        static_nodes, needed = tuple(self.static_nodes), tuple(self.needed)
        return Placed(
            self.row_sets, static_nodes, needed, self._splits, self._divisions, self._read_bytes,
            self.config.by_reference,
        )  # fmt: skip

    def _place_missing(self, tiers: Tiers, state: State, output: Output) -> Generator[int, None, None]:
        """Places the splits that `state` does not have, and adds them to it."""
        sizes, num_bytes = self.samples.config.splits, self.samples.manifest.total_bytes
        files = {
            split: [artifacts.extents_file(split), *(path.name for path in self._nodes_paths(split))]
            for split in self.samples.splits
        }
        output.claim(shared=[name for names in files.values() for name in names])
        output.before_commit(self.pages.finish)
        self._take(state)
        missing = [split for split in self.samples.splits if f"{split}/extents" not in state]
        for split in missing:
            for name in files[split]:  # of a run that was killed while it placed them
                self.writer.path(name).unlink(missing_ok=True)
        self.writer.disk.look()
        for split in missing:
            self._splits.append(placed := self._place(split, tiers))
            state |= {f"{split}/{name}": array for name, array in placed.to_arrays().items()}
            state |= {f"static_{number}": nodes for number, nodes in enumerate(self.static_nodes)}
            if (division := self._divisions.get(split)) is not None:
                state[f"{split}/division"] = division.to_array()
            yield num_bytes * sizes[split].num_batches // max(1, sum(each.num_batches for each in sizes.values()))
        self.pages.finish()

    def _take(self, state: State) -> None:
        """Takes over what a killed run placed, unless that was done already."""
        for split in self.samples.splits[len(self._splits) :]:
            if f"{split}/extents" not in state:
                return
            for number in range(len(self.row_sets)):
                self.static_nodes[number] = state[f"static_{number}"]
                self.needed[number][self.static_nodes[number]] = True
            self._splits.append(self._adopted(split, state))

    def _adopted(self, split: str, state: State) -> PlacedSplit:
        found = {name.removeprefix(f"{split}/"): array for name, array in state.items()}
        tiers = PlacedSplit.tiers_in(found)
        if "division" in found:
            self._divisions[split] = Division.from_array(found["division"])
        for needed, (initial, _) in zip(self.needed, tiers, strict=True):
            needed[initial] = True
        headers = PlacedHeaders.from_arrays(found, [each.row_bytes for each in self.row_sets])
        paths = self._nodes_paths(split)
        headers.adopt_nodes(paths, self.needed)
        return PlacedSplit.of(split, headers, self._tails(split), paths, tiers, adopted=True)

    def _place(self, split: str, tiers: Tiers) -> PlacedSplit:
        """Places `split`: its headers go to their final offsets, the nodes of its rows to scratch files."""
        num_batches = self.samples.config.splits[split].num_batches
        with self.resources.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance:
            found = self._scheduler.schedules_of(split, tiers, partial(self._static_nodes, split, tiers), advance)
            if found.division is not None:
                self._divisions[split] = found.division
            for needed, schedule in zip(self.needed, found.schedules, strict=True):
                needed[schedule.initial_cpu_nodes] = True
            # Placing and encoding keep a core busy each.
            with self._header_writer(split) as headers, ThreadPoolExecutor(1) as pool:
                placed = zip(range(num_batches), *found.schedules, strict=True)  # there may be no row sets
                calls = (partial(headers.write, placements) for _, *placements in placed)
                for _ in in_order(pool, calls, _MAX_WAITING):
                    advance(1)
        placed_split = headers.placed(found.schedules)
        self._read_bytes += found.read_bytes
        self._read_bytes += sum(rows.nodes_path.stat().st_size for rows in placed_split.row_sets)  # to pack rows
        self._scheduler.remove(split)
        return placed_split

    def _header_writer(self, split: str) -> HeaderWriter:
        return HeaderWriter(
            self.writer, self.pages, self.samples,
            HeaderEncoder(self.config, self.row_sets, self._labels(split), self._edge_ids), split,
            nodes_paths=self._nodes_paths(split), row_bytes=self.config.stored_row_bytes,
            num_static=[len(nodes) for nodes in self.static_nodes], needed=self.needed, tails=self._tails(split),
            by_reference=self.config.by_reference,
        )  # fmt: skip

    def _tails(self, split: str) -> npt.NDArray[np.uint8]:
        return scratch_pages(
            self.writer.path(f"{split}.tails"), self.samples.config.splits[split].num_batches, self.writer.disk
        )

    def _nodes_paths(self, split: str) -> list[Path]:
        """Returns [K] scratch files for the nodes of the extents' rows."""
        return [self.writer.path(f"{split}-{row_set.config.name}.nodes") for row_set in self.row_sets]

    def _static_nodes(self, split: str, tiers: Tiers, accesses: Sequence[Accesses]) -> Sequence[npt.NDArray[np.int64]]:
        """Returns the static rows. For the first split it takes those that are given, or the rows that it accesses most
        often.
        """
        if split == self.samples.splits[0]:
            chosen = self._given_static
            chosen = chosen or choose_static(self.row_sets, tiers, lambda: [each.counts() for each in accesses])
            for number, nodes in enumerate(chosen):
                self.static_nodes[number] = nodes
                self.needed[number][nodes] = True
        return self.static_nodes
