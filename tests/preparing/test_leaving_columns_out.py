"""`without`: minibatches as with all columns, but for those that are left out, whose bytes are nowhere."""

from __future__ import annotations

import json
import pickle
import sqlite3
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from commands import run

import diskgnn
from diskgnn.baselines.cached_reads import CachedReads
from diskgnn.baselines.ginex import Ginex
from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.mmap import MMap
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import find_damage
from diskgnn.graph.graph import Graph
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.preparing.repair import repair
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources

pytestmark = pytest.mark.usefixtures("one_thread")

USERS, ORDERS, START = 1500, 6000, 1_600_000_000
OUT = ["users.secret", "users.face", "orders.price"]


def nullable(random: np.random.Generator, values: Any, kind: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, kind, mask=random.random(len(values)) < 0.2)


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    random = np.random.default_rng(0)
    users = pa.table({
        "id": np.arange(USERS), "since": pa.array(START + random.integers(0, 10**6, USERS), pa.timestamp("s")),
        "age": nullable(random, random.integers(0, 90, USERS)),
        "face": nullable(random, list(random.normal(size=(USERS, 3)).astype(np.float32)), pa.list_(pa.float32())),
        "left": random.random(USERS) < 0.4, "plan": nullable(random, random.choice(["a", "b", "c"], USERS)),
        "secret": nullable(random, random.integers(2**40, 2**60, USERS)),
        "seen": nullable(random, random.integers(0, 10**15, USERS), pa.timestamp("us")),
    })  # fmt: skip
    orders = pa.table({
        "user": random.integers(0, USERS, ORDERS), "price": random.random(ORDERS),
        "at": pa.array(START + random.integers(0, 10**6, ORDERS), pa.timestamp("s")),
    })  # fmt: skip
    return {"users": users, "orders": orders}


def source(tables: dict[str, pa.Table]) -> RelationalSource:
    def keyed(name: str, fkeys: dict[str, str], pkey: str | None, time: str | None) -> SimpleNamespace:
        return SimpleNamespace(df=tables[name], pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=time)

    database = {"users": keyed("users", {}, "id", "since"), "orders": keyed("orders", {"user": "users"}, None, "at")}
    return RelationalSource.of(SimpleNamespace(table_dict=database), {})


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory, tables: dict[str, pa.Table]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("without")
    for name in ("records", "vectors"):
        diskgnn.convert(folder / name, source=source(tables), options={"keep_columns": name == "records"})
    return {name: folder / name for name in ("records", "vectors")}


def target(tables: dict[str, pa.Table]) -> NodeTarget:
    """Of users: what `left` says."""
    order = np.random.default_rng(1).permutation(USERS)
    seeds = dict(zip(("train", "valid", "test"), np.split(order, [1200, 1350]), strict=True))
    left = tables["users"]["left"].to_numpy(zero_copy_only=False).astype(np.int64)
    times = {split: np.full(len(each), START + 2 * 10**6) for split, each in seeds.items()}
    return NodeTarget("users", seeds, times, {split: left[each] for split, each in seeds.items()})


def options(tables: dict[str, pa.Table]) -> dict[str, Any]:
    return {"fanouts": [4, 3], "batch_size": 64, "target": target(tables), "temporal": "last", "seed": 3}


CACHES = {"cpu_cache": "20%", "static_cache": "5%"}


@pytest.fixture(scope="module")
def packed(
    tmp_path_factory: pytest.TempPathFactory, graphs: dict[str, Path], tables: dict[str, pa.Table]
) -> dict[str, Path]:
    """Of the same minibatches, `whole` and without some columns (`cut`)."""
    folder = tmp_path_factory.mktemp("packed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of the label among the columns
        diskgnn.prepare(graphs["records"], folder / "whole", **options(tables), **CACHES)
        diskgnn.prepare(graphs["records"], folder / "cut", **options(tables), **CACHES, without=OUT)
    return {name: folder / name for name in ("whole", "cut")}


def without_features(x: torch.Tensor, graph: Path, node_type: str) -> torch.Tensor:
    """x of minibatches with all columns, without the features of those that are left out."""
    kept, first = [], 0
    for column in Graph.open(graph).config.known_columns[node_type] or ():
        if f"{node_type}.{column.name}" not in OUT:
            kept.append(x[:, first : first + column.width])
        first += column.width
    return torch.cat(kept, 1) if kept else torch.ones(len(x), 1)


def assert_cut(found: Any, expected: Any, graph: Path) -> None:
    """Compares minibatches; orders are left without any column."""
    assert {*found.columns} == {"users"}
    for kind in ("columns", "nulls"):
        whole = {name: each for name, each in getattr(expected, kind)["users"].items() if f"users.{name}" not in OUT}
        assert getattr(found, kind)["users"].keys() == whole.keys()
        for name, values in whole.items():
            np.testing.assert_array_equal(getattr(found, kind)["users"][name], values, name)
    for name in ("users", "orders"):
        assert torch.equal(found.x[name], without_features(expected.x[name], graph, name))
        assert torch.equal(found.times[name], expected.times[name])
    assert torch.equal(found.y, expected.y)


def test_minibatches_are_the_same_without_them(graphs: dict[str, Path], packed: dict[str, Path]) -> None:
    num_rows = 0
    for split in ("train", "valid"):
        with diskgnn.Loader(packed["whole"], split) as whole, diskgnn.Loader(packed["cut"], split) as cut:
            assert [name for name, _ in cut.schema.tables] == ["users"]
            for found, expected in zip(cut.epoch(0), whole.epoch(0), strict=True):
                assert_cut(found, expected, graphs["records"])
                num_rows += len(found.x["orders"])
    assert num_rows > 1000


def test_their_bytes_are_nowhere(packed: dict[str, Path], tables: dict[str, pa.Table]) -> None:
    """Neither in extents nor in what is in memory when training begins; and what is packed is smaller."""
    secrets = {value.to_bytes(8, "little") for value in tables["users"]["secret"].drop_null().to_pylist()}
    counts = {}
    for name, path in packed.items():
        assert any(file.name.startswith("static-") for file in path.iterdir())
        content = b"".join(file.read_bytes() for file in sorted(path.iterdir()))
        counts[name] = sum(secret in content for secret in secrets)
    assert counts["whole"] > len(secrets) / 2
    assert counts["cut"] == 0
    sizes = {name: open_artifact(path).total_bytes for name, path in packed.items()}
    assert sizes["cut"] < sizes["whole"]
    config = open_artifact(packed["cut"]).config
    assert config["samples"]["without"] == sorted(OUT)
    assert config["constants"] == ["orders"]
    assert [each["node_type"] for each in config["row_sets"]] == ["users"]
    assert "without" not in open_artifact(packed["whole"]).config["samples"]


def test_all_ways_of_preparing_make_the_same(
    graphs: dict[str, Path], packed: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """In two halves, made again where damaged, in fresh windows, in memory, and as an estimate says."""
    given = options(tables)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        diskgnn.sample(graphs["records"], tmp_path / "samples", **given, without=OUT[::-1])
        diskgnn.pack(graphs["records"], tmp_path / "samples", tmp_path / "packed", **CACHES)
    assert open_artifact(tmp_path / "packed").files == open_artifact(packed["cut"]).files
    names = [name for name in open_artifact(tmp_path / "packed").files if name.endswith((".bin", "users.npy"))]
    assert {"train.bin", "static-users.npy", "train-initial-users.npy"} <= {*names}
    for name in names:
        whole = (tmp_path / "packed" / name).read_bytes()
        (tmp_path / "packed" / name).write_bytes(whole[:-40] + bytes(20) + whole[-20:])
    repair(tmp_path / "packed", graph=graphs["records"], resources=Resources.of("auto", 1))
    assert find_damage(tmp_path / "packed")[1] == []
    drawing = {**given, "without": OUT}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        fresh = diskgnn.FreshEpochs(graphs["records"], tmp_path / "fresh", cpu_cache="20%", **drawing)
    with fresh, diskgnn.Loader(packed["cut"], "train") as loader, InMemory(graphs["records"], **drawing) as in_memory:
        assert fresh.schema == loader.schema
        for found, other, expected in zip(fresh.epoch(0), in_memory.epoch(0), loader.epoch(0), strict=True):
            for name, x in expected.x.items():
                assert torch.equal(found.x[name], x)
                assert torch.equal(other.x[name], x)
            assert found.columns["users"].keys() == expected.columns["users"].keys()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        (found,) = diskgnn.estimate(graphs["records"], **CACHES, **drawing).settings[0].row_sets
    (expected,) = open_artifact(packed["cut"]).config["row_sets"]
    assert (found.name, found.row_bytes) == ("users", expected["row_bytes"])
    with pytest.raises(ConfigError, match="without: ginex delivers whole rows"):
        Ginex(graphs["records"], **drawing)
    sources = [MMap(graphs["records"], **drawing), CachedReads(graphs["records"], cpu_cache="32KiB", **drawing)]
    for source in sources:  # which read the rows that the graph has
        with source, diskgnn.Loader(packed["cut"], "train") as loader:
            for found, expected in zip(source.epoch(0), loader.epoch(0), strict=True):
                assert all(torch.equal(found.x[name], x) for name, x in expected.x.items())


@pytest.mark.parametrize("model", ["rgcn", "relational"])
def test_predictions_leave_them_out_too(
    graphs: dict[str, Path], packed: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path, model: str
) -> None:
    """Of the graph as of the packed directory; without being told."""
    run_folder, seeds = tmp_path / "run", target(tables)
    result = diskgnn.train(packed["cut"], model=model, hidden=8, epochs=2, checkpoint=run_folder, progress=False)
    assert (
        diskgnn.evaluate(run_folder, packed["cut"], progress=False).scores["accuracy"]
        == (result.scores()["test_accuracy"])
    )
    asked = {"nodes": seeds.seeds["test"], "at": START + 2 * 10**6, "progress": False}
    diskgnn.predict(graphs["records"], tmp_path / "graph.npy", run_folder, **asked)
    diskgnn.predict(packed["cut"], tmp_path / "packed.npy", run_folder, split="test", nodes=asked["nodes"],
                    progress=False)  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "graph.npy"), np.load(tmp_path / "packed.npy"), rtol=1e-4, atol=1e-4)
    if model == "rgcn":
        diskgnn.infer(graphs["records"], tmp_path / "all.npy", run_folder, node_type="users", ignore_times=True,
                      progress=False)  # fmt: skip
        diskgnn.predict(graphs["records"], tmp_path / "some.npy", run_folder, nodes=np.arange(50), ignore_times=True,
                        fanouts=[-1, -1], progress=False)  # fmt: skip
        np.testing.assert_allclose(
            np.load(tmp_path / "all.npy")[:50], np.load(tmp_path / "some.npy"), rtol=1e-4, atol=1e-4
        )
    with pytest.raises(ConfigError, match=r"was trained on 6 features of users nodes.*has 10 features of users nodes"):
        diskgnn.evaluate(run_folder, packed["whole"], progress=False)


def test_rows_of_later_need_not_have_them(
    graphs: dict[str, Path], packed: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Where the user says so; whether they have them or not, the graph is the same, and so is what is predicted."""
    fewer = {
        "users": tables["users"].drop_columns(["secret", "face"]),
        "orders": tables["orders"].drop_columns("price"),
    }
    made = partial(diskgnn.convert, encoding_of=graphs["records"], options={"keep_columns": True}, progress=False)
    with pytest.raises(
        InputError, match=r"column 'face', which is a feature of .*leave it out \(`exclude`, users.face\)"
    ):
        made(tmp_path / "out", source=source(fewer))
    with pytest.raises(
        ConfigError, match=r"exclude: expected COLUMN or TABLE.COLUMN of the tables, found 'users.none'"
    ):
        made(tmp_path / "out", source=source(fewer), exclude=[*OUT, "users.none"])
    made(tmp_path / "later", source=source(fewer), exclude=OUT)
    made(tmp_path / "cut", source=source(tables), exclude=["secret", "face", "price"])
    later, cut = (Graph.open(tmp_path / name) for name in ("later", "cut"))
    assert later.manifest.files == cut.manifest.files
    assert later.config.node_types == Graph.open(graphs["records"]).without(OUT).config.node_types
    made(tmp_path / "vectors", source=source(fewer), exclude=OUT, options={"keep_columns": False})
    users = later.nodes["users"].feature_file
    x = users.x(users.rows.as_tensor(np.array(later.nodes["users"].features)))
    np.testing.assert_array_equal(Graph.open(tmp_path / "vectors").nodes["users"].features, x)
    asked = {"nodes": np.arange(0, USERS, 7), "at": START + 2 * 10**6, "progress": False}
    for name in ("cut", "whole"):
        diskgnn.train(packed[name], model="relational", hidden=8, epochs=1, checkpoint=tmp_path / f"run-{name}",
                      progress=False)  # fmt: skip
    diskgnn.predict(graphs["records"], tmp_path / "expected.npy", tmp_path / "run-cut", **asked)
    diskgnn.predict(tmp_path / "later", tmp_path / "found.npy", tmp_path / "run-cut", **asked)
    np.testing.assert_allclose(
        np.load(tmp_path / "found.npy"), np.load(tmp_path / "expected.npy"), rtol=1e-5, atol=1e-6
    )
    with pytest.raises(ConfigError, match=r"later has other features than the model .*'face'"):
        diskgnn.predict(tmp_path / "later", tmp_path / "none.npy", tmp_path / "run-whole", **asked)


def test_a_database_of_later_need_not_have_them(tmp_path: Path) -> None:
    """It is asked for no such column, by either name of its table."""
    script = """
        CREATE TABLE "the users" (id INTEGER PRIMARY KEY, age REAL{});
        CREATE TABLE sales (user INTEGER REFERENCES "the users", amount REAL);
        INSERT INTO "the users" (id, age) VALUES (5, 20), (7, 30);
        INSERT INTO sales VALUES (7, 1), (5, 2), (7, 4);
    """
    for name, left in (("first", ", left BOOLEAN"), ("second", "")):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            connection.executescript(script.format(left))
        connection.close()
    made = partial(diskgnn.convert, options={"keep_columns": True}, progress=False)
    made(tmp_path / "graph", source=tmp_path / "first.db")
    for number, name in enumerate(("left", "the users.left", "the_users.left")):
        out = tmp_path / f"later{number}"
        made(out, source=tmp_path / "second.db", encoding_of=tmp_path / "graph", exclude=name)
        nodes = Graph.open(out).nodes["the_users"]
        assert [each.name for each in nodes.config.rows.fields] == ["age"]
        assert nodes.features["age"].tolist() == [20, 30]
    with pytest.raises(InputError, match=r"expected a column 'left'.*`exclude`, the_users.left"):
        made(tmp_path / "out", source=tmp_path / "second.db", encoding_of=tmp_path / "graph")


def test_the_label_is_no_longer_told(graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path) -> None:
    given = options(tables)
    with pytest.warns(
        DataWarning, match=r"column 'left' of the features of users says the label .*--without users.left"
    ):
        diskgnn.prepare(graphs["records"], tmp_path / "told", **given)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.prepare(graphs["records"], tmp_path / "untold", **given, without="users.left")


def test_times_are_kept_where_no_column_is(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path
) -> None:
    """Of tables that keep columns minibatches have times unasked: also without any of the columns."""
    drawing = {**options(tables), "without": list(Graph.open(graphs["records"]).kept_columns)}
    diskgnn.prepare(graphs["records"], tmp_path / "packed", **drawing, cpu_cache=0)
    fresh = diskgnn.FreshEpochs(graphs["records"], tmp_path / "fresh", cpu_cache=0, **drawing)
    with fresh, diskgnn.Loader(tmp_path / "packed", "train") as loader:
        assert fresh.schema == loader.schema
        for found, expected in zip(fresh.epoch(0), loader.epoch(0), strict=True):
            for batch in (found, expected):
                assert {name: each.shape[1] for name, each in batch.x.items()} == {"users": 1, "orders": 1}
                assert batch.times is not None
                assert torch.equal(batch.times["orders"], expected.times["orders"])


def test_loaders_of_pyg_take_a_graph_without_columns(graphs: dict[str, Path], tmp_path: Path) -> None:
    """In the cache they are apart from those with all columns."""
    pytest.importorskip("torch_geometric")
    from diskgnn.pyg import NeighborLoader

    def batches(graph: Graph) -> list[Any]:
        loader = NeighborLoader(graph, [3, 2], ("users", torch.arange(200)), batch_size=64, cache=tmp_path,
                                progress=False)  # fmt: skip
        return list(loader)

    whole, cut = (batches(Graph.open(graphs["records"]).without(each)) for each in ([], OUT))
    for found, expected in zip(cut, whole, strict=True):
        for name in ("users", "orders"):
            assert torch.equal(found[name].n_id, expected[name].n_id)
            assert torch.equal(found[name].x, without_features(expected[name].x, graphs["records"], name))


def test_a_graph_without_columns_is_the_same_in_another_process(graphs: dict[str, Path]) -> None:
    graph = Graph.open(graphs["records"]).without(OUT)
    assert graph.without(OUT[:1]) is graph
    again = pickle.loads(pickle.dumps(graph))
    assert again.config == graph.config == GraphConfig.parse(graph.config.to_json())
    assert again.nodes["orders"].config.is_constant
    assert [each.name for each in again.nodes["users"].feature_file.rows.fields] == ["age", "seen", "left", "plan"]


@pytest.mark.parametrize(
    ("kind", "without", "message"),
    [
        (
            "vectors",
            "users.age",
            r"found users nodes, which are vectors, .*convert --exclude users.age`; or, .* without keep_columns=false",
        ),
        ("records", "users.id", r"expected columns of users that are no keys and no times, of age, .*; found 'id'"),
        ("records", "users", r"expected TYPE.COLUMN with a type of users, orders, found 'users'"),
        ("records", "shops.name", r"expected TYPE.COLUMN with a type of users, orders, found 'shops.name'"),
        ("records", 3, "without: expected names of columns, TYPE.COLUMN each, found 3"),
    ],
)
def test_what_cannot_be_left_out_is_refused(
    graphs: dict[str, Path], tables: dict[str, pa.Table], tmp_path: Path, kind: str, without: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        diskgnn.prepare(graphs[kind], tmp_path / "out", **options(tables), without=without)
    assert not (tmp_path / "out").exists()


def test_the_command_line_says_it(graphs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "packed"
    (tmp_path / "seeds.csv").write_text("id,label\n" + "".join(f"{number},{number % 2}\n" for number in range(50)))
    run("prepare", graphs["records"], out, "--target", "users", "--target-seeds", f"train={tmp_path / 'seeds.csv'}",
        "--temporal", "ignore", "--fanouts", "3", "--without", "users.secret", "--without", "users.left")  # fmt: skip
    config = json.loads((out / "manifest.json").read_text())["config"]
    assert config["samples"]["without"] == ["users.left", "users.secret"]
    told = run("inspect", out).output
    assert [line.split()[3:] for line in told.splitlines() if line.strip().startswith("columns left out")] == [
        ["users.left,", "users.secret"]
    ]
