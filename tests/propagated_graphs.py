"""Graphs to propagate on, and SciPy's answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

import diskgnn
from diskgnn.formats.hops import Hops

OPERATORS = ("mean", "symmetric", "gcn")


@dataclass(frozen=True)
class Given:
    """A graph as a user has it."""

    edges: np.ndarray  # [2, E]
    features: np.ndarray  # [N, D], float64: what x means
    weights: np.ndarray | None = None  # [E]
    seeds: dict[str, np.ndarray] | None = None

    @property
    def adjacency(self) -> sp.csr_array:
        """[N, N] rows are destinations; equal edges are added up."""
        num_nodes, (src, dst) = len(self.features), self.edges
        values = np.ones(len(src)) if self.weights is None else self.weights.astype(np.float32).astype(np.float64)
        return sp.coo_array((values, (dst, src)), shape=(num_nodes, num_nodes)).tocsr()


def operators(given: Given) -> dict[str, sp.csr_array]:
    """P of each operator, in float64."""
    adjacency = given.adjacency
    num_nodes = adjacency.shape[0]

    def normalised(matrix: sp.csr_array, power: float) -> tuple[sp.dia_array, sp.csr_array]:
        degrees = np.asarray(matrix.sum(axis=1)).ravel()
        scale = np.zeros(num_nodes)
        np.power(degrees, power, where=degrees > 0, out=scale)
        return sp.diags_array(scale), matrix

    mean, _ = normalised(adjacency, -1)
    root, _ = normalised(adjacency, -0.5)
    with_own = adjacency + sp.eye_array(num_nodes, format="csr")
    own_root, _ = normalised(with_own, -0.5)
    return {"mean": mean @ adjacency, "symmetric": root @ adjacency @ root, "gcn": own_root @ with_own @ own_root}


def convert(given: Given, path: Path, **options: Any) -> Path:
    """Makes a graph directory; `features` of another dtype come with the options."""
    nodes = options if "features" in options else {"features": given.features.astype(np.float32), **options}
    if given.seeds is not None:
        nodes = {**nodes, "labels": np.zeros(len(given.features), np.int64), **given.seeds}
    if given.weights is None:
        diskgnn.convert(path, edges=given.edges, **nodes, progress=False)
        return path
    edges = {"edges": given.edges, "weights": given.weights}
    diskgnn.convert(path, schema={"nodes": {"node": nodes}, "edges": {"node:to:node": edges}}, progress=False)
    return path


def random_graph(seed: int, *, num_nodes: int = 500, width: int = 7, weighted: bool = False) -> Given:
    """Directed; with parallel edges, loops, isolated nodes, nodes without in-edges, and a hub."""
    random = np.random.default_rng(seed)
    connected = num_nodes - num_nodes // 10
    src = random.integers(0, connected, 4 * num_nodes)
    dst = (connected * random.random(len(src)) ** 2).astype(np.int64)
    loops = random.integers(0, connected, num_nodes // 10)
    edges = np.stack([src, dst])
    edges = np.concatenate([edges, edges[:, : len(src) // 8], np.stack([loops, loops])], 1)
    nodes = random.permutation(num_nodes)
    seeds = {"train": nodes[: num_nodes // 8], "valid": nodes[num_nodes // 8 : num_nodes // 6], "test": nodes[-9:]}
    weights = random.random(edges.shape[1]).astype(np.float32) + np.float32(0.01) if weighted else None
    return Given(edges, random.standard_normal((num_nodes, width)).astype(np.float32).astype(float), weights, seeds)


def segments(path: Path, split: str) -> Iterator[tuple[str, np.ndarray]]:
    """Each segment of the records of a split, by its name."""
    hops, first = Hops.open(path), 0
    records = hops.records(split)
    for segment in hops.config.segments:
        yield segment.name, records[:, first : first + segment.width]
        first += segment.width
    assert first == records.shape[1]


def assert_hops_are_exact(path: Path, given: Given, features: np.ndarray | None = None) -> None:
    """All records are within 1e-6 |P|^k |X| of what SciPy computes in float64; x is as it was."""
    x = given.features if features is None else features
    hops, found_by = Hops.open(path), operators(given)
    for split in hops.config.num_rows:
        nodes = np.arange(len(x)) if hops.config.nodes == "all" else np.load(path / f"seeds-{split}.npy")
        for name, found in segments(path, split):
            if name == "x":
                np.testing.assert_array_equal(found, x[nodes].astype(np.float32))
                continue
            operator, hop = name.split("/")
            walks = found_by[operator][nodes]  # rows of P^k: nobody asks for those of other nodes
            for _ in range(int(hop) - 1):
                walks = walks @ found_by[operator]
            assert (np.abs(found - walks @ x) <= 1e-6 * (walks @ np.abs(x))).all(), (split, name)
