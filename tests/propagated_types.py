"""Graphs of several types to propagate on, and SciPy's answers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from propagated_graphs import segments

import diskgnn
from diskgnn.formats.hops import Hops

EdgeType = tuple[str, str, str]


WRITES, REVERSE = ("author", "writes", "paper"), ("paper", "rev_writes", "author")
NUM_PAPERS, NUM_AUTHORS = 300, 150


@dataclass(frozen=True)
class TypedGiven:
    """A typed graph as a user has it."""

    num_nodes: dict[str, int]
    features: dict[str, np.ndarray]  # of some types
    edges: dict[EdgeType, np.ndarray]  # [2, E]
    target: str
    seeds: dict[str, np.ndarray]
    weights: dict[EdgeType, np.ndarray] = field(default_factory=dict)  # of some

    def mean(self, edge_type: EdgeType) -> sp.csr_array:
        """[destinations, sources]; equal edges are added up."""
        src, dst = self.edges[edge_type]
        values = self.weights.get(edge_type, np.ones(len(src))).astype(np.float32).astype(np.float64)
        shape = self.num_nodes[edge_type[2]], self.num_nodes[edge_type[0]]
        adjacency = sp.coo_array((values, (dst, src)), shape=shape).tocsr()
        degrees = np.asarray(adjacency.sum(axis=1)).ravel()
        scale = np.zeros(len(degrees))
        np.power(degrees, -1, where=degrees > 0, out=scale)
        return sp.diags_array(scale) @ adjacency

    def paths(self, hops: int) -> set[tuple[EdgeType, ...]]:
        """Those of at most `hops` edge types that end at features, by trying all."""
        return {
            path
            for length in range(hops + 1)
            for path in itertools.product(self.edges, repeat=length)
            if all(before[0] == after[2] for before, after in itertools.pairwise(path))
            and (not path or path[0][2] == self.target)
            and (path[-1][0] if path else self.target) in self.features
        }


def name_of(path: tuple[EdgeType, ...]) -> str:
    return "/".join(f"{source}:{name}" for source, name, _ in path) or "x"


def convert(given: TypedGiven, path: Path, **stored: dict[str, Any]) -> Path:
    """Makes a graph directory; `stored` says by type how features are stored."""
    nodes: dict[str, dict[str, Any]] = {name: {"num_nodes": count} for name, count in given.num_nodes.items()}
    for name, features in given.features.items():
        nodes[name] = {"features": features.astype(np.float32)} | stored.get(name, {})
    nodes[given.target] |= {"labels": np.arange(given.num_nodes[given.target]) % 3, **given.seeds}
    edges: dict[str, dict[str, Any]] = {":".join(name): {"edges": each} for name, each in given.edges.items()}
    for name, weights in given.weights.items():
        edges[":".join(name)]["weights"] = weights
    diskgnn.convert(path, schema={"nodes": nodes, "edges": edges}, progress=False)
    return path


def random_typed_graph(seed: int) -> TypedGiven:
    """Up to four types and eight edge types: several between the same types, reverse ones, from a type to itself, and
    empty ones. With parallel edges, isolated nodes, hubs, weights, and types without features."""
    random = np.random.default_rng(seed)
    names = ["a", "b", "c-1", "d_2"][: random.integers(1, 5)]
    num_nodes = {name: int(random.integers(1, 400)) for name in names}
    target = str(random.choice(names))
    with_features = [name for name in names if random.random() < 0.7] or [target]
    features = {
        name: random.standard_normal((num_nodes[name], int(random.choice([1, 3, 4, 9, 17])))).astype(np.float32)
        for name in with_features
    }
    edges, weights = dict[EdgeType, np.ndarray](), dict[EdgeType, np.ndarray]()
    for number in range(random.integers(2, 9)):
        source, destination = random.choice(names), target if number == 0 else random.choice(names)
        edge_type = str(source), f"r{number % 6}", str(destination)
        if number == 1 and edge_type[0] != edge_type[2]:
            edge_type = target, "rev_r0", next(iter(edges))[0]
        count = int(random.choice([0, 1, 50, 900]))
        src = (num_nodes[edge_type[0]] * random.random(count) ** 2).astype(np.int64)
        dst = (0.9 * num_nodes[edge_type[2]] * random.random(count)).astype(np.int64)
        pairs = np.stack([src, dst])
        edges[edge_type] = np.concatenate([pairs, pairs[:, : count // 5]], 1)
        weights.pop(edge_type, None)  # of edges that these replace
        if random.random() < 0.4:
            weights[edge_type] = random.random(edges[edge_type].shape[1]).astype(np.float32) + np.float32(0.01)
    if all(name == target for name in names) and len(edges) == 1:
        edges[target, "other", target] = np.zeros((2, 3), np.int64)
    order = random.permutation(num_nodes[target])
    first, second = -(-len(order) // 3), -(-len(order) // 2)
    seeds = {"train": order[:first], "valid": order[first:second], "test": order[second:][:9]}
    given = {name: nodes for name, nodes in seeds.items() if len(nodes)}
    exact = {name: each.astype(float) for name, each in features.items()}
    return TypedGiven(num_nodes, exact, edges, target, given, weights)


def papers() -> TypedGiven:
    """Classes are those of the authors, whose features have them, with noise; those of papers say nothing."""
    random = np.random.default_rng(5)
    of_authors = random.integers(0, 3, NUM_AUTHORS)
    labels = np.arange(NUM_PAPERS) % 3
    by_class = [np.flatnonzero(of_authors == number) for number in range(3)]
    dst = np.repeat(np.arange(NUM_PAPERS), 4)
    src = np.array([random.choice(by_class[labels[paper]]) for paper in dst])
    writes = np.stack([src, dst])
    features = {
        "paper": random.standard_normal((NUM_PAPERS, 5)),
        "author": np.eye(3, 8)[of_authors] + 0.7 * random.standard_normal((NUM_AUTHORS, 8)),
    }
    exact = {name: each.astype(np.float32).astype(float) for name, each in features.items()}
    nodes = random.permutation(NUM_PAPERS)
    seeds = {"train": nodes[:160], "valid": nodes[160:220], "test": nodes[220:]}
    num_nodes = {"paper": NUM_PAPERS, "author": NUM_AUTHORS}
    return TypedGiven(num_nodes, exact, {WRITES: writes, REVERSE: writes[::-1]}, "paper", seeds)


def assert_paths_are_exact(path: Path, given: TypedGiven, paths: set[tuple[EdgeType, ...]]) -> None:
    """All records have these paths, within 1e-6 |P|...|P| |X| of what SciPy computes in float64; x is as it was."""
    hops = Hops.open(path)
    wanted = {name_of(each): each for each in paths}
    for split in hops.config.num_rows:
        count = given.num_nodes[given.target]
        nodes = np.arange(count) if hops.config.nodes == "all" else np.load(path / f"seeds-{split}.npy")
        found = dict(segments(path, split))
        assert found.keys() == wanted.keys()
        for name, values in found.items():
            over = wanted[name]
            exact = given.features[over[-1][0] if over else given.target]
            bound = np.abs(exact)
            for edge_type in reversed(over):
                exact, bound = given.mean(edge_type) @ exact, given.mean(edge_type) @ bound
            if not over:
                np.testing.assert_array_equal(values, exact[nodes].astype(np.float32))
            assert values.shape == exact[nodes].shape
            assert (np.abs(values - exact[nodes]) <= 1e-6 * bound[nodes]).all(), (split, name)
