"""Tasks on parts of real typed graphs: from disk as in memory, better than without a model, nothing from the future."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

import snapshots

import diskgnn
from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget

DATASETS = Path(__file__).parents[1] / "datasets"
TASKS = {
    "type of a gene": ("genes_typed", NodeTarget("gene"), {}, {}),
    "terms of a gene": (
        "genes_typed",
        LinkTarget("gene:annotated_with:term", eval_negatives=10, negatives_by="popularity"),
        {},
        {"decoder": "distmult"},
    ),
    "papers of a gene in time": (
        "genes_typed",
        LinkTarget("gene:mentioned_in:paper", eval_negatives=10),
        {"temporal": "uniform", "strict_time": True},
        {"decoder": "distmult"},
    ),
    "delay of a plane": ("flights", NodeTarget("plane_week"), {"temporal": "last"}, {"loss": "l1"}),
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """The folder of both."""
    folder = tmp_path_factory.mktemp("snapshots")
    for name in ("genes_typed", "flights"):
        diskgnn.convert(folder / name, schema=snapshots.load(DATASETS / f"{name}.npz"))
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_from_disk_as_in_memory(graphs, task, tmp_path):
    name, target, sampling, training = TASKS[task]
    sampling = {"fanouts": [4, 4], "batch_size": 256, "target": target, "seed": 3, "temporal": "ignore", **sampling}
    training = {"hidden": 16, "epochs": 2, "lr": 0.01, "seed": 3, **training}
    graph = Graph.open(graphs / name)
    diskgnn.prepare(graph, tmp_path / "packed", epochs=2, cpu_cache="10%", static_cache=0, **sampling)
    found = diskgnn.train(tmp_path / "packed", **training)
    sources = in_memory_sources(graph, **sampling)
    expected = diskgnn.train(**sources, **training)
    for source in sources.values():
        source.close()
    assert [epoch.scores() for epoch in found.epochs] == [epoch.scores() for epoch in expected.epochs]


def test_no_flight_is_from_the_future(graphs):
    """A flight's time is two days after it left: none may be later than the week whose delay is asked for."""
    graph = Graph.open(graphs / "flights")
    weeks, flights = graph.nodes["plane_week"], graph.nodes["flight"]
    plan = SamplingPlan(graph, SamplingSpec([4, 4], 256, target=NodeTarget("plane_week"), temporal="last"))
    sampler, seen = plan.load_sampler(), 0
    for planned in plan.minibatches("train", 0):
        drawn = planned.draw(sampler)
        asked = weeks.times_of(planned.seeds)[drawn.trees[flights.number]]
        assert (flights.times_of(drawn.input_nodes[flights.number]) <= asked).all()
        seen += len(asked)
    assert seen > 1000


def test_a_gene_is_told_better_than_by_the_largest_class(graphs, tmp_path):
    graph = Graph.open(graphs / "genes_typed")
    nodes = graph.nodes["gene"]
    labels = {split: nodes.labels_of(np.sort(ids)) for split, ids in nodes.splits.items()}
    largest = np.mean(labels["test"] == np.bincount(labels["train"]).argmax())
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[5, 5], batch_size=128, epochs=4, cpu_cache="20%",
                    target=NodeTarget("gene"), temporal="ignore")  # fmt: skip
    result = diskgnn.train(tmp_path / "packed", hidden=32, epochs=8, lr=0.01)
    assert result.test_accuracy > largest + 0.05


def test_a_snapshot_has_what_its_nodes_are_joined_by():
    """By hand: of 4 users, 1 and 3 are kept; items 0 and 2 are theirs, item 1 is of a user who is not kept."""
    description = {
        "nodes": {"user": {"features": np.array([[0.0], [1.0], [2.0], [-4.0]]), "train": np.array([0, 3])},
                  "item": {"num_nodes": 3}},
        "edges": {"user:likes:item": {"edges": np.array([[1, 0, 3, 3], [0, 1, 0, 2]]), "times": np.arange(4),
                                      "valid": np.array([[1, 2], [2, 2]])}},
    }  # fmt: skip
    kept = snapshots.kept_nodes(description, "user", np.array([3, 1]), shared=1, most=9)
    assert {name: ids.tolist() for name, ids in kept.items()} == {"user": [1, 3], "item": [0, 2]}
    arrays = snapshots.cut(description, kept)
    assert arrays["nodes/user/features"].ravel().tolist() == [32, -127]
    assert arrays["nodes/user/train"].tolist() == [1]
    assert arrays["nodes/item/num_nodes"] == 2
    assert arrays["edges/user:likes:item/edges"].tolist() == [[0, 1, 1], [0, 0, 1]]
    assert arrays["edges/user:likes:item/times"].tolist() == [0, 2, 3]
    assert arrays["edges/user:likes:item/valid"].tolist() == [[0], [1]]
    fewest = snapshots.kept_nodes(description, "user", np.array([3, 1]), shared=2, most=9)
    assert fewest["item"].tolist() == [0]
