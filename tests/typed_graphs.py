"""Small graphs of several types of nodes and edges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from graphs import chunk_checksums
from neighbor_order import order_hash

from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import EdgeTypeConfig, GraphConfig, NodeTypeConfig, TargetConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.specs.schema import EdgeType
from diskgnn.work.writer import ArtifactWriter

WRITES: EdgeType = ("author", "writes", "paper")
WRITTEN: EdgeType = ("paper", "rev_writes", "author")
CITES: EdgeType = ("paper", "cites", "paper")
NUM_NODES = {"paper": 70, "author": 40, "venue": 3}


def citations(path: Path, *, seed: int = 0, degree: int = 12, id_dtype: type = np.int32, first_time: int = 0) -> Graph:
    """Papers with times, labels and features; authors; venues, which no edge reaches. Authors write papers, with
    weights, and the same the other way round; papers cite papers, with times and edge features. Lists hold up to twice
    `degree` edges, some of them repeated. Seed edges are those of `writes`. Times are the 20
    numbers from `first_time` on.
    """
    random = np.random.default_rng(seed)
    node_types = tuple(
        NodeTypeConfig(name, num_nodes, RowFormat("float32", 4) if name == "paper" else None,
                       TargetConfig("class", 3) if name == "paper" else None, has_times=name == "paper")
        for name, num_nodes in NUM_NODES.items()
    )  # fmt: skip
    lists = {edge_type: random_lists(random, edge_type, degree, id_dtype) for edge_type in (WRITES, CITES)}
    lists[WRITTEN] = reverse_lists(*lists[WRITES], NUM_NODES["author"])
    lists[("venue", "of", "paper")] = (np.zeros(NUM_NODES["paper"] + 1, np.int64), np.empty(0, id_dtype))
    extra = {WRITES: {"has_weights": True, "link_splits": ("train", "valid")},
             CITES: {"has_times": True, "rows": RowFormat("float32", 2)}}  # fmt: skip
    edge_types = tuple(EdgeTypeConfig(each, len(lists[each][1]), **extra.get(each, {})) for each in lists)
    config = GraphConfig(node_types, edge_types)
    with ArtifactWriter(path, artifacts.GRAPH, config=config.to_json({})) as writer:
        features = random.standard_normal((NUM_NODES["paper"], 4)).astype(np.float32)
        save_rows(
            writer, artifacts.FEATURES, artifacts.FEATURE_CHECKSUMS, features, lambda kind: node_file(kind, "paper")
        )
        writer.save_array(node_file(artifacts.LABELS, "paper"), random.integers(0, 3, NUM_NODES["paper"]))
        writer.save_array(node_file(artifacts.TIMES, "paper"), first_time + random.integers(0, 20, NUM_NODES["paper"]))
        papers = random.permutation(NUM_NODES["paper"])
        writer.save_array(node_file("train", "paper"), papers[:40])
        writer.save_array(node_file("valid", "paper"), papers[40:55])
        for edge_type, (indptr, indices) in lists.items():
            writer.save_array(edge_file(artifacts.INDPTR, edge_type), indptr)
            writer.save_array(edge_file(artifacts.INDICES, edge_type), indices)
        num_writes, num_cites = len(lists[WRITES][1]), len(lists[CITES][1])
        weights = random.integers(0, 4, num_writes).astype(np.float32)
        weights[lists[WRITES][0][:-1][np.diff(lists[WRITES][0]) > 0]] = 1
        writer.save_array(edge_file(artifacts.WEIGHTS, WRITES), weights)
        writer.save_array(edge_file(artifacts.TIMES, CITES), first_time + random.integers(0, 20, num_cites))
        rows = random.standard_normal((num_cites, 2)).astype(np.float32)
        save_rows(writer, artifacts.EDGE_FEATURES, artifacts.EDGE_FEATURE_CHECKSUMS, rows,
                  lambda kind: edge_file(kind, CITES))  # fmt: skip
        pairs = edges_of(*lists[WRITES])
        seeds = pairs[random.permutation(len(pairs))]
        writer.save_array(edge_file("train", WRITES), seeds[:60])
        writer.save_array(edge_file("valid", WRITES), seeds[60:80])
        writer.publish()
    return Graph.open(path)


def save_rows(writer, kind, checksums_kind, rows, name_of):
    """A feature file and its checksums."""
    writer.save_array(name_of(kind), rows)
    writer.save_array(name_of(checksums_kind), chunk_checksums(writer.path(name_of(kind))))


def random_lists(random, edge_type: EdgeType, degree: int, id_dtype: type):
    """(indptr, indices) with lists of 0 to 2 * degree in-neighbours, in the order of graphs."""
    num_sources, num_destinations = NUM_NODES[edge_type[0]], NUM_NODES[edge_type[2]]
    degrees = random.integers(0, 2 * degree + 1, num_destinations)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = random.integers(0, num_sources, indptr[-1]).astype(id_dtype)
    destinations = np.repeat(np.arange(num_destinations), degrees)
    return indptr, indices[np.lexsort((order_hash(indices), destinations))]


def reverse_lists(indptr, indices, num_destinations: int):
    """The CSC of the same edges the other way round."""
    sources = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)).astype(indices.dtype)
    order = np.lexsort((order_hash(sources), indices))
    counts = np.bincount(indices, minlength=num_destinations)
    return np.concatenate([[0], np.cumsum(counts)]), sources[order]


def edges_of(indptr, indices):
    """[E, 2] (source, destination)."""
    destinations = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    return np.stack([indices.astype(np.int64), destinations], 1)
