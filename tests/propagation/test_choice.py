"""Both estimates compare sampling with propagating, where there is a choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner
from propagated_graphs import convert, random_graph
from typed_batches import TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.cli import main


def run(*words: object, as_json: bool = True) -> Any:
    result = CliRunner().invoke(main, [*map(str, words), *["--json"] * as_json])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if as_json else result.output


def test_what_each_way_takes_is_what_was_estimated_and_is_written(tmp_path: Path) -> None:
    graph = convert(random_graph(4), tmp_path / "graph")
    prepared = run("prepare", graph, tmp_path / "packed", "--fanouts", "3,3", "--batch-size", 16, "--estimate")
    propagated = run("propagate", graph, tmp_path / "hops", "--hops", 2, "--operators", "mean,gcn", "--estimate")
    diskgnn.propagate(graph, tmp_path / "hops", hops=2, operators="mean,gcn", progress=False)
    sampled, one = prepared["ways"]
    assert (sampled["name"], one["name"]) == ("sample 3,3", "2 hops of mean")
    assert sampled["once_bytes"] == prepared["settings"][0]["packed_bytes"]
    assert sampled["epoch_bytes"] == prepared["settings"][0]["read_bytes"]
    deeper, two = propagated["ways"]
    assert (deeper["name"], two["name"]) == ("sample 10,10", "2 hops of mean, gcn")
    records = np.load(tmp_path / "hops" / "records-train.npy")
    assert two["epoch_bytes"] == propagated["epoch_bytes"] == records.nbytes
    assert one["epoch_bytes"] == records.nbytes * 3 // 5  # x and two hops, of x and four
    assert abs(two["once_bytes"] - sum(file.stat().st_size for file in (tmp_path / "hops").iterdir())) < 16 << 10
    assert all(way["once_seconds"] > 0 for way in (sampled, one, deeper, two))
    told = run("prepare", graph, tmp_path / "packed", "--fanouts", "3,3", "--estimate", as_json=False)
    assert "to sample or to propagate" in told
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("graph", "hops")] == []


def test_there_is_no_choice_where_neighbourhoods_cannot_be_averaged(tmp_path: Path) -> None:
    write_typed_graph(tmp_path / "typed", TypedGraph(), "class")
    told = run("prepare", tmp_path / "typed", tmp_path / "packed", "--fanouts", "2", "--target", "paper", "--estimate")
    assert told["ways"] == []
    given = random_graph(4)
    nodes = {"features": given.features.astype(np.float32), "labels": np.zeros(500, np.int64), **given.seeds}
    edges = {"edges": given.edges, "times": np.arange(given.edges.shape[1])}
    schema = {"nodes": {"node": nodes}, "edges": {"node:to:node": edges}}
    diskgnn.convert(tmp_path / "timed", schema=schema, progress=False)
    sampling = ["--fanouts", "2", "--temporal", "ignore", "--estimate"]
    assert run("prepare", tmp_path / "timed", tmp_path / "packed", *sampling)["ways"] == []
    found = run("propagate", tmp_path / "timed", tmp_path / "hops", "--hops", 1, "--ignore-times", "--estimate")
    assert len(found["ways"]) == 2
    graph = convert(given, tmp_path / "graph")
    assert run("propagate", graph, tmp_path / "hops", "--hops", 1, "--nodes", "all", "--estimate")["ways"] == []
