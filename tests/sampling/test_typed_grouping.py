"""Groups of near seeds in graphs of several types: labels that spread along all edge types, against Python."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_order import order_hash
from typed_graphs import CITES, NUM_NODES, WRITES, WRITTEN, citations

from diskgnn import prepare
from diskgnn._native import MOST_LABEL_NEIGHBORS
from diskgnn.files import faults
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.sampling.grouping import nearness_order
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget

FIRST = {"paper": 0, "author": 70, "venue": 110}  # of labels: nodes of all types in a row


def labels_by_hand(graph, followed, sweeps):
    """Label propagation over all types, one node after the other; yields the labels after each sweep."""
    num_nodes = sum(NUM_NODES.values())
    labels, sizes = list(range(num_nodes)), Counter(range(num_nodes))
    hashes = order_hash(np.arange(num_nodes)).tolist()
    for most_nodes in sweeps:
        for node_type, first in FIRST.items():
            into = [edges for name, edges in graph.edges.items() if name[2] == node_type and name in followed]
            for node in range(NUM_NODES[node_type]):
                counts = Counter()
                lists = [(edges, edges.indices[edges.indptr[node] : edges.indptr[node + 1]]) for edges in into]
                for edges, found in [each for each in lists if len(each[1])]:
                    found = found[: MOST_LABEL_NEIGHBORS // sum(len(each) > 0 for _, each in lists)]
                    counts.update(labels[FIRST[edges.type[0]] + source] for source in found.tolist())
                own = labels[first + node]
                open_ones = {label: n for label, n in counts.items() if label == own or sizes[label] < most_nodes}
                most = max(open_ones.values(), default=0)
                best = min((label for label, n in open_ones.items() if n == most), key=hashes.__getitem__, default=own)
                sizes[own] -= 1
                sizes[best] += 1
                labels[first + node] = best
        yield np.array(labels)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 100),
    degree=st.sampled_from([2, 12, 300]),
    size=st.sampled_from([2, 8]),
    followed=st.sampled_from([(WRITES, WRITTEN, CITES), (WRITES,), (WRITES, WRITTEN)]),
    chunk_nodes=st.integers(1, 100),
    chunk_edges=st.integers(MOST_LABEL_NEIGHBORS, 2000),
)
def test_labels_spread_along_all_edge_types(
    tmp_path_factory, seed, degree, size, followed, chunk_nodes, chunk_edges
):  # fmt: skip
    graph = citations(tmp_path_factory.mktemp("spread") / "graph", seed=seed, degree=degree)
    swept = list(labels_by_hand(graph, followed, [size, 4 * size, 16 * size]))
    papers = graph.nodes["paper"].splits["train"]
    expected = sorted(range(len(papers)), key=lambda i: [labels[papers[i]] for labels in swept[::-1]])
    sources, destinations = graph.edges[WRITES].splits["train"].T
    with faults.pretending("chunk.nodes", chunk_nodes), faults.pretending("chunk.edges", chunk_edges):
        assert nearness_order(graph, [("paper", papers)], size, edge_types=followed).tolist() == expected
        found = nearness_order(graph, [("author", sources), ("paper", destinations)], size, edge_types=followed)
    expected = sorted(
        range(len(sources)),
        key=lambda i: [labels[end] for labels in swept[::-1] for end in (70 + sources[i], destinations[i])],
    )
    assert found.tolist() == expected


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """40 groups of 30 users who buy what their group buys, of 15 items: users never meet but in items."""
    random = np.random.default_rng(2)
    groups = random.permutation(1200) // 30
    users = np.repeat(np.arange(1200), 6)
    items = np.argsort(random.permutation(600) // 15, kind="stable").reshape(40, 15)[
        groups[users], random.integers(0, 15, len(users))
    ]
    out = tmp_path_factory.mktemp("shop") / "graph"
    links = np.stack([users, items], 1)[random.permutation(len(users))[:600]]
    schema = {
        "nodes": {
            "user": {"features": random.random((1200, 4), np.float32), "labels": groups % 2,
                     "train": random.permutation(1200)},
            "item": {"features": random.random((600, 4), np.float32)},
        },
        "edges": {"user:buys:item": {"edges": np.stack([users, items]), "reverse": True, "train": links}},
    }  # fmt: skip
    convert(out, schema=schema)
    return Graph.open(out), groups


def test_users_are_near_who_buy_the_same(shop, tmp_path):
    graph, groups = shop
    plan = SamplingPlan(graph, SamplingSpec([3, 2], 30, group_seeds=30, splits=("train",)))
    seeds = plan.seeds("train", 0)
    assert sorted(seeds.tolist()) == list(range(1200))
    assert np.mean(groups[seeds[1:]] == groups[seeds[:-1]]) > 0.8
    requested = {}
    for target in (None, LinkTarget("user:buys:item", exclude="none")):
        for size in (1, 30):
            report = prepare(graph, tmp_path / f"{size} {target is None}", fanouts=[4, 4], batch_size=60,
                             target=target, group_seeds=size, cpu_cache=0)[1]  # fmt: skip
            requested[size, target is None] = int(report.details["train_requested_rows"])
    assert requested[30, True] < 0.7 * requested[1, True]
    assert requested[30, False] < 0.9 * requested[1, False]  # half of the pairs are negatives, from anywhere


def test_bytes_do_not_depend_on_memory_and_threads(shop, tmp_path):
    graph, _ = shop
    options = {"fanouts": [3, 2], "batch_size": 64, "epochs": 2, "group_seeds": 16}
    sample(graph, tmp_path / "memory", threads=2, **options)
    sample(graph, tmp_path / "sweep", threads=1, memory="160MiB", **options)
    digests = {Samples.open(tmp_path / name).manifest.digest for name in ("memory", "sweep")}
    assert len(digests) == 1


def test_nodes_of_many_edge_types(tmp_path):
    """As in a knowledge graph: more types than neighbours are looked at, of which a node has few."""
    random = np.random.default_rng(3)
    groups = random.permutation(400) // 20
    members = np.argsort(groups, kind="stable").reshape(20, 20)
    schema = {"nodes": {"entity": {"num_nodes": 400}}, "edges": {}}
    sources = random.permutation(np.repeat(np.arange(400), 8))
    for relation, part in enumerate(np.array_split(sources, MOST_LABEL_NEIGHBORS + 4)):
        pairs = np.stack([part, members[groups[part], random.integers(0, 20, len(part))]])
        schema["edges"][f"entity:r{relation}:entity"] = {"edges": pairs}
    convert(tmp_path / "graph", schema=schema)
    graph = Graph.open(tmp_path / "graph")
    order = nearness_order(graph, [("entity", np.arange(400))], 20)
    assert np.mean(groups[order[1:]] == groups[order[:-1]]) > 0.7
