"""`diskgnn generate`: a synthetic labelled graph of any size, streamed to disk.

A degree-corrected planted partition (Karrer and Newman, "Stochastic blockmodels and community structure in
networks", Phys. Rev. E 83, 2011): classes of equal size, degrees with power-law tails on both sides, most edges
inside a class. Every edge, label, split and feature row is a pure function of (seed, its number), so the bytes
depend neither on threads nor on memory. native/graph_generator.h says how each is drawn.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from diskgnn._native import FeatureType, GraphGenerator
from diskgnn.errors import ConfigError
from diskgnn.graph.csc import index_dtype, write_csc
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter
from diskgnn.storage.row_format import FEATURE_STORAGE
from diskgnn.system.memory import available_cores, memory_budget

_MAX_CHUNK_BYTES = 8 << 20
_MIN_SPARE_BYTES = 12 << 20  # beside the centroids
_BIN_TABLE_BYTES = 4 << 20  # what `write_csc` holds beside its buffers

# Length of a class centroid over that at which C classes can just be told apart in noise, sqrt(2 ln C). At this
# ratio the best classifier that sees only a node's own features is right 43 % of the time with 16 classes, 36 %
# with 47: clearly more than chance, clearly less than one that sees the neighbours too.
_SIGNAL_RATIO = 0.65

_T = TypeVar("_T")


@dataclass(frozen=True)
class _Parameters:
    num_nodes: int
    avg_degree: float
    num_classes: int
    num_features: int
    feature_dtype: str
    train_fraction: float
    valid_fraction: float
    test_fraction: float
    homophily: float
    seed: int

    @property
    def num_drawn_edges(self) -> int:
        return round(self.num_nodes * self.avg_degree)

    @property
    def row_bytes(self) -> int:
        return self.num_features * np.dtype(FEATURE_STORAGE[self.feature_dtype]).itemsize

    @property
    def centroid_bytes(self) -> int:
        return self.num_classes * self.num_features * 4

    @property
    def split_sizes(self) -> dict[str, int]:
        """Nodes per split; splits are consecutive in the order of `shuffled_nodes`."""
        sizes, left = {}, self.num_nodes
        for split in artifacts.SPLITS:
            sizes[split] = min(round(getattr(self, f"{split}_fraction") * self.num_nodes), left)
            left -= sizes[split]
        return sizes

    def check(self) -> None:
        if self.num_classes < 1 or self.num_nodes < 2 * self.num_classes:
            raise ConfigError(
                f"expected at least 1 class and 2 nodes per class, found {self.num_classes} classes for "
                f"{self.num_nodes} nodes: change --num-classes or --num-nodes"
            )
        limit = self.num_nodes / (2 * self.num_classes)
        if not 0 < self.avg_degree <= limit:
            raise ConfigError(
                f"expected an average degree above 0 and at most {limit:g} (half of the nodes of a class), found "
                f"{self.avg_degree}: change --avg-degree, or have fewer classes or more nodes"
            )
        if self.num_features < 1:
            raise ConfigError(f"expected a --feature-width of at least 1, found {self.num_features}")
        if self.feature_dtype not in FEATURE_STORAGE:
            raise ConfigError(
                f"expected a --feature-dtype of {', '.join(FEATURE_STORAGE)}, found {self.feature_dtype!r}"
            )
        if not 0 <= self.homophily <= 1:
            raise ConfigError(f"expected a --homophily from 0 to 1, found {self.homophily}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"expected a --seed from 0 to 2^64 - 1, found {self.seed}")
        fractions = {split: getattr(self, f"{split}_fraction") for split in artifacts.SPLITS}
        if not all(0 <= fraction <= 1 for fraction in fractions.values()) or sum(fractions.values()) > 1 + 1e-9:
            raise ConfigError(f"expected fractions from 0 to 1 whose sum is at most 1, found {fractions}")
        for split, size in self.split_sizes.items():
            if size == 0 and (fractions[split] > 0 or split == "train"):
                raise ConfigError(
                    f"expected at least one {split} node, found none: {fractions[split]} of {self.num_nodes} "
                    f"nodes is less than one; pass a larger --{split}-fraction"
                )


def generate(
    out: PathLike,
    *,
    num_nodes: int,
    avg_degree: float,
    num_classes: int,
    num_features: int,
    feature_dtype: str = "float32",
    train_fraction: float,
    valid_fraction: float,
    test_fraction: float,
    homophily: float,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Write a synthetic graph directory on which a GNN clearly beats a model that sees no edges.

    Degrees follow a power law (in and out; tail exponent 2.33), ids are scrambled, edges are directed, distinct
    and join no node to itself. The same arguments give the same bytes, whatever `memory` and `threads` are.

    Args:
        out: the graph directory to make.
        num_nodes: N, at least two per class; 10^4 to 10^8 is what it is meant for.
        avg_degree: edges drawn per node. Repeated pairs are dropped, so the graph has a few percent fewer at 10^4
            nodes and less than one percent fewer from 10^6 on.
        num_classes: C, classes of equal size.
        num_features: D.
        feature_dtype: float32, float16, bfloat16 (stored as uint16) or int8 (32 times the value).
        train_fraction: share of the nodes in the train split, drawn at random; above 0.
        valid_fraction: the same for validation; 0 for none.
        test_fraction: the same for test; 0 for none. The splits are disjoint.
        homophily: expected share of edges between nodes of one class. It differs from node to node.
        seed: 0 to 2^64 - 1.
        memory: what this may allocate beside the interpreter: bytes, a text such as '1GiB', or 'auto'.
        threads: None means one per core that this process may use.
        overwrite: replace `out` if it is a diskgnn artifact.
        reporter: told about progress.

    Returns:
        A report whose details name num_nodes, num_edges and the size of each split.

    Raises:
        ConfigError: an argument out of range, or too little memory.
        OutputExistsError: `out` exists and `overwrite` is False.
        DiskFullError: the disk cannot hold the graph; nothing was written.

    Example:
        >>> diskgnn.generate("graph", num_nodes=16_000_000, avg_degree=12.5, num_classes=47, num_features=128,
        ...                  train_fraction=0.02, valid_fraction=0.01, test_fraction=0.01, homophily=0.7)
    """
    start_seconds = time.perf_counter()
    parameters = _Parameters(
        num_nodes, avg_degree, num_classes, num_features, feature_dtype,
        train_fraction, valid_fraction, test_fraction, homophily, seed,
    )  # fmt: skip
    parameters.check()
    if threads is not None and threads < 1:
        raise ConfigError(f"expected at least one thread, found --threads {threads}")
    threads = threads or available_cores()
    memory_bytes = memory_budget(memory)
    chunk_bytes = _chunk_bytes(parameters, memory_bytes, threads)
    config: dict[str, Any] = {"generator": "degree-corrected planted partition"} | asdict(parameters)
    writer = ArtifactWriter(out, artifacts.GRAPH, config=config, overwrite=overwrite)
    _require_space(parameters, writer.final.parent)
    with writer:
        generator = GraphGenerator(
            num_nodes=num_nodes,
            num_classes=num_classes,
            homophily=homophily,
            num_features=num_features,
            feature_signal=_SIGNAL_RATIO * math.sqrt(2 * math.log(num_classes)),
            seed=seed,
        )
        chunks = partial(_chunks, chunk_bytes=chunk_bytes, threads=threads)
        edge_type = index_dtype(num_nodes)
        draw_edges = partial(_edges, generator, edge_type)
        num_edges = write_csc(
            writer,
            lambda: chunks(draw_edges, parameters.num_drawn_edges, 2 * edge_type.itemsize),
            num_nodes,
            memory_bytes=memory_bytes
            - parameters.centroid_bytes
            - _in_flight(threads) * chunk_bytes
            - _BIN_TABLE_BYTES,
            drop_duplicates=True,
            num_input_edges=parameters.num_drawn_edges,
            threads=threads,
            reporter=reporter,
        )
        writer.config["num_edges"] = num_edges
        _write_features(writer, generator, parameters, chunks, reporter)
        _write_int64s(writer, artifacts.LABELS, generator.labels, 0, num_nodes, chunks)
        first = 0
        for split, size in parameters.split_sizes.items():
            if size > 0:
                name = artifacts.split_file(split)
                _write_int64s(writer, name, generator.shuffled_nodes, first, size, chunks)
            first += size
        manifest = writer.publish()
    return StageReport(
        "generate",
        time.perf_counter() - start_seconds,
        read_bytes=0,
        written_bytes=manifest.total_bytes,
        details={"num_nodes": num_nodes, "num_edges": num_edges, **parameters.split_sizes},
    )


def _in_flight(threads: int) -> int:
    """Chunks that are being made, or wait to be written."""
    return threads + 2


def _chunk_bytes(parameters: _Parameters, memory_bytes: int, threads: int) -> int:
    # A quarter is for chunks, the rest for sorting edges.
    spare_bytes = max(_MIN_SPARE_BYTES, 4 * _in_flight(threads) * parameters.row_bytes)
    needed_bytes = spare_bytes + parameters.centroid_bytes
    if memory_bytes < needed_bytes:
        raise ConfigError(
            f"expected at least {needed_bytes} bytes of memory for {parameters.num_classes} classes and rows of "
            f"{parameters.row_bytes} bytes on {threads} threads, found {memory_bytes}: pass a larger --memory"
        )
    return min(_MAX_CHUNK_BYTES, (memory_bytes - parameters.centroid_bytes) // (4 * _in_flight(threads)))


def _require_space(parameters: _Parameters, folder: Path) -> None:
    index_bytes = index_dtype(parameters.num_nodes).itemsize
    topology_bytes = parameters.num_drawn_edges * index_bytes + parameters.num_nodes * 8
    scratch_bytes = parameters.num_drawn_edges * 2 * index_bytes  # gone before the features are written
    other_bytes = parameters.num_nodes * (parameters.row_bytes + 8) + sum(parameters.split_sizes.values()) * 8
    artifacts.require_free_bytes(folder, topology_bytes + max(scratch_bytes, other_bytes), "the graph")


def _chunks(
    make: Callable[[int, int], _T], total: int, item_bytes: int, *, chunk_bytes: int, threads: int
) -> Iterator[_T]:
    """`make(first, count)` for consecutive ranges of [0, total), in order; `threads` threads work ahead of use."""
    step = max(1, chunk_bytes // item_bytes)
    waiting: deque[Future[_T]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for first in range(0, total, step):
                if len(waiting) > threads:
                    yield waiting.popleft().result()
                waiting.append(pool.submit(make, first, min(step, total - first)))
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _edges(
    generator: GraphGenerator, dtype: np.dtype[Any], first: int, count: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    src, dst = np.empty(count, dtype), np.empty(count, dtype)
    generator.edges(first, src, dst)
    return src, dst


def _write_features(
    writer: ArtifactWriter,
    generator: GraphGenerator,
    parameters: _Parameters,
    chunks: Callable[..., Iterator[npt.NDArray[Any]]],
    reporter: Reporter,
) -> None:
    row_bytes, num_nodes = parameters.row_bytes, parameters.num_nodes
    feature_type = FeatureType[parameters.feature_dtype]
    storage = FEATURE_STORAGE[parameters.feature_dtype]

    def make(first: int, count: int) -> npt.NDArray[Any]:
        rows = np.empty((count, row_bytes), np.uint8)
        generator.features(first, feature_type, rows)
        return rows.view(storage)

    with (
        writer.array_file(artifacts.FEATURES, storage, num_nodes, (parameters.num_features,)) as file,
        reporter.stage("write features", num_nodes * row_bytes, "B") as advance,
    ):
        for rows in chunks(make, num_nodes, row_bytes):
            file.write(rows)
            advance(rows.nbytes)


def _write_int64s(
    writer: ArtifactWriter,
    name: str,
    fill: Callable[[int, npt.NDArray[np.int64]], None],
    start: int,
    count: int,
    chunks: Callable[..., Iterator[npt.NDArray[np.int64]]],
) -> None:
    """Array file `name` of what `fill` has for numbers from `start` on."""

    def make(first: int, count: int) -> npt.NDArray[np.int64]:
        values = np.empty(count, np.int64)
        fill(start + first, values)
        return values

    with writer.array_file(name, np.int64, count) as file:
        for values in chunks(make, count, 8):
            file.write(values)
