"""What a model says of some nodes and pairs, against inference over all nodes and against the model itself."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from graphs import make_graph, prepare_graph
from typed_graphs import WRITES, citations

import diskgnn
from diskgnn import ConfigError
from diskgnn.errors import DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.graph.source_schema import source_schema
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.nn.block_models import make_model
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_models import make_typed_model
from diskgnn.progress.reporter import SILENT
from diskgnn.specs.schema import SourceSchema
from diskgnn.specs.targets import LinkTarget


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    made = make_graph(tmp_path / "graph", width=6, in_degree=4)
    x = np.random.default_rng(1).standard_normal((made.num_nodes, 6)).astype(np.float32)
    diskgnn.convert(tmp_path / "other", indptr=np.array(made.indptr), indices=np.array(made.indices), features=x,
                    labels=np.array(made.labels), train=made.splits["train"], test=made.splits["valid"])  # fmt: skip
    return Graph.open(tmp_path / "other")


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_all_neighbours_by_default_equals_infer(name: str, graph: Graph, tmp_path: Path):
    torch.manual_seed(0)
    net = make_model(name, 6, 8, graph.num_classes, 2)
    diskgnn.infer(graph, tmp_path / "all.npy", net, memory="2GiB")
    every = np.load(tmp_path / "all.npy")
    nodes = np.array([150, 0, 7, 150])  # most of them are in no split
    diskgnn.predict(graph, tmp_path / "some.npy", net, nodes=nodes, batch_size=2)
    np.testing.assert_allclose(np.load(tmp_path / "some.npy"), every[nodes], rtol=1e-4, atol=1e-5)
    diskgnn.predict(graph, tmp_path / "all.parquet", net, what="classes")
    table = pq.read_table(tmp_path / "all.parquet").to_pydict()
    assert table == {"node": list(range(graph.num_nodes)), "class": every.argmax(1).tolist()}
    assert not list(tmp_path.glob(".*"))


def test_of_all_nodes_it_names_the_faster_command_where_that_can_do_it(graph: Graph, tmp_path: Path):
    net = make_model("sage", 6, 8, graph.num_classes, 2)
    for arguments, is_told in (
        ({}, True), ({"nodes": [1]}, False), ({"fanouts": [2, 2]}, False), ({"model": Mean(), "fanouts": [-1]}, False)
    ):  # fmt: skip
        lines: list[str] = []
        reporter = SimpleNamespace(say=lines.append, stage=SILENT.stage)
        diskgnn.predict(graph, tmp_path / "out.npy", **{"model": net} | arguments, overwrite=True, reporter=reporter)
        assert any("`diskgnn infer`" in line for line in lines) == is_told


class Mean(torch.nn.Module):
    """A module of the user's own: the mean of all neighbours' features, and twice the node's own."""

    def forward(self, blocks, x):
        (block,) = blocks
        dense = torch.zeros(block.num_dst, block.num_src)
        dense.index_put_(
            (block.destinations.long(), block.indices.long()), torch.ones(block.num_edges), accumulate=True
        )
        return dense @ x / block.in_degrees.clamp(min=1).unsqueeze(1) + 2 * x[: block.num_dst]


def test_a_module_of_ones_own(graph: Graph, tmp_path: Path):
    diskgnn.predict(graph, tmp_path / "out.npy", Mean(), nodes=[3, 4], fanouts=[-1])
    x = np.array(graph.features)
    expected = [x[graph.indices[graph.indptr[v] : graph.indptr[v + 1]]].mean(0) + 2 * x[v] for v in (3, 4)]
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="fanouts: expected one for each layer of the module"):
        diskgnn.predict(graph, tmp_path / "no.npy", Mean(), nodes=[3, 4])
    with pytest.raises(ConfigError, match="what: `predict` has no rows before the last layer"):
        diskgnn.predict(graph, tmp_path / "no.npy", Mean(), nodes=[3, 4], fanouts=[-1], what="embeddings")


def test_seeds_of_a_packed_directory_as_they_were_sampled(graph: Graph, tmp_path: Path):
    packed = prepare_graph(graph, tmp_path, fanouts=(2, 2))
    net = make_model("sage", 6, 8, graph.num_classes, 2).eval()
    lines: list[str] = []
    diskgnn.predict(
        packed, tmp_path / "out.parquet", net, reporter=SimpleNamespace(say=lines.append, stage=SILENT.stage)
    )
    assert [line for line in lines if "keeps no ids of yours" in line]
    expected = {}
    with diskgnn.Loader(packed, "test") as loader, torch.no_grad():
        for batch in loader:
            expected |= dict(zip(batch.seeds.tolist(), net(batch.blocks, batch.x).tolist(), strict=True))
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert dict(zip(table["node"], table["logits"], strict=True)) == expected
    some = [graph.splits["test"][5], graph.splits["test"][2]]
    diskgnn.predict(packed, tmp_path / "some.npy", net, nodes=some)
    assert np.load(tmp_path / "some.npy").tolist() == [expected[node] for node in some]
    with pytest.raises(ConfigError, match=r"nodes: \d+ is no seed of this split"):
        diskgnn.predict(packed, tmp_path / "no.npy", net, nodes=graph.splits["train"][:1])
    assert not (tmp_path / "no.npy").exists()


class Payments(torch.nn.Module):
    """How many each account is seen to have got."""

    def forward(self, blocks, x):
        (layer,) = blocks
        counts = layer["payment", "to", "account"].in_degrees
        return torch.stack([counts, counts], 1).float()


def test_a_node_that_is_a_seed_several_times_has_a_row_for_each(tmp_path: Path):
    """Account 1 gets payments at times 3 and 6, and is asked at 9, 1 and 5."""
    schema = {
        "nodes": {"account": {"num_nodes": 2}, "payment": {"features": np.ones((2, 1), np.float32), "times": [3, 6]}},
        "edges": {"payment:to:account": {"edges": np.array([[0, 1], [1, 1]])}},
    }
    diskgnn.convert(tmp_path / "graph", schema=schema)
    target = diskgnn.NodeTarget(
        "account", {"test": [1, 1, 0, 1]}, {"test": [9, 1, 9, 5]}, {"test": [0, 1, 1, 1]}
    )  # fmt: skip
    options = {"fanouts": [-1], "batch_size": 2, "temporal": "uniform", "cpu_cache": 0}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=target, **options)
    diskgnn.predict(tmp_path / "packed", tmp_path / "out.parquet", Payments())
    table = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert table == {"node": [0, 1, 1, 1], "time": [9, 9, 1, 5], "logits": [[0, 0], [2, 2], [0, 0], [1, 1]]}
    diskgnn.predict(tmp_path / "packed", tmp_path / "one.npy", Payments(), nodes=[0])
    assert np.load(tmp_path / "one.npy").tolist() == [[0, 0]]
    diskgnn.predict(tmp_path / "packed", tmp_path / "one.csv", Payments(), nodes=[0])
    assert pacsv.read_csv(tmp_path / "one.csv").to_pydict() == {
        "node": [0], "time": [9], "logits_0": [0.0], "logits_1": [0.0]
    }  # fmt: skip
    with pytest.raises(ConfigError, match="nodes: 1 is a seed of this split several times"):
        diskgnn.predict(tmp_path / "packed", tmp_path / "no.npy", Payments(), nodes=[1])


@pytest.mark.parametrize("split", ["train", "test"])
def test_times_of_a_packed_directory_are_those_of_their_rows(tmp_path: Path, split: str):
    """An account that got a payment at each time from 1 to 40 is asked at these: it has as many as the time says. Train
    seeds are shuffled."""
    asked = np.random.default_rng(0).permutation(40) + 1
    schema = {
        "nodes": {"account": {"num_nodes": 2},
                  "payment": {"features": np.ones((40, 1), np.float32), "times": np.arange(1, 41)}},
        "edges": {"payment:to:account": {"edges": np.stack([np.arange(40), np.ones(40, np.int64)])}},
    }  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema=schema)
    target = diskgnn.NodeTarget("account", {split: np.ones(40, np.int64)}, {split: asked}, {split: asked % 2})
    options = {"fanouts": [-1], "batch_size": 7, "temporal": "uniform", "cpu_cache": 0, "seed": 3}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=target, **options)
    diskgnn.predict(tmp_path / "packed", tmp_path / "out.csv", Payments(), split=split)
    table = pacsv.read_csv(tmp_path / "out.csv").to_pydict()
    assert [*table] == ["node", "time", "logits_0", "logits_1"]
    assert table["time"] == table["logits_0"]
    assert sorted(table["time"]) == [*range(1, 41)]


def test_scores_of_pairs(tmp_path: Path):
    graph = citations(tmp_path / "graph")
    widths = {name: each.feature_file and each.feature_file.rows.num_features for name, each in graph.nodes.items()}
    schema = SourceSchema(
        tuple((name, each.num_nodes, widths[name]) for name, each in graph.nodes.items()),
        tuple((each.type, each.feature_file and each.feature_file.rows.num_features) for each in graph.edges.values()),
        WRITES, "link", 1,
    )  # fmt: skip
    torch.manual_seed(0)
    net = make_typed_model(ModelSpec(name="rgcn", hidden=6, num_layers=2), schema, 6).eval()
    pairs = np.array([[5, 60], [0, 1], [5, 60], [39, 69]])
    diskgnn.predict(graph, tmp_path / "scores.parquet", net, pairs=pairs, edge_type=WRITES, batch_size=3,
                    message_edges="all", ignore_times=True)  # fmt: skip
    vectors = {}
    for name in ("author", "paper"):
        diskgnn.infer(graph, tmp_path / f"{name}.npy", net, node_type=name, memory="2GiB", ignore_times=True)
        vectors[name] = np.load(tmp_path / f"{name}.npy")
    expected = (vectors["author"][pairs[:, 0]] * vectors["paper"][pairs[:, 1]]).sum(1)
    table = pq.read_table(tmp_path / "scores.parquet").to_pydict()
    assert (table["src"], table["dst"]) == (pairs[:, 0].tolist(), pairs[:, 1].tolist())
    np.testing.assert_allclose(table["score"], expected, rtol=1e-4, atol=1e-5)
    given = {"pairs": pairs, "edge_type": WRITES, "ignore_times": True}
    diskgnn.predict(graph, tmp_path / "logits.npy", net, what="logits", **given)
    diskgnn.predict(graph, tmp_path / "probabilities.npy", net, what="probabilities", **given)
    diskgnn.predict(graph, tmp_path / "probabilities.parquet", net, what="probabilities", **given)
    logits, found = np.load(tmp_path / "logits.npy"), np.load(tmp_path / "probabilities.npy")
    assert (logits.dtype, found.dtype, found.shape) == (np.float32, np.float32, (4,))
    torch.testing.assert_close(torch.from_numpy(found), torch.sigmoid(torch.from_numpy(logits)))
    assert np.ptp(found) > 0.01
    np.testing.assert_array_equal(pq.read_table(tmp_path / "probabilities.parquet")["probability"], found)
    for what in ("classes", "embeddings"):
        with pytest.raises(ConfigError, match=f"a model for link has no {what} of pairs; ask for logits or probab"):
            diskgnn.predict(graph, tmp_path / "no.npy", net, what=what, **given)
    with pytest.raises(ConfigError, match=r"what: expected one of logits.* found 'score'"):
        diskgnn.predict(graph, tmp_path / "no.npy", net, what="score", **given)


@pytest.mark.parametrize("task", ["class", "multilabel", "regression"])
def test_what_is_said_of_nodes_agrees(task: str, tmp_path: Path):
    """By `predict` and by `infer`: softmax and argmax of classes, the sigmoid and its half of several labels."""
    rng = np.random.default_rng(0)
    labels = {"class": np.arange(60) % 3, "multilabel": rng.integers(0, 2, (60, 3)), "regression": rng.random((60, 3))}
    node = {"features": rng.random((60, 4), np.float32), "labels": labels[task], "task": task, "train": np.arange(30)}
    edges = {"node:to:node": {"edges": rng.integers(0, 60, (2, 200))}}
    diskgnn.convert(tmp_path / "graph", schema={"nodes": {"node": node}, "edges": edges})
    torch.manual_seed(1)
    net = make_model("sage", 4, 8, 3, 2)
    for apply in (diskgnn.predict, diskgnn.infer):

        def say(what: str, apply: Callable[..., object] = apply) -> torch.Tensor:
            apply(tmp_path / "graph", tmp_path / "out.npy", net, what=what, overwrite=True)
            return torch.from_numpy(np.load(tmp_path / "out.npy"))

        logits = say("logits")
        if task == "regression":
            for what in ("probabilities", "classes"):
                with pytest.raises(ConfigError, match=f"a model for regression has no {what} of nodes"):
                    say(what)
            continue
        expected = torch.softmax(logits, 1) if task == "class" else torch.sigmoid(logits)
        found, classes = say("probabilities"), say("classes")
        torch.testing.assert_close(found, expected)
        assert classes.tolist() == (found.argmax(1) if task == "class" else (found > 0.5).int()).tolist()


@pytest.mark.parametrize("task", ["class", "regression"])
def test_what_is_said_of_pairs_with_labels_agrees(task: str, tmp_path: Path):
    graph, rng = citations(tmp_path / "graph"), np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 40, 50), rng.integers(0, 70, 50)], 1)
    labels = rng.integers(0, 3, 50) if task == "class" else rng.random(50, np.float32)
    target = LinkTarget(WRITES, seeds={"train": pairs}, labels={"train": labels})
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[2], batch_size=16, cpu_cache="10%", target=target,
                    temporal="ignore")  # fmt: skip
    diskgnn.train(tmp_path / "packed", epochs=1, hidden=4, checkpoint=tmp_path / "run")

    def say(what: str | None, suffix: str = "npy") -> Path:
        out = tmp_path / f"out.{suffix}"
        diskgnn.predict(graph, out, tmp_path / "run", pairs=pairs, what=what, overwrite=True)
        return out

    logits = torch.from_numpy(np.load(say("logits")))
    np.testing.assert_array_equal(np.load(say(None)), logits)
    refused = ["embeddings"] if task == "class" else ["embeddings", "probabilities", "classes"]
    for what in refused:
        with pytest.raises(ConfigError, match=f"a model for {task} has no {what} of pairs; ask for logits"):
            say(what)
    if task == "class":
        torch.testing.assert_close(torch.from_numpy(np.load(say("probabilities"))), logits.softmax(1))
        assert pq.read_table(say("classes", "parquet"))["class"].to_pylist() == logits.argmax(1).tolist()


@pytest.mark.filterwarnings("ignore:pairs")
def test_pairs_of_test_get_the_scores_that_evaluation_counts(tmp_path: Path):
    """As all neighbours are drawn, one score of a pair is another to rounding; each way of drawing has its own."""
    random = np.random.default_rng(0)
    edges = np.unique(random.integers(0, 60, (300, 2)), axis=0)
    random.shuffle(edges)
    splits = {"train": edges[:200], "valid": edges[200:240], "test": edges[240:]}
    links = ("node", "to", "node")
    diskgnn.convert(
        tmp_path / "graph",
        schema=GraphInput({"node": NodeInput(features=random.standard_normal((60, 5)).astype(np.float32))},
                          {links: EdgeInput(edges.T, **splits)}),
    )  # fmt: skip
    target = diskgnn.LinkTarget(links, eval_negatives=0)
    diskgnn.prepare(
        tmp_path / "graph", tmp_path / "packed", fanouts=[-1, -1], batch_size=16, cpu_cache=0, target=target
    )
    torch.manual_seed(0)
    net, counted, asked = make_model("sage", 5, 6, 6, 2).eval(), [], []
    with diskgnn.Loader(tmp_path / "packed", "test") as loader, torch.no_grad():
        for batch in loader:
            rows = net(batch.blocks, batch.x)
            counted.append((rows[batch.pairs.src] * rows[batch.pairs.dst]).sum(1))
            seeds = batch.seeds.numpy()
            asked.append(np.stack([seeds[batch.pairs.src], seeds[batch.pairs.dst]], 1))
    counted, asked = torch.cat(counted).numpy(), np.concatenate(asked)
    assert {*map(tuple, asked.tolist())} == {*map(tuple, splits["test"].tolist())}

    def scores(pairs, **options):
        diskgnn.predict(tmp_path / "graph", tmp_path / "scores.npy", net, pairs=pairs, edge_type=links, overwrite=True,
                        batch_size=7, **options)  # fmt: skip
        return np.load(tmp_path / "scores.npy")

    np.testing.assert_allclose(scores(asked), counted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores(asked, hold_out_pairs=True), counted, rtol=1e-4, atol=1e-5)
    assert np.abs(scores(asked, message_edges="all") - counted).max() > 1e-3
    only_test = scores(asked, message_edges="all", hold_out_pairs=True)
    assert np.abs(only_test - counted).max() > 1e-3  # valid's edges are drawn
    both = np.concatenate([asked, splits["valid"]])
    found = scores(both, message_edges="all", hold_out_pairs=True)[: len(asked)]
    np.testing.assert_allclose(found, counted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("held_out", ["in the graph", "in the graph, all drawn", "elsewhere"])
def test_vectors_made_with_edges_that_training_left_out_are_warned_of(held_out: str, tmp_path: Path):
    """Of 40 seed edges of valid 40 are edges; and 37 of test's 60, as 23 more are none."""
    random = np.random.default_rng(0)
    edges = np.stack(np.triu_indices(60, 1), 1)  # none is the reverse of another
    random.shuffle(edges)
    edges = edges[:300]
    missing = np.stack([np.arange(23), np.full(23, 60)], 1)
    splits = {"train": edges[:200], "valid": edges[200:240], "test": np.concatenate([edges[240:277], missing])}
    links = ("node", "to", "node")
    given = edges[:200] if held_out == "elsewhere" else edges
    diskgnn.convert(
        tmp_path / "graph",
        schema=GraphInput({"node": NodeInput(features=random.standard_normal((61, 5)).astype(np.float32))},
                          {links: EdgeInput(given.T, **splits)}),
    )  # fmt: skip
    message_edges = "all" if "all drawn" in held_out else "train"
    target = diskgnn.LinkTarget(links, eval_negatives=1, message_edges=message_edges)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 3], cpu_cache=0, target=target, epochs=1)
    diskgnn.train(str(tmp_path / "packed"), hidden=4, epochs=1, checkpoint=tmp_path / "run")

    def said(function: Callable[..., object], **options: object) -> list[str]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            function(tmp_path / "graph", tmp_path / "out.npy", tmp_path / "run", overwrite=True, **options)
        return [str(each.message) for each in found if issubclass(each.category, DataWarning)]

    for found in (said(diskgnn.infer), said(diskgnn.predict, nodes=[3])):
        assert len(found) == (held_out == "in the graph")
        assert all("40 of valid's 40 and 37 of test's 60 seed edges are edges of the graph" in each for each in found)
    assert not said(diskgnn.predict, pairs=splits["test"])


def test_pairs_are_asked_without_the_reverse_edges_that_training_was_told_of(tmp_path: Path):
    """As from a graph without them and without the seed edges of valid and test: checkpoints say which type it is."""
    random = np.random.default_rng(0)
    pairs = random.permutation(np.unique(random.integers(0, 30, (250, 2)), axis=0))
    splits = dict(zip(("train", "valid", "test"), np.split(pairs, [120, 160]), strict=True))
    features = {name: random.standard_normal((30, 4)).astype(np.float32) for name in ("user", "film")}
    links, turned = ("user", "rates", "film"), ("film", "rated_by", "user")
    for name, edges in (("graph", pairs), ("without", splits["train"])):
        diskgnn.convert(
            tmp_path / name,
            schema=GraphInput({each: NodeInput(features=x) for each, x in features.items()},
                              {links: EdgeInput(edges.T, **splits), turned: EdgeInput(edges.T[::-1].copy())}),
        )  # fmt: skip
    target = diskgnn.LinkTarget(links, eval_negatives=3, reverse_edge_type=turned)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[-1, -1], cpu_cache=0, target=target)
    diskgnn.train(tmp_path / "packed", hidden=4, epochs=1, checkpoint=tmp_path / "run")
    for name in ("graph", "without"):
        diskgnn.predict(tmp_path / name, tmp_path / f"{name}.npy", tmp_path / "run", pairs=splits["test"])
    found, expected = (np.load(tmp_path / f"{name}.npy") for name in ("graph", "without"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pairs_that_are_edges_are_told(tmp_path: Path):
    graph = citations(tmp_path / "graph")
    edges = graph.edges[WRITES]
    every = {*zip(edges.indices.tolist(), np.repeat(np.arange(70), np.diff(edges.indptr)).tolist(), strict=True)}
    held = {*map(tuple, edges.splits["valid"].tolist())}
    known, others = list(every - held), [(a, p) for a in range(40) for p in range(70) if (a, p) not in every][:5]
    schema = source_schema(graph, LinkTarget(WRITES))
    net = make_typed_model(ModelSpec(name="rgcn", hidden=4, num_layers=1), schema, 4).eval()
    ask = partial(diskgnn.predict, graph, tmp_path / "out.npy", net, edge_type=WRITES, overwrite=True,
                  ignore_times=True)  # fmt: skip
    with pytest.warns(DataWarning, match=f"pairs: {len(known)} of {len(known) + len(held)} are edges of the graph"):
        ask(pairs=[*known, *held])
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        ask(pairs=[*held, *others])
        ask(pairs=known, hold_out_pairs=True)


def test_ids_of_the_users_own_and_the_command_line(tmp_path: Path):
    random = np.random.default_rng(0)
    ids = np.array([f"user-{number:05d}" for number in random.permutation(5000)])
    edges = ids[random.integers(0, 5000, (2, 20000))]
    x = random.standard_normal((5000, 6)).astype(np.float32)
    diskgnn.convert(tmp_path / "graph", edges=edges, features=x, labels=random.integers(0, 3, 5000), train=ids[:100],
                    test=ids[100:150], ids=ids)  # fmt: skip
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3, 3], batch_size=50, cpu_cache=0)
    diskgnn.train(tmp_path / "packed", hidden=8, epochs=1, checkpoint=tmp_path / "run")
    run("infer", tmp_path / "graph", "--checkpoint", tmp_path / "run", "--out", tmp_path / "all.npy")
    run("infer", tmp_path / "graph", "--checkpoint", tmp_path / "run", "--out", tmp_path / "all.parquet")
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["id"].to_pylist() == ids.tolist()
    logits = np.load(tmp_path / "all.npy")
    np.testing.assert_array_equal(np.stack(table["logits"].to_numpy()), logits)
    np.save(tmp_path / "nodes.npy", ids[[4999, 2]])
    said = run("predict", tmp_path / "graph", "--checkpoint", tmp_path / "run", "--out", tmp_path / "two.parquet",
               "--nodes", tmp_path / "nodes.npy", "--what", "classes")  # fmt: skip
    assert "partial" not in said.stderr
    found = pq.read_table(tmp_path / "two.parquet").to_pydict()
    assert found == {"id": ids[[4999, 2]].tolist(), "class": logits[[4999, 2]].argmax(1).tolist()}
    for given in (ids[[4999, 2]], ids[[4999, 2]].tolist()):
        diskgnn.predict(tmp_path / "graph", tmp_path / "three.parquet", tmp_path / "run", nodes=given, what="classes",
                        overwrite=True)  # fmt: skip
        assert pq.read_table(tmp_path / "three.parquet").to_pydict() == found


def test_days_and_moments_name_nodes(tmp_path: Path):
    """As Python, NumPy and pandas have them, down to nanoseconds; those of a zone are moments in it."""
    ids = np.datetime64("2024-01-01", "ns") + np.arange(20) * np.timedelta64(12, "h")
    ids[7] += np.timedelta64(1, "ns")
    diskgnn.convert(tmp_path / "graph", edges=np.array([ids, ids[::-1]]), ids=ids,
                    features=np.arange(20, dtype=np.float32)[:, None])  # fmt: skip
    day, noon, moment = date(2024, 1, 2), datetime(2024, 1, 2, 12), pd.Timestamp("2024-01-04 12:00:00.000000001")
    cases: list[tuple[Any, list[int]]] = [
        ([day, date(2024, 1, 1)], [2, 0]),
        ([noon, datetime(2024, 1, 5)], [3, 8]),
        ([moment, pd.Timestamp(day)], [7, 2]),
        ([day, noon, moment, day], [2, 3, 7, 2]),
        ([noon.replace(tzinfo=timezone(timedelta(hours=12))), pd.Timestamp("2024-01-02 01:00", tz="CET")], [2, 2]),
        (pd.DatetimeIndex(ids[[4, 1]]).tz_localize("UTC"), [4, 1]),
        (np.array(["2024-01-02", "2024-01-01"], "datetime64[D]"), [2, 0]),
    ]
    net = make_model("sage", 1, 4, 2, 1)
    diskgnn.infer(tmp_path / "graph", tmp_path / "all.npy", net)
    for given, expected in cases:
        diskgnn.infer(tmp_path / "graph", tmp_path / "some.npy", net, nodes=given, overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "some.npy"), np.load(tmp_path / "all.npy")[expected])
    diskgnn.predict(tmp_path / "graph", tmp_path / "some.parquet", net, nodes=[noon, day])
    assert pq.read_table(tmp_path / "some.parquet")["id"].to_pylist() == ["2024-01-02 12:00:00", "2024-01-02"]
    with pytest.raises(InputError, match="found '2024-01-03 01:00:00', which none has"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "no.npy", net, nodes=[datetime(2024, 1, 3, 1)])
    with pytest.raises(InputError, match="null"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "no.npy", net, nodes=[noon, pd.NaT])


def test_text_names_no_nodes_of_a_graph_without_ids(graph: Graph, tmp_path: Path):
    for given, said in (["ann"], "ann"), ([date(2024, 1, 2)], "2024-01-02"):
        with pytest.raises(ConfigError, match=rf"found '{said}'; .* keeps no ids of 'node' nodes; make the"):
            diskgnn.predict(graph, tmp_path / "no.npy", make_model("sage", 3, 4, 2, 1), nodes=given)


@pytest.fixture
def numbered(tmp_path: Path) -> list[int]:
    """A graph whose nodes 0, 1, 2, ... have the user's ids 3, 2, 1, 0, 10, 11, ...; most are numbers of rows, too."""
    ids = [3, 2, 1, 0, *range(10, 30)]
    random = np.random.default_rng(0)
    diskgnn.convert(tmp_path / "graph", edges=np.array(ids)[random.integers(0, len(ids), (2, 90))], ids=np.array(ids),
                    features=random.standard_normal((len(ids), 3)).astype(np.float32),
                    labels=np.arange(len(ids)) % 2, train=np.array(ids[:4]))  # fmt: skip
    return ids


def test_files_name_nodes_as_the_user_does(numbered: list[int], tmp_path: Path):
    torch.manual_seed(0)
    net, asked = make_model("sage", 3, 4, 2, 1), [0, 29, 3, 0]
    diskgnn.infer(tmp_path / "graph", tmp_path / "all.npy", net)
    expected = np.load(tmp_path / "all.npy")[[numbered.index(each) for each in asked]]
    np.save(tmp_path / "nodes.npy", asked)
    pq.write_table(pa.table({"id": asked}), tmp_path / "nodes.parquet")
    (tmp_path / "nodes.csv").write_text("name,id\n" + "".join(f"x,{each}\n" for each in asked))
    for suffix in ("npy", "parquet", "csv"):
        for apply in (diskgnn.infer, diskgnn.predict):
            apply(tmp_path / "graph", tmp_path / "some.npy", net, nodes=tmp_path / f"nodes.{suffix}", overwrite=True)
            np.testing.assert_allclose(np.load(tmp_path / "some.npy"), expected, rtol=1e-4, atol=1e-5)


def test_text_names_no_nodes_whose_ids_are_numbers(numbered: list[int], tmp_path: Path):
    """Cast to numbers, it would be taken for numbers of rows."""
    net = make_model("sage", 3, 4, 2, 1)
    for apply in (diskgnn.infer, diskgnn.predict):
        with pytest.raises(
            ConfigError, match="expected numbers of rows, found '29'; ids of your own, which are numbers"
        ):
            apply(tmp_path / "graph", tmp_path / "some.npy", net, nodes=["29"])
        with pytest.raises(
            ConfigError, match=r"numbers of rows from 0 to 23, found 29 to 29; ids of your own .* a file"
        ):
            apply(tmp_path / "graph", tmp_path / "some.npy", net, nodes=[29])


def test_ids_in_csv_files_that_nobody_has(numbered: list[int], tmp_path: Path):
    net, file = make_model("sage", 3, 4, 2, 1), tmp_path / "nodes.csv"
    file.write_text("id\n003\n29\n")  # zeros in front say nothing of numbers
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.predict(tmp_path / "graph", tmp_path / "padded.npy", net, nodes=file)
    diskgnn.predict(tmp_path / "graph", tmp_path / "plain.npy", net, nodes=[numbered.index(3), numbered.index(29)])
    np.testing.assert_array_equal(np.load(tmp_path / "padded.npy"), np.load(tmp_path / "plain.npy"))
    file.write_text("id\n3\nfoo\n")
    with pytest.raises(InputError, match=r"int64 in column 'id' of .*, found 'foo' in line 3; correct it$"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "none.npy", net, nodes=file)
    texts = [f"{each:04d}" for each in numbered]
    diskgnn.convert(tmp_path / "texts", edges=np.array([texts, texts[::-1]]), features=np.ones((24, 3), np.float32),
                    ids=np.array(texts))  # fmt: skip
    for asked in ({"nodes": "id\n29\n"}, {"pairs": "src,dst\n0029,0003\n0003,29\n", "edge_type": "node:to:node"}):
        name, text = next(iter(asked.items()))
        file.write_text(text)
        with pytest.raises(InputError, match=f"^{name}: .*found '29', which none has; there is '0029', which may be"):
            diskgnn.predict(tmp_path / "texts", tmp_path / "none.npy", net, **{**asked, name: file})


def test_tables_as_csv_say_what_parquet_says(numbered: list[int], tmp_path: Path):
    """Of nodes and of pairs: lists are a column for each number, and floats are read back as they were."""
    torch.manual_seed(0)
    net, nodes, pairs = make_model("sage", 3, 4, 2, 1), [5, 0, 7, 5], [[3, 0], [0, 6]]
    for ask in (
        diskgnn.infer, partial(diskgnn.infer, nodes=nodes, what="classes"), partial(diskgnn.predict, nodes=nodes),
        partial(diskgnn.predict, pairs=pairs, edge_type="node:to:node"),
    ):  # fmt: skip
        for suffix in ("parquet", "csv"):
            ask(tmp_path / "graph", tmp_path / f"out.{suffix}", net, overwrite=True)
        table = pq.read_table(tmp_path / "out.parquet").to_pydict()
        if "logits" in table:
            table |= {f"logits_{k}": [row[k] for row in table["logits"]] for k in (0, 1)}
            del table["logits"]
        text = pacsv.read_csv(tmp_path / "out.csv")
        assert text.column_names == list(table)
        for name, column in table.items():
            assert text[name].to_numpy().astype(np.float32).tolist() == np.array(column, np.float32).tolist()


def test_files_name_pairs_as_the_user_does(numbered: list[int], tmp_path: Path):
    net, pairs = make_model("sage", 3, 4, 2, 1), np.array([[3, 0], [29, 10], [2, 1]])
    rows = np.array([[numbered.index(each) for each in pair] for pair in pairs])
    options = {"edge_type": "node:to:node"}
    diskgnn.predict(tmp_path / "graph", tmp_path / "rows.npy", net, pairs=rows, **options)
    np.save(tmp_path / "pairs.npy", pairs)
    pq.write_table(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]}), tmp_path / "pairs.parquet")
    for suffix in ("npy", "parquet"):
        diskgnn.predict(tmp_path / "graph", tmp_path / "out.parquet", net, pairs=tmp_path / f"pairs.{suffix}",
                        overwrite=True, **options)  # fmt: skip
        table = pq.read_table(tmp_path / "out.parquet")
        assert np.stack([table["src"], table["dst"]], 1).tolist() == pairs.tolist()
        np.testing.assert_array_equal(table["score"], np.load(tmp_path / "rows.npy"))


def test_pairs_out_of_range_are_named_where_they_are(tmp_path: Path):
    graph = citations(tmp_path / "graph")  # 40 authors, 70 papers
    pq.write_table(pa.table({"src": [3, 5], "dst": [70, 2]}), tmp_path / "pairs.parquet")
    net = torch.nn.Identity()
    for pairs, message in (
        (tmp_path / "pairs.parquet", r"pairs: expected dst in .*pairs.parquet to be of the 70 nodes .* found 2 to 70"),
        ([[-1, 2]], r"pairs: expected src to be of the 40 nodes of type 'author', found -1 to -1"),
        ([1, 2], r"pairs: expected at least one pair of ids \[n, 2\], found int64 \[2\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.predict(graph, tmp_path / "new/out.parquet", net, pairs=pairs, edge_type=WRITES, fanouts=[-1],
                            ignore_times=True)  # fmt: skip
        assert sorted(path.name for path in tmp_path.iterdir()) == ["graph", "pairs.parquet"]


@pytest.mark.parametrize("apply", [diskgnn.infer, diskgnn.predict])
def test_an_output_where_nothing_can_be_written_is_told_first(tmp_path: Path, apply: Callable[..., object]):
    """Of /proc it is said that no bytes are free there."""
    graph = citations(tmp_path / "graph")
    with pytest.raises(ConfigError, match=r"cannot write /proc/none/out.npy: .*; choose an output in another folder"):
        apply(graph, "/proc/none/out.npy", torch.nn.Identity())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.array([4]), "nodes: expected ids of nodes of type 'node', found 4, which none has"),
        (np.array(["4"]), "nodes: expected ids of type int64, as of the nodes of type 'node', found string"),
        ("4\n5\n", "nodes: expected a .npy file of ids, or a Parquet or CSV table with 'id', found a text file"),
        ("node,time\n3,5\n", "nodes: expected a column 'id' in .*, found .'node', 'time'. .in CSV the first line"),
    ],
)  # fmt: skip
def test_files_that_name_no_nodes(numbered: list[int], tmp_path: Path, content: object, message: str):
    path = tmp_path / "nodes"
    if isinstance(content, str):
        path.write_text(content)
    else:
        with path.open("wb") as file:
            np.save(file, content)
    with pytest.raises((ConfigError, InputError), match=message):
        diskgnn.predict(tmp_path / "graph", tmp_path / "out.npy", make_model("sage", 3, 4, 2, 1), nodes=path)


def test_tables_that_name_no_rows(graph: Graph, tmp_path: Path):
    """Ids of their own are told to whoever has none in the graph; no cast would make numbers of rows of these."""
    (tmp_path / "ids.csv").write_text("id\nu1\nu2\n")
    pq.write_table(pa.table({"id": ["u1", "u2"]}), tmp_path / "ids.parquet")
    for name, told in (
        (
            "ids.csv",
            "nodes: expected numbers of rows, as .* keeps no ids of 'node' nodes, found string; make the graph",
        ),
        ("ids.parquet", "nodes: expected numbers of rows, as .* keeps no ids of 'node' nodes, found string; make the"),
        ("missing.csv", "nodes: expected a table, found no file .*missing.csv$"),
        ("missing.parquet", "nodes: expected a table, found no file .*missing.parquet$"),
    ):
        with pytest.raises(InputError, match=told):
            diskgnn.predict(graph, tmp_path / "out.npy", make_model("sage", 3, 4, 2, 1), nodes=tmp_path / name)


def test_a_checkpoint_for_types_that_the_graph_has_not(graph: Graph, tmp_path: Path):
    citations(tmp_path / "typed")
    np.save(tmp_path / "pairs.npy", np.array([[0, 1]]))
    for name, target, expected in (
        ("nodes", {}, "nodes of type paper; {graph} has only node: give"),
        ("links", {"target": LinkTarget(WRITES)}, "pairs of type author:writes:paper; {graph} has only node:to:node"),
    ):
        diskgnn.prepare(tmp_path / "typed", tmp_path / name, fanouts=[2], batch_size=20, cpu_cache=0, temporal="ignore",
                        **target)  # fmt: skip
        run_of = tmp_path / f"{name}-run"
        diskgnn.train(tmp_path / name, model="rgcn", hidden=4, epochs=1, checkpoint=run_of)
        asked = ["predict", "infer"] if name == "nodes" else ["predict"]
        for command in asked:
            pairs = [] if name == "nodes" else ["--pairs", tmp_path / "pairs.npy"]
            said = run(command, tmp_path / "other", "--checkpoint", run_of, "--out", tmp_path / "no.npy", *pairs,
                       exit_code=2).stderr  # fmt: skip
            assert f"the model in {run_of} is for {expected.format(graph=tmp_path / 'other')}" in said
    assert not list(tmp_path.glob(".no*"))
