"""Generates a synthetic labelled graph of any size (`diskgnn generate`), streamed to disk.

It is a degree-corrected planted partition (Karrer and Newman, "Stochastic blockmodels and community structure in
networks", Phys. Rev. E 83, 2011): classes of equal size, degrees with power-law tails on both sides, most edges inside
a class. Every edge, label, split and feature row is a pure function of the seed and its number, so the bytes depend
neither on threads nor on memory. native/graph/graph_generator.h says how each is drawn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn._native import FeatureType, GraphGenerator
from diskgnn.files.destination import Destination
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import node_file
from diskgnn.formats.graph_config import id_dtype
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.csc import EdgeList, EdgeOptions, least_memory_bytes, write_csc
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.graph.generation_spec import GenerationSpec
from diskgnn.ordered import Threads, in_order
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Need, Resources
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.fold import Output
from diskgnn.work.publishing import published
from diskgnn.work.required_space import require_space
from diskgnn.work.runner import Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

_MAX_CHUNK_BYTES = 8 << 20
_SPARE_BYTES = 4 << 20  # for chunks and buckets, at least

T = TypeVar("T")


@published(artifacts.GRAPH)
@freed_memory_returned()
def generate(
    out: PathLike,
    *,
    num_nodes: int,
    avg_degree: float = 12.5,
    num_classes: int = 16,
    num_features: int = 128,
    feature_dtype: str = "float32",
    train_fraction: float = 0.02,
    valid_fraction: float = 0.01,
    test_fraction: float = 0.01,
    homophily: float = 0.7,
    seed: int = 0,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Writes a synthetic graph directory on which a GNN clearly beats a model that sees no edges.

    Degrees follow a power law (in and out; tail exponent 2.33), ids are scrambled, edges are directed and distinct, and
    no edge joins a node to itself. The same arguments give the same bytes, whatever `memory` and `threads` are.

    Args:
        out: the graph directory to make.
        num_nodes: N, at least two per class; 10^4 to 10^8 is what it is meant for.
        avg_degree: edges drawn per node. Repeated pairs are dropped, so the graph has a few percent fewer at 10^4 nodes
            and less than one percent fewer from 10^6 on.
        num_classes: C, classes of equal size.
        num_features: D.
        feature_dtype: float32, float16, bfloat16 (stored as uint16) or int8 (32 times the value).
        train_fraction: share of the nodes in the train split, drawn at random; above 0.
        valid_fraction: the same for validation; 0 for none.
        test_fraction: the same for test; 0 for none. The splits are disjoint.
        homophily: expected share of edges between nodes of one class. It differs from node to node.
        seed: 0 to 2^64 - 1.
        memory: what the whole process may have: bytes, a text such as '1GiB', or 'auto'.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        threads: None means one per core that this process may use.
        overwrite: replace `out` if it is a diskgnn artifact.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about progress, in place of the bars; see `diskgnn.progress`.

    Returns:
        A report whose details name num_nodes, num_edges and the size of each split.

    Raises:
        ConfigError: an argument out of range, or too little memory.
        OutputExistsError: `out` exists and `overwrite` is False.
        DiskFullError: the disk cannot hold the graph; nothing was written.

    Example:
        >>> diskgnn.generate("graph", num_nodes=1_000_000, num_classes=47)
    """
    start_seconds = time.perf_counter()
    fractions = {"train": train_fraction, "valid": valid_fraction, "test": test_fraction}
    rows = RowFormat(feature_dtype, num_features)
    spec = GenerationSpec(num_nodes, avg_degree, num_classes, rows, fractions, homophily, seed)
    out, told = Destination.of(out), reporter_for(reporter, progress)
    resources = Resources.of(memory, threads, told, sending_bytes=out.sending_bytes)
    resources = resources.within(Need(
        f"for {num_classes} classes and rows of {rows.row_bytes} bytes",
        shared_bytes=spec.centroid_bytes,
        least_bytes=_SPARE_BYTES + least_memory_bytes(num_nodes) * 2 + 4 * _in_flight(0) * rows.row_bytes,
        unit_bytes=4 * rows.row_bytes,
    ))  # fmt: skip
    chunks = Chunks.within(resources)
    budget = out.budget(disk)
    writer = ArtifactWriter(
        out, artifacts.GRAPH, config=spec.to_json(0), overwrite=overwrite, resumable=True, disk=budget
    )
    require_space(writer, _most_disk_bytes(spec), "the graph")
    with writer:
        parts = _GraphParts(writer, spec, resources, chunks, spec.generator())
        num_edges = parts.write_edges()
        writer.config = spec.to_json(num_edges)
        parts.write_features()
        parts.write_labels_and_splits()
        manifest = writer.publish()
    return StageReport(
        "generate",
        time.perf_counter() - start_seconds,
        read_bytes=0,
        written_bytes=manifest.total_bytes,
        details={"num_nodes": num_nodes, "num_edges": num_edges, **spec.split_sizes},
    )


@dataclass(frozen=True)
class Chunks:
    """The size of the chunks in which arrays are made, and the number of threads that make them."""

    bytes_each: int
    threads: int

    @staticmethod
    def within(resources: Resources) -> Chunks:
        """Takes a quarter of the memory for chunks. The rest is for sorting edges."""
        bytes_each = resources.divided(_in_flight(resources.threads), part=4, most_bytes=_MAX_CHUNK_BYTES)
        return Chunks(bytes_each, resources.threads)

    @property
    def total_bytes(self) -> int:
        """Returns the bytes of all chunks that exist at once."""
        return _in_flight(self.threads) * self.bytes_each

    def of(self, make: Callable[[int, int], T], numbers: range, item_bytes: int) -> Iterator[T]:
        """Yields `make(first, count)` for consecutive parts of `numbers`, in order. The threads work ahead of use."""
        return made_in_parts(make, numbers, max(1, self.bytes_each // item_bytes), self.threads)


def _in_flight(threads: int) -> int:
    """Returns the number of chunks that are being made, or wait to be written."""
    return threads + 2


def made_in_parts(make: Callable[[int, int], T], numbers: range, step: int, threads: int) -> Iterator[T]:
    """Yields `make(first, count)` for parts of `numbers` of `step` each, in order. The threads work ahead of use."""
    parts = (numbers[first : first + step] for first in range(0, len(numbers), step))
    with Threads(threads) as pool:
        yield from in_order(pool, (partial(make, part.start, len(part)) for part in parts), ahead=threads)


def _most_disk_bytes(spec: GenerationSpec) -> int:
    """Returns the bytes that the graph and scratch take at a time."""
    index_bytes = id_dtype(spec.num_nodes).itemsize
    topology_bytes = spec.num_drawn_edges * index_bytes + spec.num_nodes * 8
    scratch_bytes = spec.num_drawn_edges * 2 * index_bytes  # gone before the features are written
    other_bytes = spec.num_nodes * (spec.rows.row_bytes + 8) + sum(spec.split_sizes.values()) * 8
    return topology_bytes + max(scratch_bytes, other_bytes)


@dataclass(frozen=True)
class _GraphParts:
    """Writes what a graph consists of."""

    writer: ArtifactWriter
    spec: GenerationSpec
    resources: Resources
    chunks: Chunks
    generator: GraphGenerator

    def write_edges(self) -> int:
        """Returns how many edges remain after repeated ones are dropped."""
        spec, chunks, dtype = self.spec, self.chunks, id_dtype(self.spec.num_nodes)

        def make(first: int, count: int) -> EdgeChunk:
            src, dst = np.empty(count, dtype), np.empty(count, dtype)
            self.generator.edges(first, src, dst)
            return src, dst

        def edges_from(first: int) -> Iterator[EdgeChunk]:
            return chunks.of(make, range(first, spec.num_drawn_edges), 2 * dtype.itemsize)

        edges = EdgeList(
            ONE_EDGE_TYPE, partial(edges_from, 0), spec.num_nodes, spec.num_nodes, EdgeOptions(drop_duplicates=True),
            num_input_edges=spec.num_drawn_edges, seek=edges_from,
        )  # fmt: skip
        left = self.resources.less(chunks.total_bytes + least_memory_bytes(spec.num_nodes))
        return write_csc(self.writer, edges, left)

    def write_features(self) -> None:
        """Writes the rows of all nodes, with their checksums."""
        rows, num_nodes = self.spec.rows, self.spec.num_nodes
        feature_type = FeatureType[rows.dtype]

        def make(first: int, count: int) -> npt.NDArray[Any]:
            data = np.empty((count, rows.row_bytes), np.uint8)
            self.generator.features(first, feature_type, data)
            return data.view(rows.storage)

        name, checksums = (node_file(kind, ONE_NODE_TYPE) for kind in (artifacts.FEATURES, artifacts.FEATURE_CHECKSUMS))
        file = ArrayFile(self.writer, name, rows.storage, num_nodes, (rows.num_features,), checksums, may_stream=True)
        stage = self.resources.reporter, "write features", num_nodes * rows.row_bytes, "B"

        def write(state: State, output: Output) -> Generator[int, None, None]:
            with output.stage(*stage) as advance:
                for data in self.chunks.of(make, range(file.rows_written, num_nodes), rows.row_bytes):
                    file.write(data)
                    advance(data.nbytes)
                    yield data.nbytes

        Work(self.writer, name).run(lambda work: work.fold("generate", write, {}, files=[file]))

    def write_labels_and_splits(self) -> None:
        """Writes the class of each node, and the nodes of each split that has some."""
        self._write_int64s(artifacts.LABELS, self.generator.labels, range(self.spec.num_nodes))
        first = 0
        for split, size in self.spec.split_sizes.items():
            if size > 0:
                self._write_int64s(split, self.generator.shuffled_nodes, range(first, first + size))
            first += size

    def _write_int64s(self, kind: str, fill: Callable[[int, npt.NDArray[np.int64]], None], numbers: range) -> None:
        """Writes the values that `fill` gives for `numbers` to a file of nodes."""

        def make(first: int, count: int) -> npt.NDArray[np.int64]:
            values = np.empty(count, np.int64)
            fill(first, values)
            return values

        name = node_file(kind, ONE_NODE_TYPE)
        file = ArrayFile(self.writer, name, np.int64, len(numbers))

        def write(state: State, output: Output) -> Generator[int, None, None]:
            for values in self.chunks.of(make, numbers[file.rows_written :], 8):
                file.write(values)
                yield values.nbytes

        Work(self.writer, name).run(lambda work: work.fold("generate", write, {}, files=[file]))
