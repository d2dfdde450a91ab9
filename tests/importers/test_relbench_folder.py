"""A folder as RelBench 3 lays it out becomes the graph of its database, as counted by hand.

RelBench 3's own reader reads the same folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from commands import run
from relbench3 import called
from table_features import x_of

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph

DAY = 86_400
VALID, TEST = 18266 * DAY, 18270 * DAY  # 5 and 9 January 2020


def days(*numbers: int | None) -> pa.Array:
    """Days of January 2020."""
    texts = [None if number is None else f"2020-01-{number:02}" for number in numbers]
    return pa.array(texts).cast(pa.timestamp("us"))


TABLES = {
    "drivers": pa.table({"driverId": [0, 1, 2], "born": [1950, 1970, 1990], "code": ["HAM", "ALO", "HAM"]}),
    "races": pa.table({"raceId": [0, 1, 2, 3], "date": days(1, 5, 9, 12), "round": [1.0, 3.0, 5.0, 7.0]}),
    # The last result is of a race after test_timestamp, the one before it of no driver.
    "results": pa.table({
        "raceId": [0, 0, 1, 2, 3], "driverId": pa.array([0, 1, 2, None, 0]), "date": days(1, 1, 5, 9, 12),
        "points": [25.0, 18.0, 10.0, 4.0, 1.0], "status": [0, 1, 0, 1, 0],
    }),
}  # fmt: skip
MANIFEST: dict[str, Any] = {
    "name": "races", "manifest_version": 1, "description": "a test",
    "val_timestamp": "2020-01-05", "test_timestamp": "2020-01-09",
    "tables": {
        "drivers": {"pkey": "driverId", "time_col": None, "fkeys": {}},
        "races": {"pkey": "raceId", "time_col": "date", "fkeys": {}},
        "results": {"pkey": None, "time_col": "date", "fkeys": {"raceId": "races", "driverId": "drivers"}},
    },
}  # fmt: skip
DNF: dict[str, Any] = {
    "name": "driver-dnf", "kind": "forecast", "task_type": "binary_classification", "entity_table": "drivers",
    "entity_col": "driverId", "target_col": "did_not_finish", "time_col": "date", "timedelta": "2 days",
    "sql": "SELECT", "manifest_version": 1, "remove_columns": [["results", "status"]],
}  # fmt: skip
POINTS: dict[str, Any] = {"name": "results-points", "kind": "autocomplete", "task_type": "regression",
                          "entity_table": "results", "target_col": "points", "manifest_version": 1}  # fmt: skip
RANKED: dict[str, Any] = {
    "name": "driver-race", "kind": "forecast", "task_type": "recommendation", "src_entity_table": "drivers",
    "src_entity_col": "driverId", "dst_entity_table": "races", "dst_entity_col": "raceId", "eval_k": 3,
    "time_col": "date", "timedelta": "2 days", "sql": "SELECT", "manifest_version": 1,
}  # fmt: skip


def dnf(entities: list[int], dates: pa.Array, labels: list[int] | None) -> pa.Table:
    columns = {"date": dates, "driverId": pa.array(entities)}
    return pa.table(columns if labels is None else {**columns, "did_not_finish": pa.array(labels)})


def write_task(folder: Path, manifest: dict[str, Any], **splits: pa.Table) -> None:
    path = folder / "tasks" / manifest["name"]
    path.mkdir(parents=True)
    (path / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False))
    for split, table in splits.items():
        pq.write_table(table, path / f"{split}.parquet")


def folder(tmp_path: Path, *, masked: bool = False) -> Path:
    path = tmp_path / "races"
    (path / "db").mkdir(parents=True)
    for name, table in TABLES.items():
        pq.write_table(table, path / "db" / f"{name}.parquet")
    (path / "manifest.yaml").write_text(yaml.safe_dump(MANIFEST, sort_keys=False))
    write_task(
        path, DNF,
        train=dnf([0, 1, 0], days(1, 1, 3), [0, 1, 1]),
        val=dnf([2, 1], days(5, 5), [1, 0]),
        test=dnf([0, 2], days(9, 9), None if masked else [1, 0]),
    )  # fmt: skip
    return path


def pairs(graph: Graph, *edge_type: str) -> list[tuple[int, int]]:
    edges = graph.edges[edge_type]  # type: ignore[index]
    heads = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return sorted(zip(edges.indices.tolist(), heads.tolist(), strict=True))


@pytest.mark.parametrize("name", ["auto", "relational"])
def test_a_folder_by_hand(tmp_path: Path, name: str) -> None:
    with pytest.warns(DataWarning, match=r"status of results \(the labels of task driver-dnf are made of it"):
        report = diskgnn.convert(tmp_path / "graph", source=folder(tmp_path), format=name)
    graph = Graph.open(tmp_path / "graph")
    races, results, task = (graph.nodes[name] for name in ("races", "results", "driver-dnf"))
    # Rows up to 9 January, scaled by those up to the 5th: rounds 1 and 3, points 25, 18 and 10.
    assert x_of(races).tolist() == [[-1], [1], [3]]
    scaled = (np.array([25, 18, 10, 4]) - np.mean([25, 18, 10])) / np.std([25, 18, 10])
    np.testing.assert_allclose(x_of(results)[:, 0], scaled, rtol=1e-6)
    assert results.num_nodes == 4
    assert results.times is not None
    assert results.times.tolist() == [18262 * DAY, 18262 * DAY, VALID, TEST]
    assert pairs(graph, "results", "f2p_raceId", "races") == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert pairs(graph, "results", "f2p_driverId", "drivers") == [(0, 0), (1, 1), (2, 2)]
    assert pairs(graph, "drivers", "rev_f2p_driverId", "driver-dnf") == [
        (0, 0), (0, 2), (0, 5), (1, 1), (1, 4), (2, 3), (2, 6),
    ]  # fmt: skip
    assert task.labels is not None
    assert task.labels.tolist() == [0, 1, 1, 1, 0, 1, 0]
    assert task.times is not None
    assert task.times[-1] == TEST
    found = {split: ids.tolist() for split, ids in task.splits.items()}
    assert found == {"train": [0, 1, 2], "valid": [3, 4], "test": [5, 6]}
    left_out = {(item.of, item.name): item for item in report.contents.left_out}
    assert left_out["results", "rows"].reason == "1 of 5 are later than 2020-01-09, or have no time"
    assert left_out["races", "rows"].expected


def test_rows_up_to_another_time_and_no_tasks(tmp_path: Path) -> None:
    path = folder(tmp_path)
    run("convert", tmp_path / "all", "--from", "relational", path, "--set", "until=none", "--set", "tasks=none")
    everything = Graph.open(tmp_path / "all")
    assert everything.nodes["results"].num_nodes == 5
    assert [*everything.nodes] == ["drivers", "races", "results"]
    assert x_of(everything.nodes["results"]).shape[1] == 2  # no task hides the status
    run("convert", tmp_path / "few", "--from", "relational", path, "--set", "until=2020-01-01", "--set", "tasks=none")
    assert Graph.open(tmp_path / "few").nodes["results"].num_nodes == 2
    refused = run("convert", tmp_path / "no", "--from", "relational", path, "--set", "until=soon", exit_code=2)
    assert "until: expected a whole number" in refused.stderr


def test_tasks_are_read_by_name_or_left_out_with_the_reason(tmp_path: Path) -> None:
    path = folder(tmp_path)
    write_task(path, RANKED)
    labels = pa.table({"date": days(1, 1, 5), "primary_key": [0, 1, 2], "points": [25.0, 18.0, 10.0]})
    write_task(path, POINTS, train=labels.slice(0, 2), val=labels.slice(2))
    write_task(path, {**DNF, "name": "later"})
    with pytest.warns(DataWarning) as warned:
        diskgnn.convert(tmp_path / "graph", source=path)
    said = " ".join(str(warning.message) for warning in warned)
    assert "task of driver-race (recommendation has no single label for each row" in said
    assert "task of later (there is no train.parquet" in said
    graph = Graph.open(tmp_path / "graph")
    # results has no primary key: its rows are named by number, and what is predicted is no feature.
    assert pairs(graph, "results", "rev_f2p_primary_key", "results-points") == [(0, 0), (1, 1), (2, 2)]
    assert x_of(graph.nodes["results"]).tolist() == [[1]] * 4
    assert graph.nodes["results-points"].labels.tolist() == [25, 18, 10]
    with pytest.warns(DataWarning, match="points of results"):
        diskgnn.convert(tmp_path / "one", source=path, options={"tasks": "results-points"})
    assert "driver-dnf" not in Graph.open(tmp_path / "one").nodes
    for name, message in (("later", "tasks: later cannot be read: there is no train"), ("x", "found 'x'")):
        with pytest.raises(ConfigError, match=message):
            diskgnn.convert(tmp_path / "none", source=path, options={"tasks": name})


def test_a_test_table_without_labels(tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="test of driver-dnf .its table has no column 'did_not_finish': its rows are"):
        diskgnn.convert(tmp_path / "graph", source=folder(tmp_path, masked=True))
    task = Graph.open(tmp_path / "graph").nodes["driver-dnf"]
    assert task.labels.tolist() == [0, 1, 1, 1, 0, -1, -1]
    assert {*task.splits} == {"train", "valid"}


@pytest.mark.parametrize("kind", ["binary_classification", "regression"])
def test_seeds_without_labels_are_predicted_and_not_evaluated(tmp_path: Path, kind: str) -> None:
    path = folder(tmp_path, masked=True)
    manifest = path / "tasks" / "driver-dnf" / "manifest.yaml"
    manifest.write_text(yaml.safe_dump({**DNF, "task_type": kind}))
    run("convert", tmp_path / "graph", "--from", "relational", path)
    (tmp_path / "rows.csv").write_text("id\n5\n6\n")  # of the test table, behind three rows of train and two of valid
    drawn = [
        "--target",
        "driver-dnf",
        "--temporal",
        "last",
        "--fanouts",
        "1,2",
        "--batch-size",
        "4",
        "--cpu-cache",
        "1MiB",
    ]
    run("prepare", tmp_path / "graph", tmp_path / "packed", *drawn)
    run("prepare", tmp_path / "graph", tmp_path / "masked", *drawn, "--target-seeds", f"test={tmp_path / 'rows.csv'}")
    run("train", tmp_path / "packed", "--checkpoint", tmp_path / "run", "--epochs", "1", "--model", "rgcn")
    refused = run("evaluate", tmp_path / "masked", "--checkpoint", tmp_path / "run", exit_code=2)
    assert "expected a label of every seed, found none of 2 of 2" in " ".join(refused.stderr.split())
    run("predict", tmp_path / "masked", "--checkpoint", tmp_path / "run", "--out", tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet")["node"].to_pylist() == [5, 6]


def test_refusals(tmp_path: Path) -> None:
    path = folder(tmp_path)
    (path / "db" / "drivers.parquet").unlink()
    with pytest.raises(InputError, match=r"table drivers .*drivers\.parquet"):
        diskgnn.convert(tmp_path / "graph", source=path)
    pq.write_table(TABLES["drivers"].drop_columns(["driverId"]), path / "db" / "drivers.parquet")
    with pytest.raises(InputError, match="expected a column 'driverId'"):
        diskgnn.convert(tmp_path / "graph", source=path)
    manifest = {**MANIFEST, "tables": {**MANIFEST["tables"], "drivers": {"primary": "driverId"}}}
    (path / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    with pytest.raises(ConfigError, match="expected the keys pkey, time_col, fkeys; found 'primary'"):
        diskgnn.convert(tmp_path / "graph", source=path)


def test_equals_what_relbench_reads(tmp_path: Path) -> None:
    """RelBench's own reader, of 3.0.2, reads the same folder."""
    path = folder(tmp_path)
    tables, frames = called("tables_of", path, "driver-dnf")
    with pytest.warns(DataWarning):
        diskgnn.convert(tmp_path / "graph", source=path)
    graph = Graph.open(tmp_path / "graph")
    for name, (table, fkeys) in tables.items():
        assert graph.nodes[name].num_nodes == len(table)
        for column, other in fkeys.items():
            known = table[column].notna().to_numpy()
            expected = zip(np.flatnonzero(known).tolist(), table[column][known].astype(int).tolist(), strict=True)
            assert pairs(graph, name, f"f2p_{column}", other) == sorted(expected)
    expected_labels = np.concatenate([frame["did_not_finish"] for frame in frames])
    assert graph.nodes["driver-dnf"].labels.tolist() == expected_labels.tolist()
    called("convert_database", path, tmp_path / "memory", {"val_timestamp": "2020-01-05"})
    in_memory = Graph.open(tmp_path / "memory")
    np.testing.assert_array_equal(in_memory.nodes["races"].features, graph.nodes["races"].features)
