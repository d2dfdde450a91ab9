"""Estimates of typed graphs: row set by row set what `prepare` then packs."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from typed_graphs import CITES, WRITES, citations

from diskgnn import estimate, prepare
from diskgnn.cli import main
from diskgnn.formats.artifacts import extents_file
from diskgnn.formats.packed import Packed
from diskgnn.importers.convert import convert
from diskgnn.specs.targets import LinkTarget, NodeTarget

SETTINGS = {
    "fanouts": [3, 2],
    "batch_size": 8,
    "epochs": 3,
    "cpu_cache": 500,
    "static_cache": 100,
    "seed": 1,
    "temporal": "ignore",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return citations(tmp_path_factory.mktemp("typed") / "graph")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"fanouts": {WRITES: [2, 2], CITES: [4, 0]}, "weighted": True},
        {"temporal": "uniform", "target": NodeTarget("paper")},
        {"edge_ids": True, "fanouts": [4, 8]},
        {"target": LinkTarget(WRITES, negatives=2, eval_negatives=3), "group_seeds": 4},
        {"draws": "coordinated", "draw_period": 4, "keep_input_nodes": True, "cpu_cache": "30%"},
        {"cpu_cache": 0, "static_cache": 0},
        {"target": NodeTarget("author", {"test": range(20)}), "fanouts": [-1, -1]},
    ],
    ids=["plain", "weighted", "temporal", "edge ids", "links", "coordinated", "no caches", "given"],
)
def test_each_row_set_is_what_prepare_packs(graph, tmp_path, changes):
    given = {**SETTINGS, **changes}
    found = estimate(graph, tmp_path / "packed", **given, max_seconds=60)
    assert list(tmp_path.iterdir()) == []
    assert found.sampled_minibatches == found.minibatches
    prepare(graph, tmp_path / "packed", samples=tmp_path / "samples", **given)
    packed, setting = Packed.open(tmp_path / "packed"), found.settings[0]
    split = next(iter(packed.config.splits))
    made = packed.config.splits[split]
    assert [each.name for each in setting.row_sets] == ["paper", "paper.cites.paper"]
    for each, config, rows in zip(setting.row_sets, packed.config.row_sets, made.row_sets, strict=True):
        assert each.static_rows == config.num_static
        assert each.cpu_rows == rows.cpu_rows
        assert each.disk_rows == rows.rows.disk // made.epochs
        assert each.rows_per_minibatch * made.epochs * made.batches_per_epoch == pytest.approx(rows.rows.requested)
        assert each.disk_rows_error == 0
    assert setting.disk_rows == made.rows.disk // made.epochs
    # Extents end at multiples of 4 KiB, which is half of one on average.
    extents_bytes = packed.file(extents_file(split)).stat().st_size
    rounding = 2048 * made.batches_per_epoch
    assert setting.read_bytes == pytest.approx(extents_bytes / made.epochs, rel=0.02, abs=rounding)
    rounding = 2048 * sum(each.epochs * each.batches_per_epoch for each in packed.config.splits.values())
    assert setting.packed_bytes == pytest.approx(packed.manifest.total_bytes, rel=0.02, abs=rounding)
    samples_bytes = sum(path.stat().st_size for path in (tmp_path / "samples").glob("*.arrow"))
    assert samples_bytes * 0.8 < setting.scratch_bytes


def test_types_without_features_take_no_rows(tmp_path):
    """Two users and two items, of which nobody has features: nothing is cached, and nothing but headers is read."""
    edges = np.array([[0, 1, 1], [0, 0, 1]])
    schema = {
        "nodes": {"user": {"num_nodes": 2}, "item": {"num_nodes": 2, "labels": np.array([0, 1]), "train": [0, 1]}},
        "edges": {"user:buys:item": {"edges": edges}},
    }
    convert(tmp_path / "graph", schema=schema)
    given = {"fanouts": [2], "batch_size": 2, "cpu_cache": "10%"}
    found = estimate(tmp_path / "graph", tmp_path / "packed", **given)
    assert (found.settings[0].row_sets, found.rows_per_minibatch, found.edges_per_minibatch) == ((), 0, 3)
    prepare(tmp_path / "graph", tmp_path / "packed", **given)
    read = (tmp_path / "packed" / "train.bin").stat().st_size
    assert 0 < found.settings[0].read_bytes <= read


def test_the_command_shows_each_type(graph, tmp_path):
    arguments = ["prepare", graph.manifest.path, tmp_path / "packed", "--fanouts", "3,2", "--batch-size", "8",
                 "--cpu-cache", "500B", "--temporal", "ignore", "--estimate"]  # fmt: skip
    runner = CliRunner()
    told = runner.invoke(main, [str(each) for each in arguments])
    assert told.exit_code == 0, told.output
    document = json.loads(runner.invoke(main, [str(each) for each in (*arguments, "--json")]).stdout)
    (papers, cites), *_ = (each["row_sets"] for each in document["settings"])
    for each in (papers, cites):
        (line,) = [line for line in told.stdout.splitlines() if line.split()[:1] == [each["name"]]]
        assert f"{each['disk_rows']:,}" in line.split()
    assert document["settings"][0]["disk_rows"] == papers["disk_rows"] + cites["disk_rows"]
    assert {each["feature_dtype"] for each in document["settings"]} == {"float32", "float16", "int8", "int4"}
    assert {each["row_sets"][1]["feature_dtype"] for each in document["settings"]} == {"float32"}  # of edges, as stored
