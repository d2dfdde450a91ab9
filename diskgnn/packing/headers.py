"""The first half of packing: places one split after another, and writes what comes before the rows of each extent."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from diskgnn._native import PageWriter, start_extent
from diskgnn.errors import ConfigError
from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import MAX_BATCHES, Accesses, Placement, Schedule, hottest_nodes
from diskgnn.packing.rows import SplitPlan, scratch_pages
from diskgnn.progress import Reporter
from diskgnn.storage import artifacts, extents
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.row_reading import ALIGNMENT
from diskgnn.storage.samples import SampledMinibatch, Samples

_MAX_WAITING = 2  # minibatches that are placed and whose headers are not written yet


class SplitPlanner:
    """Places one split after another; the static rows, chosen by the first, serve all."""

    def __init__(
        self,
        writer: ArtifactWriter,
        pages: PageWriter,
        graph: Graph,
        samples: Samples,
        keep_input_nodes: bool,
        reporter: Reporter,
    ) -> None:
        self.writer, self.pages, self.graph, self.samples, self.reporter = writer, pages, graph, samples, reporter
        self.keep_input_nodes = keep_input_nodes
        self.static_nodes = np.empty(0, np.int64)
        self.needed = np.zeros(graph.num_nodes, np.bool_)  # by any extent, initial or static file
        self.read_bytes = 0  # of scratch files

    def plan(self, split: str, num_static: int, cpu_rows: int) -> SplitPlan:
        """Place `split`: its headers go to their final offsets, the nodes of its rows to a scratch file."""
        num_batches = self.samples.epochs(split) * self.samples.batches_per_epoch(split)
        if num_batches > MAX_BATCHES:
            raise ConfigError(f"{split}: {num_batches} minibatches; at most {MAX_BATCHES} can be placed")
        with self.reporter.stage(f"place {split}", 2 * num_batches, "minibatches") as advance:
            scratch = self.writer.path(f"{split}.accesses")
            accesses = Accesses(self.samples, split, self.graph.num_nodes, scratch, advance)
            if split == self.samples.splits[0]:
                self.static_nodes = hottest_nodes(accesses.counts, num_static)
                self.needed[self.static_nodes] = True
            schedule = Schedule(accesses, self.static_nodes, cpu_rows)
            self.needed[schedule.initial_nodes] = True
            # Placing and encoding keep a core busy each.
            with _HeaderWriter(self, split, num_batches) as headers, ThreadPoolExecutor(1) as pool:
                waiting: deque[Future[None]] = deque()
                for minibatch, placement in zip(self.samples.read(split), schedule, strict=True):
                    waiting.append(pool.submit(headers.write, minibatch, placement))
                    while len(waiting) > _MAX_WAITING:
                        waiting.popleft().result()
                    advance(1)
                for written in waiting:
                    written.result()
        nodes_bytes = headers.nodes_path.stat().st_size  # to be read when the rows are packed
        self.read_bytes += accesses.read_bytes + nodes_bytes
        return headers.plan(schedule)


class _HeaderWriter:
    """Writes the headers of one split, extent after extent, and notes what each extent consists of."""

    def __init__(self, planner: SplitPlanner, split: str, num_batches: int) -> None:
        writer, graph, samples = planner.writer, planner.graph, planner.samples
        self.nodes_path = writer.path(f"{split}.nodes")
        self._split, self._pages, self._needed = split, planner.pages, planner.needed
        self._path = str(writer.path(artifacts.extents_file(split)))
        self._tails = scratch_pages(writer.path(f"{split}.tails"), num_batches)
        self._index = np.zeros(num_batches, extents.INDEX_DTYPE)
        self._num_static = len(planner.static_nodes)
        self._row_bytes = graph.feature_file.row_bytes
        # In ascending order and once: each minibatch's own labels would be read at random from a cold file.
        self._nodes = np.unique(graph.splits[split])
        self._labels = graph.labels[self._nodes].astype(np.int64)
        self._keep_input_nodes = planner.keep_input_nodes
        node_type = pa.from_numpy_dtype(graph.indices.dtype) if planner.keep_input_nodes else None
        self._schema = extents.header_schema(len(samples.manifest.config["fanouts"]), node_type)
        self._counts = {"requested": 0, "static": 0, "cpu": 0, "disk": 0}
        self._number = self._offset = 0  # of the next extent

    def __enter__(self) -> _HeaderWriter:
        self._nodes_file = self.nodes_path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes_file.close()

    def write(self, minibatch: SampledMinibatch, placement: Placement) -> None:
        """Write the header of the next extent."""
        header = extents.encode_header(
            extents.Header(
                minibatch.seeds,
                self._labels[np.searchsorted(self._nodes, minibatch.seeds)],
                minibatch.blocks,
                placement.addresses,
                placement.admissions,
                minibatch.input_nodes if self._keep_input_nodes else None,
            ),
            self._schema,
        )
        num_inputs, num_rows = len(placement.addresses), len(placement.disk_nodes)
        record: Any = self._index[self._number]
        record["offset"] = self._offset
        num_bytes = extents.fill_record(
            record, header, num_inputs, num_rows, len(placement.admissions), self._row_bytes
        )
        record["header_crc32c"] = start_extent(
            self._pages, self._path, self._offset, np.frombuffer(header.message, np.uint8), int(record["rows_offset"]),
            self._tails[self._number * ALIGNMENT :][:ALIGNMENT], num_rows == 0,
        )  # fmt: skip
        self._nodes_file.write(placement.disk_nodes.data)
        self._needed[placement.disk_nodes] = True
        static = int(np.count_nonzero(placement.addresses < self._num_static))
        for name, rows in (
            ("requested", num_inputs),
            ("static", static),
            ("cpu", num_inputs - static - num_rows),
            ("disk", num_rows),
        ):
            self._counts[name] += rows
        self._offset += num_bytes
        self._number += 1

    def plan(self, schedule: Schedule) -> SplitPlan:
        """What is left to write when all headers are."""
        assert self._number == len(self._index), (self._number, len(self._index))
        return SplitPlan(
            self._split,
            self._index,
            np.concatenate([[0], np.cumsum(self._index["num_rows"])]).astype(np.int64),
            self.nodes_path,
            self._tails,
            schedule.initial_nodes,
            schedule.wrap,
            self._counts,
        )
