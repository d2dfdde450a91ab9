"""Packed minibatches within a limit of disk space: what `segmented_packed` reads. Written and read here.

| file | dtype and shape | content |
|---|---|---|
| `static.bin` | | the rows that the sampled epoch needs most often, hottest first |
| `extents.bin` | | per minibatch, each part from a page boundary on: the header of `extents`, its rows sorted by node |
| `index.npy` | `extents.INDEX_DTYPE` [T] | where the parts of each extent are |
| `caches.bin` | | the disk caches, segment after segment: rows that several minibatches of a segment share |

Addresses in a header: [0, S) static, [S, S + R) row of the extent, S + R + i row i of caches.bin.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import crc32c
from diskgnn.baselines.row_runs import RowRun, RunFile, copy_runs
from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ConfigError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.packing.placement import hottest_nodes
from diskgnn.progress import SILENT, Advance, Reporter, StageReport
from diskgnn.sampling.sample import sample
from diskgnn.specs import PathLike, cache_rows
from diskgnn.storage import artifacts, extents
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.manifest import SEGMENTED
from diskgnn.storage.row_reading import ALIGNMENT
from diskgnn.storage.samples import SampledMinibatch, Samples
from diskgnn.system.memory import available_cores, memory_budget
from diskgnn.units import format_size, parse_size

STATIC, EXTENTS, INDEX, CACHES = "static.bin", "extents.bin", "index.npy", "caches.bin"
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
        static_cache: rows in memory while training: bytes, '2GiB', or '10%' of all rows.
        disk_limit: of the rows in extents and disk caches, in bytes or as '20GiB'. The authors' program limits the same
            to a multiple of the graph's features (`blowup`): rows in memory, graph blocks and padding are not counted.
            As many bytes as the features have always suffice.
        segment_batches: minibatches in a segment, at least.

    Raises:
        ConfigError: `disk_limit` is too small even if no row is stored twice; says what is needed. Or as `sample`.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.storage.artifacts`.
    """
    began = time.perf_counter()
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    at_least_one("segment_batches", segment_batches)
    limit_bytes, features = parse_size(disk_limit), graph.feature_file
    num_static = cache_rows(static_cache, features.row_bytes, graph.num_nodes)
    threads = available_cores() if threads is None else threads
    config: dict[str, Any] = {
        "fanouts": list(fanouts), "batch_size": batch_size, "seed": seed, "row_bytes": features.row_bytes,
        "disk_limit": limit_bytes, "keep_input_nodes": keep_input_nodes, "node_dtype": graph.indices.dtype.name,
    }  # fmt: skip
    with ArtifactWriter(out, SEGMENTED, config=config, source=graph.manifest, overwrite=overwrite) as writer:
        reports = [
            sample(graph, writer.path("samples"), fanouts=fanouts, batch_size=batch_size, seed=seed, splits=("train",),
                   memory=memory, threads=threads, reporter=reporter)
        ]  # fmt: skip
        samples = Samples.open(writer.path("samples"))
        with reporter.stage("plan segments", samples.batches_per_epoch("train"), "minibatches") as advance:
            packer = _Packer(writer.path, graph, samples, num_static, keep_input_nodes, advance)
            cached_rows, segment_batches = packer.fit(limit_bytes, segment_batches)
        with reporter.stage("write headers", packer.num_batches, "minibatches") as advance:
            files = packer.write_headers(cached_rows, segment_batches, advance)
        artifacts.require_free_bytes(writer.staging, sum(file.total_bytes for file in files), f"packing {out}")
        with reporter.stage("pack", sum(len(r.nodes) for f in files for r in f.runs), "rows") as advance:
            read_bytes = copy_runs(
                features, files, memory_bytes=memory_budget(memory), threads=threads, advance=advance
            )
        writer.config |= {
            "num_static": len(packer.static), "segment_batches": segment_batches, "cached_rows": cached_rows,
            "rows": packer.counts, "batches_per_epoch": packer.num_batches,
        }  # fmt: skip
        writer.save_array(INDEX, packer.index)
        for file in files:
            writer.add(file.path.name)
        manifest = writer.publish()
    reports.append(
        StageReport("pack segments", time.perf_counter() - began - reports[0].seconds, read_bytes, manifest.total_bytes,
                    {f"{name}_rows": count for name, count in packer.counts.items()})
    )  # fmt: skip
    return reports


class _Packer:
    """One sampled epoch on its way to segments. Node-sized memory is two int32 arrays."""

    def __init__(
        self,
        path: Callable[[str], Path],
        graph: Graph,
        samples: Samples,
        num_static: int,
        keep_input_nodes: bool,
        advance: Advance,
    ) -> None:
        self._path, self._graph, self._samples = path, graph, samples
        self._seed, self._keep_input_nodes = int(samples.manifest.config["seed"]), keep_input_nodes
        self._row_bytes = graph.feature_file.row_bytes
        self.num_batches = samples.batches_per_epoch("train")
        counts = np.zeros(graph.num_nodes, np.int32)
        for batch in samples.read("train"):
            counts[batch.input_nodes] += 1
            advance(1)
        self.static = hottest_nodes(counts, num_static)
        self._cold = int(counts.sum() - counts[self.static].sum())  # rows requested that are not static
        # Where a node is: rank + 1 of a static row, - (row + 1) of its segment's disk cache, 0: in its extents.
        self._place = np.zeros(graph.num_nodes, np.int32)
        self._place[self.static] = np.arange(1, len(self.static) + 1, dtype=np.int32)
        self._schema = extents.header_schema(
            len(samples.manifest.config["fanouts"]),
            pa.from_numpy_dtype(graph.indices.dtype) if keep_input_nodes else None,
        )
        self.index: npt.NDArray[Any] = np.zeros(self.num_batches, extents.INDEX_DTYPE)
        self.counts = {"requested": 0, "static": 0, "cached": 0, "packed": 0}

    def fit(self, limit_bytes: int, segment_batches: int) -> tuple[int, int]:
        """(rows in each disk cache, minibatches in each segment) that keep to the limit.

        Raises:
            ConfigError: none do.
        """
        kept = limit_bytes // self._row_bytes  # rows that may be stored
        while True:
            saved = self._savings(segment_batches)
            if self._cold - saved[-1] <= kept:
                return int(np.searchsorted(saved, self._cold - kept)), segment_batches
            if segment_batches >= self.num_batches:
                needed = (self._cold - int(saved[-1])) * self._row_bytes
                raise ConfigError(
                    f"disk_limit: {format_size(limit_bytes)} ({limit_bytes} bytes) cannot hold the rows of the sampled "
                    f"epoch: at least {format_size(needed)} ({needed} bytes) are needed; raise it, or static_cache"
                )
            segment_batches *= 2

    def _savings(self, segment_batches: int) -> npt.NDArray[np.int64]:
        """[K + 1] rows that need not be stored when every disk cache has k rows, for all k that make a difference."""
        segments = []
        for counts, _ in self._segments(segment_batches):
            nodes_by_count = np.bincount(counts, minlength=3)[2:]  # of those needed 2, 3, ... times
            saved = np.repeat(np.arange(1, len(nodes_by_count) + 1), nodes_by_count)[::-1]  # one copy stays
            segments.append(np.concatenate([[0], np.cumsum(saved)]))
        longest = max(map(len, segments))
        total = np.zeros(longest, np.int64)
        for saved in segments:
            total += np.pad(saved, (0, longest - len(saved)), "edge")
        return total

    def _segments(
        self, segment_batches: int, hashes: Sequence[npt.NDArray[np.int64]] = ()
    ) -> Iterator[tuple[npt.NDArray[np.int32], list[npt.NDArray[np.int32]]]]:
        """Per segment, [N] how many of its minibatches need each node (0 for static ones), and per hash function of
        minibatches [N] the least hash of those. To be used before the next segment is asked for."""
        counts = np.zeros(self._graph.num_nodes, np.int32)
        least = [np.empty(self._graph.num_nodes, np.int32) for _ in hashes]
        for number, batch in enumerate(self._samples.read("train")):
            if number % segment_batches == 0:
                counts[:] = 0
                for signature in least:
                    signature[:] = self.num_batches
            counts[batch.input_nodes] += 1
            for values, signature in zip(hashes, least, strict=True):
                signature[batch.input_nodes] = np.minimum(signature[batch.input_nodes], values[number])
            if (number + 1) % segment_batches == 0 or number + 1 == self.num_batches:
                counts[self.static] = 0
                yield counts, least

    def write_headers(self, cached_rows: int, segment_batches: int, advance: Advance) -> list[RunFile]:
        """Write all headers at their final offsets; the files to copy rows to."""
        row_bytes, offset, first_row = self._row_bytes, 0, 0
        caches: list[RowRun] = []
        batches, records = self._samples.read("train"), iter(self.index)
        hashes = [permutation(self.num_batches, batch_key(self._seed, f"minhash-{i}", 0)) for i in range(2)]
        nodes_path = self._path("packed.nodes")
        with self._path(EXTENTS).open("wb", buffering=0) as file, nodes_path.open("wb") as nodes_file:
            for counts, (major, minor) in self._segments(segment_batches, hashes):
                counts[counts == 1] = 0  # stored once in any case, and read with its extent
                cached = hottest_nodes(counts, cached_rows)
                cached = cached[np.lexsort((cached, minor[cached], major[cached]))]
                self._place[cached] = -1 - first_row - np.arange(len(cached), dtype=np.int32)
                for record in islice(records, segment_batches):
                    batch = next(batches)
                    record["offset"] = offset
                    offset = self._write_extent(record, batch, file)
                    nodes_file.write(np.sort(batch.input_nodes[self._place[batch.input_nodes] == 0]).data)
                    advance(1)
                self._place[cached] = 0
                by_node = np.argsort(cached)
                caches.append(RowRun(first_row * row_bytes, cached[by_node], by_node))
                first_row += len(cached)
        ends = np.cumsum(self.index["num_rows"]).tolist()
        stored = np.memmap(nodes_path, self._graph.indices.dtype, "r") if ends[-1] else np.empty(0, np.int32)
        packed = [
            RowRun(int(record["offset"] + record["rows_offset"]), stored[end - int(record["num_rows"]) : end])
            for record, end in zip(self.index, ends, strict=True)
        ]
        by_node = np.argsort(self.static)
        static = RowRun(0, self.static[by_node], by_node)
        return [
            RunFile(self._path(STATIC), len(self.static) * row_bytes, [static]),
            RunFile(self._path(EXTENTS), offset, packed),
            RunFile(self._path(CACHES), first_row * row_bytes, caches),
        ]

    def _write_extent(self, record: Any, batch: SampledMinibatch, file: BinaryIO) -> int:
        """Write the header of one minibatch; where its extent ends."""
        places = self._place[batch.input_nodes]
        is_packed, is_cached = places == 0, places < 0
        num_rows = int(np.count_nonzero(is_packed))
        addresses = places - 1
        by_node = np.argsort(batch.input_nodes[is_packed])
        ranks = np.empty(num_rows, np.int32)
        ranks[by_node] = np.arange(num_rows, dtype=np.int32)
        addresses[is_packed] = len(self.static) + ranks
        addresses[is_cached] = len(self.static) + num_rows - 1 - places[is_cached]
        header = self._header(batch, addresses)
        message = memoryview(header.message).cast("B")
        record["header_bytes"] = len(message)
        record["header_crc32c"] = crc32c(message)
        record["rows_offset"] = extents.align(len(message), ALIGNMENT)
        record["num_rows"], record["num_inputs"] = num_rows, len(places)
        record["addresses_offset"] = header.addresses_offset
        file.seek(int(record["offset"]))
        file.write(message)
        cached = int(np.count_nonzero(is_cached))
        for name, count in (
            ("requested", len(places)),
            ("static", len(places) - num_rows - cached),
            ("cached", cached),
            ("packed", num_rows),
        ):
            self.counts[name] += count
        return int(record["offset"] + record["rows_offset"]) + extents.align(num_rows * self._row_bytes, ALIGNMENT)

    def _header(self, batch: SampledMinibatch, addresses: npt.NDArray[np.int32]) -> extents.EncodedHeader:
        labels = self._graph.labels[batch.seeds].astype(np.int64)
        none = np.empty((0, 2), np.int32)
        nodes = batch.input_nodes if self._keep_input_nodes else None
        header = extents.Header(batch.seeds, labels, batch.blocks, addresses, none, nodes)
        return extents.encode_header(header, self._schema)
