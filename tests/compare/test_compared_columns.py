"""Comparisons without some columns that tables keep: all train on the same x, whatever they read."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.compare.comparison_record import from_json
from diskgnn.compare.loader_setup import LoaderInputs
from diskgnn.compare.variants import COLUMNS, LOADERS, TYPES, Variant, find
from diskgnn.errors import ConfigError
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget

USERS, ORDERS = 600, 3000
OUT = ["users.secret", "orders.price"]  # of orders, nothing is left
TAKING = [variant for variants in LOADERS.values() for variant in variants if not {COLUMNS, TYPES} & {*variant.lacks}]


@pytest.fixture(scope="module")
def labels() -> npt.NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, 2, USERS)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, labels: npt.NDArray[np.int64]) -> Path:
    random = np.random.default_rng(0)
    users = pa.table({
        "id": np.arange(USERS), "secret": labels, "age": random.integers(0, 90, USERS) + 40 * labels,
        "face": pa.array(list(random.normal(size=(USERS, 40)).astype(np.float32)), pa.list_(pa.float32())),
    })  # fmt: skip
    orders = pa.table({"user": random.integers(0, USERS, ORDERS), "price": random.random(ORDERS)})
    database = SimpleNamespace(table_dict={
        "users": SimpleNamespace(df=users, pkey_col="id", fkey_col_to_pkey_table={}, time_col=None),
        "orders": SimpleNamespace(df=orders, pkey_col=None, fkey_col_to_pkey_table={"user": "users"}, time_col=None),
    })  # fmt: skip
    path = tmp_path_factory.mktemp("columns") / "graph"
    diskgnn.convert(path, source=database, options={"keep_columns": True}, quantise="int8", progress=False)
    return path


def minibatches(variant: Variant, graph: Path, folder: Path, labels: npt.NDArray[np.int64]) -> list[Any]:
    """Seeds and x of each minibatch of epoch 0, whatever their order."""
    target = NodeTarget("users", seeds={"train": np.arange(200)}, labels={"train": labels[:200]})
    spec = SamplingSpec([3, 2], 64, target=target, without=OUT)
    given = LoaderInputs(str(graph), str(folder), spec, 1 << 14, 1 << 30)
    folder.mkdir()
    if variant.prepare is not None:
        variant.prepare(given)
    with variant.open(given) as source:
        assert dict(source.schema.columns)["orders"] == ()
        found = [(batch.seeds, batch.x) for batch in source.epoch(0)]
    return sorted(found, key=lambda each: each[0].tolist())


@pytest.mark.parametrize("variant", TAKING, ids=lambda each: each.name)
def test_all_have_the_same_x(graph: Path, labels: npt.NDArray[np.int64], tmp_path: Path, variant: Variant) -> None:
    expected = minibatches(find("in-memory", ""), graph, tmp_path / "expected", labels)
    whole = Graph.open(graph).nodes["users"].feature_file
    assert whole.rows.num_features == 42
    assert len(expected) == 4
    for (seeds, x), (others, other) in zip(
        minibatches(variant, graph, tmp_path / "found", labels), expected, strict=True
    ):
        assert torch.equal(seeds, others)
        assert x["users"].shape[1] == 41
        assert all(torch.equal(x[name], rows) for name, rows in other.items())
        assert torch.equal(x["orders"], torch.ones(len(x["orders"]), 1))


def test_a_source_of_other_columns_is_not_shared(graph: Path, labels: npt.NDArray[np.int64]) -> None:
    target = NodeTarget("users", seeds={"train": np.arange(USERS)}, labels={"train": labels})
    drawing: dict[str, Any] = {"fanouts": [2], "batch_size": 64, "target": target}
    whole = InMemory(graph, "train", **drawing)
    with pytest.raises(ConfigError, match=r"share: expected a source without \['.*'\], found one without \[\]"):
        InMemory(graph, "train", share=whole, without=[OUT[0]], **drawing)


def test_those_that_store_rows_lack_it() -> None:
    assert {variant.loader for variant in TAKING} == {"in-memory", "mmap", "cached-reads", "static-packed", "diskgnn"}
    assert {variant.loader for variant in TAKING if variant.whole_rows} == {"mmap", "cached-reads"}


def files_of(graph: Path, without: list[str]) -> list[FeatureFile]:
    """Of a graph without some columns."""
    return list(feature_files(Graph.open(graph).without(without)).values())


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_the_command_says_who_reads_whole_rows(graph: Path, labels: npt.NDArray[np.int64], tmp_path: Path) -> None:
    seeds, out, report = tmp_path / "seeds.parquet", tmp_path / "out.json", tmp_path / "page.html"
    split = np.repeat(["train", "valid", "test"], [400, 100, 100])
    pq.write_table(pa.table({"id": np.arange(USERS), "split": split, "label": labels}), seeds)
    arguments = ["compare", graph, "--memory", "1GiB", "--fanouts", "3,2", "--batch-size", 64, "--target", "users",
                 "--target-seeds", seeds, "--without", OUT[0], "--loaders",
                 "in-memory,mmap:random,cached-reads:lru,diskgnn:one,ginex",
                 "--max-batches", 4, "--hidden", 8, "--size", "1MiB", "--out", out, "--report", report]  # fmt: skip
    result = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    comparison = from_json(json.loads(out.read_text()))
    found = {each.loader: each for each in comparison.results}
    assert {name: each.status for name, each in found.items()} == {
        "in-memory": "ok", "mmap": "ok", "cached-reads": "ok", "diskgnn": "ok", "ginex": "unavailable"
    }  # fmt: skip
    scores = [each.epochs[0].scores for each in comparison.results if each.status == "ok"]
    assert scores[0] == pytest.approx(scores[1])
    assert scores[0] == pytest.approx(scores[2])
    assert comparison.settings["without"] == [OUT[0]]
    assert comparison.graph["num_features"] == [1, 41]
    kept, whole = (files_of(graph, without) for without in ([OUT[0]], []))
    num_rows = sum(file.num_rows for file in whole)
    for name, files in (("mmap", whole), ("cached-reads", whole), ("in-memory", kept), ("diskgnn", kept)):
        assert found[name].row_bytes == sum(file.num_bytes for file in files) // num_rows
    assert found["mmap"].row_bytes > found["diskgnn"].row_bytes
    assert found["diskgnn"].belady_rows is not None  # whole rows are of another cache, which has room for fewer
    assert (found["cached-reads"].belady_rows, found["cached-reads"].belady_row_bytes) == (None, 0)
    told = f"rows are read whole by mmap, random advice, cached reads, LRU, as the graph has them, with {OUT[0]}; what"
    assert any(each.startswith(told) for each in comparison.warnings)
    assert told[1:] in report.read_text()
    everything = [word for name in Graph.open(graph).kept_columns for word in ("--without", name)]
    failed = CliRunner().invoke(main, [*map(str, arguments), *everything])
    assert failed.exit_code == 2
    assert "expected rows of features, by reading which loaders are compared, found none" in failed.stderr


def command(graph: Path, labels: npt.NDArray[np.int64], folder: Path, *more: object) -> list[str]:
    """Compares the model that takes columns, by the times of seeds."""
    seeds, split = folder / "timed.parquet", np.repeat(["train", "valid", "test"], [400, 100, 100])
    pq.write_table(
        pa.table({"id": np.arange(USERS), "split": split, "label": labels, "time": np.full(USERS, 9)}), seeds
    )  # fmt: skip
    return [*map(str, [
        "compare", graph, "--memory", "1GiB", "--fanouts", "3,2", "--batch-size", 64, "--target", "users",
        "--target-seeds", seeds, "--target-column", "time=time", "--temporal", "last", "--model", "relational",
        "--max-batches", 2, "--hidden", 8, "--size", "1MiB", *more,
    ])]  # fmt: skip


def test_a_model_of_columns_is_refused_to_loaders_without(
    graph: Path, labels: npt.NDArray[np.int64], tmp_path: Path
) -> None:
    given = command(graph, labels, tmp_path, "--loaders", "diskgnn:one,mmap:random,ginex")
    refused = CliRunner().invoke(main, given)
    assert refused.exit_code == 2
    told = " ".join(refused.stderr.split())
    assert "--loaders: --model relational takes columns and times" in told
    assert "(static-packed:plain, diskgnn:one, diskgnn:several, diskgnn:fresh), found mmap:random, ginex;" in told


@pytest.mark.slow
@pytest.mark.usefixtures("forked_servers")
def test_a_model_of_columns_is_compared(graph: Path, labels: npt.NDArray[np.int64], tmp_path: Path) -> None:
    """The same minibatches, prepared beforehand and meanwhile, make the same model."""
    out = tmp_path / "out.json"
    given = command(graph, labels, tmp_path, "--loaders", "diskgnn:one,diskgnn:fresh", "--out", out)
    result = CliRunner().invoke(main, given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    comparison = from_json(json.loads(out.read_text()))
    assert comparison.settings["model"] == "relational"
    assert [each.status for each in comparison.results] == ["ok", "ok"]
    one, fresh = (each.epochs[0] for each in comparison.results)
    assert one.scores == pytest.approx(fresh.scores)
    assert one.loss == pytest.approx(fresh.loss)
