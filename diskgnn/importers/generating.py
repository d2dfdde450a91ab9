"""`diskgnn generate --schema`: a synthetic graph with types, of any size, streamed to disk.

Nodes of all types belong to the same number of classes, edges prefer to stay within one, and degrees have power-law
tails on both sides (native/graph/graph_generator.h). Labels, features, times, weights and splits are functions of the
seed, the type and the number of the node or edge, so the bytes depend neither on threads nor on memory.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import FeatureType, GraphGenerator
from diskgnn.files.destination import Destination
from diskgnn.formats import artifacts
from diskgnn.formats.graph_config import id_dtype
from diskgnn.formats.row_format import FEATURE_STORAGE, RowFormat
from diskgnn.graph.csc import EdgeList
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.graph.edge_records import EdgeColumn
from diskgnn.graph.generation import made_in_parts
from diskgnn.graph.generation_spec import feature_signal
from diskgnn.importers.containers.rows import CHUNK_BYTES, CHUNK_EDGES, RowSource
from diskgnn.importers.generating_spec import EdgeTypeSpec, NodeTypeSpec, TypedGraphSpec, read_spec
from diskgnn.importers.graph_input import NodeInput
from diskgnn.importers.graph_sources import OpenEdges, OpenNodes
from diskgnn.importers.graph_writing import OpenGraph, write_graph
from diskgnn.importers.node_features import NodeFeatures
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport
from diskgnn.specs.schema import SPLITS, EdgeType, edge_type_name, reverse_edge_type
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.resources import Resources
from diskgnn.units import seed_number
from diskgnn.work.publishing import published
from diskgnn.work.required_space import require_space
from diskgnn.work.writer import ArtifactWriter

Make = Callable[[int, int], npt.NDArray[Any]]  # (first, count) -> items

_BLOCK = 1 << 14  # items that one stream of random numbers makes


@published(artifacts.GRAPH)
@freed_memory_returned()
def generate_typed(
    out: PathLike,
    schema: PathLike | Mapping[str, Any],
    *,
    seed: int = 0,
    memory: int | str = "auto",
    disk: int | str | None = None,
    threads: int | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> StageReport:
    """Write a synthetic graph directory with several types of nodes and edges.

    Args:
        out: the graph directory to make.
        schema: a YAML file or the same as mappings: `classes`, `scale`, and the keys of `NodeTypeSpec` for each type in
            `nodes`, of `EdgeTypeSpec` for each type in `edges`.
        seed: 0 to 2^64 - 1.
        memory: what this may allocate: bytes, a text such as '1GiB', or 'auto'.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        threads: None means one per core that this process may use.
        overwrite: replace `out` if it is a diskgnn artifact.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about progress, in place of the bars; see `diskgnn.progress`.

    Returns:
        A report whose details name the nodes and edges of each type.

    Raises:
        ConfigError: the schema is none; names the key.
        OutputExistsError: `out` exists and `overwrite` is False.
        DiskFullError: the disk cannot hold the graph; nothing was written.

    Example:
        >>> diskgnn.generate_typed("graph", {
        ...     "classes": 16,
        ...     "nodes": {"paper": {"num_nodes": 10_000, "features": 32, "labels": "class", "train": 0.1},
        ...               "author": {"num_nodes": 8_000}},
        ...     "edges": {"author:writes:paper": {"num_edges": 40_000, "reverse": True}},
        ... })
    """
    started = time.perf_counter()
    seed = seed_number(seed)
    out, spec, told = Destination.of(out), read_spec(schema), reporter_for(reporter, progress)
    resources = Resources.of(memory, threads, told, sending_bytes=out.sending_bytes)
    generator = _TypedGenerator(spec, seed, resources.threads)
    graph = generator.graph()
    made_with = {"generator": spec.to_json(), "seed": seed}
    budget = out.budget(disk)
    with ArtifactWriter(
        out, artifacts.GRAPH, config=made_with, overwrite=overwrite, resumable=True, disk=budget
    ) as writer:
        require_space(writer, graph.needed_bytes, "the graph")
        written = write_graph(writer, graph, resources)
        writer.config = written.config.to_json(made_with)
        manifest = writer.publish()
    return StageReport("generate", time.perf_counter() - started, read_bytes=0, written_bytes=manifest.total_bytes,
                       details=written.details)  # fmt: skip


@dataclass(frozen=True)
class _TypedGenerator:
    """Sources of all that a graph of `spec` has."""

    spec: TypedGraphSpec
    seed: int
    threads: int

    def graph(self) -> OpenGraph:
        """Returns a graph to be written like what users give."""
        nodes = {name: self._native(name, given) for name, given in self.spec.nodes.items()}
        opened = {name: self._nodes(name, given, nodes[name]) for name, given in self.spec.nodes.items()}
        edges = {
            found.list.type: found
            for edge_type, given in self.spec.edges.items() for found in self._edges(edge_type, given, nodes)
        }  # fmt: skip
        return OpenGraph(True, opened, edges)

    def key(self, *names: object) -> int:
        """Returns a 64-bit number of its own for everything that is drawn."""
        text = "\0".join(map(str, (self.seed, *names)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")

    def _native(self, name: str, given: NodeTypeSpec) -> GraphGenerator:
        return GraphGenerator(
            num_nodes=given.num_nodes, num_classes=self.spec.classes, homophily=0.0, num_features=given.features or 1,
            feature_signal=feature_signal(self.spec.classes), seed=self.key(name),
        )  # fmt: skip

    def _nodes(self, name: str, given: NodeTypeSpec, native: GraphGenerator) -> OpenNodes:
        num_nodes, features = given.num_nodes, None
        if given.features:
            row_format = RowFormat(given.dtype, given.features)

            def make(first: int, count: int) -> npt.NDArray[Any]:
                data = np.empty((count, row_format.row_bytes), np.uint8)
                native.features(first, FeatureType[row_format.dtype], data)
                return data.view(row_format.storage)

            rows = self._rows("features", num_nodes, (given.features,), row_format.storage, make)
            features = NodeFeatures(rows, row_format, row_format)
        splits, first = {}, 0
        for split in SPLITS:
            size = round(getattr(given, split) * num_nodes)
            if size:
                splits[split] = np.empty(size, np.int64)
                native.shuffled_nodes(first, splits[split])
            first += size
        task = given.labels or "class"
        labels = None if given.labels is None else self._labels(name, given.labels, num_nodes, native)
        return OpenNodes(NodeInput(task=task, num_classes=self.spec.classes if task == "class" else None),
                         f"node type {name}", num_nodes, features, labels, self._times(name, given.times, num_nodes),
                         splits)  # fmt: skip

    def _labels(self, name: str, kind: str, num_nodes: int, native: GraphGenerator) -> RowSource:
        """Returns the class; or a number that follows from it, with noise; or the class and each other one with 5 %."""
        classes = self.spec.classes
        noise = self._drawn(("labels", name), lambda random: random.random(_BLOCK, np.float32))
        others = self._drawn(("labels", name), lambda random: random.random((_BLOCK, classes), np.float32) < 0.05)

        def make(first: int, count: int) -> npt.NDArray[Any]:
            found = np.empty(count, np.int64)
            native.labels(first, found)
            if kind == "class":
                return found
            if kind == "regression":
                return (found / max(classes - 1, 1) + 0.1 * (noise(first, count) - 0.5)).astype(np.float32)
            bits = others(first, count).astype(np.uint8)
            bits[np.arange(count), found] = 1
            return bits

        dtype = np.dtype({"class": np.int64, "regression": np.float32, "multilabel": np.uint8}[kind])
        return self._rows("labels", num_nodes, (classes,) if kind == "multilabel" else (), dtype, make)

    def _times(self, name: str, span: tuple[int, int] | None, count: int) -> RowSource | None:
        if span is None:
            return None
        first, last = span
        make = self._drawn(("times", name), lambda random: random.integers(first, last + 1, _BLOCK))
        return self._rows("times", count, (), np.dtype(np.int64), make)

    def _edges(
        self, edge_type: EdgeType, given: EdgeTypeSpec, nodes: Mapping[str, GraphGenerator]
    ) -> Iterator[OpenEdges]:
        name, (source, _, destination) = edge_type_name(edge_type), edge_type
        sizes = self.spec.nodes[source].num_nodes, self.spec.nodes[destination].num_nodes
        dtype, key = id_dtype(max(sizes)), self.key("edges", name)

        def make(first: int, count: int) -> EdgeChunk:
            src, dst = np.empty(count, dtype), np.empty(count, dtype)
            nodes[destination].edges_from(nodes[source], key, given.homophily, first, src, dst)
            return src, dst

        def stream(turned: bool, first: int) -> Iterator[EdgeChunk]:
            for src, dst in self._made(make, given.num_edges, CHUNK_EDGES // 4, first):
                yield (dst, src) if turned else (src, dst)

        columns = tuple(self._columns(name, given))
        for turned in (False, True)[: 1 + given.reverse]:
            of_type, ends = (reverse_edge_type(edge_type), sizes[::-1]) if turned else (edge_type, sizes)
            read = partial(stream, turned)
            yield OpenEdges(
                EdgeList(of_type, partial(read, 0), *ends, columns=columns, num_input_edges=given.num_edges, name=name,
                         seek=read), {}, 0,
            )  # fmt: skip

    def _columns(self, name: str, given: EdgeTypeSpec) -> Iterator[EdgeColumn]:
        found, count = dict[str, RowSource | None](), given.num_edges
        if given.weights:
            make = self._drawn(("weights", name), lambda random: random.random(_BLOCK, np.float32) + np.float32(0.5))
            found[artifacts.WEIGHTS] = self._rows("weights", count, (), np.dtype(np.float32), make)
        found[artifacts.TIMES] = self._times(name, given.times, count)
        if given.features:
            width, storage = given.features, np.dtype(FEATURE_STORAGE[given.dtype])
            scale = np.float32(32 if storage == np.int8 else 1)

            def draw(random: np.random.Generator) -> npt.NDArray[Any]:
                drawn = np.clip(random.standard_normal((_BLOCK, width), np.float32) * scale, -127, 127)
                return np.asarray(drawn, storage)

            make = self._drawn(("features", name), draw)
            found[artifacts.EDGE_FEATURES] = self._rows("features", count, (width,), storage, make)
        for kind, rows in found.items():
            if rows is not None:
                yield EdgeColumn(kind, f"{kind} of {name}", rows.dtype, rows.row_shape, rows.chunks_from)

    def _drawn(self, names: tuple[str, ...], draw: Callable[[np.random.Generator], npt.NDArray[Any]]) -> Make:
        """Returns any items of what `draw` makes of streams of random numbers, one for each block of _BLOCK items."""
        key = self.key(*names)

        def make(first: int, count: int) -> npt.NDArray[Any]:
            blocks = range(first // _BLOCK, (first + count - 1) // _BLOCK + 1)
            drawn = np.concatenate([draw(np.random.Generator(np.random.Philox(key=[key, block]))) for block in blocks])
            start = first - blocks.start * _BLOCK
            items: npt.NDArray[Any] = drawn[start : start + count]
            return items

        return make

    def _rows(
        self, name: str, count: int, row_shape: tuple[int, ...], dtype: np.dtype[Any],
        make: Make,
    ) -> RowSource:  # fmt: skip
        row_bytes = max(1, int(np.prod(row_shape, dtype=np.int64)) * dtype.itemsize)
        step = min(max(1, CHUNK_BYTES // row_bytes), _BLOCK)
        read = partial(self._made, make, count, step)
        return RowSource(name, count, row_shape, dtype, partial(read, 0), seek=read)

    def _made(self, make: Callable[[int, int], Any], count: int, step: int, first: int) -> Iterator[Any]:
        return made_in_parts(make, range(first, count), step, self.threads)
