"""Packs a sampled epoch within a limit of disk space: what `segmented_packed` reads. `segments` has the format."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.baselines.disk_caches import SampledAccesses
from diskgnn.baselines.row_runs import RowRun, RunFile, copy_runs
from diskgnn.baselines.segments import (
    CACHES,
    EXTENTS,
    INDEX,
    INDEX_DTYPE,
    STATIC,
    SegmentedConfig,
    SegmentedRowCounts,
)
from diskgnn.draws import batch_key, permutation
from diskgnn.formats import artifacts
from diskgnn.formats.extent_headers import EncodedHeader, encode_header
from diskgnn.formats.extents import align
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import RowPlaces, SampledMinibatch
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.accesses import hottest_nodes
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import SILENT, Advance, Reporter, StageReport
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_plan
from diskgnn.specs.caches import cache_rows
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources
from diskgnn.units import parse_size, whole_number
from diskgnn.work.required_space import require_space
from diskgnn.work.writer import ArtifactWriter

SEGMENT_BATCHES = 200  # what the authors' program takes by default


def prepare_segmented_packed(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    static_cache: int | str,
    disk_limit: int | str,
    segment_batches: int = SEGMENT_BATCHES,
    seed: int = 0,
    temporal: str | None = None,
    memory: int | str = "auto",
    threads: int | None = None,
    keep_input_nodes: bool = False,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> list[StageReport]:
    """Sample one train epoch and write the directory that `SegmentedPacked` reads, its rows in at most `disk_limit`.

    Consecutive minibatches form segments. The rows that most minibatches of a segment need are stored once, in its disk
    cache, instead of in each extent: as few rows as keep to the limit, the same number in every segment. If it cannot
    be kept, segments grow, at most to the whole epoch: then no row needs to be stored twice. Rows of a disk cache are
    in MinHash order (Broder, SEQUENCES 1997) of the minibatches that need them, two hash functions deep, so that rows
    which are needed together share pages.

    Args:
        graph, out, fanouts, batch_size, seed, memory, threads, keep_input_nodes, overwrite, reporter: as
            `diskgnn.prepare`.
        temporal: 'ignore' on a graph with times; nothing else.
        static_cache: rows in memory while training: bytes, '2GiB', or '10%' of all rows.
        disk_limit: of the rows in extents and disk caches, in bytes or as '20GiB'. The authors' program limits the same
            to a multiple of the graph's features (`blowup`): rows in memory, graph blocks and padding are not counted.
            As many bytes as the features have always suffice.
        segment_batches: minibatches in a segment, at least.

    Returns:
        The reports of sampling and packing.

    Raises:
        ConfigError: `disk_limit` is too small even if no row is stored twice; says what is needed. Or as `sample`.
        ArtifactError, OutputExistsError, DiskFullError: see `work.writer`.
    """
    if segment_batches is not None:
        whole_number("segment_batches", segment_batches)
    spec = SamplingSpec(fanouts, batch_size, seed=seed, splits=("train",), temporal=temporal)
    resources = Resources.beside(memory, threads, reporter)
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    plan = SamplingPlan(graph, spec)
    num_static = cache_rows(static_cache, graph.feature_file.row_bytes, graph.num_nodes, "static_cache")
    limit_bytes = parse_size(disk_limit)
    with ArtifactWriter(out, artifacts.DERIVED, config={}, source=graph.manifest, overwrite=overwrite) as writer:
        sampled = sample_plan(plan, writer.path("samples"), resources)
        began = time.perf_counter()
        samples = Samples.open(writer.path("samples"))
        with resources.reporter.stage("place segments", plan.sizes["train"].num_batches, "minibatches") as advance:
            accesses = SampledAccesses(samples, graph.num_nodes, num_static, advance)
            cached_rows, segment_batches = accesses.fit(limit_bytes, graph.feature_file.row_bytes, segment_batches)
        packing = _Packing(writer, graph, samples, accesses, keep_input_nodes)
        read_bytes = packing.pack(cached_rows, segment_batches, resources, f"packing {out}")
        config = SegmentedConfig(
            fanouts=spec.fanouts_of("train"),
            batch_size=spec.batch_size,
            seed=spec.seed,
            row_bytes=graph.feature_file.row_bytes,
            disk_limit=limit_bytes,
            keep_input_nodes=keep_input_nodes,
            node_dtype=graph.indices.dtype.name,
            num_static=len(accesses.static),
            segment_batches=segment_batches,
            cached_rows=cached_rows,
            rows=packing.rows,
            batches_per_epoch=accesses.num_batches,
        )
        writer.config = config.to_json()
        writer.save_array(INDEX, packing.index)
        for name in (STATIC, EXTENTS, CACHES):
            writer.add(name)
        manifest = writer.publish()
    counts = {f"{name}_rows": count for name, count in asdict(config.rows).items()}
    seconds = time.perf_counter() - began
    return [sampled, StageReport("pack segments", seconds, read_bytes, manifest.total_bytes, counts)]


class _Packing:
    """One sampled epoch on its way to segments. Node-sized memory is one int32 array, and what `accesses` needs."""

    def __init__(
        self,
        writer: ArtifactWriter,
        graph: Graph,
        samples: Samples,
        accesses: SampledAccesses,
        keep_input_nodes: bool,
    ) -> None:
        self._writer, self._graph, self._samples, self._accesses = writer, graph, samples, accesses
        self._row_bytes = graph.feature_file.row_bytes
        # Where a node is: rank + 1 of a static row, - (row + 1) of its segment's disk cache, 0: in its extents.
        self._place = np.zeros(graph.num_nodes, np.int32)
        self._place[accesses.static] = np.arange(1, len(accesses.static) + 1, dtype=np.int32)
        node_dtype = graph.indices.dtype.name if keep_input_nodes else None
        self._layout = MinibatchLayout.of_one_type(samples.config.spec.num_layers, graph.num_nodes, node_dtype)
        self.index: npt.NDArray[Any] = np.zeros(accesses.num_batches, INDEX_DTYPE)
        self.rows = SegmentedRowCounts()

    def pack(self, cached_rows: int, segment_batches: int, resources: Resources, what: str) -> int:
        """Write headers and rows; bytes read. `what` names it where the disk is too small."""
        with resources.reporter.stage("write headers", len(self.index), "minibatches") as advance:
            files = self._write_headers(cached_rows, segment_batches, advance)
        require_space(self._writer, {file.path.name: file.total_bytes for file in files}, what)
        with resources.reporter.stage("pack", sum(len(r.nodes) for f in files for r in f.runs), "rows") as advance:
            return copy_runs(self._graph, files, resources, advance)

    def _write_headers(self, cached_rows: int, segment_batches: int, advance: Advance) -> list[RunFile]:
        """Write all headers at their final offsets; the files to copy rows to."""
        row_bytes, offset, first_row = self._row_bytes, 0, 0
        caches: list[RowRun] = []
        batches, records = self._samples.read("train"), iter(self.index)
        seed = self._samples.config.spec.seed
        hashes = [permutation(len(self.index), batch_key(seed, f"minhash-{i}", 0)) for i in range(2)]
        nodes_path = self._writer.path("packed.nodes")
        with self._writer.path(EXTENTS).open("wb", buffering=0) as file, nodes_path.open("wb") as nodes_file:
            for counts, (major, minor) in self._accesses.segments(segment_batches, hashes):
                counts[counts == 1] = 0  # stored once in any case, and read with its extent
                cached = hottest_nodes(counts, cached_rows)
                cached = cached[np.lexsort((cached, minor[cached], major[cached]))]
                self._place[cached] = -1 - first_row - np.arange(len(cached), dtype=np.int32)
                for record in islice(records, segment_batches):
                    batch = next(batches)
                    record["offset"] = offset
                    offset = self._write_extent(record, batch, file)
                    nodes_file.write(np.sort(batch.only_nodes[self._place[batch.only_nodes] == 0]).data)
                    advance(1)
                self._place[cached] = 0
                caches.append(_run(first_row * row_bytes, cached))
                first_row += len(cached)
        static = self._accesses.static
        return [
            RunFile(self._writer.path(STATIC), len(static) * row_bytes, [_run(0, static)]),
            RunFile(self._writer.path(EXTENTS), offset, self._packed_runs(nodes_path)),
            RunFile(self._writer.path(CACHES), first_row * row_bytes, caches),
        ]

    def _packed_runs(self, nodes_path: Path) -> list[RowRun]:
        """Returns the rows of each extent, of the nodes that were written to `nodes_path`."""
        ends = np.cumsum(self.index["num_rows"]).tolist()
        stored = np.memmap(nodes_path, self._graph.indices.dtype, "r") if ends[-1] else np.empty(0, np.int32)
        return [
            RowRun(int(record["offset"] + record["rows_offset"]), stored[end - int(record["num_rows"]) : end])
            for record, end in zip(self.index, ends, strict=True)
        ]

    def _write_extent(self, record: Any, batch: SampledMinibatch, file: BinaryIO) -> int:
        """Write the header of one minibatch; where its extent ends."""
        places, num_static = self._place[batch.only_nodes], len(self._accesses.static)
        is_packed, is_cached = places == 0, places < 0
        num_rows, num_cached = int(np.count_nonzero(is_packed)), int(np.count_nonzero(is_cached))
        addresses = places - 1
        by_node = np.argsort(batch.only_nodes[is_packed])
        ranks = np.empty(num_rows, np.int32)
        ranks[by_node] = np.arange(num_rows, dtype=np.int32)
        addresses[is_packed] = num_static + ranks
        addresses[is_cached] = num_static + num_rows - 1 - places[is_cached]
        header = self._header(batch, addresses)
        message = memoryview(header.message).cast("B")
        record["header_bytes"] = len(message)
        record["header_crc32c"] = crc32c(message)
        record["rows_offset"] = align(len(message), DIRECT_ALIGNMENT)
        record["num_rows"], record["num_inputs"] = num_rows, len(places)
        file.seek(int(record["offset"]))
        file.write(message)
        self.rows += SegmentedRowCounts(len(places), len(places) - num_rows - num_cached, num_cached, num_rows)
        rows_bytes = align(num_rows * self._row_bytes, DIRECT_ALIGNMENT)
        return int(record["offset"] + record["rows_offset"]) + rows_bytes

    def _header(self, batch: SampledMinibatch, addresses: npt.NDArray[np.int32]) -> EncodedHeader:
        labels = self._graph.labels[batch.seeds].astype(np.int64)
        places = RowPlaces(addresses, admissions=np.empty((0, 2), np.int32))
        return encode_header(replace(batch, y=labels, rows=(places,)), self._layout)


def _run(offset: int, nodes: npt.NDArray[np.int64]) -> RowRun:
    """Returns a run of the rows of `nodes` in this order."""
    by_node = np.argsort(nodes)
    return RowRun(offset, nodes[by_node], by_node)
