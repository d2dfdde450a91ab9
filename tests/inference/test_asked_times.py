"""Models that were trained by times: predictions draw nothing later, as on a graph that NumPy has cut at that time."""

from __future__ import annotations

import shlex
import warnings
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import torch
from commands import run

import diskgnn
from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError
from diskgnn.specs.schema import EdgeType
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.training.checkpoints import FILE, load_checkpoint

BUYS: EdgeType = ("user", "buys", "item")
USERS, ITEMS = 12, 20
_RANDOM = np.random.default_rng(3)
EDGES = np.stack([_RANDOM.integers(0, USERS, 120), _RANDOM.integers(0, ITEMS, 120)])
EDGE_TIMES, ITEM_TIMES = _RANDOM.integers(0, 100, 120), _RANDOM.integers(0, 60, ITEMS)
X = {"user": _RANDOM.random((USERS, 3), np.float32), "item": _RANDOM.random((ITEMS, 2), np.float32)}
NODES = np.array([4, 7, 4, 0])
OPTIONS = {"fanouts": [3, 3], "batch_size": 8, "cpu_cache": 0}


def shop(path: Path, until: int | None = None) -> Path:
    """Users who buy items; without what is later than `until`, and then without times."""
    kept = np.ones(120, bool) if until is None else (until >= EDGE_TIMES) & (ITEM_TIMES[EDGES[1]] <= until)
    timed = until is None
    item = {"features": X["item"], "labels": np.arange(ITEMS) % 2, "train": np.arange(ITEMS)}
    edges = {"edges": EDGES[:, kept], "reverse": True}
    diskgnn.convert(path, schema={
        "nodes": {"user": {"features": X["user"]}, "item": item | ({"times": ITEM_TIMES} if timed else {})},
        "edges": {":".join(BUYS): edges | ({"times": EDGE_TIMES[kept]} if timed else {})},
    })  # fmt: skip
    return path


def trained(folder: Path, name: str, target: NodeTarget | LinkTarget, **sampling: object) -> Path:
    """A checkpoint."""
    diskgnn.prepare(folder / "graph", folder / f"{name}-packed", target=target, **OPTIONS, **sampling)
    diskgnn.train(folder / f"{name}-packed", hidden=4, epochs=1, dropout=0.0, checkpoint=folder / name)
    return folder / name


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A graph, and models of users at given times, of items at their own, of links at given times."""
    folder = tmp_path_factory.mktemp("asked")
    shop(folder / "graph")
    users = NodeTarget("user", {"train": np.arange(USERS)}, {"train": np.full(USERS, 70)},
                       {"train": np.arange(USERS) % 2})  # fmt: skip
    trained(folder, "users", users, temporal="last")
    trained(folder, "strict", users, temporal="uniform", strict_time=True)
    trained(folder, "ignoring", users, temporal="ignore")
    trained(folder, "items", NodeTarget("item"), temporal="uniform")
    links = LinkTarget(BUYS, negatives=0, eval_negatives=0, seeds={"train": EDGES.T[:20]},
                       times={"train": np.full(20, 80)})  # fmt: skip
    trained(folder, "links", links, temporal="uniform", strict_time=False)
    return folder


ALL = {"fanouts": [-1, -1]}  # neighbours


def said(made: Path, tmp_path: Path, model: object, source: object = None, **options: object) -> np.ndarray:
    """What `predict` writes."""
    diskgnn.predict(source or made / "graph", tmp_path / "out.npy", model, overwrite=True, **options)
    return np.load(tmp_path / "out.npy")


@pytest.mark.parametrize(("model", "until"), [("users", 50), ("strict", 49)])
def test_nothing_later_is_drawn(made, tmp_path, model, until):
    """At 50: of the model that was trained strictly, what is at 50 is left out, too."""
    cut = shop(tmp_path / "cut", until)
    expected = said(made, tmp_path, made / model, cut, **ALL)
    moments = [50, "50", "1970-01-01T00:00:50", datetime(1970, 1, 1, 0, 0, 50), np.datetime64(50, "s"), np.int32(50)]
    for at in moments if model == "users" else moments[:1]:  # what is said is the same to all models
        np.testing.assert_allclose(said(made, tmp_path, made / model, at=at, **ALL), expected, rtol=1e-5, atol=1e-6)
    everything = said(made, tmp_path, made / model, ignore_times=True)
    assert np.abs(everything - expected).max() > 1e-3
    diskgnn.infer(made / "graph", tmp_path / "all.npy", made / model, ignore_times=True, memory="2GiB")
    np.testing.assert_allclose(np.load(tmp_path / "all.npy"), everything, rtol=1e-4, atol=1e-6)
    run("predict", made / "graph", "--checkpoint", made / model, "--at", 50, "--fanouts=-1,-1",
        "--out", tmp_path / "cli.npy")  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "cli.npy"), expected, rtol=1e-5, atol=1e-6)


def test_as_many_are_drawn_as_evaluation_drew(made, tmp_path):
    drawn = said(made, tmp_path, made / "users", at=50)
    np.testing.assert_array_equal(drawn, said(made, tmp_path, made / "users", at=50, fanouts=OPTIONS["fanouts"]))
    everything = said(made, tmp_path, made / "users", at=50, **ALL)
    assert np.abs(everything - drawn).max() > 1e-3


def test_a_day_is_its_first_second(made, tmp_path):
    late = said(made, tmp_path, made / "users", at=date(1970, 1, 2))
    np.testing.assert_array_equal(late, said(made, tmp_path, made / "users", at=86400))
    early = said(made, tmp_path, made / "users", at="1970-01-01")
    np.testing.assert_array_equal(early, said(made, tmp_path, made / "users", at=0))


@pytest.mark.parametrize("kind", ["whole numbers", "timestamps"])
def test_each_seed_has_a_time_of_its_own(made, tmp_path, kind):
    """A node may be asked several times, without a warning; predictions can be joined with what was asked."""
    times = np.array([90, 30, 10, 55])
    one_by_one = [said(made, tmp_path, made / "users", nodes=[node], at=time)
                  for node, time in zip(NODES, times, strict=True)]  # fmt: skip
    expected = np.concatenate(one_by_one)
    assert np.abs(expected[0] - expected[2]).max() > 1e-4
    given = times if kind == "whole numbers" else times.astype("datetime64[s]").astype("datetime64[ms]")
    asked = pa.table({"id": NODES, "time": given, "row": range(4)})
    pq.write_table(asked, tmp_path / "seeds.parquet")
    pacsv.write_csv(asked, tmp_path / "seeds.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        found = said(made, tmp_path, made / "users", nodes=NODES, times=given)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        for seeds, out in (("seeds.parquet", "table.parquet"), ("seeds.csv", "table.csv")):
            run("predict", made / "graph", "--checkpoint", made / "users", "--nodes", tmp_path / seeds, "--out",
                tmp_path / out)  # fmt: skip
        at = said(made, tmp_path, made / "users", nodes=tmp_path / "seeds.parquet", at=20)  # what is said goes first
    table = pq.read_table(tmp_path / "table.parquet")
    assert (table["node"].to_pylist(), table["time"].type) == (NODES.tolist(), asked["time"].type)
    np.testing.assert_allclose(table["logits"].to_pylist(), expected, rtol=1e-5, atol=1e-6)
    rows = table.set_column(2, "logits", pa.array(np.stack(table["logits"].to_numpy())[:, 0]))
    joined = asked.join(rows.rename_columns(["id", "time", "logits"]), ["id", "time"]).sort_by("row")
    np.testing.assert_allclose(joined["logits"], expected[:, 0], rtol=1e-5, atol=1e-6)
    text, seeds = pacsv.read_csv(tmp_path / "table.csv"), pacsv.read_csv(tmp_path / "seeds.csv")
    assert text.column_names == ["node", "time", "logits_0", "logits_1"]
    assert (text["node"], text["time"]) == (seeds["id"], seeds["time"])
    np.testing.assert_allclose(np.stack([text["logits_0"], text["logits_1"]], 1), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(at, said(made, tmp_path, made / "users", nodes=NODES, at=20), rtol=1e-5, atol=1e-6)
    assert "time" not in asked_at(made, tmp_path, at=20).column_names


def test_columns_of_other_names(made, tmp_path):
    """As tables of tasks have them: nobody has to write these anew to ask about them."""
    asked = pa.table({"id": NODES, "time": [90, 30, 10, 55]})
    pq.write_table(asked, tmp_path / "seeds.parquet")
    pq.write_table(asked.rename_columns(["user", "day"]), tmp_path / "task.parquet")
    pacsv.write_csv(asked.rename_columns(["user", "day"]), tmp_path / "task.csv")
    expected, columns = asked_at(made, tmp_path), diskgnn.TableColumns(id="user", time="day")
    for task in ("task.parquet", "task.csv"):
        assert asked_at(made, tmp_path, nodes=tmp_path / task, columns=columns).equals(expected)
        named = ["--nodes", tmp_path / task, "--column", "id=user"]
        run("predict", made / "graph", "--checkpoint", made / "users", *named, "--column", "time=day",
            "--out", tmp_path / "cli.parquet", "--overwrite")  # fmt: skip
        assert pq.read_table(tmp_path / "cli.parquet").equals(expected)
        run("infer", made / "graph", "--checkpoint", made / "users", *named, "--ignore-times", "--overwrite",
            "--out", tmp_path / "a.npy")  # fmt: skip
        diskgnn.infer(made / "graph", tmp_path / "b.npy", made / "users", nodes=tmp_path / "seeds.parquet",
                      ignore_times=True, overwrite=True)  # fmt: skip
        np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))
    told = run("predict", made / "graph", "--checkpoint", made / "users", "--nodes", tmp_path / "task.csv", "--out",
               tmp_path / "no.npy", exit_code=3).stderr  # fmt: skip
    assert "say what the one of ids is called (--column id=NAME)" in " ".join(told.split())
    with pytest.raises(InputError, match=r"expected a column 'dya' .*did you mean 'day'"):
        asked_at(made, tmp_path, nodes=tmp_path / "task.csv", columns=diskgnn.TableColumns(id="user", time="dya"))
    with pytest.raises(ConfigError, match="columns: expected a table of `nodes` or `pairs` that has them, found none"):
        said(made, tmp_path, made / "users", nodes=NODES, at=3, columns=columns)
    with pytest.raises(ConfigError, match="columns: time: expected a checkpoint that was trained by times"):
        said(made, tmp_path, made / "ignoring", nodes=tmp_path / "task.csv", columns=columns)


def test_columns_that_nobody_reads_are_refused(made, tmp_path):
    """Who names a column of times believes that they count."""
    pq.write_table(pa.table({"id": NODES, "src": NODES, "dst": NODES, "day": NODES}), tmp_path / "task.parquet")
    nodes, pairs = {"nodes": tmp_path / "task.parquet"}, {"pairs": tmp_path / "task.parquet"}
    columns, graph, out = diskgnn.TableColumns, made / "graph", tmp_path / "out.npy"
    for asked, model, source, named, told in (
        (nodes, "users", "graph", columns(src="id"), "what id or time of the table of `nodes` .* found src='id'"),
        (nodes, "ignoring", "graph", columns(label="day"), "id or time of .* found label='day'"),
        (pairs, "links", "graph", columns(id="src"), "what src or dst or time of the table of `pairs` .* id='src'"),
        (nodes, "users", "users-packed", columns(time="day"), "columns: time: a packed directory was made beforehand"),
        (nodes, "users", "users-packed", columns(dst="id"), "what id of the table .* found dst='id'"),
    ):
        with pytest.raises(ConfigError, match=told):
            diskgnn.predict(made / source, out, made / model, columns=named, **asked)
    with pytest.raises(ConfigError, match=r"what id of the table of `nodes` .* found time='day'"):
        diskgnn.infer(graph, out, made / "users", columns=columns(time="day"), ignore_times=True, **nodes)
    told = run("predict", made / "users-packed", "--checkpoint", made / "users", "--nodes", nodes["nodes"],
               "--column", "time=day", "--out", out, exit_code=2).stderr  # fmt: skip
    assert "a packed directory was made beforehand, and is taken as it is" in " ".join(told.split())
    assert [path.name for path in tmp_path.iterdir()] == ["task.parquet"]
    named = columns(id="src", exclude=["day"])  # how to read the table is of any
    everybody = {"nodes": np.arange(USERS), "split": "train"}
    diskgnn.predict(made / "users-packed", out, made / "users", nodes=nodes["nodes"], columns=named, split="train")
    np.testing.assert_array_equal(
        np.load(out), said(made, tmp_path, made / "users", made / "users-packed", **everybody)[NODES]
    )


def asked_at(made: Path, tmp_path: Path, **options: object) -> pa.Table:
    """What `predict` writes of `seeds.parquet`."""
    out = tmp_path / "at.parquet"
    given = {"nodes": tmp_path / "seeds.parquet", **options}
    diskgnn.predict(made / "graph", out, made / "users", overwrite=True, **given)
    return pq.read_table(out)


def test_pairs_have_times(made, tmp_path):
    pairs = np.array([[3, 5], [3, 5], [0, ITEM_TIMES.argmin()]])
    times = np.array([80, 15, 40])
    cuts = {time: shop(tmp_path / f"cut-{time}", int(time)) for time in times}
    ask = {"message_edges": "all", "what": "logits", **ALL}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # some pairs are edges
        expected = [said(made, tmp_path, made / "links", cuts[time], pairs=[pair], **ask)[0]
                    for pair, time in zip(pairs.tolist(), times, strict=True)]  # fmt: skip
        found = said(made, tmp_path, made / "links", pairs=pairs, times=times, **ask)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
        pq.write_table(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1], "time": times}), tmp_path / "pairs.parquet")
        np.testing.assert_array_equal(
            said(made, tmp_path, made / "links", pairs=tmp_path / "pairs.parquet", **ask), found
        )
        diskgnn.predict(
            made / "graph", tmp_path / "links.parquet", made / "links", pairs=tmp_path / "pairs.parquet", **ask
        )
    table = pq.read_table(tmp_path / "links.parquet")
    assert table.select(["src", "dst", "time"]).equals(pq.read_table(tmp_path / "pairs.parquet"))
    np.testing.assert_array_equal(table["score"], found)


def test_seeds_of_own_times_are_asked_at_these(made, tmp_path):
    expected = said(made, tmp_path, made / "items", nodes=np.arange(ITEMS), times=ITEM_TIMES)
    np.testing.assert_allclose(said(made, tmp_path, made / "items"), expected, rtol=1e-5, atol=1e-6)
    packed = said(made, tmp_path, made / "items", made / "items-packed", split="train")
    assert len(packed) == ITEMS


def test_a_model_that_was_trained_without_times_is_asked_without(made, tmp_path):
    found = said(made, tmp_path, made / "ignoring")
    np.testing.assert_array_equal(found, said(made, tmp_path, made / "ignoring", ignore_times=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.infer(made / "graph", tmp_path / "all.npy", made / "ignoring", memory="2GiB")
    np.testing.assert_allclose(np.load(tmp_path / "all.npy"), found, rtol=1e-4, atol=1e-6)


def test_without_a_time_it_is_refused(made, tmp_path):
    net = diskgnn.load_model(made / "users")
    for ask, message in (
        (lambda: said(made, tmp_path, made / "users"), "trained with temporal='last', and .* user:buys:item, .* `at`"),
        (lambda: said(made, tmp_path, net), "the model does not say how its minibatches were drawn"),
        (lambda: said(made, tmp_path, made / "links", pairs=[[0, 1]]), "times: the model was trained with temporal"),
        (lambda: said(made, tmp_path, made / "users", at=3, ignore_times=True), "at: expected one of times, at and"),
        (lambda: said(made, tmp_path, made / "users", nodes=[1, 2], times=[3]), "or a timestamp for each of 2 seeds"),
        (lambda: said(made, tmp_path, made / "users", times=[3]), "times: expected the `nodes` or `pairs`"),
        (lambda: said(made, tmp_path, made / "users", at="soon"), "at: expected a whole number .* found 'soon'"),
        (lambda: said(made, tmp_path, made / "users", made / "ignoring-packed", split="train"),
         "were drawn whatever their times are"),
        (lambda: said(made, tmp_path, made / "users", made / "users-packed", split="train", at=5),
         "at: a packed directory was made beforehand"),
        (lambda: diskgnn.infer(made / "graph", tmp_path / "out.npy", made / "users"), "`diskgnn predict --at TIME`"),
        (lambda: diskgnn.infer(made / "graph", tmp_path / "out.npy", net, node_type="user"), "does not say how"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            ask()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=r"^infer takes all edges, later ones, too, while the model was trained with"):
        diskgnn.infer(made / "graph", tmp_path / "out.npy", made / "users")
    for command in ("predict", "infer"):
        told = run(command, made / "graph", "--checkpoint", made / "users", "--out", tmp_path / "out.npy", exit_code=2)
        assert all(flag in " ".join(told.stderr.split()) for flag in ("--at", "--ignore-times"))


@pytest.mark.parametrize("ask", [{"at": 50}, {"nodes": [0, 1], "times": [50, 90]}])
def test_a_time_that_leaves_nothing_out_is_said(made, tmp_path, ask):
    """The graph was converted without its times, so what is later is drawn."""
    cut = shop(tmp_path / "cut", 1000)
    with pytest.warns(DataWarning, match="nothing that is drawn from .*cut has times.*Convert the graph again"):
        found = said(made, tmp_path, made / "users", cut, **ask, **ALL)
    nodes = ask.get("nodes")
    np.testing.assert_allclose(
        found, said(made, tmp_path, made / "users", cut, nodes=nodes, **ALL), rtol=1e-4, atol=1e-6
    )


def test_there_are_no_times_to_ignore(made, tmp_path):
    """Whoever asks for that means another graph, or another checkpoint."""
    cut, asked = shop(tmp_path / "cut", 1000), {"split": "train", "ignore_times": True}
    for ask, message in (
        (lambda: said(made, tmp_path, made / "users", cut, ignore_times=True), "only for a graph with times, .*cut"),
        (lambda: diskgnn.infer(cut, tmp_path / "out.npy", made / "users", ignore_times=True), "cut has none; leave"),
        (lambda: said(made, tmp_path, made / "ignoring", made / "ignoring-packed", **asked), "only for a checkpoint"),
        (lambda: said(made, tmp_path, made / "users", made / "users-packed", **asked), "users-packed were drawn by"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=f"ignore_times: .*{message}"):
            ask()
    assert [path.name for path in tmp_path.iterdir()] == ["cut"]
    assert len(said(made, tmp_path, made / "users", made / "ignoring-packed", **asked)) == USERS


def test_seeds_with_times_on_a_graph_without_are_said(made, tmp_path):
    users = NodeTarget("user", {"train": np.arange(USERS)}, {"train": np.full(USERS, 70)},
                       {"train": np.arange(USERS) % 2})  # fmt: skip
    cut = shop(tmp_path / "cut", 1000)
    with pytest.warns(DataWarning, match="nothing that is drawn from .*cut has times"):
        diskgnn.prepare(cut, tmp_path / "packed", target=users, temporal="last", **OPTIONS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.prepare(made / "graph", tmp_path / "timed", target=users, temporal="last", **OPTIONS)


def test_a_checkpoint_says_how_its_minibatches_were_drawn(made, tmp_path):
    found = load_checkpoint(made / "strict")["config"]["sampling"]
    assert (found["fanouts"], found["temporal"], found["strict_time"], found["weighted"], found["draws"]) == (
        [3, 3], "uniform", True, False, "independent"
    )  # fmt: skip
    assert (found["target"]["node_type"], "times" in found["target"]) == ("user", True)
    with pytest.warns(DataWarning, match="trained with temporal='uniform', and minibatches of .* whatever their times"):
        diskgnn.evaluate(made / "strict", made / "ignoring-packed", split="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.evaluate(made / "strict", made / "strict-packed", split="train")
    older = torch.load(made / "strict" / FILE, weights_only=True)
    older["version"] = 4
    torch.save(older, tmp_path / FILE)
    with pytest.raises(ArtifactError, match=r"checkpoint version 4; this diskgnn reads version 5: .* or train again"):
        said(made, tmp_path, tmp_path, at=3)


def test_windows_of_training_are_those_of_predictions(made, tmp_path):
    """As on a graph that NumPy has cut at both ends of the window; items are bought in it, by users of any age."""
    users = NodeTarget("user", {"train": np.arange(USERS)}, {"train": np.full(USERS, 70)},
                       {"train": np.arange(USERS) % 2})  # fmt: skip
    model = trained(made, "windowed", users, temporal="last", temporal_window=25)
    assert load_checkpoint(model)["config"]["sampling"]["temporal_window"] == {
        "user:buys:item": 25, "item:rev_buys:user": 25
    }  # fmt: skip
    kept = (EDGE_TIMES <= 50) & (EDGE_TIMES > 25) & (ITEM_TIMES[EDGES[1]] <= 50)
    item = {"features": X["item"], "labels": np.arange(ITEMS) % 2, "train": np.arange(ITEMS)}
    diskgnn.convert(tmp_path / "cut", schema={
        "nodes": {"user": {"features": X["user"]}, "item": item},
        "edges": {":".join(BUYS): {"edges": EDGES[:, kept], "reverse": True}},
    })  # fmt: skip
    expected = said(made, tmp_path, model, tmp_path / "cut", **ALL)
    np.testing.assert_allclose(said(made, tmp_path, model, at=50, **ALL), expected, rtol=1e-5, atol=1e-6)
    whole = shop(tmp_path / "whole", 50)
    assert np.abs(said(made, tmp_path, model, whole, **ALL) - expected).max() > 1e-3
    other = r"trained with temporal_window=.*, and the minibatches of .*users-packed were drawn with no temporal_window"
    with pytest.raises(ConfigError, match=other):
        said(made, tmp_path, model, made / "users-packed", split="train")
    with pytest.warns(DataWarning, match=r"trained with temporal_window=.*with no temporal_window: prepare them"):
        diskgnn.evaluate(model, made / "users-packed", split="train")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        assert len(said(made, tmp_path, model, made / "windowed-packed", split="train")) == USERS


@pytest.mark.parametrize("unit", ["ms", "ns"])
def test_dates_are_counted_in_the_unit_of_the_graph(tmp_path, unit):
    item = {"features": X["item"], "times": ITEM_TIMES}
    diskgnn.convert(tmp_path / "graph", time_unit=unit, schema={
        "nodes": {"user": {"features": X["user"]}, "item": item},
        "edges": {":".join(BUYS): {"edges": EDGES, "times": EDGE_TIMES, "reverse": True}},
    })  # fmt: skip
    day = np.datetime64(0, unit)
    table = pa.table({"id": np.arange(USERS), "time": np.full(USERS, day + 70), "label": np.arange(USERS) % 2})
    pq.write_table(table, tmp_path / "train.parquet")
    target = diskgnn.read_target(tmp_path / "graph", {"train": tmp_path / "train.parquet"}, node_type="user")
    assert target.times["train"].tolist() == [70] * USERS
    model = trained(tmp_path, "run", target, temporal="last")
    by_number = said(tmp_path, tmp_path, model, at=50)
    assert np.abs(by_number - said(tmp_path, tmp_path, model, at=20)).max() > 1e-4
    text = {"ms": "1970-01-01T00:00:00.050"}
    moments = [day + 50, *([text[unit]] if unit in text else []), pd.Timestamp(50, unit=unit, tz="UTC")]
    for at in moments:
        np.testing.assert_array_equal(said(tmp_path, tmp_path, model, at=at), by_number)
    nodes, times = np.arange(USERS), [pd.Timestamp(50, unit=unit)] * USERS
    np.testing.assert_array_equal(said(tmp_path, tmp_path, model, nodes=nodes, times=times), by_number)
    pq.write_table(table.set_column(1, "time", pa.array(np.full(USERS, day + 50))), tmp_path / "asked.parquet")
    np.testing.assert_array_equal(said(tmp_path, tmp_path, model, nodes=tmp_path / "asked.parquet"), by_number)
    dated = NodeTarget("user", {"train": nodes}, {"train": np.full(USERS, day)})
    with pytest.raises(ConfigError, match=rf"are in {unit}; .* give times.astype\('datetime64\[{unit}\]'\)"):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "dated", target=dated, temporal="last", **OPTIONS)


def test_times_of_python(made, tmp_path):
    """Of lists: days beside moments are their first second, and what has a zone is when it is in UTC."""
    hours = [0, 7, 24]
    numbers = np.array(hours) * 3600
    expected = said(made, tmp_path, made / "users", nodes=[1, 2, 3], times=numbers)
    zoned = pd.Series(pd.to_datetime(numbers, unit="s")).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")
    for times in (
        [date(1970, 1, 1), datetime(1970, 1, 1, 7), date(1970, 1, 2)],
        [datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), datetime(1970, 1, 1, 7), datetime(1970, 1, 2)],
        ["1970-01-01", "1970-01-01T09:00+02:00", "1970-01-02 00:00:00"],
        zoned, [*zoned], numbers.astype("datetime64[s]").astype("datetime64[h]"),
        [date(1970, 1, 1), pd.Timestamp("1970-01-01 07:00"), date(1970, 1, 2)],
    ):  # fmt: skip
        np.testing.assert_array_equal(said(made, tmp_path, made / "users", nodes=[1, 2, 3], times=times), expected)
    for wrong, told in (([date(1970, 1, 1), None, 3], "found others"), ([True] * 3, "found bool"),
                        ([2**70, 1, 2], "found others"),
                        ([date(1970, 1, 1), None, None], r"found none at 1 \(from 0\)")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"a date or a timestamp for each of 3 seeds, {told}"):
            said(made, tmp_path, made / "users", nodes=[1, 2, 3], times=wrong)


def test_dates_are_seconds_and_no_days(made, tmp_path):
    """A graph that counts days is asked in days."""
    users = NodeTarget("user", {"train": np.arange(USERS)}, {"train": np.full(USERS, 70)},
                       {"train": np.arange(USERS) % 2})  # fmt: skip
    item = {"features": X["item"], "times": ITEM_TIMES}
    diskgnn.convert(tmp_path / "graph", time_unit="d", schema={
        "nodes": {"user": {"features": X["user"]}, "item": item},
        "edges": {":".join(BUYS): {"edges": EDGES, "times": EDGE_TIMES, "reverse": True}},
    })  # fmt: skip
    model = trained(tmp_path, "run", users, temporal="last", temporal_window="2w")
    by_number = said(made, tmp_path, model, tmp_path / "graph", at=50)
    np.testing.assert_array_equal(said(made, tmp_path, model, tmp_path / "graph", at="50"), by_number)
    pq.write_table(pa.table({"id": NODES, "time": np.full(4, 50, "datetime64[s]")}), tmp_path / "seeds.parquet")
    asked = [
        {"at": "1970-02-20"}, {"at": date(1970, 2, 20)}, {"at": np.datetime64("1970-02-20")},
        {"nodes": NODES, "times": np.full(4, 50, "datetime64[s]")}, {"nodes": tmp_path / "seeds.parquet"},
    ]  # fmt: skip
    for each in asked:
        with pytest.raises(ConfigError, match="expected whole numbers, as the graph's times are in d; found a date"):
            said(made, tmp_path, model, tmp_path / "graph", **each)
    with pytest.raises(
        ConfigError, match="seeds: times of split 'train': expected whole numbers, as the graph's times"
    ):
        diskgnn.read_target(tmp_path / "graph", {"train": tmp_path / "seeds.parquet"}, node_type="user")
    dated = NodeTarget("user", {"train": np.arange(USERS)}, {"train": np.full(USERS, 70, "datetime64[s]")})
    with pytest.raises(
        ConfigError, match=r"times: expected whole numbers, as the times of .* are in d; found datetime64"
    ):
        diskgnn.prepare(tmp_path / "graph", tmp_path / "dated", target=dated, temporal="last", **OPTIONS)
    with pytest.raises(ConfigError, match="node_type: the model was trained for user, and says nothing of item nodes"):
        said(tmp_path, tmp_path, model, at=50, node_type="item")


def test_evaluate_proposes_what_is_not_refused(made, tmp_path):
    said = run("evaluate", made / "users-packed", "--checkpoint", made / "users", "--split", "train").stderr
    (line,) = (line for line in said.splitlines() if line.startswith("next: "))
    words = shlex.split(line.removeprefix("next: diskgnn ").partition("   #")[0])
    given = {"GRAPH": made / "graph", "TIME": "50", "predictions.parquet": tmp_path / "predictions.parquet"}
    assert words[0] == "predict"
    run(*(given.get(word, word) for word in words))
    assert pq.read_metadata(tmp_path / "predictions.parquet").num_rows == USERS
    said = run("evaluate", made / "ignoring-packed", "--checkpoint", made / "ignoring", "--split", "train").stderr
    assert "next: diskgnn infer GRAPH" in said
