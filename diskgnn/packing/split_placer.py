"""The first half of packing: places one split after another, and writes what comes before the rows of each extent.

Units are some minibatches of a split. A run that goes on after a kill finds those that are sorted, whose next uses are
known and whose headers are written, and where the schedule stood at some of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import PageWriter
from diskgnn.ordered import in_order
from diskgnn.packing.accesses import Accesses
from diskgnn.packing.edge_ids import EdgeIds
from diskgnn.packing.header_encoder import HeaderEncoder
from diskgnn.packing.header_writer import HeaderWriter
from diskgnn.packing.placed import Arrays, Placed, PlacedHeaders, PlacedSplit
from diskgnn.packing.placement import Schedule
from diskgnn.packing.reserving import scratch_pages
from diskgnn.packing.row_sets import RowSet
from diskgnn.packing.schedule_record import ScheduleRecord
from diskgnn.packing.split_labels import SplitLabels
from diskgnn.packing.split_scheduler import SplitScheduler
from diskgnn.packing.static_choice import choose_static
from diskgnn.packing.tier_budgets import Division
from diskgnn.packing.tiers import Tiers
from diskgnn.progress import Advance
from diskgnn.storage import artifacts
from diskgnn.storage.pace import Pace
from diskgnn.storage.packed_config import PackedConfig
from diskgnn.storage.samples import Samples
from diskgnn.storage.writer import ArtifactWriter
from diskgnn.system.resources import Resources

RECORD = "placing"
_MAX_WAITING = 2  # minibatches that are placed and whose headers are not written yet
# Of samples, about ten seconds' work: what is noted of it is nearly as large, and so is an int32 for each node.
_LEAST_UNIT_BYTES = 2 << 30
_STANDINGS = 4  # of a split's schedule that are noted: each takes an int32 per node


class SplitPlacer:
    """Places one split after another; the static rows, chosen by the first, serve all.

    Each row set is placed by itself. Node-sized memory is 5 bytes for each row of all row sets.
    """

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        samples: Samples,
        config: PackedConfig,
        row_sets: tuple[RowSet, ...],
        resources: Resources,
        *,
        scratch_memory_bytes: int = 0,
        once: bool = False,
        unit_bytes: int | None = None,
        static_nodes: Sequence[npt.NDArray[np.int64]] | None = None,
        labels: Callable[[str], SplitLabels | None],
        edge_ids: EdgeIds | None = None,
    ) -> None:
        """`config` is that of the directory, as far as it is known before placing; `scratch_memory_bytes` is what may
        be in memory instead of in scratch files; `once` is that of `Reuse`; `unit_bytes` that of `Pace`;
        `static_nodes` [K] are chosen already; `labels` are those of a split, `edge_ids` of the graph."""
        self.writer, self.pages, self.samples, self.config = writer, pages, samples, config
        self.row_sets, self.resources = row_sets, resources
        self._scheduler = SplitScheduler(
            writer, samples, row_sets, resources, scratch_memory_bytes=scratch_memory_bytes, once=once
        )
        self.static_nodes: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64) for _ in row_sets]
        self._given_static, self._labels, self._edge_ids = static_nodes, labels, edge_ids
        self.needed: list[npt.NDArray[np.bool_]] = [np.zeros(row_set.num_rows, np.bool_) for row_set in row_sets]
        self._divisions: dict[str, Division] = {}
        self._read_bytes = 0
        pace = Pace(samples.manifest.total_bytes, unit_bytes, usual_bytes=_LEAST_UNIT_BYTES)
        num_batches = sum(size.num_batches for size in samples.config.splits.values())
        self._unit_batches = pace.items(num_batches) if pace.has_units and not once else num_batches
        self._splits: list[PlacedSplit] = []
        self._recorded = self._read_record()
        begun = ScheduleRecord.split_in(writer)
        for split in samples.splits:
            if split != begun or self._is_placed(split):
                self._scheduler.remove(split)
        writer.disk.look()

    def place_all(self, tiers: Tiers) -> Placed:
        """Place every split of the samples. `tiers` are rows [K] where those of each row set are known.

        Raises:
            DamagedScratchError: what a killed run left is not what it wrote.
        """
        for split in self.samples.splits:
            self._splits.append(self._adopt(split) or self._place(split, tiers))
        static_nodes, needed = tuple(self.static_nodes), tuple(self.needed)
        return Placed(
            self.row_sets, static_nodes, needed, self._splits, self._divisions, self._read_bytes,
            self.config.by_reference,
        )  # fmt: skip

    def record(self, last: HeaderWriter | PlacedSplit | None = None) -> None:
        """Note durably which splits are placed, and the headers of the last one that is under way, or placed now."""
        done: dict[str, npt.NDArray[Any]] = {}
        for number, nodes in enumerate(self.static_nodes):
            done[f"static_{number}"] = nodes
        for split, division in self._divisions.items():
            done[f"{split}/division"] = np.array(
                [[*division.rows, division.read_bytes], [*division.even_rows, division.even_read_bytes]], np.int64
            )
        found = [(placed.name, placed.to_arrays()) for placed in self._splits]
        if isinstance(last, HeaderWriter):
            last.flush()
            found.append((last.split, last.headers().to_arrays()))
        elif last is not None:
            self.pages.finish()
            found.append((last.name, last.to_arrays()))
        claims: list[str] = []
        for split, arrays in found:
            done |= {f"{split}/{name}": array for name, array in arrays.items()}
            claims += [artifacts.extents_file(split)] if len(arrays["extents"]) else []
            claims += [path.name for path in self._nodes_paths(split)]
        self.writer.record(RECORD, done, claims=claims)

    def _read_record(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """What a killed run recorded of each split."""
        found: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for key, array in (self.writer.recorded(RECORD) or {}).items():
            split, _, name = key.rpartition("/")
            found.setdefault(split, {})[name] = array
        for number, nodes in enumerate(found.pop("", {}).values()):
            self.static_nodes[number] = nodes
            self.needed[number][nodes] = True
        return found

    def _adopt(self, split: str) -> PlacedSplit | None:
        """`split`, where a killed run placed it to the end."""
        found = self._recorded.get(split, {})
        tiers = PlacedSplit.tiers_in(found) if found else None
        if tiers is None:
            return None
        if "division" in found:
            rows, even_rows = found["division"].tolist()
            self._divisions[split] = Division(tuple(rows[:-1]), rows[-1], tuple(even_rows[:-1]), even_rows[-1])
        for needed, (initial, _) in zip(self.needed, tiers, strict=True):
            needed[initial] = True
        paths = self._nodes_paths(split)
        return PlacedSplit.of(split, self._adopt_headers(split, found), self._tails(split), paths, tiers, adopted=True)

    def _is_placed(self, split: str) -> bool:
        found = self._recorded.get(split)
        return found is not None and PlacedSplit.tiers_in(found) is not None

    def _adopt_headers(self, split: str, found: Arrays) -> PlacedHeaders:
        headers = PlacedHeaders.from_arrays(found, [row_set.row_bytes for row_set in self.row_sets])
        headers.adopt_nodes(self._nodes_paths(split), self.needed)
        return headers

    def _place(self, split: str, tiers: Tiers) -> PlacedSplit:
        """Place `split`: its headers go to their final offsets, the nodes of its rows to scratch files."""
        num_batches = self.samples.config.splits[split].num_batches
        record = ScheduleRecord(self.writer, split, self._unit_batches) if num_batches > self._unit_batches else None
        with self.resources.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance:
            static_nodes = partial(self._static_nodes, split, tiers)
            found = self._scheduler.schedules_of(split, tiers, static_nodes, advance, record)
            if found.division is not None:
                self._divisions[split] = found.division
            for needed, schedule in zip(self.needed, found.schedules, strict=True):
                needed[schedule.initial_cpu_nodes] = True
            with self._header_writer(split) as headers:
                self._write_headers(headers, found.schedules, record, advance)
        placed_split = headers.placed(found.schedules)
        if record is not None:
            self.record(placed_split)
        self._read_bytes += found.read_bytes
        self._read_bytes += sum(
            rows.nodes_path.stat().st_size
            for rows in placed_split.row_sets  # when rows are packed
        )
        self._scheduler.remove(split, record)
        return placed_split

    def _write_headers(
        self, headers: HeaderWriter, schedules: Sequence[Schedule], record: ScheduleRecord | None, advance: Advance
    ) -> None:
        """Place all minibatches, and write the headers that a killed run has not written."""
        num_batches, first = self.samples.config.splits[headers.split].num_batches, 0
        stood = None if record is None else record.get("standing")
        turn, number = (0, 0) if stood is None else stood.tolist()
        if record is not None and 0 < number <= headers.first:
            for schedule in schedules:
                schedule.go_on(record, number)
            first = number
        advance(headers.first)
        placed = zip(range(first, num_batches), *schedules, strict=True)
        # Placing and encoding keep a core busy each.
        with ThreadPoolExecutor(1) as pool:
            for unit in self._units(first, num_batches):
                calls = (
                    partial(headers.write, placements)
                    for number, *placements in islice(placed, len(unit)) if number >= headers.first
                )  # fmt: skip
                for _ in in_order(pool, calls, _MAX_WAITING):
                    advance(1)
                if record is None or unit.stop == num_batches:
                    continue
                if unit.stop > headers.first:
                    self.record(headers)
                if unit.stop // self._unit_batches % max(1, num_batches // self._unit_batches // _STANDINGS) == 0:
                    turn += 1
                    self._note_standing(record, schedules, turn, unit.stop)
        assert next(placed, None) is None  # which ends the schedules, too

    def _units(self, first: int, num_batches: int) -> Iterator[range]:
        """The minibatches of a split from `first` on."""
        while first < num_batches:
            last = min(num_batches, (first // self._unit_batches + 1) * self._unit_batches)
            yield range(first, last)
            first = last

    def _note_standing(self, record: ScheduleRecord, schedules: Sequence[Schedule], turn: int, number: int) -> None:
        """Note where the schedules stand, before the minibatch `number`; the headers before that are recorded."""
        done: dict[str, npt.NDArray[Any]] = {"standing": np.array([turn, number])}
        written: list[Path] = []
        for schedule in schedules:
            found, path = schedule.standing(record, turn)
            done |= found
            written.append(path)
        record.note(done, written)

    def _header_writer(self, split: str) -> HeaderWriter:
        found = self._recorded.get(split)
        return HeaderWriter(
            self.writer, self.pages, self.samples,
            HeaderEncoder(self.config, self.row_sets, self._labels(split), self._edge_ids), split,
            nodes_paths=self._nodes_paths(split), row_bytes=self.config.stored_row_bytes,
            num_static=[len(nodes) for nodes in self.static_nodes], needed=self.needed, tails=self._tails(split),
            adopted=None if found is None else self._adopt_headers(split, found),
            by_reference=self.config.by_reference,
        )  # fmt: skip

    def _tails(self, split: str) -> npt.NDArray[np.uint8]:
        return scratch_pages(
            self.writer.path(f"{split}.tails"), self.samples.config.splits[split].num_batches, self.writer.disk
        )

    def _nodes_paths(self, split: str) -> list[Path]:
        """[K] scratch files of the nodes of the rows of extents."""
        return [self.writer.path(f"{split}-{row_set.config.name}.nodes") for row_set in self.row_sets]

    def _static_nodes(self, split: str, tiers: Tiers, accesses: Sequence[Accesses]) -> Sequence[npt.NDArray[np.int64]]:
        """Those that are given, or the rows that the first split accesses most often."""
        if split == self.samples.splits[0]:
            chosen = self._given_static
            chosen = chosen or choose_static(self.row_sets, tiers, lambda: [each.counts() for each in accesses])
            for number, nodes in enumerate(chosen):
                self.static_nodes[number] = nodes
                self.needed[number][nodes] = True
        return self.static_nodes
