"""RelBench's graph of a database with its rows on disk, beside the one that RelBench makes in memory."""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

import pandas as pd
from forging import write_manifest
from frames_beside import assert_same_batch, assert_same_frame, assert_same_statistics
from pyg_samplers import NeighborsInTime
from relbench.base import Database, Table
from relbench.modeling import graph as in_relbench
from relbench.modeling.graph import get_node_train_table_input
from relbench_shop import Churn, Shop
from shop_columns import KINDS, Hashed
from torch_frame import stype
from torch_frame.config import TextEmbedderConfig
from torch_frame.data.stats import StatType
from torch_geometric.loader import NeighborLoader as PygLoader

import diskgnn
from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.source_formats.relational_source import RelationalSource
from diskgnn.relbench import NeighborLoader, make_pkey_fkey_graph
from diskgnn.work.cache_folder import list_directories, remove


def kinds():
    return {name: dict(columns) for name, columns in KINDS.items()}


@pytest.fixture(scope="module")
def shop():
    return Shop()


@pytest.fixture(scope="module")
def embedder():
    return TextEmbedderConfig(Hashed(), batch_size=64)


@pytest.fixture(scope="module")
def in_memory(shop, embedder):
    return in_relbench.make_pkey_fkey_graph(shop.get_db(), kinds(), embedder)


@pytest.fixture(scope="module")
def saved(shop, tmp_path_factory):
    """The folder that RelBench keeps the tables of a data set in, with rows after the test timestamp."""
    folder = tmp_path_factory.mktemp("saved")
    Shop.get_db.__wrapped__(shop, upto_test_timestamp=False).save(folder)
    return folder


@pytest.fixture(scope="module", params=["database", "folder"])
def on_disk(request, shop, embedder, saved, tmp_path_factory):
    cache = {"cache_dir": tmp_path_factory.mktemp("on-disk"), "progress": False}
    if request.param == "database":
        return make_pkey_fkey_graph(shop.get_db(), kinds(), embedder, **cache)
    return make_pkey_fkey_graph(saved, kinds(), embedder, until=shop.test_timestamp, **cache)


def test_rows_times_and_statistics_are_those_of_relbench(on_disk, in_memory):
    (data, statistics), (expected, of_expected) = on_disk, in_memory
    assert_same_statistics(statistics, of_expected)
    assert sorted(data.edge_types) == sorted(expected.edge_types)  # RelBench takes files in the order of the folder
    assert data.num_nodes_dict == expected.num_nodes_dict
    for name in expected.node_types:
        tf, other = data[name].tf, expected[name].tf
        assert (len(tf), tf.num_cols, tf.stypes) == (len(other), other.num_cols, other.stypes)
        assert [*tf.col_names_dict.items()] == [*other.col_names_dict.items()]
        assert_same_frame(tf.load(), other)
        rows = torch.randint(0, len(other), (11,))
        assert_same_frame(tf[rows], other[rows])
        assert_same_frame(tf[2:5], other[2:5])
        assert ("time" in data[name]) == ("time" in expected[name])
        if "time" in expected[name]:
            assert torch.equal(data[name].time, expected[name].time)
        with pytest.raises(ConfigError, match=rf"{len(other)} rows of '{name}' are on the disk, .* tf\.load\(\)"):
            _ = tf.feat_dict


@pytest.mark.parametrize("subgraph_type", ["directional", "bidirectional"])
def test_batches_are_those_of_pyg(shop, in_memory, on_disk, tmp_path, subgraph_type):
    table = get_node_train_table_input(Churn(shop).get_table("train"), Churn(shop))
    given = {"input_nodes": table.nodes, "input_time": table.time, "transform": table.transform, "time_attr": "time",
             "batch_size": 64, "subgraph_type": subgraph_type}  # fmt: skip
    sampler = NeighborsInTime(in_memory[0], [-1, -1], subgraph_type)
    expected = PygLoader(in_memory[0], [-1, -1], neighbor_sampler=sampler, **given)
    found = NeighborLoader(on_disk[0], [-1, -1], cache=tmp_path / "packed", progress=False, **given)
    for one, other in zip(found, expected, strict=True):
        assert_same_batch(one, other)


def test_tables_are_known_again_and_changes_are_noticed(shop, embedder, tmp_path, monkeypatch):
    cache = {"cache_dir": tmp_path / "cache", "progress": False}
    database = copy.deepcopy(shop.get_db())

    def made(columns=None, config=embedder):
        data, statistics = make_pkey_fkey_graph(database, columns or kinds(), config, **cache)
        return data["customer"].tf.graph.manifest.path, statistics

    first, statistics = made()
    again, others = made()
    assert first == again
    assert_same_statistics(others, statistics)
    paths = {first}
    database.table_dict["customer"].df.loc[3, "age"] = 99
    paths.add(made()[0])
    without = kinds()
    del without["review"]["text"]
    paths.add(made(without)[0])
    monkeypatch.setattr(Hashed, "version", "2", raising=False)
    paths.add(made()[0])
    assert len(paths) == 4


def test_data_that_is_not_of_its_graph_any_more_is_refused(on_disk, tmp_path):
    options = {"num_neighbors": [2], "input_nodes": "product", "cache": tmp_path / "packed", "progress": False,
               "time_attr": "time"}  # fmt: skip
    data = copy.copy(on_disk[0])
    options["input_time"] = torch.full((data["product"].num_nodes,), 2**40)
    edge_type = data.edge_types[0]
    data[edge_type].edge_index = torch.zeros((2, 1), dtype=torch.int64)
    with pytest.raises(ConfigError, match=r"the edges are those of .*, found others given for \('(review|gift)'"):
        NeighborLoader(data, **options)
    data = copy.copy(on_disk[0])
    data["review"].time = data["review"].time + 1
    with pytest.raises(ConfigError, match="expected the times of 'review'"):
        NeighborLoader(data, **options)
    data = copy.copy(on_disk[0])
    del data["gift"]
    with pytest.raises(ConfigError, match=r"found others: .*gift"):
        NeighborLoader(data, **options)


def test_what_is_given_beside_the_frames_is_sliced(on_disk, tmp_path):
    data = copy.copy(on_disk[0])
    data["product"].y = torch.arange(data["product"].num_nodes) * 3
    loader = NeighborLoader(data, [2], input_nodes="product", batch_size=8, cache=tmp_path / "packed", progress=False)
    for batch in loader:
        assert torch.equal(batch["product"].y, batch["product"].n_id * 3)
        assert "num_nodes" not in batch["product"]


def test_tables_that_relbench_would_not_take_are_refused(shop, embedder, tmp_path, saved):
    cache = {"cache_dir": tmp_path / "cache", "progress": False}
    database = copy.deepcopy(shop.get_db())
    tokens = kinds()
    tokens["review"]["text"] = stype.text_tokenized
    with pytest.raises(ConfigError, match=r"review.text: expected .*, found text_tokenized, which .* no encoder"):
        make_pkey_fkey_graph(database, tokens, embedder, **cache)
    with pytest.raises(ConfigError, match="text_embedder_cfg: expected one for the columns of text of product"):
        make_pkey_fkey_graph(database, kinds(), **cache)
    with pytest.raises(ConfigError, match="until: expected a folder"):
        make_pkey_fkey_graph(database, kinds(), embedder, until="1970-01-01", **cache)
    with pytest.raises(ConfigError, match=r"review.text: expected an stype, numerical, .*, found 'words'"):
        make_pkey_fkey_graph(database, {**kinds(), "review": {"text": "words"}}, embedder, **cache)
    missing = kinds()
    del missing["gift"]
    with pytest.raises(ConfigError, match="expected the columns of table 'gift'"):
        make_pkey_fkey_graph(database, missing, embedder, **cache)
    with pytest.raises(ConfigError, match="expected a folder of Parquet tables"):
        make_pkey_fkey_graph(tmp_path, kinds(), embedder, **cache)
    database.table_dict["customer"].df["customer_id"] += 5
    with pytest.raises(InputError, match="expected the primary key 'customer_id' to count the rows"):
        make_pkey_fkey_graph(database, kinds(), embedder, **cache)
    database.table_dict["gift"].df = database.table_dict["gift"].df[:0]
    with pytest.raises(InputError, match=r"table (gift|customer): expected"):
        make_pkey_fkey_graph(database, kinds(), embedder, **cache)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "plain.parquet")
    with pytest.raises(ConfigError, match=r"expected .*plain\.parquet to say its keys"):
        make_pkey_fkey_graph(tmp_path, kinds(), embedder, **cache)


def test_times_that_are_missing_are_seen_always_as_in_relbench(shop, embedder, tmp_path):
    database = copy.deepcopy(shop.get_db())
    database.table_dict["review"].df.loc[[2, 5], "written"] = pd.NaT
    expected, _ = in_relbench.make_pkey_fkey_graph(database, kinds(), embedder)
    data, _ = make_pkey_fkey_graph(database, kinds(), embedder, cache_dir=tmp_path / "cache", progress=False)
    assert torch.equal(data["review"].time, expected["review"].time)
    assert np.count_nonzero(data["review"].time.numpy() < -(2**33)) == 2


def test_a_graph_directory_takes_the_place_of_the_database(shop, tmp_path):
    """Its rows, times and statistics are those of RelBench, but for the order of values that come equally often."""
    without_text = {table: {column: kind for column, kind in columns.items() if kind is not stype.text_embedded}
                    for table, columns in kinds().items()}  # fmt: skip
    database = shop.get_db()
    expected, of_expected = in_relbench.make_pkey_fkey_graph(database, copy.deepcopy(without_text))
    source = replace(RelationalSource.of(database), kinds=without_text)
    diskgnn.convert(tmp_path / "graph", source=source, progress=False,
                    options={"keep_columns": True, "statistics": "all"})  # fmt: skip
    data, statistics = make_pkey_fkey_graph(tmp_path / "graph", without_text)
    assert_same_statistics(statistics, of_expected)
    assert sorted(data.edge_types) == sorted(expected.edge_types)
    for name in expected.node_types:
        tf, other = data[name].tf, expected[name].tf
        assert [*tf.col_names_dict.items()] == [*other.col_names_dict.items()]
        found = tf.load()
        for kind in {stype.numerical, stype.timestamp} & {*other.feat_dict}:
            one, two = found.feat_dict[kind], other.feat_dict[kind]
            assert bool(((one == two) | ((one != one) & (two != two))).all())
        for number, column in enumerate(other.col_names_dict.get(stype.categorical, [])):
            values, of_other = (each[name][column][StatType.COUNT][0] for each in (statistics, of_expected))
            for code, known in zip(found.feat_dict[stype.categorical][:, number].tolist(),
                                   other.feat_dict[stype.categorical][:, number].tolist(), strict=True):  # fmt: skip
                assert (code < 0) == (known < 0)
                assert code < 0 or values[code] == of_other[known]
        assert ("time" in data[name]) == ("time" in expected[name])
        if "time" in expected[name]:
            assert torch.equal(data[name].time, expected[name].time)
    table = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))
    given = {"input_nodes": table.nodes, "input_time": table.time, "time_attr": "time", "batch_size": 64}
    beside = PygLoader(expected, [-1, -1], neighbor_sampler=NeighborsInTime(expected, [-1, -1]), **given)
    for batch, other in zip(
        NeighborLoader(data, [-1, -1], cache=tmp_path / "packed", progress=False, **given), beside, strict=True
    ):
        for name in other.node_types:
            assert sorted(zip(batch[name].batch.tolist(), batch[name].n_id.tolist(), strict=True)) == sorted(
                zip(other[name].batch.tolist(), other[name].n_id.tolist(), strict=True)
            )
            assert_same_frame(batch[name].tf, data[name].tf[batch[name].n_id])
    nodes = data["customer"].tf.nodes
    with pytest.raises(ConfigError, match=r"records: expected rows of 'customer' as its `features` has them"):
        nodes.tensor_frame(data["review"].tf.nodes.features[:2])
    without_text["customer"]["mood"] = stype.categorical
    with pytest.raises(ConfigError, match=r"columns that customer has in .*graph, .*, found 'mood'; .*kinds="):
        make_pkey_fkey_graph(tmp_path / "graph", without_text)
    del without_text["customer"]["mood"]
    without_text["customer"]["age"] = stype.categorical
    with pytest.raises(ConfigError, match=r"'age' of customer to be numerical, as in .*graph, found categorical"):
        make_pkey_fkey_graph(tmp_path / "graph", without_text)


def test_embeddings_that_are_quantised_are_read_as_what_they_mean(shop, tmp_path):
    """In frames on the disk and in batches, within half a step of those of RelBench."""
    without_text = {table: {column: kind for column, kind in columns.items() if kind is not stype.text_embedded}
                    for table, columns in kinds().items()}  # fmt: skip
    expected, _ = in_relbench.make_pkey_fkey_graph(shop.get_db(), copy.deepcopy(without_text))
    source = replace(RelationalSource.of(shop.get_db()), kinds=without_text)
    diskgnn.convert(tmp_path / "graph", source=source, progress=False, quantise="int8",
                    options={"keep_columns": True, "statistics": "all"})  # fmt: skip
    data, _ = make_pkey_fkey_graph(tmp_path / "graph", without_text)
    exact, found = (each["product"].tf.feat_dict[stype.embedding].values
                    for each in (expected, {"product": SimpleNamespace(tf=data["product"].tf.load())}))  # fmt: skip
    steps = np.load(tmp_path / "graph" / "quantisation-product.npy")[0]
    assert not torch.equal(found, exact)
    assert bool(((found - exact).abs() <= 0.5001 * torch.from_numpy(steps)).all())
    table = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))
    for batch in NeighborLoader(data, [-1, -1], input_nodes=table.nodes, input_time=table.time, time_attr="time",
                                batch_size=64, cache=tmp_path / "packed", progress=False):  # fmt: skip
        assert_same_frame(batch["product"].tf, data["product"].tf[batch["product"].n_id])


@pytest.mark.parametrize("on_disk", ["database"], indirect=True)
def test_draws_go_by_the_times_of_the_graph_and_by_no_others(shop, on_disk, tmp_path):
    table = get_node_train_table_input(Churn(shop).get_table("val"), Churn(shop))
    data = copy.copy(on_disk[0])
    data["customer"].published = data["customer"].time + 10**9
    options = {"input_nodes": table.nodes, "input_time": table.time, "cache": tmp_path / "packed", "progress": False}
    for given in (data, data["customer"].tf.graph):
        with pytest.raises(ConfigError, match=r"time_attr: draws go by the times that .* has, found 'published', and"):
            next(iter(NeighborLoader(given, [2], time_attr="published", **options)))
    with pytest.raises(ConfigError, match=r"weight_attr: draws go by the weights .* found 'weight', and it has none"):
        next(iter(NeighborLoader(data, [2], time_attr="time", weight_attr="weight", **options)))


@pytest.mark.parametrize("on_disk", ["database"], indirect=True)
def test_attributes_of_edges_on_the_disk_and_masks_of_other_rows_are_refused(on_disk, tmp_path):
    data = copy.copy(on_disk[0])
    frame = data["product"].tf
    assert_same_frame(frame[torch.arange(len(frame)) < 3], frame[:3])
    with pytest.raises(IndexError, match=r"mask of the 25 rows of 'product', found one of shape \[2\]"):
        _ = frame[torch.tensor([True, False])]
    data[data.edge_types[0]].w = torch.arange(7)
    with pytest.raises(ConfigError, match=r"the edges are in .*, found 'w' of \("):
        NeighborLoader(data, [2], input_nodes="product", cache=tmp_path / "packed", progress=False)


def small(**columns):
    """A database of two tables without times; one refers to the other."""
    rows = pd.DataFrame({"a": np.arange(6.0), "ref": [0, 1, 2, 0, 1, 2], **columns})
    return Database({"t": Table(rows, {"ref": "u"}), "u": Table(pd.DataFrame({"uid": [0, 1, 2]}), {}, "uid")})


class Words:
    """Embeds what is one of some texts as 1."""

    def __init__(self, *texts):
        self.texts = texts

    def __call__(self, texts):
        return torch.tensor([[float(text in self.texts), float(len(text))] for text in texts])


def test_objects_of_any_type_are_read_as_by_relbench(tmp_path):
    moments = pd.to_datetime([1, 1, 2, 2, 2, 3], unit="D")
    database = small(junk=["x", 1, None, 2.5, b"y", True], day=moments, price=[Decimal(1)] * 3 + [Decimal(2)] * 3)
    columns = {"t": {"a": stype.numerical, "day": stype.categorical, "price": stype.categorical}, "u": {}}
    expected, of_expected = in_relbench.make_pkey_fkey_graph(database, copy.deepcopy(columns))
    for _ in range(2):  # made, and found
        data, statistics = make_pkey_fkey_graph(database, columns, cache_dir=tmp_path, progress=False)
        assert_same_frame(data["t"].tf.load(), expected["t"].tf)
        assert statistics["t"]["a"] == of_expected["t"]["a"]
        values, counts = statistics["t"]["day"][StatType.COUNT]
        assert (values, counts) == ([*map(str, of_expected["t"]["day"][StatType.COUNT][0])], [3, 2, 1])
        assert "time" not in data["t"]
    assert len([*tmp_path.iterdir()]) == 1  # statistics are in the graph
    (found,) = list_directories(tmp_path)
    del data
    assert remove(found.path)
    assert not [*tmp_path.iterdir()]


def test_numbers_are_embedded_as_the_text_that_the_whole_column_is(tmp_path):
    """Rows are read some at a time: the null is not among the first ones, which are whole numbers without it."""
    numbers = pd.Series([*range(2**16 + 1), None], dtype=object)
    rows = pd.DataFrame({"number": numbers, "ref": 0})
    database = Database({"t": Table(rows, {"ref": "u"}), "u": Table(pd.DataFrame({"uid": [0]}), {}, "uid")})
    database.save(tmp_path / "saved")
    columns, known = {"t": {"number": stype.text_embedded}, "u": {}}, TextEmbedderConfig(Words("1.0", "1"))
    expected, _ = in_relbench.make_pkey_fkey_graph(Database.load(tmp_path / "saved"), copy.deepcopy(columns), known)
    cache = {"cache_dir": tmp_path / "cache", "progress": False}
    data, _ = make_pkey_fkey_graph(tmp_path / "saved", columns, known, **cache)
    assert_same_frame(data["t"].tf.load(), expected["t"].tf)
    others = TextEmbedderConfig(Words("2.0", "2"))  # which makes the same of all text but that in the table
    data, _ = make_pkey_fkey_graph(tmp_path / "saved", columns, others, **cache)
    assert data["t"].tf[:4].feat_dict[stype.embedding].values[:, 0].tolist() == [0, 0, 1, 0]


def test_names_that_become_no_types_are_refused_and_those_of_keys_are_spelled(tmp_path):
    cache = {"cache_dir": tmp_path, "progress": False}
    with pytest.raises(ConfigError, match="expected columns of t called by text, found 7"):
        make_pkey_fkey_graph(small(), {"t": {7: stype.numerical}, "u": {}}, **cache)
    rows = pd.DataFrame({"user id": [0, 1], "user_id": [1, 1]})
    orders, users = Table(rows, {"user id": "u"}), Table(pd.DataFrame({"uid": [0, 1]}), {}, "uid")
    with pytest.raises(ConfigError, match=r"expected tables called by .*, found 'Order Details': rename it"):
        make_pkey_fkey_graph(Database({"Order Details": orders, "u": users}), {"Order Details": {}, "u": {}}, **cache)
    with pytest.raises(ConfigError, match="expected tables with foreign keys, found none"):
        make_pkey_fkey_graph(Database({"u": users}), {"u": {}}, **cache)
    columns, keys = {"t": {}, "u": {}}, {"user id": "u", "user_id": "u"}
    with pytest.raises(InputError, match="two foreign keys would be called f2p_user_id; rename 'user_id'"):
        make_pkey_fkey_graph(Database({"t": Table(rows, keys), "u": users}), columns, **cache)
    data, _ = make_pkey_fkey_graph(Database({"t": orders, "u": users}), columns, **cache)
    assert data.edge_types == [("t", "f2p_user_id", "u"), ("u", "rev_f2p_user_id", "t")]


def test_a_graph_directory_with_other_statistics_is_refused(shop, tmp_path):
    without_text = {table: {column: kind for column, kind in columns.items() if kind is not stype.text_embedded}
                    for table, columns in kinds().items()}  # fmt: skip
    source = replace(RelationalSource.of(shop.get_db()), kinds=without_text)
    for name, options in (("known", {"val_timestamp": str(shop.val_timestamp)}), ("all", {})):
        diskgnn.convert(tmp_path / name, source=source, progress=False, options={"keep_columns": True, **options})
    with pytest.raises(ConfigError, match=r"expected those of all rows, .* rows up to 1970-03-28T00:00:00 in .*known"):
        make_pkey_fkey_graph(tmp_path / "known", without_text)
    database = shop.get_db().upto(shop.val_timestamp)
    _, of_expected = in_relbench.make_pkey_fkey_graph(database, copy.deepcopy(without_text))
    _, statistics = make_pkey_fkey_graph(tmp_path / "known", without_text, statistics="validation")
    assert_same_statistics(statistics, of_expected)
    make_pkey_fkey_graph(tmp_path / "all")
    with pytest.raises(
        ConfigError, match=r"expected those of the rows up to val_timestamp, found those of all rows in .*all"
    ):
        make_pkey_fkey_graph(tmp_path / "all", statistics="validation")
    with pytest.raises(ConfigError, match=r"statistics: those of a Database .*; convert it"):
        make_pkey_fkey_graph(database, without_text, statistics="validation")
    with pytest.raises(ConfigError, match="statistics: expected all or validation, found 'test'"):
        make_pkey_fkey_graph(tmp_path / "all", statistics="test")
    # Tables that are encoded as those of another graph have the statistics of these.
    source, options = replace(source, kinds=None), {"keep_columns": True}
    diskgnn.convert(tmp_path / "plain", source=source, options=options | {"val_timestamp": str(shop.val_timestamp)})
    diskgnn.convert(tmp_path / "like", source=source, options=options, encoding_of=tmp_path / "plain")
    (_, of_plain), (_, of_like) = (make_pkey_fkey_graph(tmp_path / name, statistics="validation")
                                   for name in ("plain", "like"))  # fmt: skip
    assert_same_statistics(of_like, of_plain)
    # A graph that does not say which rows they are of may have either.
    for name in ("known", "all"):
        document = json.loads((tmp_path / name / "manifest.json").read_text())
        del document["config"]["statistics_until"]
        write_manifest(tmp_path / name, document)
        for asked in ("all", "validation"):
            with pytest.raises(ConfigError, match=rf"of which rows they are, found none said in .*{name}.*convert it"):
                make_pkey_fkey_graph(tmp_path / name, statistics=asked)


def test_what_an_earlier_version_left_in_the_cache_folder_is_made_anew(tmp_path):
    """It did not say of which rows its statistics are."""
    database, columns = small(a=[1.0, 2.0, None, 4.0, 5.0, 6.0]), {"t": {"a": stype.numerical}, "u": {}}

    def made():
        data, statistics = make_pkey_fkey_graph(database, columns, cache_dir=tmp_path, progress=False)
        return data["t"].tf.graph.manifest.path, statistics

    folder, expected = made()
    document = json.loads((folder / "manifest.json").read_text())
    del document["config"]["statistics_until"]
    document["config"]["node_types"][0]["statistics"][0]["mean"] = 99.0
    write_manifest(folder, document)
    assert_same_statistics(made()[1], expected)
    assert json.loads((folder / "manifest.json").read_text())["config"]["statistics_until"] == "all"
    assert len(list_directories(tmp_path)) == 1


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_seconds_whatever_the_unit_of_their_column(shop, in_memory, tmp_path, unit):
    """RelBench says which of nanoseconds; of others, its `to_unix_time` says no seconds, and loaders tell that."""
    database = copy.deepcopy(shop.get_db())
    for table in database.table_dict.values():
        if table.time_col is not None:
            table.df[table.time_col] = table.df[table.time_col].astype(f"datetime64[{unit}]")
    without_text = {table: {column: kind for column, kind in columns.items() if kind is not stype.text_embedded}
                    for table, columns in kinds().items()}  # fmt: skip
    data, _ = make_pkey_fkey_graph(database, without_text, cache_dir=tmp_path, progress=False)
    for name in ("customer", "review"):
        assert torch.equal(data[name].time, in_memory[0][name].time)
    table = Churn(shop).get_table("train")
    table.df["timestamp"] = table.df["timestamp"].astype(f"datetime64[{unit}]")
    seeds = get_node_train_table_input(table, Churn(shop))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        next(iter(NeighborLoader(data, [3], input_nodes=seeds.nodes, input_time=seeds.time, time_attr="time",
                                 batch_size=64, cache=tmp_path, progress=False)))  # fmt: skip
    assert any("they look like different units" in str(each.message) for each in told) == (unit != "ns")


def test_the_graph_of_a_database_says_that_its_statistics_are_of_all_rows(shop, tmp_path):
    without_text = {table: {column: kind for column, kind in columns.items() if kind is not stype.text_embedded}
                    for table, columns in kinds().items()}  # fmt: skip
    data, expected = make_pkey_fkey_graph(shop.get_db(), without_text, cache_dir=tmp_path, progress=False)
    graph = data["customer"].tf.graph
    _, found = make_pkey_fkey_graph(graph)
    assert_same_statistics(found, expected)
    with pytest.raises(ConfigError, match="found those of all rows"):
        make_pkey_fkey_graph(graph, statistics="validation")


def test_columns_that_a_task_must_not_see_are_left_out(shop, embedder, tmp_path):
    """As by RelBench 3's `remove_columns`, whose own graph `test_relbench3.py` compares with."""
    removed = [("review", "rating"), ("review", "written"), ("customer", "customer_id"), ("gift", "nothing"),
               *(("customer", column) for column in ("joined", "age", "city", "member"))]  # fmt: skip
    cache = {"cache_dir": tmp_path / "cache", "progress": False}
    whole, of_whole = make_pkey_fkey_graph(shop.get_db(), kinds(), embedder, **cache)
    data, statistics = make_pkey_fkey_graph(shop.get_db(), kinds(), embedder, remove_columns=removed, **cache)
    assert len(list_directories(tmp_path / "cache")) == 1  # one for all tasks
    assert data["customer"].tf.col_names_dict == {stype.numerical: ["__const__"]}
    assert {*of_whole["review"]} - {*statistics["review"]} == {"rating", "written"}
    assert torch.equal(data["review"].time, whole["review"].time)
    for table in ("review", "product", "gift"):
        kept = {column: each for column, each in of_whole[table].items() if (table, column) not in removed}
        assert_same_statistics({table: statistics[table]}, {table: kept})
    rows = torch.arange(7)
    assert_same_frame(data["product"].tf[rows], whole["product"].tf[rows])
    frame, other = data["review"].tf[rows], whole["review"].tf[rows]
    assert {*frame.feat_dict} == {*other.feat_dict} - {stype.numerical}
    assert torch.equal(frame.feat_dict[stype.timestamp][:, 0], other.feat_dict[stype.timestamp][:, 0])
    for found, message in (([("shop", "x")], "expected tables of customer, .*, found 'shop'"),
                           (["review.rating"], r"expected \(table, column\) pairs, found 'review")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"remove_columns: {message}"):
            make_pkey_fkey_graph(shop.get_db(), kinds(), embedder, remove_columns=found, **cache)
