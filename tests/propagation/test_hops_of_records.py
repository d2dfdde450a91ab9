"""Hops of tables that keep their columns: against the vectors of the same tables, SciPy, and batch.x."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from least_budgets import with_least
from memory_watching import WATCHING
from propagated_graphs import segments
from propagated_types import TypedGiven, assert_paths_are_exact

import diskgnn
from diskgnn.errors import InputError
from diskgnn.files import faults
from diskgnn.formats.hops import Hops
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.propagation.propagate import estimate_propagation

USERS, ORDERS = 18_000, 30_000  # two windows of rows of users
HASHED = TableColumns(encode={"users.about": "hash:256"})
ASKED: dict[str, Any] = {"target": "users", "hops": 2, "progress": False}


def some(random: np.random.Generator, values: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind, mask=random.random(len(values)) < 0.1)


def tables() -> dict[str, pa.Table]:
    """Columns of every kind that features are made of, with nulls; numbers that records keep exactly."""
    random = np.random.default_rng(0)
    users = pa.table({
        "id": np.arange(USERS), "age": some(random, random.integers(0, 99, USERS)),
        "height": some(random, random.normal(1.7, 0.2, USERS).astype(np.float32)),
        "seen": some(random, random.integers(-(10**15), 10**15, USERS), pa.timestamp("us")),
        "paid": some(random, random.random(USERS) < 0.3),
        "plan": some(random, random.choice(["a", "b", "c"], USERS, p=[0.1, 0.7, 0.2])),
        "town": some(random, [f"town {number}" for number in random.integers(0, 60, USERS)]),  # more than have features
        "face": some(random, list(random.normal(size=(USERS, 5)).astype(np.float32)), pa.list_(pa.float32())),
        "about": some(random, [f"likes {number % 97} and Äpfel" for number in range(USERS)]),
    })  # fmt: skip
    orders = pa.table({
        "user": random.integers(0, USERS, ORDERS), "price": random.integers(1, 99, ORDERS),
        "item": [f"item {number}" for number in random.integers(0, 7, ORDERS)],
    })  # fmt: skip
    friends = {name: random.integers(0, USERS, 20_000) for name in ("user", "friend")}
    return {"users": users, "orders": orders, "friends": pa.table(friends)}  # friends have no columns


def source(tables: dict[str, pa.Table]) -> RelationalSource:
    keys = {"users": {}, "orders": {"user": "users"}, "friends": {"user": "users", "friend": "users"}}
    labels = np.arange(3000)
    task = {"user": labels * 5, "left": labels % 3 == 0}
    return RelationalSource.of(SimpleNamespace(table_dict={
        name: SimpleNamespace(df=tables[name], pkey_col="id" if name == "users" else None, time_col=None,
                              fkey_col_to_pkey_table=keys[name])
        for name in tables
    }), {"churn": {"train": SimpleNamespace(df=pa.table(task), fkey_col_to_pkey_table={"user": "users"}, time_col=None),
                   "label": "left"}})  # fmt: skip


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("graphs")
    found = {name: folder / name for name in ("records", "int8", "vectors")}
    given = source(tables())
    kept: dict[str, Any] = {"source": given, "columns": HASHED, "options": {"keep_columns": True}, "progress": False}
    diskgnn.convert(found["records"], **kept)
    diskgnn.convert(found["int8"], **kept, quantise="int8")
    diskgnn.convert(found["vectors"], source=given, encoding_of=found["records"], options={"keep_columns": False},
                    progress=False)  # fmt: skip
    return found


def as_given(graph: Path, seeds: np.ndarray) -> TypedGiven:
    """What SciPy computes with: of a graph of vectors."""
    opened = Graph.open(graph)
    edges = {
        name: np.stack([np.asarray(each.indices, np.int64),
                        np.repeat(np.arange(each.num_destinations), np.diff(each.indptr))])
        for name, each in opened.edges.items()
    }  # fmt: skip
    features = {name: np.asarray(nodes.features, np.float64) for name, nodes in opened.nodes.items()}
    num_nodes = {name: nodes.num_nodes for name, nodes in opened.nodes.items()}
    return TypedGiven(num_nodes, features, edges, "users", {"nodes": seeds})


SEEDS = np.random.default_rng(1).permutation(USERS)[:5000]


def test_hops_are_those_of_the_vectors_and_scipys(graphs: dict[str, Path], tmp_path: Path) -> None:
    """Bit for bit, with constants at the ends of paths, and the same bytes with the least memory and with plenty."""
    with_least(partial(diskgnn.propagate, graphs["records"], tmp_path / "least", nodes=SEEDS, **ASKED))
    diskgnn.propagate(graphs["records"], tmp_path / "plenty", nodes=SEEDS, memory="1GiB", threads=3, **ASKED)
    assert open_artifact(tmp_path / "least").digest == verify_artifact(tmp_path / "plenty").digest
    diskgnn.propagate(graphs["vectors"], tmp_path / "vectors", nodes=SEEDS, **ASKED)
    expected, found = dict(segments(tmp_path / "vectors", "nodes")), dict(segments(tmp_path / "least", "nodes"))
    assert "friends:f2p_friend" in found
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values.view(np.int32), expected[name].view(np.int32), name)
    given = as_given(graphs["vectors"], SEEDS)
    assert_paths_are_exact(tmp_path / "least", given, given.paths(2))
    kept, made = (Hops.open(tmp_path / name).config for name in ("least", "vectors"))
    assert (kept.rows, kept.columns, kept.others) == (made.rows, made.columns, made.others)


def test_x_is_that_of_minibatches(graphs: dict[str, Path], tmp_path: Path) -> None:
    """Of quantised embeddings, too, and without columns that are left out."""
    for name, without in (("int8", []), ("records", ["users.height", "users.about"])):
        graph = Graph.open(graphs[name]).without(without)
        diskgnn.propagate(graph, tmp_path / f"hops-{name}", nodes=SEEDS, **ASKED)
        x = dict(segments(tmp_path / f"hops-{name}", "nodes"))["x"]
        diskgnn.prepare(graphs[name], tmp_path / f"packed-{name}", target=diskgnn.NodeTarget("users", {"train": SEEDS}),
                        fanouts=[2], batch_size=512, epochs=1, cpu_cache=0, without=without, keep_input_nodes=True,
                        progress=False)  # fmt: skip
        with diskgnn.Loader(tmp_path / f"packed-{name}", "train") as loader:
            for batch in loader.epoch(0):
                nodes, num_seeds = batch.input_nodes["users"].numpy(), len(batch.seeds)
                places = np.argsort(SEEDS)[np.searchsorted(np.sort(SEEDS), nodes[:num_seeds])]
                np.testing.assert_array_equal(x[places], batch.x["users"][:num_seeds].numpy())


class Killed(BaseException):
    """Nobody handles it."""


def test_a_killed_run_goes_on_with_another_memory(graphs: dict[str, Path], tmp_path: Path) -> None:
    asked = {"nodes": SEEDS[:100], **ASKED, "hops": 1}
    diskgnn.propagate(graphs["records"], tmp_path / "undisturbed", memory="1GiB", threads=3, **asked)
    digest = open_artifact(tmp_path / "undisturbed").digest
    for number in itertools.count():
        out = tmp_path / f"{number}"
        with faults.pretending("unit.bytes", 1):
            with suppress(Killed), faults.armed("work.piece", Killed(), after=3 * number):
                diskgnn.propagate(graphs["records"], out, memory="2GiB", threads=1, **asked)
                break
            diskgnn.propagate(graphs["records"], out, memory="1GiB", threads=2, **asked)
        assert verify_artifact(out).digest == digest
    assert number >= 4


COUNTED = f"""{WATCHING}
report = diskgnn.propagate(sys.argv[1], sys.argv[2], target="users", hops=2, nodes="all", memory=sys.argv[3])
is_over.set()
print(report.read_bytes, report.written_bytes, most, report.details["memory_bytes"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the kernel does not count here")
def test_bytes_and_memory_are_as_predicted(graphs: dict[str, Path], tmp_path: Path) -> None:
    """torch, which makes x, counts in the memory."""
    words = [sys.executable, "-c", COUNTED, graphs["records"], tmp_path / "hops", "512MiB"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    read_bytes, written_bytes, most_bytes, predicted_memory_bytes = map(int, done.stdout.split())
    with faults.pretending("memory.anonymous", 150 << 20):  # as that process has it
        predicted = estimate_propagation(graphs["records"], tmp_path / "other", nodes="all", memory="512MiB", **ASKED)
    assert read_bytes == pytest.approx(predicted.read_bytes, rel=0.02)
    assert written_bytes == pytest.approx(predicted.written_bytes, rel=0.02)
    assert most_bytes <= 1.02 * predicted_memory_bytes
    assert predicted.output_bytes == pytest.approx(open_artifact(tmp_path / "hops").total_bytes, rel=0.02)


def test_a_number_that_is_none_is_refused_with_its_row(tmp_path: Path) -> None:
    given = tables()
    ages = given["users"]["age"].to_pylist()
    ages = [age or 1 for age in ages]
    ages[11] = None
    given["users"] = given["users"].select(["id", "height"]).append_column("age", [ages])
    diskgnn.convert(tmp_path / "graph", source=source(given), columns=TableColumns(encode={"users.age": "raw"}),
                    options={"keep_columns": True}, progress=False)  # fmt: skip
    with pytest.raises(InputError, match=r"rows of 1 nodes .*first of them node 11 of type users.*users\.age=number"):
        diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", nodes="all", **ASKED)


def test_models_of_hops_are_applied_to_records(graphs: dict[str, Path], tmp_path: Path) -> None:
    """As to the vectors of the same x, of which they were told the same."""
    asked: dict[str, Any] = {"progress": False}
    diskgnn.propagate(graphs["records"], tmp_path / "hops", target="churn", hops=2, **asked)
    for model in ("sign", "sehgnn"):
        run = tmp_path / model
        diskgnn.train(tmp_path / "hops", model=model, epochs=1, hidden=8, checkpoint=run, **asked)
        for name in ("records", "vectors"):
            diskgnn.infer(graphs[name], tmp_path / f"{model}-{name}.npy", run, **asked)
        found, expected = (np.load(tmp_path / f"{model}-{name}.npy") for name in ("records", "vectors"))
        assert found.shape == (3000, 2)
        np.testing.assert_array_equal(found, expected)
