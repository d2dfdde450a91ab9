"""Statistics of columns of tables, and kinds of columns that are given: against NumPy, and by their refusals."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from hypothesis import given, settings
from hypothesis import strategies as st

import diskgnn
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.formats.column_statistics import QUANTILES, ColumnStatistics
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.importers.tables.order_statistics import Selection, quantile_ranks, quantiles

ROWS = 150_000  # of which no column keeps all numbers in memory
UNTIL = 10**9


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_selection_is_exact(data: Any) -> None:
    """Whatever the order of the numbers, with few or many that are equal, in as few or many pieces."""
    count = data.draw(st.integers(1, 60_000))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    numbers = data.draw(st.sampled_from([
        random.normal(size=count), random.integers(-3, 4, count), np.sort(random.random(count)), np.full(count, 7),
        -np.arange(count), random.integers(-(2**60), 2**60, count),
        np.where(random.random(count) < 0.5, 0.25, random.random(count)),
    ]))  # fmt: skip
    wanted = sorted({*quantile_ranks(count, QUANTILES), *random.integers(0, count, 3).tolist()})
    selection, passes = Selection(1), 0
    while not selection.is_done:
        for start in range(0, count, 7_000):
            selection.add(numbers[start : start + 7_000])
        selection.finish_pass(() if passes else wanted)
        passes += 1
        assert passes < 9
    ordered = np.sort(numbers)
    assert {rank: found.item() for rank, found in selection.found.items()} == {
        rank: ordered[rank].item() for rank in wanted
    }
    np.testing.assert_allclose(
        quantiles(selection.found, count, QUANTILES), np.quantile(numbers, QUANTILES), rtol=1e-14
    )


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    random = np.random.default_rng(4)
    null = random.random(ROWS) < 0.1
    floats = np.where(random.random(ROWS) < 0.01, np.inf, random.lognormal(0, 3, ROWS))
    users = pa.table({
        "id": np.arange(ROWS), "since": random.integers(0, 2 * UNTIL, ROWS).astype("datetime64[s]"),
        "whole": pa.array(random.integers(-(10**12), 10**12, ROWS), mask=null), "few": random.integers(0, 3, ROWS),
        "number": pa.array(floats, mask=null), "none": pa.array([None] * ROWS, pa.float64()),
        "seen": pa.array(random.integers(-(10**15), 10**15, ROWS), pa.timestamp("us"), mask=null),
        "paid": pa.array(random.random(ROWS) < 0.3, mask=null), "plan": random.choice(["a", "b", "c"], ROWS),
    })  # fmt: skip
    orders = pa.table({"user": random.integers(0, ROWS, 500)})
    return {"users": users, "orders": orders}


def source(tables: dict[str, pa.Table], kinds: Any = None) -> RelationalSource:
    keyed = {
        "users": SimpleNamespace(df=tables["users"], pkey_col="id", fkey_col_to_pkey_table={}, time_col="since"),
        "orders": SimpleNamespace(
            df=tables["orders"], pkey_col=None, fkey_col_to_pkey_table={"user": "users"}, time_col=None
        ),
    }
    return RelationalSource.of(SimpleNamespace(table_dict=keyed), kinds=kinds)


@pytest.mark.parametrize("known", ["validation", "all"])
def test_statistics_are_those_of_known_rows(tables: dict[str, pa.Table], tmp_path: Path, known: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of infinite numbers, and of times later than the row
        diskgnn.convert(tmp_path / "graph", source=source(tables), options={
            "keep_columns": True, "statistics": known, "val_timestamp": UNTIL})  # fmt: skip
    users = tables["users"]
    is_known = np.asarray(users["since"].cast(pa.int64())) <= (UNTIL if known == "validation" else 2 * UNTIL)
    found = {each.name: each for each in Graph.open(tmp_path / "graph").nodes["users"].config.statistics or ()}
    assert {*found} == {"whole", "few", "number", "none", "seen", "paid"}
    for name in ("whole", "few", "number"):
        numbers = users[name].filter(pa.array(is_known)).drop_null().to_numpy()
        numbers = numbers[np.isfinite(numbers)]
        assert found[name].quantiles == pytest.approx(np.quantile(numbers, QUANTILES), rel=1e-12)
        assert found[name].mean == pytest.approx(numbers.mean(), rel=1e-9)
        assert found[name].deviation == pytest.approx(numbers.std(), rel=1e-9)
    seen = np.sort(users["seen"].filter(pa.array(is_known)).drop_null().cast(pa.int64()).to_numpy())
    assert found["seen"].times == (seen[0], seen[len(seen) // 2], seen[-1])
    paid = users["paid"].filter(pa.array(is_known)).drop_null().to_numpy(zero_copy_only=False)
    assert found["paid"].truths == (len(paid) - paid.sum(), paid.sum())
    assert found["none"] == ColumnStatistics("none")


def shop(folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(pa.table({
        "id": ["x", "y", "z"], "since": pa.array([1, 2, 3], pa.timestamp("s")), "age": [3, None, 5],
        "vip": [True, False, True], "bio": ["a b", "c", "d"], "tags": [["a", "b", "a"], [], None],
    }), folder / "users.parquet")  # fmt: skip
    pq.write_table(pa.table({"user": ["x", "x", "z"], "code": [7, 7, 8]}), folder / "orders.parquet")
    (folder / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: id, time: since}\n"
        "  orders: {file: orders.parquet, fkeys: {user: users}}\n"
    )
    return folder


def kinds_file(folder: Path, kinds: Any) -> Path:
    path = folder / "stypes.json"
    path.write_text(kinds if isinstance(kinds, str) else json.dumps(kinds))
    return path


KINDS = {
    "users": {"id": "numerical", "since": "timestamp", "age": "numerical", "vip": "categorical",
              "bio": "text_embedded", "tags": "multicategorical"},
    "orders": {"code": "categorical"},
}  # fmt: skip


def test_kinds_of_a_file(tmp_path: Path) -> None:
    """As RelBench writes stypes.json: keys are named, and are no columns, and times may be."""
    folder = shop(tmp_path / "shop")
    command = ["convert", tmp_path / "graph", "--from", "relational", folder, "--set", "keep_columns=true",
               "--set", f"kinds={kinds_file(tmp_path, KINDS)}", "--encode", "users.bio=hash:8"]  # fmt: skip
    run(*command)
    graph = Graph.open(tmp_path / "graph")
    kinds = {name: {field.name: field.kind for field in nodes.config.rows.fields}
             for name, nodes in graph.nodes.items()}  # fmt: skip
    assert kinds == {
        "users": {"since": "timestamp", "age": "numerical", "vip": "categorical", "tags": "multicategorical",
                  "bio": "embedding"},
        "orders": {"code": "categorical"},
    }  # fmt: skip
    users, orders = (graph.nodes[name].categories().to_pylist() for name in ("users", "orders"))
    assert [(each["column"], each["value"], each["count"]) for each in users] == [
        ("vip", "true", 2), ("vip", "false", 1), ("tags", "a", 1), ("tags", "b", 1)
    ]  # fmt: skip
    assert [(each["value"], each["count"]) for each in orders] == [("7", 2), ("8", 1)]
    np.testing.assert_array_equal(graph.nodes["users"].features["tags"], [[0, 1], [-1, -1], [-1, -1]])
    inspected = run("inspect", tmp_path / "graph").output
    assert all(name in inspected for name in ("multicategorical", "since", "tags"))


@pytest.mark.parametrize(
    ("kinds", "error", "told"),
    [
        ("{", ConfigError, "kinds: expected JSON"),
        ("[]", ConfigError, "expected {table: {column: stype}}"),
        ({"users": {}}, ConfigError, "expected the columns of all tables, found none of orders"),
        ({"users": {}, "orders": {}, "shops": {}}, ConfigError, "expected tables of users, orders, found 'shops'"),
        ({"users": {"height": "numerical"}, "orders": {}}, ConfigError, "found 'height'"),
        ({"users": {"age": "number"}, "orders": {}}, ConfigError, "users.age: expected one of numerical, .*'number'"),
        ({"users": {"bio": "text_embedded"}, "orders": {}}, ConfigError, "text_embedded of users.bio: say how .*hash:"),
        ({"users": {"bio": "text_tokenized"}, "orders": {}}, ConfigError, "cannot have text_tokenized of users.bio"),
        ({"users": {}, "orders": {"code": "timestamp"}}, InputError, "orders.code: expected timestamps.*int64"),
        ({"users": {"bio": "multicategorical"}, "orders": {}}, InputError, "bio: expected lists of values of a categ"),
    ],
)
def test_kinds_that_cannot_be(tmp_path: Path, kinds: Any, error: type[Exception], told: str) -> None:
    folder, options = shop(tmp_path / "shop"), {"keep_columns": True, "kinds": str(kinds_file(tmp_path, kinds))}
    with pytest.raises(error, match=told):
        diskgnn.convert(tmp_path / "graph", source=folder, options=options)
    assert not (tmp_path / "graph").exists()


def test_kinds_and_statistics_need_what_they_are_of(tmp_path: Path) -> None:
    folder, file = shop(tmp_path / "shop"), str(kinds_file(tmp_path, KINDS))
    with pytest.raises(ConfigError, match="kinds: expected rows that keep their columns"):
        diskgnn.convert(tmp_path / "graph", source=folder, options={"kinds": file, "keep_columns": False})
    with pytest.raises(ConfigError, match="statistics: expected validation or all, found 'some'"):
        diskgnn.convert(tmp_path / "graph", source=folder, options={"statistics": "some"})
    with pytest.raises(InputError, match="expected a JSON file"):
        diskgnn.convert(tmp_path / "graph", source=folder, options={"kinds": f"{file}x"})
    # What is excluded needs no embedder.
    diskgnn.convert(tmp_path / "graph", source=folder, options={"keep_columns": True, "kinds": file},
                    exclude=["users.bio"])  # fmt: skip
    assert "bio" not in Graph.open(tmp_path / "graph").nodes["users"].features.dtype.names


def test_tables_without_rows_are_left_out(tmp_path: Path) -> None:
    tables = {"users": pa.table({"id": [1, 2]}), "orders": pa.table({"user": [2, 1], "shop": [5, 5]}),
              "shops": pa.table({"id": pa.array([], pa.int64()), "town": pa.array([], pa.string())})}  # fmt: skip
    keyed = {
        "users": SimpleNamespace(df=tables["users"], pkey_col="id", fkey_col_to_pkey_table={}, time_col=None),
        "orders": SimpleNamespace(df=tables["orders"], pkey_col=None, time_col=None,
                                  fkey_col_to_pkey_table={"user": "users", "shop": "shops"}),
        "shops": SimpleNamespace(df=tables["shops"], pkey_col="id", fkey_col_to_pkey_table={}, time_col=None),
    }  # fmt: skip
    with pytest.warns(DataWarning, match="table of shops .it has no rows.*shop of orders .table shops has no rows"):
        diskgnn.convert(tmp_path / "graph", source=RelationalSource.of(SimpleNamespace(table_dict=keyed)),
                        columns=TableColumns(), options={"keep_columns": True})  # fmt: skip
    assert {*Graph.open(tmp_path / "graph").nodes} == {"users", "orders"}
    keyed["orders"].fkey_col_to_pkey_table = {"shop": "shops"}
    with pytest.raises(ConfigError, match="foreign keys between tables that have rows"):
        diskgnn.convert(tmp_path / "none", source=RelationalSource.of(SimpleNamespace(table_dict=keyed)))


def test_a_column_of_several_types_is_named(tmp_path: Path) -> None:
    users = pd.DataFrame({"id": [0, 1, 2], "code": [1, "a", None]})
    keyed = {"users": SimpleNamespace(df=users, pkey_col="id", fkey_col_to_pkey_table={}, time_col=None)}
    with pytest.raises(InputError, match=r"users: .* one type each, found int and str in column 'code': make them one"):
        diskgnn.convert(tmp_path / "graph", source=RelationalSource.of(SimpleNamespace(table_dict=keyed)))


def test_numbers_beyond_what_squares_can_be_have_no_deviation(tmp_path: Path) -> None:
    tables = {"users": pa.table({"id": [1, 2, 3], "worth": [1.0, 1e300, 2.0]}), "orders": pa.table({"user": [2, 1]})}
    keyed = {
        "users": SimpleNamespace(df=tables["users"], pkey_col="id", fkey_col_to_pkey_table={}, time_col=None),
        "orders": SimpleNamespace(df=tables["orders"], pkey_col=None, fkey_col_to_pkey_table={"user": "users"},
                                  time_col=None),
    }  # fmt: skip
    with pytest.warns(DataWarning, match="found 1e.300"):
        diskgnn.convert(tmp_path / "graph", source=RelationalSource.of(SimpleNamespace(table_dict=keyed)),
                        options={"keep_columns": True})  # fmt: skip
    found = {field.name: field for field in Graph.open(tmp_path / "graph").nodes["users"].config.statistics or ()}
    assert found["worth"].mean == np.mean([1.0, 1e300, 2.0])
    assert found["worth"].deviation is None
