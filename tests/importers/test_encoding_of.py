"""A model and another table of the same kind: refused where features mean something else, the same with `encoding_of`.

What is expected is computed here with NumPy, by the means, deviations and values of the first table.
"""

from __future__ import annotations

import json
import sqlite3
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run
from table_features import x_of

import diskgnn
from diskgnn import TableColumns
from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError
from diskgnn.graph.graph import Graph
from diskgnn.specs.targets import NodeTarget
from diskgnn.training.checkpoints import load_checkpoint

N = 120
_RNG = np.random.default_rng(8)
EDGES = _RNG.integers(0, N, (2, 500))
PEOPLE: dict[str, npt.NDArray[Any]] = {
    "id": np.array([f"p{number}" for number in range(N)]),
    "age": _RNG.integers(18, 80, N).astype(float),
    "plan": _RNG.choice(["free", "pro", "team"], N),
    "member": _RNG.random(N) < 0.5,
    "joined": np.datetime64("2020-01-01", "s") + _RNG.integers(0, 10**8, N),
    "topic": _RNG.choice(["cars", "art", "bread"], N),
    "split": _RNG.choice(["train", "valid", "test"], N, p=[0.6, 0.2, 0.2]),
}
LABEL = TableColumns(label="topic")


def features(people: dict[str, npt.NDArray[Any]], like: dict[str, npt.NDArray[Any]] = PEOPLE) -> npt.NDArray[Any]:
    """Age, plan, member, joined, as a table whose rows are `like` has them."""
    columns = []
    for name in ("age", "plan", "member", "joined"):
        given, known = people[name], like[name]
        if name == "plan":
            columns += [given == value for value in np.unique(known)]
        elif name == "member":
            columns.append(given)
        else:
            numbers, scale = given.astype(float), known.astype(float)
            columns.append((numbers - scale.mean()) / scale.std())
    return np.stack(columns, axis=1)


def table(folder: Path, people: dict[str, npt.NDArray[Any]], name: str = "people.parquet") -> Path:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(people), folder / name)
    return folder / name


def made(folder: Path, people: dict[str, npt.NDArray[Any]], **options: Any) -> Graph:
    """A graph of these people, with the edges that there are among all."""
    ids = PEOPLE["id"][EDGES]
    known = np.isin(ids, people["id"]).all(axis=0)
    pq.write_table(pa.table({"src": ids[0][known], "dst": ids[1][known]}), folder.with_suffix(".edges.parquet"))
    nodes = table(folder.parent, people, f"{folder.name}.parquet")
    given = {"columns": LABEL} | options
    diskgnn.convert(folder, edges=folder.with_suffix(".edges.parquet"), nodes=nodes, reverse=True, **given)
    return Graph.open(folder)


def reordered(people: dict[str, npt.NDArray[Any]] = PEOPLE, *first: str) -> dict[str, npt.NDArray[Any]]:
    return {name: people[name] for name in [*first, *reversed([name for name in people if name not in first])]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph `graph`, `packed`, and the checkpoint `run` of a model that was trained on it."""
    folder = tmp_path_factory.mktemp("encoding")
    made(folder / "graph", PEOPLE)
    diskgnn.prepare(folder / "graph", folder / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%")
    diskgnn.train(folder / "packed", hidden=8, epochs=2, checkpoint=folder / "run")
    return folder


def applied(trained: Path, graph: Path) -> npt.NDArray[Any]:
    """Logits of all nodes."""
    out = graph.with_suffix(".npy")
    diskgnn.infer(graph, out, trained / "run", overwrite=True)
    found: npt.NDArray[Any] = np.load(out)
    return found


def test_a_graph_keeps_how_columns_became_features(trained: Path) -> None:
    (nodes,) = Graph.open(trained / "graph").config.node_types
    assert nodes.columns is not None
    assert [(each.name, each.encoding, each.width, each.values) for each in nodes.columns] == [
        ("age", "number", 1, None), ("plan", "category", 3, ("free", "pro", "team")),
        ("member", "boolean", 1, None), ("joined", "time", 1, None),
    ]  # fmt: skip
    for column in (nodes.columns[0], nodes.columns[3]):
        values = PEOPLE[column.name].astype(float)
        np.testing.assert_allclose((column.mean, column.deviation), (values.mean(), values.std()), rtol=1e-12)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (reordered,
         r"feature 0 \(counted from 0\): the model was trained on 'age' \(number, mean .*has 'joined' \(time"),
        (lambda people: people | {"plan": np.where(people["plan"] == "pro", "basic", people["plan"])},
         r"feature 1 .*'plan' \(category of 3 values: free, pro, team\), .*'plan' \(category of 3 values: basic, fr"),
        (lambda people: {("height" if name == "age" else name): each for name, each in people.items()},
         "feature 0 .*trained on 'age' .*has 'height'"),
        (lambda people: people | {"age": people["age"] + 0.01}, r"feature 0 .*trained on 'age' \(number, mean"),
        (lambda people: {name: each[:100] for name, each in people.items()}, r"feature 0 .*trained on 'age'"),
        (lambda people: people | {"more": people["age"]}, "feature 6 .*trained on no more columns, .*has 'more'"),
    ],
)  # fmt: skip
def test_features_that_mean_something_else_are_refused(
    trained: Path, tmp_path: Path, change: Any, message: str
) -> None:
    """By every door, and with the way out."""
    graph = made(tmp_path / "other", change(PEOPLE))
    with pytest.raises(ConfigError, match=f"node type node, {message}.*convert --encoding-of GRAPH"):
        applied(trained, graph.manifest.path)
    with pytest.raises(ConfigError, match=message):
        diskgnn.predict(graph, tmp_path / "out.npy", trained / "run", nodes=[1, 2])


def test_packed_directories_are_compared_too(trained: Path, tmp_path: Path) -> None:
    made(tmp_path / "other", reordered())
    diskgnn.prepare(tmp_path / "other", tmp_path / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%")
    message = "other features than .*trained on 'age' .*has 'joined'"
    with pytest.raises(ConfigError, match=message):
        diskgnn.evaluate(trained / "run", tmp_path / "packed")
    with pytest.raises(ConfigError, match=message):
        diskgnn.predict(tmp_path / "packed", tmp_path / "out.npy", trained / "run", split="test")
    with pytest.raises(ConfigError, match=message):
        diskgnn.train(tmp_path / "packed", hidden=8, epochs=3, checkpoint=trained / "run", resume=True)
    train, valid = (
        diskgnn.Loader(folder / "packed", split) for folder, split in ((trained, "train"), (tmp_path, "valid"))
    )
    with train, valid, pytest.raises(ConfigError, match=message):
        diskgnn.train(train, valid_source=valid, epochs=1)
    diskgnn.evaluate(trained / "run", trained / "packed")
    with diskgnn.Loader(tmp_path / "packed", "test") as loader, pytest.raises(ConfigError, match=message):
        diskgnn.evaluate(trained / "run", loader)


def test_the_same_people_in_another_table(trained: Path, tmp_path: Path) -> None:
    """Columns in another order, and one more."""
    people = reordered(PEOPLE | {"shoe": PEOPLE["age"]}, "plan")
    with pytest.warns(DataWarning, match=r"left out of the graph: shoe of node \(.*graph has no such feature"):
        graph = made(tmp_path / "other", people, encoding_of=trained / "graph")
    np.testing.assert_array_equal(graph.features, Graph.open(trained / "graph").features)
    np.testing.assert_allclose(graph.features, features(PEOPLE), atol=1e-6)
    np.testing.assert_array_equal(applied(trained, tmp_path / "other"), applied(trained, trained / "graph"))
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        assert diskgnn.evaluate(trained / "run", tmp_path / "packed").num_seeds


def test_later_rows_are_scaled_as_the_earlier_ones(trained: Path, tmp_path: Path) -> None:
    """Some of the people, in another order, of one plan only: their rows are those of the first graph."""
    chosen = _RNG.permutation(np.flatnonzero(PEOPLE["plan"] == "team"))
    people = {name: each[chosen] for name, each in PEOPLE.items() if name not in ("topic", "split")}
    graph = made(tmp_path / "other", people, encoding_of=trained / "graph", columns=TableColumns())
    np.testing.assert_array_equal(graph.features, Graph.open(trained / "graph").features[chosen])
    np.testing.assert_allclose(graph.features, features(people), atol=1e-6)
    alone = made(tmp_path / "alone", people, columns=TableColumns())
    assert not np.allclose(alone.features[:, 0], graph.features[:, 0])


def test_values_that_are_new_have_no_feature(trained: Path, tmp_path: Path) -> None:
    plans = PEOPLE["plan"].copy()
    plans[[3, 4, 9]] = "gold"
    with pytest.warns(
        DataWarning, match=r"values of plan of node .* has no feature for them: in 3 of 120 rows, first 'gold'"
    ):
        graph = made(tmp_path / "other", PEOPLE | {"plan": plans}, encoding_of=trained / "graph")
    np.testing.assert_allclose(graph.features, features(PEOPLE | {"plan": plans}), atol=1e-6)
    assert not graph.features[[3, 4, 9], 1:4].any()


def test_classes_are_numbered_alike(trained: Path, tmp_path: Path) -> None:
    topics = np.where(PEOPLE["topic"] == "art", "cars", PEOPLE["topic"])
    graph = made(tmp_path / "other", PEOPLE | {"topic": topics}, encoding_of=trained / "graph")
    labels = graph.nodes["node"].labels
    assert labels is not None
    np.testing.assert_array_equal(np.array(["art", "bread", "cars"])[labels], topics)
    assert graph.num_classes == 3
    with pytest.raises(InputError, match=r"expected the classes art, bread, cars, as in .*graph, found 'dogs'"):
        made(tmp_path / "new", PEOPLE | {"topic": np.full(N, "dogs")}, encoding_of=trained / "graph")
    with pytest.raises(InputError, match=r"expected the classes art, bread, cars, as in .*graph, found 0"):
        made(tmp_path / "new", PEOPLE | {"topic": np.arange(N) % 3}, encoding_of=trained / "graph")


@pytest.mark.parametrize("door", ["column", "array", "shares"])
def test_a_table_of_test_nodes_alone_is_evaluated(trained: Path, tmp_path: Path, door: str) -> None:
    """Three ways to say that there is nothing to train on; accuracy is counted by NumPy in what `predict` writes."""
    later = dict(PEOPLE) | {"split": np.full(N, "test")}
    options: dict[str, Any] = {}
    if door != "column":
        del later["split"]
        options = {"test": np.ones(N, np.bool_)} if door == "array" else {"random_split": "0,0,1"}
    graph = made(tmp_path / "later", later, encoding_of=trained / "graph", **options)
    assert {split: len(ids) for split, ids in graph.nodes["node"].splits.items()} == {"test": N}
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[-1, -1], batch_size=50, cpu_cache=0)
    found = diskgnn.evaluate(trained / "run", tmp_path / "packed", split="test")
    diskgnn.predict(graph, tmp_path / "out.npy", trained / "run", what="classes")
    assert found.scores["accuracy"] == pytest.approx((np.load(tmp_path / "out.npy") == PEOPLE["topic"]).mean())
    with pytest.raises(ArtifactError, match="has no 'train' sequence, only test"):
        diskgnn.train(tmp_path / "packed", epochs=1)


def test_the_command_proposes_to_evaluate(trained: Path, tmp_path: Path) -> None:
    nodes = table(tmp_path, dict(PEOPLE) | {"split": np.full(N, "test")}, "later.parquet")
    edges = table(tmp_path, {"src": PEOPLE["id"][EDGES[0]], "dst": PEOPLE["id"][EDGES[1]]}, "edges.parquet")
    done = run("convert", tmp_path / "later", "--edges", edges, "--nodes", nodes, "--column", "label=topic",
               "--encoding-of", trained / "graph")  # fmt: skip
    assert "it is for evaluating a model of another graph" in done.stderr
    assert f"next: diskgnn prepare {tmp_path / 'later'}" in done.output
    done = run("prepare", tmp_path / "later", tmp_path / "packed", "--fanouts", "5,5", "--cpu-cache", "10%")
    assert "--checkpoint RUN --split test" in done.output
    run("evaluate", tmp_path / "packed", "--checkpoint", trained / "run", "--split", "test")


def test_other_classes_are_refused_by_evaluate(trained: Path, tmp_path: Path) -> None:
    """Features alike, classes called otherwise: their order is another one."""
    topics = np.where(PEOPLE["topic"] == "art", "dogs", PEOPLE["topic"])
    made(tmp_path / "other", PEOPLE | {"topic": topics})
    diskgnn.prepare(tmp_path / "other", tmp_path / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%")
    with pytest.raises(ConfigError, match=r"other classes than .*class 0 is 'bread' there, and 'art' in training"):
        diskgnn.evaluate(trained / "run", tmp_path / "packed")
    diskgnn.infer(tmp_path / "other", tmp_path / "out.npy", trained / "run")  # which says the model's own classes


def test_seeds_in_tables_have_classes_that_are_said(trained: Path, tmp_path: Path) -> None:
    """Later seeds have one class only, which would be class 0."""
    rows = {"id": PEOPLE["id"], "label": PEOPLE["topic"], "split": PEOPLE["split"]}
    options = {"fanouts": [5, 5], "batch_size": 32, "cpu_cache": "10%"}
    later = {"test": table(tmp_path, {"id": PEOPLE["id"][:9], "label": ["cars"] * 9}, "later.parquet")}
    target = diskgnn.read_target(trained / "graph", table(tmp_path, rows, "seeds.parquet"))
    diskgnn.prepare(trained / "graph", tmp_path / "packed", target=target, **options)
    diskgnn.train(tmp_path / "packed", hidden=8, epochs=1, checkpoint=tmp_path / "run")
    for name, classes in (("wrong", ["bread", "cars", "art"]), ("right", ["art", "bread", "cars"])):
        target = diskgnn.read_target(trained / "graph", later, classes=classes)
        assert target.labels is not None
        assert set(target.labels["test"].tolist()) == {classes.index("cars")}
        diskgnn.prepare(trained / "graph", tmp_path / name, target=target, **options)
    with pytest.raises(ConfigError, match=r"class 0 is 'bread' there, and 'art' in training.*--target-classes"):
        diskgnn.evaluate(tmp_path / "run", tmp_path / "wrong")
    diskgnn.evaluate(tmp_path / "run", tmp_path / "right")
    with pytest.raises(InputError, match="expected the classes a, b, as in `classes`, found 'cars'"):
        diskgnn.read_target(trained / "graph", later, classes=["a", "b"])
    run("prepare", trained / "graph", tmp_path / "command", "--fanouts", "5,5", "--cpu-cache", "10%", "--target-seeds",
        f"test={later['test']}", "--target-classes", "art,bread,cars")  # fmt: skip
    assert diskgnn.evaluate(tmp_path / "run", tmp_path / "command").num_seeds == 9


def test_numbers_and_names_of_classes_cannot_be_compared(trained: Path, tmp_path: Path) -> None:
    labels = {"train": np.arange(9) % 3, "test": np.arange(9) % 3}
    target = NodeTarget("node", seeds={"train": np.arange(9), "test": np.arange(9, 18)}, labels=labels)
    diskgnn.prepare(trained / "graph", tmp_path / "packed", target=target, fanouts=[5, 5], cpu_cache="10%")
    with pytest.warns(
        DataWarning, match="classes of the model in .* are called art, bread, cars, those of .* have num"
    ):
        diskgnn.evaluate(trained / "run", tmp_path / "packed")


def test_fresh_epochs_say_what_they_train_on(trained: Path, tmp_path: Path) -> None:
    with diskgnn.FreshEpochs(trained / "graph", tmp_path, fanouts=[5, 5], batch_size=32, cpu_cache="10%") as epochs:
        diskgnn.train(epochs, hidden=8, epochs=1, checkpoint=tmp_path / "run")
    made(tmp_path / "other", reordered())
    with pytest.raises(ConfigError, match="node type node, feature 0"):
        applied(tmp_path, tmp_path / "other")


def test_whole_numbers_as_classes_are_those_of_the_graph(tmp_path: Path) -> None:
    stars = TableColumns(label="stars")
    people = {name: each for name, each in PEOPLE.items() if name != "topic"}
    made(tmp_path / "gaps", people | {"stars": np.arange(N) % 3 * 10 + 10}, columns=stars)
    made(tmp_path / "from0", people | {"stars": np.arange(N) % 3}, columns=stars)
    given = np.array([20, -1, 30] * (N // 3))
    later = {name: each for name, each in people.items() if name != "split"}
    found = made(tmp_path / "one", later | {"stars": given}, columns=stars, encoding_of=tmp_path / "gaps")
    assert found.nodes["node"].config.target == Graph.open(tmp_path / "gaps").nodes["node"].config.target
    assert found.nodes["node"].labels is not None
    assert set(found.nodes["node"].labels[given == 20]) == {1}
    assert set(found.nodes["node"].labels[given == -1]) == {-1}
    zeros = made(tmp_path / "two", later | {"stars": np.zeros(N, int)}, columns=stars, encoding_of=tmp_path / "from0")
    assert zeros.num_classes == 3
    with pytest.raises(InputError, match=r"expected whole numbers, as in .*from0, found 'a'"):
        made(tmp_path / "text", later | {"stars": np.full(N, "a")}, columns=stars, encoding_of=tmp_path / "from0")
    with pytest.raises(ConfigError, match=r"num_classes: .*gaps has 3, found 5; leave it out"):
        made(tmp_path / "text", later | {"stars": given}, columns=stars, encoding_of=tmp_path / "gaps", num_classes=5)


@pytest.mark.parametrize(
    ("change", "columns", "message"),
    [
        ({"age": None}, {}, r"expected a column 'age', which is a feature of .*graph \(number\), found plan, member"),
        ({"age": np.array([[1.0]] * N).tolist()}, {}, r"\.age: expected numbers, as .*graph encodes .*, found list"),
        ({"joined": PEOPLE["member"]}, {}, r"\.joined: expected timestamps, dates or whole numbers, .*, found bool"),
        ({"member": PEOPLE["topic"]}, {}, r"\.member: expected truth values, found string"),
        ({"age": PEOPLE["topic"]}, {}, r"\.age: expected numbers, found string"),
        ({}, {"encode": {"age": "raw"}}, r"encode: nodes.age: expected number, as in .*graph, found raw; leave it out"),
        ({}, {"features": ["age", "id2"]}, r"features: .*graph has no feature 'id2'"),
    ],
)  # fmt: skip
def test_a_column_that_lacks_or_is_of_another_kind_is_named(
    trained: Path, tmp_path: Path, change: dict[str, Any], columns: dict[str, Any], message: str
) -> None:
    people = {name: each for name, each in (PEOPLE | {"id2": PEOPLE["age"]} | change).items() if each is not None}
    with pytest.raises((ConfigError, InputError), match=message):
        made(tmp_path / "other", people, encoding_of=trained / "graph", columns=TableColumns(label="topic", **columns))


def test_what_graphs_of_arrays_mean_nobody_knows(trained: Path, tmp_path: Path) -> None:
    arrays = {"edges": EDGES, "features": features(PEOPLE).astype(np.float32)}
    diskgnn.convert(tmp_path / "arrays", **arrays, labels=np.arange(N) % 3, train=np.arange(N))
    with pytest.warns(
        DataWarning, match=r"features of the model in .*run were made from columns .*'age', 'plan', .*array"
    ):
        applied(trained, tmp_path / "arrays")
    with pytest.raises(ConfigError, match="encoding_of: expected a graph whose features were made from columns"):
        made(tmp_path / "other", PEOPLE, encoding_of=tmp_path / "arrays")
    diskgnn.prepare(tmp_path / "arrays", tmp_path / "packed", fanouts=[5, 5], batch_size=32, cpu_cache="10%")
    diskgnn.train(tmp_path / "packed", hidden=8, epochs=1, checkpoint=tmp_path / "run")
    with pytest.warns(DataWarning, match=r"features of .*graph were made from columns .*those of the model in .*array"):
        applied(tmp_path, trained / "graph")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        applied(tmp_path, tmp_path / "arrays")


def test_the_command_line(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a stranger would: refused, told what to do, and right after that."""
    table(tmp_path, reordered(), "later.parquet")
    ids = PEOPLE["id"][EDGES]
    table(tmp_path, {"src": ids[0], "dst": ids[1]}, "edges.parquet")
    monkeypatch.chdir(tmp_path)
    convert = ["convert", "later", "--edges", "edges.parquet", "--nodes", "later.parquet", "--reverse", "--column",
               "label=topic"]  # fmt: skip
    infer = ["infer", "later", "--checkpoint", str(trained / "run"), "--out", "out.npy"]
    run(*convert)
    refused = " ".join(run(*infer, exit_code=2).output.split())
    assert "feature 0 (counted from 0): the model was trained on 'age'" in refused
    assert "diskgnn convert --encoding-of GRAPH" in refused
    run(*convert, "--overwrite", "--encoding-of", trained / "graph")
    run(*infer)
    np.testing.assert_array_equal(np.load("out.npy"), applied(trained, trained / "graph"))


EVENTS = {
    "src": EDGES[0], "dst": EDGES[1], "amount": _RNG.random(500) * 9, "kind": _RNG.choice(["cash", "card"], 500),
}  # fmt: skip


def typed(folder: Path, name: str, events: dict[str, Any], **options: Any) -> Graph:
    """Two types of nodes, one with vectors beside a number, and edges with features."""
    vectors = np.linspace(0, 1, N * 3, dtype=np.float32).reshape(N, 3)
    shops = {"size": np.arange(N) ** 2, "vector": pa.array(vectors.tolist(), pa.list_(pa.float32()))}
    columns = {"features": ["amount", "kind"], "encode": {"amount": "number"}}
    diskgnn.convert(folder / name, schema={
        "nodes": {"user": {"table": table(folder, {"age": PEOPLE["age"]}, f"{name}-users.parquet")},
                  "shop": {"table": table(folder, shops, f"{name}-shops.parquet")}},
        "edges": {"user:buys:shop": {"edges": table(folder, events, f"{name}-events.parquet"), "reverse": True,
                                     "columns": columns if not options else {}}},
    }, **options)  # fmt: skip
    return Graph.open(folder / name)


def test_features_of_edges_too(tmp_path: Path) -> None:
    """They need not be named again."""
    first = typed(tmp_path, "first", EVENTS)
    again = typed(tmp_path, "again", dict(reversed(EVENTS.items())), encoding_of=tmp_path / "first")
    for edge_type, edges in first.edges.items():
        assert edges.config.columns is not None
        assert [column.name for column in edges.config.columns] == ["amount", "kind"]
        assert again.edges[edge_type].config == edges.config
        np.testing.assert_array_equal(again.edges[edge_type].features, edges.features)
    half = typed(tmp_path, "half", {name: each[:250] for name, each in EVENTS.items()}, encoding_of=first)
    amounts = np.sort((EVENTS["amount"][:250] - EVENTS["amount"].mean()) / EVENTS["amount"].std())
    np.testing.assert_allclose(np.sort(half.edges["user", "buys", "shop"].features[:, 0]), amounts, atol=1e-6)


def test_databases_too(tmp_path: Path) -> None:
    """A folder of tables, then an SQLite file of later rows in another order."""
    users = {"name": [f"u{number}" for number in range(50)], "age": np.arange(50.0) % 7, "plan": ["a", "b"] * 25}
    orders = {"number": np.arange(90), "user": [f"u{number % 50}" for number in range(90)], "price": np.arange(90.0)}
    table(tmp_path / "db", users, "users.parquet")
    table(tmp_path / "db", orders, "orders.parquet")
    (tmp_path / "db" / "relational.yaml").write_text(
        "tables:\n  users: {file: users.parquet, pkey: name}\n"
        "  orders: {file: orders.parquet, pkey: number, fkeys: {user: users}}\n"
    )
    with sqlite3.connect(tmp_path / "later.db") as file:
        file.execute("CREATE TABLE users (plan TEXT, name TEXT PRIMARY KEY, age REAL)")
        file.execute("CREATE TABLE orders (price REAL, number INTEGER PRIMARY KEY, user TEXT REFERENCES users (name))")
        file.executemany("INSERT INTO users VALUES (?, ?, ?)", [("b", "u1", 3.0), ("c", "u2", None)])
        file.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(200.0, 7, "u2")])
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db")
    with pytest.warns(DataWarning, match=r"plan of users .*has no code for them: 1 of 2 values, first 'c'"):
        diskgnn.convert(tmp_path / "later", source=tmp_path / "later.db", encoding_of=tmp_path / "graph")
    graph, age = Graph.open(tmp_path / "later"), np.arange(50.0) % 7
    expected = [[(3 - age.mean()) / age.std(), 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(x_of(graph.nodes["users"]), expected, atol=1e-6)
    price = np.arange(90.0)
    np.testing.assert_allclose(x_of(graph.nodes["orders"]), [[(200 - price.mean()) / price.std()]], rtol=1e-6)


@pytest.mark.parametrize("kept", [True, False])
def test_tables_are_stored_as_those_of_the_graph(tmp_path: Path, kept: bool) -> None:
    """Records as records, vectors as vectors, which may be quantised, without a word about it."""
    for name, ages in (("db", range(10)), ("later.db", range(100, 110))):
        with sqlite3.connect(tmp_path / name) as file:
            file.executescript(
                "CREATE TABLE cities (id INTEGER PRIMARY KEY);"
                "CREATE TABLE users (id INTEGER PRIMARY KEY, age REAL NOT NULL, city INTEGER REFERENCES cities);"
                "INSERT INTO cities VALUES (1);"
            )
            file.executemany("INSERT INTO users VALUES (?, ?, 1)", enumerate(ages, 1))
    diskgnn.convert(tmp_path / "graph", source=tmp_path / "db", options={"keep_columns": kept})
    run("convert", tmp_path / "later", "--from", f"sqlite:{tmp_path}/later.db", "--encoding-of", tmp_path / "graph")
    graph, later = Graph.open(tmp_path / "graph"), Graph.open(tmp_path / "later")
    assert later.config.node_types[1].rows == graph.config.node_types[1].rows
    assert later.kept_columns == graph.kept_columns == (("users.age",) if kept else ())
    expected = (np.arange(100.0, 110) - 4.5) / np.arange(10.0).std()
    np.testing.assert_allclose(x_of(later.nodes["users"]), expected[:, None], rtol=1e-6)
    if not kept:
        diskgnn.convert(tmp_path / "int4", source=tmp_path / "later.db", quantise="int4", encoding_of=graph)
        assert Graph.open(tmp_path / "int4").nodes["users"].config.rows != later.nodes["users"].config.rows


def test_columns_as_they_are(tmp_path: Path) -> None:
    """Numbers that were named, and a column of vectors, keep their values and their order."""
    columns = TableColumns(features=["age", "size"])
    people = {"id": PEOPLE["id"], "size": np.arange(N), "age": PEOPLE["age"].astype(np.float32)}
    made(tmp_path / "raw", people, columns=columns)
    found = made(tmp_path / "again", reordered(people), columns=TableColumns(), encoding_of=tmp_path / "raw")
    np.testing.assert_array_equal(found.features, np.stack([PEOPLE["age"], np.arange(N)], axis=1))
    vectors = {"id": PEOPLE["id"], "features": pa.array([[1.0, 2.0]] * N, pa.list_(pa.float16()))}
    made(tmp_path / "vectors", vectors, columns=TableColumns())
    again = made(tmp_path / "again2", vectors, columns=TableColumns(), encoding_of=tmp_path / "vectors")
    assert again.features.dtype == np.float16
    longer = vectors | {"features": pa.array([[1.0, 2.0, 3.0]] * N, pa.list_(pa.float16()))}
    with pytest.raises(InputError, match=r"expected 2 numbers in every list of 'features', as in .*vectors, found 3"):
        made(tmp_path / "longer", longer, columns=TableColumns(), encoding_of=tmp_path / "vectors")


def test_a_column_without_a_value_is_null(tmp_path: Path) -> None:
    """CSV has no type for it."""
    header, rows = "age,plan,member,at,raw", ["1,a,True,2020-01-01,5", "3,b,False,2020-01-02,6"]
    (tmp_path / "first.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "empty.csv").write_text(header + "\n,,,,\n,,,,\n")
    encode = TableColumns(encode={"raw": "raw"})
    diskgnn.convert(tmp_path / "first", edges=np.array([[0], [1]]), nodes=tmp_path / "first.csv", columns=encode)
    with pytest.warns(DataWarning, match="NaN"):
        diskgnn.convert(tmp_path / "empty", edges=np.array([[0], [1]]), nodes=tmp_path / "empty.csv",
                        encoding_of=tmp_path / "first")  # fmt: skip
    np.testing.assert_array_equal(Graph.open(tmp_path / "empty").features, [[0, 0, 0, 0, 0, np.nan]] * 2)


def test_lists_of_text_that_are_all_empty(tmp_path: Path) -> None:
    """Arrow has no type for their values."""
    for name, tags in (("first", [["a"], ["a", "b"]]), ("empty", [[], []])):
        folder = tmp_path / name
        folder.mkdir()
        pq.write_table(pa.table({"id": [1, 2], "tags": pa.array(tags)}), folder / "users.parquet")
        pq.write_table(pa.table({"user": [2, 1]}), folder / "sales.parquet")
        (folder / "relational.yaml").write_text(
            "tables:\n  users: {file: users.parquet, pkey: id}\n  sales: {file: sales.parquet, fkeys: {user: users}}\n"
        )
    options = {"keep_columns": True}
    diskgnn.convert(tmp_path / "g1", source=tmp_path / "first", options=options)
    diskgnn.convert(tmp_path / "g2", source=tmp_path / "empty", options=options, encoding_of=tmp_path / "g1")
    first, empty = (Graph.open(tmp_path / name).nodes["users"] for name in ("g1", "g2"))
    assert empty.config.rows == first.config.rows
    (tags,) = (name for name in empty.features.dtype.names if name != "nulls")
    assert first.features[tags].tolist() == [[0, -1], [0, 1]]
    assert empty.features[tags].tolist() == [[-1, -1]] * 2


def test_checkpoints_and_packed_directories_keep_it(trained: Path) -> None:
    graph, packed = (
        json.loads((trained / name / "manifest.json").read_text())["config"] for name in ("graph", "packed")
    )
    assert packed["row_sets"][0]["columns"] == graph["node_types"][0]["columns"]
    ((node_type, columns),) = load_checkpoint(trained / "run")["config"]["schema"]["columns"]
    assert (node_type, [column["name"] for column in columns]) == ("node", ["age", "plan", "member", "joined"])
