"""Tables that keep their columns, from conversion to minibatches: against pyarrow, NumPy, and their vectors."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from forging import write_manifest
from hypothesis import given, settings
from hypothesis import strategies as st
from least_budgets import with_least

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.cli import main
from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.record_format import NULLS
from diskgnn.formats.verification import find_damage
from diskgnn.graph.artifact_description import describe
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.importers.tables.frames import FrameTable, JoinedTables
from diskgnn.importers.tables.record_encoding import RecordEncoding
from diskgnn.preparing.repair import repair
from diskgnn.system.resources import Resources, SmallBudgetError

USERS, ORDERS = 800, 9000
TAGS = np.array(["red", "green", "blue", "grün"])
UNTIL = 1_600_000_000  # of statistics, by the times of users


def nullable(random: np.random.Generator, values: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind, mask=random.random(len(values)) < 0.1)


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    """Columns of every kind, with nulls, NaN, numbers beyond float32 and float64, and times before 1970."""
    random = np.random.default_rng(0)
    big = random.integers(-(2**62), 2**62, USERS)
    money = np.where(random.random(USERS) < 0.05, np.nan, random.normal(50, 20, USERS))
    cities = np.array([f"city {number}" for number in range(60)])  # more than have features
    users = pa.table(
        [
            pa.array(np.arange(USERS) * 3 + 7), pa.array(random.integers(UNTIL - 10**8, UNTIL + 10**8, USERS)),
            nullable(random, big), nullable(random, money), nullable(random, money.astype(np.float32)),
            nullable(random, random.integers(-(10**15), 10**15, USERS), pa.timestamp("us")),
            pa.array(random.integers(-(10**17), 10**17, USERS), pa.timestamp("ns")),
            nullable(random, random.random(USERS) < 0.3), nullable(random, np.array(["a", "b", "c"])[
                random.choice(3, USERS, p=[0.1, 0.7, 0.2])]),
            nullable(random, cities[(60 * random.random(USERS) ** 2).astype(int)]),
            nullable(random, list(random.normal(size=(USERS, 5)).astype(np.float32)), pa.list_(pa.float32())),
            pa.array(list(random.integers(-128, 128, (USERS, 3)).astype(np.int8)), pa.list_(pa.int8(), 3)),
            nullable(random, [f"text {number}" for number in range(USERS)]),
            pa.array(random.integers(0, 9, USERS), pa.int16()), pa.array([None] * USERS, pa.float64()),
            nullable(random, [f"likes {number} and Äpfel" for number in range(USERS)]),
            nullable(random, [list(random.choice(TAGS, random.integers(0, 5))) for _ in range(USERS)],
                     pa.list_(pa.string())),
        ],
        schema=pa.schema([
            ("id", pa.int64()), ("since", pa.int64()), ("big", pa.int64()), ("money", pa.float64()),
            ("small money", pa.float32()), ("seen", pa.timestamp("us")), ("born", pa.timestamp("ns")),
            ("paid", pa.bool_()), ("plan", pa.string()), ("city", pa.string()), ("face", pa.list_(pa.float32())),
            ("codes", pa.list_(pa.int8(), 3)), ("about", pa.string()),
            pa.field("visits", pa.int16(), nullable=False), ("nothing", pa.float64()), ("bio", pa.string()),
            ("tags", pa.list_(pa.string())),
        ]),
    )  # fmt: skip
    orders = pa.table({
        "user": random.integers(0, USERS, ORDERS) * 3 + 7, "at": random.integers(UNTIL - 10**8, UNTIL, ORDERS),
        "price": random.random(ORDERS), "item": [f"item {number}" for number in random.integers(0, 300, ORDERS)],
    })  # fmt: skip
    links = pa.table({"user": random.integers(0, USERS, 500) * 3 + 7, "friend": random.integers(0, USERS, 500) * 3 + 7})
    labels = pa.table({"user": random.integers(0, USERS, 700) * 3 + 7, "day": np.full(700, UNTIL + 10**7),
                       "left": random.random(700) < 0.4})  # fmt: skip
    return {"users": users, "orders": orders, "links": links, "train": labels}


def source(tables: dict[str, pa.Table]) -> RelationalSource:
    def keyed(name: str, fkeys: dict[str, str], pkey: str | None = None, time: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(df=tables[name], pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=time)

    database = {
        "users": keyed("users", {}, "id", "since"),
        "orders": keyed("orders", {"user": "users"}, None, "at"),
        "links": keyed("links", {"user": "users", "friend": "users"}),
    }
    task = {"train": keyed("train", {"user": "users"}, None, "day"), "label": "left"}
    return RelationalSource.of(SimpleNamespace(table_dict=database), {"churn": task})


OPTIONS = {"val_timestamp": UNTIL}
EMBEDDED = TableColumns(encode={"users.bio": "hash:16"})


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, pa.Table]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("records")
    found = {"records": folder / "records", "vectors": folder / "vectors"}
    for name, path in found.items():
        diskgnn.convert(path, source=source(tables), options={**OPTIONS, "keep_columns": name == "records"},
                        columns=EMBEDDED)  # fmt: skip
    return found


def test_files_are_arrays_of_records(graphs: dict[str, Path], tables: dict[str, pa.Table]) -> None:
    """NumPy reads the columns by name, without diskgnn."""
    users, rows = tables["users"], np.load(graphs["records"] / "features-users.npy", mmap_mode="r")
    assert rows.shape == (USERS,)
    assert rows.dtype.itemsize % 4 == 0
    known = users["big"].is_valid().to_numpy()
    np.testing.assert_array_equal(rows["big"][known], users["big"].drop_null().to_numpy())
    assert (rows["big"][~known] == np.iinfo(np.int64).min).all()
    np.testing.assert_array_equal(rows["visits"], users["visits"].to_numpy())
    np.testing.assert_array_equal(rows["small money"], users["small money"].to_numpy(zero_copy_only=False))
    np.testing.assert_array_equal(rows["codes"], np.array(users["codes"].to_pylist()))
    manifest = json.loads((graphs["records"] / "manifest.json").read_text())
    assert manifest["version"] == 6
    assert json.loads((graphs["vectors"] / "manifest.json").read_text())["version"] == 5


def test_categories_are_counted_in_known_rows(graphs: dict[str, Path], tables: dict[str, pa.Table]) -> None:
    """As `Counter` counts them: the most frequent first, of equal ones that which comes first."""
    users = tables["users"].filter(pc.less_equal(tables["users"]["since"], UNTIL))
    found = Graph.open(graphs["records"]).nodes["users"].categories()
    assert of_graph_constants(graphs["records"]) == {"links", "churn"}
    for name in ("plan", "city", "tags"):
        listed = users[name].drop_null().to_pylist()
        listed = [tag for each in listed for tag in dict.fromkeys(each)] if name == "tags" else listed
        counts = Counter(listed).most_common()
        of_column = found.filter(pc.equal(found["column"], name))
        assert list(zip(of_column["value"].to_pylist(), of_column["count"].to_pylist(), strict=True)) == counts
    assert {*found["column"].to_pylist()} == {"plan", "city", "tags"}
    left_out = {each.name: each.reason for each in Graph.open(graphs["records"]).config.contents.left_out}
    assert "text or ids" in left_out["about"]


def expected_columns(tables: dict[str, pa.Table], graph: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of users, by pyarrow and NumPy: values where they are not null, and where they are."""
    users, categories = tables["users"], Graph.open(graph).nodes["users"].categories()
    values: dict[str, np.ndarray] = {}
    for name in ("big", "visits"):
        values[name] = users[name].fill_null(0).to_numpy().astype(np.int64)
    for name in ("money", "small money", "nothing"):
        values[name] = users[name].to_numpy(zero_copy_only=False).astype(np.float32)
    values["seen"] = users["seen"].cast(pa.int64()).fill_null(0).to_numpy()
    values["born"] = users["born"].to_numpy().astype("datetime64[us]").astype(np.int64)
    values["paid"] = users["paid"].cast(pa.int32()).fill_null(-1).to_numpy()
    for name in ("plan", "city"):
        known = categories.filter(pc.equal(categories["column"], name))["value"].to_pylist()
        codes = {value: code for code, value in enumerate(known)}
        values[name] = np.array([codes.get(value, -1) for value in users[name].to_pylist()], np.int32)
    known = categories.filter(pc.equal(categories["column"], "tags"))["value"].to_pylist()
    tags = [[known.index(tag) for tag in dict.fromkeys(each or [])] for each in users["tags"].to_pylist()]
    values["tags"] = np.array([[*each, *[-1] * (4 - len(each))] for each in tags], np.int32)
    values["face"] = np.array([each or [0] * 5 for each in users["face"].to_pylist()], np.float32)
    values["codes"] = np.array(users["codes"].to_pylist(), np.int8)
    hashed = Graph.open(graph.with_name("vectors")).nodes["users"]
    first = sum(each.width for each in hashed.config.columns[:-1])
    values["bio"] = np.rint(127 * hashed.features[:, first:]).astype(np.int8)
    nulls = {name: users[name].is_null().to_numpy() for name in values if users.schema.field(name).nullable}
    return values, nulls


SAMPLING = {"fanouts": [2, 4, 4], "batch_size": 64, "target": "churn", "cpu_cache": "20%", "static_cache": "5%"}


@pytest.mark.parametrize("temporal", ["last", "ignore"])
def test_minibatches_have_the_columns_of_the_tables(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path, temporal: str
) -> None:
    """Through all tiers, for trees, whose nodes repeat, and without; x is that of the vectors."""
    options = {**SAMPLING, "temporal": temporal, "keep_input_nodes": True}
    diskgnn.prepare(graphs["records"], tmp_path / "packed", **options)
    diskgnn.prepare(graphs["vectors"], tmp_path / "vectors", **options)
    values, nulls = expected_columns(tables, graphs["records"])
    of_graph = {name: Graph.open(path) for name, path in graphs.items()}
    assert json.loads((tmp_path / "packed" / "manifest.json").read_text())["version"] == 4
    num_users = 0
    with (
        diskgnn.Loader(tmp_path / "packed", "train") as loader,
        diskgnn.Loader(tmp_path / "vectors", "train") as vectors,
    ):
        for batch, expected in zip(loader.epoch(0), vectors.epoch(0), strict=True):
            nodes = batch.input_nodes["users"].numpy()
            num_users += len(nodes)
            assert batch.columns["users"].keys() == values.keys()
            for name, found in batch.columns["users"].items():
                wanted = values[name][nodes]
                assert found.numpy().dtype == wanted.dtype, name
                is_null = nulls[name][nodes] if name in nulls else np.zeros(len(nodes), np.bool_)
                np.testing.assert_array_equal(found.numpy()[~is_null], wanted[~is_null], name)
            assert batch.nulls["users"].keys() == nulls.keys()
            for name, found in batch.nulls["users"].items():
                np.testing.assert_array_equal(found.numpy(), nulls[name][nodes], name)
            np.testing.assert_array_equal(batch.times["users"], tables["users"]["since"].to_numpy()[nodes])
            assert expected.times is None
            assert (batch.seed_times is None) == (temporal == "ignore")
            assert {*batch.columns} == {"users", "orders"}
            for name, x in batch.x.items():
                assert_same_features(of_graph, name, x, expected.x[name])
    assert num_users > USERS / 4
    with InMemory(graphs["records"], **{
        name: value for name, value in options.items() if name not in ("cpu_cache", "static_cache", "keep_input_nodes")
    }) as in_memory, diskgnn.Loader(tmp_path / "packed", "train") as loader:  # fmt: skip
        for batch, expected in zip(in_memory.epoch(0), loader.epoch(0), strict=True):
            assert all(torch.equal(x, expected.x[name]) for name, x in batch.x.items())


def assert_same_features(graphs: dict[str, Graph], node_type: str, x: torch.Tensor, vectors: torch.Tensor) -> None:
    """x of records is what vectors are, but for the order of categories, and the rounding of float64 to float32."""
    known, of_vectors = (graphs[name].config.known_columns[node_type] for name in ("records", "vectors"))
    assert {each.name for each in known} == {each.name for each in of_vectors}
    start = 0
    places = {}
    for each in of_vectors:
        places[each.name] = (start, each)
        start += each.width
    first = 0
    for each in known:
        begin, old = places[each.name]
        order = range(each.width) if each.values is None else [old.values.index(value) for value in each.values]
        expected = vectors[:, [begin + place for place in order]]
        found = x[:, first : first + each.width]
        if each.name in ("money", "price"):  # float64 in the table
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        else:
            assert torch.equal(found, expected), each.name
        first += each.width
    assert first == x.shape[1] or (not known and x.shape[1] == 1)


def of_graph_constants(graph: Path) -> set[str]:
    """Tables without columns take no bytes, neither in the graph nor in what is prepared."""
    found = {name for name, nodes in Graph.open(graph).nodes.items() if nodes.config.is_constant}
    assert not [name for name in open_artifact(graph).files for each in found if name == f"features-{each}.npy"]
    return found


def test_constants_are_no_embedding(graphs: dict[str, Path], tmp_path: Path) -> None:
    """They are a 1 wherever x is: in minibatches, in layers of `infer`; models have a weight for it, as of vectors."""
    models, embedded = {}, {}
    for name, graph in graphs.items():
        out = tmp_path / name
        diskgnn.prepare(graph, out, **SAMPLING, temporal="ignore", keep_input_nodes=True)
        diskgnn.train(
            out, model="rgcn", hidden=8, epochs=1, checkpoint=tmp_path / f"{name}-run", seed=1, progress=False
        )
        trained = diskgnn.load_model(tmp_path / f"{name}-run")
        models[name] = {key: tuple(value.shape) for key, value in trained.state_dict().items()}
        embedded[name] = [module for module in trained.modules() if isinstance(module, torch.nn.Embedding)]
    assert models["records"] == models["vectors"]
    assert embedded == {"records": [], "vectors": []}
    packed = open_artifact(tmp_path / "records")
    assert packed.config["constants"] == ["links", "churn"]
    assert {each["node_type"] for each in packed.config["row_sets"]} == {"users", "orders"}


def test_any_type_may_be_a_constant(tmp_path: Path) -> None:
    """Of a described graph, too, in place of vectors that are learned; not beside features."""
    edges = np.random.default_rng(0).integers(0, 20, (2, 90))
    node = {"features": np.ones((20, 2), np.float32), "labels": np.arange(20) % 2, "train": np.arange(20)}
    schema = {"nodes": {"a": node, "b": {"num_nodes": 20, "constant": True}}, "edges": {"b:to:a": {"edges": edges}}}
    diskgnn.convert(tmp_path / "graph", schema=schema)
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[3], cpu_cache=0)
    assert {open_artifact(tmp_path / name).version for name in ("graph", "packed")} == {6, 4}
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch in loader.epoch(0):
            assert torch.equal(batch.x["b"], torch.ones(batch.node_counts[0]["b"], 1))
            assert batch.input_nodes is None
    with pytest.raises(ConfigError, match="node type a: constant: expected no features beside a 1"):
        diskgnn.convert(
            tmp_path / "out", schema={**schema, "nodes": {**schema["nodes"], "a": {**node, "constant": True}}}
        )


def test_models_of_vectors_train_on_tables(graphs: dict[str, Path], tmp_path: Path) -> None:
    """And predict from the graph, where x is computed of the file."""
    diskgnn.prepare(graphs["records"], tmp_path / "packed", **SAMPLING, temporal="ignore")
    diskgnn.train(tmp_path / "packed", model="rgcn", hidden=8, epochs=1, checkpoint=tmp_path / "run", progress=False)
    diskgnn.predict(graphs["records"], tmp_path / "scores.npy", tmp_path / "run", nodes=np.arange(20), progress=False)
    diskgnn.infer(graphs["records"], tmp_path / "all.npy", tmp_path / "run", progress=False)
    np.testing.assert_allclose(
        np.load(tmp_path / "scores.npy"), np.load(tmp_path / "all.npy")[:20], rtol=1e-4, atol=1e-4
    )


def test_the_bytes_do_not_follow_memory(tables: dict[str, pa.Table], tmp_path: Path) -> None:
    def convert(memory: Any, threads: int | None = None) -> None:
        diskgnn.convert(tmp_path / "least", source=source(tables), memory=memory,
                        options={**OPTIONS, "keep_columns": True}, overwrite=True)  # fmt: skip

    diskgnn.convert(tmp_path / "plenty", source=source(tables), options={**OPTIONS, "keep_columns": True})
    with_least(convert, 64 << 10)
    files = [json.loads((tmp_path / name / "manifest.json").read_text())["files"] for name in ("least", "plenty")]
    assert files[0] == files[1]


def test_values_of_categories_count_in_memory(tmp_path: Path) -> None:
    """They are kept while a graph is made: what does not fit is refused before it is taken, be they found or those of
    another graph."""
    rows = 40_000
    columns = {f"column{number}": [f"{value:040d} of {number}" for value in range(rows)] for number in range(5)}
    pq.write_table(pa.table({"id": np.arange(rows), **columns}), tmp_path / "users.parquet", row_group_size=10_000)
    pq.write_table(pa.table({"user": [3, 4]}), tmp_path / "sales.parquet")
    encodings = ", ".join(f"{name}: category" for name in columns)
    (tmp_path / "relational.yaml").write_text(
        f"tables:\n  users: {{file: users.parquet, pkey: id, columns: {{{encodings}}}}}\n"
        "  sales: {file: sales.parquet, fkeys: {user: users}}\n"
    )
    told = list[str]()

    def convert(out: str, encoding_of: Path | None, memory: Any, threads: int | None = None) -> None:
        try:
            diskgnn.convert(tmp_path / out, source=tmp_path, format="relational", memory=memory,
                            options={"keep_columns": True}, encoding_of=encoding_of)  # fmt: skip
        except SmallBudgetError as error:
            told.append(str(error))
            raise

    values_bytes = 5 * rows * 45
    for out, encoding_of in (("graph", None), ("later", tmp_path / "graph")):
        told.clear()
        with_least(partial(convert, out, encoding_of), values_bytes)
        assert any("to keep the values of categories of table users" in each for each in told)
        if encoding_of is None:  # a budget is told that is enough, not only a little more each time
            enough = re.findall(r"; (\d+) bytes \S+ \S+ are enough, whatever else", " ".join(told))
            assert len({*enough}) == 1
            with faults.pretending("memory.anonymous", 0):
                convert("at_once", None, int(enough[0]), 1)
        assert Graph.open(tmp_path / out).nodes["users"].categories().num_rows == 5 * rows


def test_refusals(tables: dict[str, pa.Table], graphs: dict[str, Path], tmp_path: Path) -> None:
    keep = {**OPTIONS, "keep_columns": True}
    with pytest.raises(
        ConfigError, match=r"the rows of users in .*vectors are vectors, .* leave keep_columns=true out"
    ):
        diskgnn.convert(tmp_path / "out", source=source(tables), options=keep, encoding_of=graphs["vectors"])
    visits = pa.array([None, *[1] * (USERS - 1)], pa.int16())
    broken = {**tables, "users": tables["users"].set_column(
        tables["users"].schema.get_field_index("visits"), pa.field("visits", pa.int16(), nullable=False), visits
    )}  # fmt: skip
    with pytest.raises(InputError, match="visits: expected values in all rows, as the column says, found null"):
        diskgnn.convert(tmp_path / "out", source=source(broken), options=keep)


def later(tables: dict[str, pa.Table]) -> tuple[dict[str, pa.Table], np.ndarray]:
    """Other tables of the kind: rows and columns in another order, these of types as another reader has them; and which
    rows they are. All rows are known, so that by themselves their statistics are others."""
    chosen = np.random.default_rng(5).permutation(USERS)
    users = tables["users"].take(pa.array(chosen))
    for name, kind in {"big": pa.float64(), "plan": pa.large_string(), "small money": pa.float64()}.items():
        if name == "big":  # as data frames have whole numbers with gaps, which float64 holds up to 2^53
            small = pc.if_else(pc.less(pc.abs(users[name]), 2**53), users[name], pa.scalar(5, pa.int64()))
            users = users.set_column(users.schema.get_field_index(name), name, small.cast(kind))
        else:
            users = users.set_column(users.schema.get_field_index(name), name, users[name].cast(kind))
    return {**tables, "users": users.select(users.column_names[::-1])}, chosen


def test_records_of_later_rows_are_those_of_the_graph_named(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """To the byte: codes, null bits and the file of categories; and x, which is scaled as there; vectors have
    that x, too."""
    other, chosen = later(tables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        diskgnn.convert(tmp_path / "later", source=source(other), options={"keep_columns": True},
                        encoding_of=graphs["records"])  # fmt: skip
        diskgnn.convert(tmp_path / "vectors", source=source(other), options={"keep_columns": False},
                        encoding_of=graphs["records"])  # fmt: skip
    first, second = Graph.open(graphs["records"]), Graph.open(tmp_path / "later")
    expected, found = first.nodes["users"].features[chosen], second.nodes["users"].features
    for name in expected.dtype.names:
        if name != "big":
            np.testing.assert_array_equal(found[name], expected[name], name)
    names = [name for name in first.manifest.files if name.startswith("categories-")]
    assert {*names} == {"categories-users.parquet", "categories-orders.parquet"}
    for name in names:
        assert (graphs["records"] / name).read_bytes() == (tmp_path / "later" / name).read_bytes()
    for name, nodes in second.nodes.items():
        known = first.nodes[name]
        assert nodes.values_digest == known.values_digest
        assert (nodes.config.rows, nodes.config.columns, nodes.config.is_constant) == (
            known.config.rows, known.config.columns, known.config.is_constant
        )  # fmt: skip
        if nodes.feature_file is not None:
            words = nodes.feature_file.rows.as_tensor(np.array(nodes.features))
            x = nodes.feature_file.x(words).numpy()
            np.testing.assert_allclose(x, Graph.open(tmp_path / "vectors").nodes[name].features, rtol=1e-5, atol=1e-5)


def test_what_the_graph_named_does_not_know(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Values without a code are -1, not null, and counted; other kinds of columns are refused."""

    def converted(**changed: Any) -> Graph:
        users = tables["users"]
        for name, column in changed.items():
            name = name.replace("_", " ")
            users = users.set_column(users.schema.get_field_index(name), name, column)
        diskgnn.convert(tmp_path / "out", source=source({**tables, "users": users}), options={"keep_columns": True},
                        encoding_of=graphs["records"], overwrite=True)  # fmt: skip
        return Graph.open(tmp_path / "out")

    cities = tables["users"]["city"].to_pylist()
    cities[3], cities[5], cities[8] = "Ulm", "Ulm", None
    tags = [["red", "pink", None, "green"], ["red"] * 9, *[["blue"]] * (USERS - 2)]
    with pytest.warns(DataWarning) as warned:
        rows = converted(city=[cities], tags=pa.array(tags)).nodes["users"].features
    told = " ".join(str(each.message) for each in warned)
    known = sum(city is not None for city in cities)
    assert f"has no code for them: 2 of {known} values, first 'Ulm'" in told
    assert f"has no code for them: 1 of {USERS + 10} values, first 'pink'" in told
    assert rows["city"][[3, 5, 8]].tolist() == [-1, -1, -1]
    fields = Graph.open(tmp_path / "out").nodes["users"].config.rows.fields
    bit = next(each.null_bit for each in fields if each.name == "city")
    assert ((rows[NULLS][:, bit // 8] >> (bit % 8)) & 1)[[3, 5, 8]].tolist() == [0, 0, 1]
    codes = {value: code for code, value in enumerate(values_of(graphs["records"], "tags"))}
    np.testing.assert_array_equal(rows["tags"][0], [codes["red"], codes["green"], -1, -1])
    np.testing.assert_array_equal(rows["tags"][1], [codes["red"], -1, -1, -1])
    numbers = pa.array(np.arange(USERS))
    for changed, message in [
        ({"big": pa.array(np.arange(USERS) + 0.5)}, "users.big: expected whole numbers"),
        ({"seen": numbers}, r"users.seen: expected timestamps or dates, as .* encodes the column as time, found int64"),
        ({"codes": pa.array([[1.5, 2, 3]] * USERS)}, r"users.codes: expected lists of int8, as .*found list"),
        ({"face": pa.array([[1.0, 2]] * USERS)}, "users.face: expected 5 numbers in every list, found 2"),
        ({"tags": pa.array([[1]] * USERS)}, "users.tags: expected lists of text, as"),
        ({"paid": pa.array(["yes"] * USERS)}, "users.paid: expected truth values, found"),
        ({"visits": pa.array([None, *[1] * (USERS - 1)])}, r"users.visits: expected values in all rows, as in .*null"),
    ]:  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            with pytest.raises(InputError, match=message):
                converted(**changed)
    with pytest.raises(InputError, match="users: expected a column 'city', which is a feature of"):
        diskgnn.convert(tmp_path / "out", source=source({**tables, "users": tables["users"].drop_columns(["city"])}),
                        options={"keep_columns": True}, encoding_of=graphs["records"], overwrite=True)  # fmt: skip


def values_of(graph: Path, column: str) -> list[str]:
    """What codes of the category of users stand for."""
    table = Graph.open(graph).nodes["users"].categories()
    found: list[str] = table.filter(pc.equal(table["column"], column))["value"].to_pylist()
    return found


def test_fresh_epochs_and_estimates_take_records(graphs: dict[str, Path], tmp_path: Path) -> None:
    """Windows leave their rows in the graph; narrower rows are no choice."""
    drawing = {"fanouts": [2, 4, 4], "batch_size": 64, "target": "churn", "temporal": "last", "seed": 3}
    diskgnn.prepare(graphs["records"], tmp_path / "packed", cpu_cache="20%", epochs=2, **drawing)
    with (
        diskgnn.FreshEpochs(graphs["records"], tmp_path / "fresh", cpu_cache="20%", **drawing) as fresh,
        diskgnn.Loader(tmp_path / "packed", "train") as loader,
    ):
        for epoch in (0, 1):
            for found, expected in zip(fresh.epoch(epoch), loader.epoch(epoch), strict=True):
                for kind in ("columns", "nulls"):
                    for name, columns in getattr(expected, kind).items():
                        for each, values in columns.items():
                            np.testing.assert_array_equal(getattr(found, kind)[name][each], values)
    estimate = diskgnn.estimate(graphs["records"], cpu_cache="20%", **drawing)
    by_name = {each.name: each for each in estimate.settings[0].row_sets}
    assert by_name["users"].row_bytes == np.load(graphs["records"] / "features-users.npy", mmap_mode="r").dtype.itemsize
    assert not any(each.feature_dtype == "int8" for each in estimate.settings)


@pytest.mark.parametrize("change", [
    {"offset": 4}, {"kind": "timestamp"}, {"dtype": "int32"}, {"width": 2}, {"null_bit": 9}, {"num_values": -1},
    {"name": "city"}, {"name": 3}, {"offset": True}, {"quantised": True}, {"quantised": 1},
])  # fmt: skip
def test_records_that_do_not_lie_as_they_should_are_refused(
    graphs: dict[str, Path], tmp_path: Path, change: dict[str, Any]
) -> None:
    """Whoever writes a manifest may say anything."""
    copy = shutil.copytree(graphs["records"], tmp_path / "copy")
    document = json.loads((copy / "manifest.json").read_text())
    document["config"]["node_types"][0]["record"][0].update(change)
    write_manifest(copy, document)
    with pytest.raises(ArtifactError, match="copy"):
        Graph.open(copy)


def test_killed_conversions_and_damaged_minibatches_are_made_again(tables: dict[str, pa.Table], tmp_path: Path) -> None:
    """With the same bytes, wherever they were killed, and whatever was damaged."""
    (tmp_path / "shop").mkdir()
    for name, table in tables.items():
        pq.write_table(table, tmp_path / "shop" / f"{name}.parquet")
    (tmp_path / "shop" / "relational.yaml").write_text(
        "tables:\n"
        "  users: {file: users.parquet, pkey: id, time: since}\n"
        "  orders: {file: orders.parquet, fkeys: {user: users}, time: at}\n"
        "tasks:\n"
        "  churn: {train: train.parquet, entity: {user: users}, label: left, time: day}\n"
    )
    convert = partial(diskgnn.convert, source=tmp_path / "shop", options={**OPTIONS, "keep_columns": True})
    convert(tmp_path / "whole")
    for point, after in [
        *(("work.piece", after) for after in range(0, 40, 10)),
        ("artifact.sync", 2),
    ]:
        with faults.armed(point, KeyboardInterrupt(), after=after), faults.pretending("unit.bytes", 1):
            try:
                convert(tmp_path / "out", overwrite=True)
            except KeyboardInterrupt:
                continue
        assert open_artifact(tmp_path / "out").digest == open_artifact(tmp_path / "whole").digest
    convert(tmp_path / "out", overwrite=True)
    assert open_artifact(tmp_path / "out").digest == open_artifact(tmp_path / "whole").digest
    diskgnn.prepare(tmp_path / "whole", tmp_path / "packed", **SAMPLING, temporal="last")
    names = [name for name in open_artifact(tmp_path / "packed").files if name.endswith((".bin", "users.npy"))]
    assert {"train.bin", "static-users.npy", "train-initial-users.npy"} <= {*names}
    for name in names:
        whole = (tmp_path / "packed" / name).read_bytes()
        (tmp_path / "packed" / name).write_bytes(whole[:-40] + bytes(20) + whole[-20:])
    repair(tmp_path / "packed", graph=tmp_path / "whole", resources=Resources.of("auto", 1))
    assert find_damage(tmp_path / "packed")[1] == []


def test_lists_and_texts_beyond_what_codes_are_for(tmp_path: Path) -> None:
    """Lists that are longer in later rows are cut off, longer than 32 left out; so is text of few equal values."""
    num_rows = 70_000
    long = [[f"value {number}" for number in range(33)], *[["value 1"]] * (num_rows - 1)]
    grown = [["a", "b", "a"]] * (num_rows - 2) + [["c"], ["b", "unknown", None, "b", "a", "c"]]
    users = pa.table({
        "id": np.arange(num_rows), "at": np.arange(num_rows), "long": pa.array(long), "grown": pa.array(grown),
        "text": [f"text {number % 68_000}" for number in range(num_rows)],
        "zip": [f"zip {number % 9_000}" for number in range(num_rows)],
    })  # fmt: skip
    orders = pa.table({"user": np.arange(50)})
    database = SimpleNamespace(table_dict={
        "users": SimpleNamespace(df=users, pkey_col="id", fkey_col_to_pkey_table={}, time_col="at"),
        "orders": SimpleNamespace(df=orders, pkey_col=None, fkey_col_to_pkey_table={"user": "users"}, time_col=None),
    })  # fmt: skip
    with pytest.warns(
        DataWarning, match="users.grown: 1 lists are longer than those that were known, of up to 2 values"
    ):
        diskgnn.convert(tmp_path / "graph", source=database,
                        options={"keep_columns": True, "val_timestamp": num_rows - 2})  # fmt: skip
    rows = np.load(tmp_path / "graph" / "features-users.npy")
    np.testing.assert_array_equal(rows["grown"], [*[[0, 1]] * (num_rows - 2), [2, -1], [1, 0]])
    found = Graph.open(tmp_path / "graph")
    reasons = {each.name: each.reason for each in found.config.contents.left_out}
    assert reasons["long"] == "lists of up to 33 values, more than 32"
    assert reasons["text"] == "more than 65536 values, too many or too rare for a category: text or ids"
    assert [each.num_values for each in found.nodes["users"].config.rows.fields] == [9000, 3]


def test_lists_that_are_cut_off_are_told_once() -> None:
    """Whatever the number of batches in which rows are read."""
    parts = [pa.table({"x": pa.array([["a", "b"]] * count, pa.list_(pa.string()))}) for count in (3, 4, 5)]
    encoding = RecordEncoding.of("table", [pa.field("x", pa.list_(pa.string()))], {})
    encoding.add([pa.array([["a"], ["b"]])])
    encoding.complete()
    rows = encoding.rows("rows", JoinedTables("table", [FrameTable("table", part) for part in parts]))
    with pytest.warns(DataWarning) as told:
        assert sum(map(len, rows.chunks())) == 12
    assert [str(each.message) for each in told] == [
        "table.x: 12 lists are longer than those that were known, of up to 1 values, and are cut off"
    ]


@settings(max_examples=40, deadline=None)
@given(
    lists=st.lists(st.none() | st.lists(st.none() | st.sampled_from("abcdefg"), max_size=6), min_size=1, max_size=30),
    known=st.integers(1, 30),
)
def test_lists_of_any_values(lists: list[list[str] | None], known: int) -> None:
    """Codes by how many lists that are known have a value; others are dropped, and each is once in its list."""
    kind = pa.list_(pa.string())
    distinct = [[value for value in dict.fromkeys(each or []) if value is not None] for each in lists]
    listed = [value for each in distinct[:known] for value in each]
    table = FrameTable("table", pa.table({"x": pa.array(lists, kind)}))
    encoding = RecordEncoding.of("table", [pa.field("x", kind)], {})
    encoding.add([pa.array(lists[:known], kind)])
    encoding.complete()
    if not listed:
        assert "x" in encoding.left_out
        return
    values = [value for value, _ in Counter(listed).most_common()]
    width = max(map(len, distinct[:known]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        (rows,) = encoding.rows("rows", table).chunks()
    for found, each in zip(rows["x"].reshape(len(lists), width).tolist(), distinct, strict=True):
        codes = [values.index(value) for value in each if value in values][:width]
        assert found == [*codes, *[-1] * (width - len(codes))]
    np.testing.assert_array_equal(rows[NULLS][:, 0] & 1, [each is None for each in lists])


def test_one_table_and_what_inspect_says_of_it(tmp_path: Path) -> None:
    """A table that refers to itself is a graph of one type; its minibatches have columns by name alone."""
    random, num_rows = np.random.default_rng(0), 50
    people = pa.table({
        "id": np.arange(num_rows), "boss": nullable(random, random.integers(0, 50, num_rows)),
        "born": pa.array(random.integers(-(10**15), 10**15, num_rows), pa.timestamp("us")),
        "size": random.choice(["s", "m", "l"], num_rows),
    })  # fmt: skip
    table = SimpleNamespace(df=people, pkey_col="id", fkey_col_to_pkey_table={"boss": "people"}, time_col=None)
    source = SimpleNamespace(table_dict={"people": table})
    diskgnn.convert(tmp_path / "graph", source=source, options={"keep_columns": True, "reverse": False})
    target = diskgnn.NodeTarget("people", seeds={"train": np.arange(num_rows)})
    diskgnn.prepare(
        tmp_path / "graph", tmp_path / "packed", fanouts=[4], target=target, keep_input_nodes=True, cpu_cache=0
    )
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch in loader.epoch(0):
            expected = people["born"].cast(pa.int64()).to_numpy()[batch.input_nodes]
            np.testing.assert_array_equal(batch.columns["born"], expected)
            assert not batch.nulls["size"].any()
            assert torch.equal(batch.by_type().to("cpu").columns["node"]["size"], batch.columns["size"])
    kept = describe(tmp_path / "graph").facts["kept_columns"]
    shown = "of", "name", "kind", "dtype", "offset", "values"
    assert [tuple(each[name] for name in shown) for each in kept] == [
        ("people", "born", "timestamp", "int64", 0, None), ("people", "size", "categorical", "int32", 8, 3),
    ]  # fmt: skip
    told = CliRunner().invoke(main, ["inspect", str(tmp_path / "graph")]).output
    assert "columns kept" in told
    assert [line.split() for line in told.splitlines() if "categorical" in line] == [
        ["people", "size", "categorical", "int32", "1", "8", "yes", "3"]
    ]
