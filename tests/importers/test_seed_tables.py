"""Seeds in tables, with ids, times, labels and splits as somebody has them, of a shop that is checked by hand."""

from __future__ import annotations

import json
import warnings
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from commands import run
from pyarrow import csv

import diskgnn
from diskgnn import LinkTarget, Loader, NodeTarget, TableColumns, read_target
from diskgnn.errors import ConfigError, DataWarning, InputError
from diskgnn.formats.samples import Samples

DAY = 86_400
COLUMNS = TableColumns(id="user", time="day", label="left")
DESCRIPTION = """
tables:
  users: {file: users.parquet, pkey: name}
  orders: {file: orders.parquet, pkey: order, fkeys: {user: users}, time: at}
"""
ASKED = {
    "train": {"user": ["ann", "ann", "zoe", "bob"], "day": [2, 4, 4, 4], "left": [False, True, False, True]},
    "valid": {"user": ["bob", "zoe", "ann"], "day": [9, 9, 9], "left": [None, True, False]},
}


def day(number):
    return datetime(1970, 1, 1 + number)


def table(split):
    columns = ASKED[split]
    return pa.table(columns | {"day": pa.array(map(day, columns["day"]), pa.timestamp("ns"))})


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Users zoe, ann and bob are nodes 0, 1 and 2. Ann ordered on day 3, and bob on day 5."""
    folder = tmp_path_factory.mktemp("shop")
    pq.write_table(pa.table({"name": ["zoe", "ann", "bob"], "age": [20.0, 40.0, 60.0]}), folder / "users.parquet")
    orders = {"order": [100, 101], "user": ["ann", "bob"], "at": pa.array([day(3), day(5)], pa.timestamp("us"))}
    pq.write_table(pa.table(orders), folder / "orders.parquet")
    (folder / "relational.yaml").write_text(DESCRIPTION)
    for split in ASKED:
        pq.write_table(table(split), folder / f"{split}.parquet")
    run("convert", folder / "graph", "--from", "relational", folder)
    return folder


def by_hand(labels=lambda left: left, classes=(False, True)):
    days = {"train": [2, 4, 4, 4], "valid": [9, 9]}
    return NodeTarget(
        "users", {"train": [1, 1, 0, 2], "valid": [0, 1]},
        {split: np.array(each) * DAY for split, each in days.items()},
        {"train": labels([0, 1, 0, 1]), "valid": labels([1, 0])}, classes=classes,
    )  # fmt: skip


def flags(shop, *splits):
    found = ["--target", "users", "--target-column", "id=user", "--target-column", "time=day", "--target-column",
             "label=left"]  # fmt: skip
    for split in splits:
        found += ["--target-seeds", f"{split}={shop / split}.parquet"]
    return found


def test_a_table_for_each_split(shop):
    """The row without a label is left out."""
    tables = {split: shop / f"{split}.parquet" for split in ASKED}
    assert read_target(shop / "graph", tables, node_type="users", columns=COLUMNS) == by_hand()
    numbers = read_target(shop / "graph", tables, node_type="users", columns=COLUMNS, task="regression")
    assert numbers == by_hand(lambda left: np.array(left, np.float32), None)


@pytest.mark.parametrize("write", [pq.write_table, csv.write_csv])
def test_one_table_with_a_column_of_splits(shop, tmp_path, write):
    """Rows of no split are left out, and times may be seconds."""
    rows = pa.table({
        "split": [None, "train", "val", "train", "val", "train", "val", "train"],
        "id": ["bob", "ann", "bob", "ann", "zoe", "zoe", "ann", "bob"],
        "time": pa.array(np.array([1, 2, 9, 4, 9, 4, 9, 4]) * DAY),
        "label": [0, 0, None, 1, 1, 0, 0, 1],
    })  # fmt: skip
    write(rows, tmp_path / ("seeds.csv" if write is csv.write_csv else "seeds.parquet"))
    assert read_target(shop / "graph", next(tmp_path.iterdir()), node_type="users") == by_hand(classes=None)


SEVERAL = [[1, 0], None, [0, 0], [1, 1]]  # of ann, ann, zoe, bob; the second row is left out
SEVERAL_SEEDS = {"train": [1, 0, 2]}


@pytest.mark.parametrize("kind", [pa.list_(pa.int8()), pa.list_(pa.bool_(), 2), pa.large_list(pa.int64())])
def test_several_labels_of_a_seed_are_a_list(shop, tmp_path, kind):
    as_kind = bool if pa.types.is_boolean(kind.value_type) else int
    given = [row and [as_kind(label) for label in row] for row in SEVERAL]
    rows = pa.table({"id": ["ann", "ann", "zoe", "bob"], "label": pa.array(given, kind)})
    pq.write_table(rows, tmp_path / "seeds.parquet")
    try:
        pq.read_table(tmp_path / "seeds.parquet")
    except pa.ArrowInvalid as error:  # lists of one size with a null among them, before 26
        pytest.skip(f"pyarrow {pa.__version__} cannot read what it wrote: {error}")
    found = read_target(shop / "graph", {"train": tmp_path / "seeds.parquet"}, node_type="users")
    assert found == NodeTarget("users", SEVERAL_SEEDS, labels={"train": np.array([[1, 0], [0, 0], [1, 1]], np.uint8)})
    numbers = read_target(shop / "graph", {"train": tmp_path / "seeds.parquet"}, node_type="users", task="regression")
    assert numbers == NodeTarget("users", SEVERAL_SEEDS, labels={"train": [[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]]})


def test_several_labels_of_a_seed_are_several_columns(shop, tmp_path):
    """From the command line, too; of numbers, NaN stands for those that are not known."""
    (tmp_path / "seeds.csv").write_text("id,left,paid,spent\nann,1,0,2.5\nann,,,\nzoe,0,0,\nbob,1,1,4\n")
    tables = {"train": tmp_path / "seeds.csv"}
    expected = NodeTarget("users", SEVERAL_SEEDS, labels={"train": np.array([[1, 0], [0, 0], [1, 1]], np.uint8)})
    columns = TableColumns(label=["left", "paid"])
    assert read_target(shop / "graph", tables, node_type="users", columns=columns) == expected
    asked = ["--target", "users", "--target-seeds", f"train={tmp_path}/seeds.csv", "--fanouts", "1", "--batch-size", 2,
             "--temporal", "ignore"]  # fmt: skip
    run("sample", shop / "graph", tmp_path / "samples", *asked, "--target-column", "label=left", "--target-column",
        "label=paid")  # fmt: skip
    config = Samples.open(tmp_path / "samples").config
    assert config.spec.target == expected
    mixed = read_target(shop / "graph", tables, node_type="users", columns=TableColumns(label=["paid", "spent"]))
    np.testing.assert_array_equal(mixed.labels["train"], [[0.0, 2.5], [0.0, np.nan], [1.0, 4.0]])
    one = read_target(shop / "graph", tables, node_type="users", columns=TableColumns(label="left"), task="multilabel")
    assert one.labels["train"].tolist() == [[1], [0], [1]]


@pytest.mark.parametrize(
    ("labels", "task", "message"),
    [
        ([[1, 0], [1], [0, 1], None], None, r"lists of one length as labels of .*, found \[1, 2\]"),
        ([[1, 0], [1, None], [0, 1], None], None, "expected 0 or 1 for each label, found null in a row"),
        ([[1, 0], [1, 2], [0, 1], None], None, "expected 0 and 1 for each of 2 labels, found 0 to 2"),
        ([[1, 0], [1, 1], [0, 1], None], "class", "expected multilabel or regression for 2 labels of each seed"),
        ([[], [], [], None], None, "lists of one length"),
        ([["a"], ["b"], ["c"], None], None, "expected numbers, found string"),
        ([None] * 4, None, "expected rows with a label in split 'train'"),
    ],
)
def test_several_labels_that_do_not_fit_are_refused(shop, tmp_path, labels, task, message):
    pq.write_table(pa.table({"id": ["ann", "ann", "zoe", "bob"], "label": labels}), tmp_path / "seeds.parquet")
    with pytest.raises((ConfigError, InputError), match=message):
        read_target(shop / "graph", {"train": tmp_path / "seeds.parquet"}, node_type="users", task=task)


def test_other_tables_have_one_column_of_labels(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,x,a,b\n0,1.5,0,1\n1,2.5,1,1\n")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    asked = [tmp_path / "graph", "--edges", tmp_path / "edges.csv", "--nodes", tmp_path / "nodes.csv"]
    found = run("convert", *asked, "--column", "label=a", "--column", "label=b", exit_code=2)
    assert "expected one column of labels, found a, b" in found.stderr
    assert not (tmp_path / "graph").exists()


def test_dense_ids_without_times_and_labels(tmp_path):
    nodes, edges = (
        {"node": {"features": np.zeros((50, 2), np.float32)}},
        {"node:to:node": {"edges": np.array([[0], [1]])}},
    )
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": edges})
    (tmp_path / "seeds.csv").write_text("id,split\n49,train\n3,test\n0,train\n")
    found = read_target(tmp_path / "graph", tmp_path / "seeds.csv")
    assert found == NodeTarget("node", {"train": [49, 0], "test": [3]})
    (tmp_path / "regressed.csv").write_text("id,label,split\n49,0.5,train\n3,1,train\n")
    found = read_target(tmp_path / "graph", tmp_path / "regressed.csv")
    assert found == NodeTarget("node", {"train": [49, 3]}, labels={"train": [0.5, 1.0]})


def test_prepared_trained_and_evaluated_from_the_command_line(shop, tmp_path):
    asked = [*flags(shop, "train", "valid"), "--fanouts", "1", "--temporal", "last", "--batch-size", 4]
    run("sample", shop / "graph", tmp_path / "samples", *asked)
    assert Samples.open(tmp_path / "samples").config.spec.target == by_hand()
    prepare = ["prepare", shop / "graph", tmp_path / "packed", *asked, "--cpu-cache", "1KiB"]
    predicted = json.loads(run(*prepare, "--estimate", "--json").stdout)
    assert predicted["settings"]
    assert not (tmp_path / "packed").exists()
    run(*prepare)
    with Loader(tmp_path / "packed", "valid") as loader:
        (batch,) = loader
    assert (batch.seeds.tolist(), batch.y.tolist()) == ([0, 1], [1, 0])
    assert np.diff(batch.blocks[0]["orders", "f2p_user", "users"].indptr).tolist() == [0, 1]
    with Loader(tmp_path / "packed") as loader:
        (batch,) = loader
    orders = np.diff(batch.blocks[0]["orders", "f2p_user", "users"].indptr).tolist()
    # Ann's order of day 3 is seen on day 4 and not on day 2; bob's of day 5 is not seen on day 4.
    assert sorted(zip(batch.seeds.tolist(), batch.y.tolist(), orders, strict=True)) == [
        (0, 0, 0), (1, 0, 0), (1, 1, 1), (2, 1, 0)
    ]  # fmt: skip
    run("train", tmp_path / "packed", "--task", "classification", "--epochs", 1, "--hidden", 4, "--checkpoint",
        tmp_path / "run")  # fmt: skip
    found = run("evaluate", tmp_path / "packed", "--checkpoint", tmp_path / "run", "--split", "valid", "--json")
    assert json.loads(found.stdout)["num_seeds"] == 2


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({"user": ["eve"]}, {}, "expected ids of nodes of type 'users', found 'eve', which none has"),
        ({"user": [7]}, {}, "expected ids of type string, as of the nodes of type 'users', found int64"),
        ({"user": [None]}, {}, "expected whole numbers, strings or binary in column 'user'"),
        ({"user": [7.0]}, {}, "found double; cast the column to int64 if the values are what is meant"),
        ({"user": [0.5]}, {}, r"found double, such as 0\.5: is it another column"),
        ({"user": pa.array([7], pa.uint64())}, {}, "expected ids of type string, .*found uint64: cast them to string"),
        ({"user": pa.array([None], pa.string())}, {}, r"expected no null in column 'user' of .*, found one in row 0"),
        ({"day": pa.array([None], pa.int64())}, {}, r"expected no null in column 'day' of .*, found one in row 0"),
        ({"day": ["x"]}, {}, "times of split 'train': expected dates or times in ISO 8601 .*; found 'x'"),
        ({"left": [None]}, {}, "expected rows with a label in split 'train', found none"),
        ({"left": [0.5]}, {"task": "class"}, "labels of split 'train': expected whole numbers"),
        ({"left": [b"1"]}, {}, "labels of split 'train': expected numbers, found binary"),
        ({"left": [-1]}, {}, r"labels\['train'\]: expected classes of 0 or more"),
        ({}, {"task": "link"}, "task: expected one of class, multilabel, regression, found 'link'"),
        ({}, {"node_type": None}, "target: expected the type of the nodes that the seeds are, one of users, orders"),
        ({}, {"node_type": "user"}, "one of users, orders; found user"),
        ({}, {"columns": TableColumns(id="user", label="churned")}, "expected a column 'churned'"),
    ],
)
def test_what_is_no_seed_is_refused(shop, tmp_path, changed, options, message):
    pq.write_table(pa.table({"user": ["zoe"], "day": [1], "left": [0]} | changed), tmp_path / "train.parquet")
    with pytest.raises((ConfigError, InputError), match=message):
        read_target(shop / "graph", {"train": tmp_path / "train.parquet"},
                    **{"node_type": "users", "columns": COLUMNS} | options)  # fmt: skip


def test_tables_that_do_not_fit_each_other_are_refused(shop, tmp_path):
    pq.write_table(table("valid").drop(["left"]), tmp_path / "valid.parquet")
    tables = {"train": shop / "train.parquet", "valid": tmp_path / "valid.parquet"}
    columns = TableColumns(id="user", time="day")
    pq.write_table(table("train").rename_columns(["user", "day", "label"]), tmp_path / "train.parquet")
    with pytest.raises(
        InputError,
        match=r"expected a label of each seed or of none, found none in split 'valid'; prepare .* by themselves",
    ):
        read_target(shop / "graph", tables | {"train": tmp_path / "train.parquet"}, node_type="users", columns=columns)
    pq.write_table(pa.table({"id": ["zoe"], "split": pa.array([None], pa.string())}), tmp_path / "seeds.parquet")
    with pytest.raises(InputError, match="expected rows of a split in"):
        read_target(shop / "graph", tmp_path / "seeds.parquet", node_type="users")
    pq.write_table(table("train").slice(0, 0), tmp_path / "empty.parquet")
    pq.write_table(
        pa.table({"user": pa.array([], pa.null()), "split": pa.array([], pa.null())}), tmp_path / "no.parquet"
    )
    (tmp_path / "seeds.txt").write_text("user\nzoe\n")
    (tmp_path / "seeds.csv").write_text("user,part\nzoe,train\n")
    for seeds, message in (
        ({"train": tmp_path / "empty.parquet"}, "expected at least one row in .*, found no rows"),
        (tmp_path / "no.parquet", "expected at least one row in .*, found no rows"),
        (tmp_path / "seeds.txt", "found a text file; name a table .csv"),
        (tmp_path / "seeds.csv", "expected a column 'split' .*split=NAME.*or give a table for each split"),
    ):
        with pytest.raises(InputError, match=message):
            read_target(shop / "graph", seeds, node_type="users", columns=COLUMNS)


def test_a_seed_that_comes_twice_is_called_by_its_own_id(shop, tmp_path):
    twice = pa.table({"id": ["zoe", "zoe"], "label": [0, 1]})
    pq.write_table(twice, tmp_path / "train.parquet")
    target = read_target(shop / "graph", {"train": tmp_path / "train.parquet"}, node_type="users")
    with pytest.raises(ConfigError, match=r"expected each node once in .*, found id 'zoe' in 2 of them; keep one"):
        diskgnn.prepare(shop / "graph", tmp_path / "packed", target=target, fanouts=[1], batch_size=2, cpu_cache="1KiB")


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--target-column", "id=user"], 2, "--target-column: only for seeds in tables; pass --target-seeds with it"),
        (["--target-task", "class"], 2, "--target-task: only for seeds in tables"),
        (["--target-column", "weight=user"], 2, "expected ROLE=NAME with a role of id, src, dst, time,"),
        (["--target-seeds", "train=nothing.parquet"], 2, "nothing.parquet"),
        (["--target-seeds", "train={train}", "--target-seeds", "{train}"], 2, "expected one table with a column of"),
        (["--target-seeds", "train={train}", "--target", "users:rev_f2p_user:orders"], 3, "expected a column 'src'"),
        (["--target-seeds", "train={train}", "--target", "users:buy:orders"], 2, "--target: expected the type of"),
        (["--target-seeds", "{train}", "--target", "users"], 3, "expected a column 'split'"),
        (["--target-seeds", "train={train}"], 2, "--target: expected the type of the nodes that the seeds are"),
        (["--target-seeds", "train={train}", "--target", "users"], 3, "--target-seeds: expected a column 'id'"),
        ("without --temporal", 2, "times: draws do not go by them; pass --temporal uniform"),
    ],
)  # fmt: skip
def test_flags_that_make_no_sense_leave_nothing_behind(shop, tmp_path, given, code, message):
    given = (
        flags(shop, "train")
        if isinstance(given, str)
        else [each.format(train=shop / "train.parquet") for each in given]
    )
    refused = run("prepare", shop / "graph", tmp_path / "packed", "--fanouts", "1", "--cpu-cache", "1KiB", *given,
                  exit_code=code)  # fmt: skip
    assert message in " ".join(refused.stderr.split())
    assert [path for path in tmp_path.iterdir() if "lock" not in path.name] == []


STARS = {
    "train": {"what": [100, 101, 101, 101], "who": ["ann", "zoe", "bob", "ann"], "stars": [2, 0, 1, None]},
    "valid": {"what": [100, 100], "who": ["bob", "zoe"], "stars": [1, 0]},
}
BY_STARS = TableColumns(src="what", dst="who", label="stars")


def ratings(shop, folder, split, **changed):
    pq.write_table(pa.table(STARS[split] | changed), folder / f"ratings-{split}.parquet")
    return folder / f"ratings-{split}.parquet"


def test_pairs_with_labels(shop, tmp_path):
    """Orders 100 and 101 are nodes 0 and 1. The pair without a label is left out."""
    tables, edge_type = {split: ratings(shop, tmp_path, split) for split in STARS}, "orders:f2p_user:users"
    pairs = {"train": [[0, 1], [1, 0], [1, 2]], "valid": [[0, 2], [0, 0]]}
    expected = LinkTarget(edge_type, 0, 0, seeds=pairs, labels={"train": [2, 0, 1], "valid": [1, 0]})
    assert read_target(shop / "graph", tables, edge_type=edge_type, columns=BY_STARS) == expected
    numbers = read_target(shop / "graph", tables, edge_type=edge_type, columns=BY_STARS, task="regression")
    assert {split: each.tolist() for split, each in numbers.labels.items()} == {"train": [2, 0, 1], "valid": [1, 0]}
    links = read_target(shop / "graph", tables, edge_type=edge_type, columns=TableColumns(src="what", dst="who"))
    assert links.labels is None
    assert links.negatives == 1
    assert links.seeds["train"].tolist() == [*pairs["train"], [1, 1]]
    several = TableColumns(src="what", dst="who", label=["stars", "again"])
    twice = {"train": ratings(shop, tmp_path, "train", again=[1, 0, 1, None])}
    with pytest.raises(ConfigError, match=r"labels\['train'\]: expected one label for each pair \[n\], found \[3, 2\]"):
        read_target(shop / "graph", twice, edge_type=edge_type, columns=several, task="regression")


def test_pairs_with_labels_are_prepared_and_trained_on(shop, tmp_path):
    columns = [part for each in ("src=what", "dst=who", "label=stars") for part in ("--target-column", each)]
    tables = [part for split in STARS for part in ("--target-seeds", f"{split}={ratings(shop, tmp_path, split)}")]
    asked = ["--target", "orders:f2p_user:users", "--fanouts", "1", "--batch-size", 4, "--temporal", "ignore",
             *columns, *tables]  # fmt: skip
    prepare = ["prepare", shop / "graph", tmp_path / "packed", *asked, "--cpu-cache", "1KiB"]
    assert "--negatives: expected none for pairs" in run(*prepare, "--negatives", 3, exit_code=2).stderr
    assert json.loads(run(*prepare, "--estimate", "--json").stdout)["settings"]
    run(*prepare)
    with Loader(tmp_path / "packed") as loader:
        assert (loader.schema.target_kind, loader.schema.num_outputs) == ("class", 3)
        (batch,) = loader
    users, orders = np.split(batch.seeds.numpy(), [batch.node_counts[-1]["users"]])
    found = zip(orders[batch.pairs.src], users[batch.pairs.dst], batch.y.tolist(), strict=True)
    assert sorted(map(tuple, found)) == [(0, 1, 2), (1, 0, 0), (1, 2, 1)]
    assert batch.y.dtype == torch.int64
    before = (tmp_path / "packed" / "train.bin").read_bytes()
    (tmp_path / "packed" / "train.bin").write_bytes(bytes([before[0] ^ 1]) + before[1:])
    run("verify", tmp_path / "packed", "--repair", "--graph", shop / "graph")
    assert (tmp_path / "packed" / "train.bin").read_bytes() == before
    run("train", tmp_path / "packed", "--task", "classification", "--epochs", 2, "--hidden", 4, "--checkpoint",
        tmp_path / "run")  # fmt: skip
    found = json.loads(run("evaluate", tmp_path / "packed", "--checkpoint", tmp_path / "run", "--split", "valid",
                           "--json").stdout)  # fmt: skip
    asked = ["predict", shop / "graph", "--checkpoint", tmp_path / "run", "--fanouts", "1"]
    pq.write_table(pa.table({"src": STARS["valid"]["what"], "dst": STARS["valid"]["who"]}), tmp_path / "pairs.parquet")
    run(*asked, "--pairs", tmp_path / "pairs.parquet", "--what", "classes", "--out", tmp_path / "out.parquet")
    said = pq.read_table(tmp_path / "out.parquet").to_pydict()
    assert (said["src"], said["dst"]) == (STARS["valid"]["what"], STARS["valid"]["who"])
    assert found["accuracy"] == np.mean(np.array(said["class"]) == STARS["valid"]["stars"])
    refused = run("train", tmp_path / "packed", "--decoder", "dot", "--epochs", 1, exit_code=2)
    assert "--decoder: expected mlp for pairs that have labels, found 'dot'" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("values", [["no", "yes", "?"], [10, 30, 20]])
def test_labels_that_are_values_come_back_as_such(shop, tmp_path, values):
    """Of nodes and of pairs: classes ascend by value over all splits, and predictions are values."""
    rows = {"train": [0, 1, 2], "valid": [2, 1]}
    users, orders = ["zoe", "ann", "bob"], [100, 101, 100]
    ascending = sorted(values)
    for edge_type in (None, "orders:f2p_user:users"):
        tables = {}
        for split, numbers in rows.items():
            ids = {"id": [users[i] for i in numbers]}
            if edge_type is not None:
                ids = {"src": [orders[i] for i in numbers], "dst": [users[i] for i in numbers]}
            tables[split] = tmp_path / f"{split}-{len(ids)}.parquet"
            pq.write_table(pa.table({**ids, "label": [values[i] for i in numbers]}), tables[split])
        of = {"node_type": "users"} if edge_type is None else {"edge_type": edge_type}
        target = read_target(shop / "graph", tables, **of)
        assert target.classes == tuple(ascending)
        assert {split: each.tolist() for split, each in target.labels.items()} == {
            split: [ascending.index(values[i]) for i in numbers] for split, numbers in rows.items()
        }
        folder = tmp_path / ("pairs" if edge_type else "nodes")
        diskgnn.prepare(shop / "graph", folder / "packed", target=target, fanouts=[2], batch_size=2, cpu_cache="1KiB",
                        temporal="ignore", static_cache=0)  # fmt: skip
        diskgnn.train(folder / "packed", epochs=1, hidden=4, checkpoint=folder / "run", device="cpu")
        asked = {"nodes": np.arange(3)} if edge_type is None else {"pairs": np.array([[0, 0], [1, 1]])}
        found = {}
        for what in ("logits", "classes"):
            diskgnn.predict(shop / "graph", folder / f"{what}.npy", folder / "run", what=what, **asked)
            found[what] = np.load(folder / f"{what}.npy")
        assert found["classes"].tolist() == [ascending[best] for best in found["logits"].argmax(1)]


def test_labels_of_several_types_are_named(shop, tmp_path):
    for split, labels in (("train", [1, 0]), ("valid", ["yes", "no"])):
        pq.write_table(pa.table({"id": ["zoe", "ann"], "label": labels}), tmp_path / f"{split}.parquet")
    seeds = {split: tmp_path / f"{split}.parquet" for split in ("train", "valid")}
    with pytest.raises(
        InputError, match="labels: expected one type, found int64 in split 'train' and text in split 'va"
    ):
        read_target(shop / "graph", seeds, node_type="users")


def test_times_of_seeds_that_nobody_named_are_told(shop, tmp_path):
    """Where nodes have times of their own, seeds would go by these, whatever the table has."""
    users = {"name": ["zoe", "ann", "bob"], "since": pa.array([day(0), day(1), day(2)], pa.timestamp("us"))}
    for table_of, name in ((users, "users"), (pq.read_table(shop / "orders.parquet").to_pydict(), "orders")):
        pq.write_table(pa.table(table_of), tmp_path / f"{name}.parquet")
    (tmp_path / "relational.yaml").write_text(DESCRIPTION.replace("pkey: name", "pkey: name, time: since"))
    diskgnn.convert(tmp_path / "graph", source=tmp_path)
    unnamed, tables = TableColumns(id="user", label="left"), {"train": shop / "train.parquet"}
    with pytest.warns(DataWarning, match=r"no column of .*train.parquet is named as their times.* if day is when"):
        found = read_target(tmp_path / "graph", tables, node_type="users", columns=unnamed)
    assert found.times is None
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="seeds: no column")
        assert read_target(tmp_path / "graph", tables, node_type="users", columns=COLUMNS).times is not None
        read_target(shop / "graph", tables, node_type="users", columns=unnamed)  # whose users have no times
    frame = pq.read_table(shop / "train.parquet").drop(["day"])
    frame = frame.append_column("__index_level_0__", pa.array(np.arange(frame.num_rows)))
    pq.write_table(frame, tmp_path / "indexed.parquet")
    with warnings.catch_warnings():  # an index of pandas is no time
        warnings.filterwarnings("error", message="seeds: no column")
        read_target(tmp_path / "graph", {"train": tmp_path / "indexed.parquet"}, node_type="users", columns=unnamed)
    told = run("sample", tmp_path / "graph", tmp_path / "samples", "--target", "users", "--target-seeds",
               f"train={shop}/train.parquet", "--target-column", "id=user", "--target-column", "label=left",
               "--temporal", "last", "--fanouts", 1)  # fmt: skip
    assert "if day is when a seed is asked, say so (--target-column time=NAME)" in " ".join(told.stderr.split())


def test_labels_of_seeds_that_nobody_named_are_told(shop, tmp_path):
    unnamed, tables = TableColumns(id="user", time="day"), {split: shop / f"{split}.parquet" for split in ASKED}
    with pytest.warns(DataWarning, match=r"no column of .*train.parquet is named as their labels.* if left is the"):
        assert read_target(shop / "graph", tables, node_type="users", columns=unnamed).labels is None
    pq.write_table(table("train").drop(["left"]), tmp_path / "bare.parquet")
    with pytest.warns(DataWarning, match=r"no column of .*bare.parquet is named as their labels.*add a column of them"):
        read_target(shop / "graph", {"train": tmp_path / "bare.parquet"}, node_type="users", columns=unnamed)
    pairs = pa.table({"user": ["ann", "bob"], "order": [100, 101], "left": [True, False]})
    pq.write_table(pairs, tmp_path / "pairs.parquet")
    of_pairs = {"columns": TableColumns(src="order", dst="user")}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="seeds: no column")
        read_target(shop / "graph", tables, node_type="users", columns=COLUMNS)
        # To be predicted, which takes no labels; and which pairs have an edge needs none.
        read_target(shop / "graph", {"test": shop / "train.parquet"}, node_type="users", columns=unnamed)
        of_pairs |= {"seeds": {"train": tmp_path / "pairs.parquet"}, "edge_type": "orders:f2p_user:users"}
        assert read_target(shop / "graph", **of_pairs).labels is None


def test_labels_that_the_nodes_have_themselves_need_no_column(shop, tmp_path):
    pq.write_table(pa.table({"id": [0, 1], "age": [3, 4]}), tmp_path / "seeds.parquet")
    given = {"edges": np.array([[0, 1], [1, 0]]), "labels": np.array([0, 1]),
             "features": np.ones((2, 1), np.float32), "train": [0]}  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="seeds: no column")
        diskgnn.convert(tmp_path / "graph", **given)
        read_target(tmp_path / "graph", {"train": tmp_path / "seeds.parquet"})


def test_preparing_seeds_without_labels_says_so_and_leads_to_no_training(shop, tmp_path):
    words = ["--target", "users", "--target-column", "id=user", "--target-column", "time=day", "--temporal", "last",
             "--fanouts", 1, "--cpu-cache", "10%", "--target-seeds", f"train={shop}/train.parquet"]  # fmt: skip
    told = " ".join(run("prepare", shop / "graph", tmp_path / "packed", *words).stderr.split())
    assert "if left is the label, say so (--target-column label=NAME)" in told
    assert f"next: diskgnn predict {tmp_path}/packed --checkpoint RUN --split train" in told
    assert "diskgnn train" not in told
    told = run("prepare", shop / "graph", tmp_path / "labelled", *words, "--target-column", "label=left").stderr
    assert "next: diskgnn train" in " ".join(told.split())
