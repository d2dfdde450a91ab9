"""tools/bench_relbench.py runs as written, on a tiny database and script; and the draws that stand in for pyg-lib's."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

pytest.importorskip("torch_frame")
pytest.importorskip("relbench")

from commands import run_python
from pyg_samplers import NeighborsInTime
from relbench.modeling.graph import make_pkey_fkey_graph
from relbench_shop import Shop
from shop_columns import KINDS, Hashed
from torch_frame.config import TextEmbedderConfig
from torch_geometric.data import HeteroData
from torch_geometric.loader import NeighborLoader
from torch_geometric.sampler import NeighborSampler

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))
sys.path.insert(0, str(ROOT / "datasets"))

import flights_database  # noqa: E402

import bench_relbench  # noqa: E402
import draws_in_time  # noqa: E402
import relbench_scripts  # noqa: E402

# Has the lines of gnn_entity.py that levels change. With all neighbours, what it says of a plane is no matter of draws.
SCRIPT = """
import argparse
import json

import torch
from sentence_transformers import SentenceTransformer
from torch_frame import stype
from torch_frame.config.text_embedder import TextEmbedderConfig
from torch_geometric.loader import NeighborLoader

from relbench.datasets import get_dataset
from relbench.modeling.graph import get_node_train_table_input, make_pkey_fkey_graph
from relbench.tasks import get_task

parser = argparse.ArgumentParser()
parser.add_argument("--dataset", type=str)
parser.add_argument("--task", type=str)
parser.add_argument("--cache_dir", type=str)
parser.add_argument("--batch_size", type=int)
parser.add_argument("--num_workers", type=int, default=0)
parser.add_argument("--seed", type=int)
args = parser.parse_args()
dataset, task = get_dataset(args.dataset), get_task(args.dataset, args.task, download=True)
col_to_stype_dict = json.load(open(f"{args.cache_dir}/{args.dataset}/stypes.json"))
for table, columns in col_to_stype_dict.items():
    for column, name in columns.items():
        columns[column] = stype(name)


class Embedder(SentenceTransformer):
    def __call__(self, texts):
        return self.encode(texts, convert_to_tensor=True)


db = dataset.get_db()
data, col_stats_dict = make_pkey_fkey_graph(
    db,
    col_to_stype_dict=col_to_stype_dict,
    text_embedder_cfg=TextEmbedderConfig(text_embedder=Embedder("glove"), batch_size=256),
    cache_dir=f"{args.cache_dir}/{args.dataset}/materialized",
)
for split in ["val", "test"]:
    table_input = get_node_train_table_input(table=task.get_table(split), task=task)
    loader = NeighborLoader(
        data,
        num_neighbors=[-1, -1],
        time_attr="time",
        input_nodes=table_input.nodes,
        input_time=table_input.time,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
    )
    found = []
    for batch in loader:
        trees = batch["flights"].batch
        rows = batch.tf_dict["flights"].feat_dict[stype.numerical].nan_to_num().sum(1)
        found.append(torch.zeros(batch["planes"].batch_size).index_add(0, trees, rows))
    task.evaluate(torch.cat(found).numpy(), task.get_table(split, mask_input_cols=False))
"""


@pytest.fixture(autouse=True)
def standing_in(monkeypatch):
    """As a process of the tool leaves it behind; all is as before in the end."""
    monkeypatch.setattr(NeighborSampler, "_sample", draws_in_time.drawn_in_time)


def flights(num_flights=2500, num_planes=20, num_airports=14):
    """Tables of flights of 2013, some of planes that are not listed; more airports than are ranked."""
    random = np.random.default_rng(0)
    hours = np.sort(random.integers(0, 365 * 24, num_flights))
    airports = [f"A{number}" for number in range(num_airports)]
    who, delay = random.integers(0, num_planes + 2, num_flights), random.normal(0, 30, num_flights)
    return {
        "flights": pa.table({
            "time_hour": np.datetime64("2013-01-01", "s") + hours * np.timedelta64(3600, "s"),
            "tailnum": [f"N{number}" if number else None for number in who],
            "origin": random.choice(airports[:2], num_flights), "dest": random.choice(airports[2:], num_flights),
            "carrier": random.choice(["UA", "B6"], num_flights), "hour": hours % 24,
            "distance": random.random(num_flights), "dep_delay": delay,
            "arr_delay": pa.array(delay, mask=random.random(num_flights) < 0.1),
            "air_time": random.random(num_flights),
        }),
        "planes": pa.table({
            "tailnum": [f"N{number}" for number in range(num_planes)], "year": random.integers(1980, 2013, num_planes),
            "type": ["jet"] * num_planes, "manufacturer": random.choice(["X", "Y"], num_planes),
            "model": [f"{number}-2 long" for number in range(num_planes)], "engines": [2] * num_planes,
            "seats": random.integers(9, 300, num_planes),
        }),
        "airports": pa.table({
            "faa": airports, "name": [f"Airport {each}" for each in airports],
            **{name: random.random(num_airports) for name in ("lat", "lon", "alt", "tz")},
        }),
    }  # fmt: skip


@pytest.mark.slow
def test_a_script_runs_and_is_measured_at_every_level(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        bench_relbench, "subprocess", SimpleNamespace(run=lambda command, **given: run_python(*command[1:], **given))
    )
    for name in ("shop", "scripts"):
        (tmp_path / name).mkdir()
    (tmp_path / "scripts" / "gnn_entity.py").write_text(SCRIPT)
    flights_database.write(flights(), tmp_path / "shop")
    command = ["bench_relbench.py", tmp_path / "bench", "--flights", tmp_path / "shop", "--scripts",
               tmp_path / "scripts", "--seeds", "1", "--batch-size", "16"]  # fmt: skip
    monkeypatch.setattr("sys.argv", [str(word) for word in command])
    bench_relbench.main()
    nothing, *lines = map(json.loads, (tmp_path / "bench" / "results.jsonl").read_text().splitlines())
    assert [line["level"] for line in lines] == [*relbench_scripts.LEVELS]
    assert nothing["anonymous_bytes"] >= nothing["held_bytes"] > 50 << 20
    for line in lines:
        assert line["task"] == "flights-delay"  # the only one whose script is there
        assert line["held_bytes"] > 50 << 20
        np.testing.assert_allclose([*line["curve"], line["test"]], [*lines[0]["curve"], lines[0]["test"]], rtol=1e-5)
    assert lines[0]["test"] > 1
    assert capsys.readouterr().out.count("| flights-delay, ") == len(relbench_scripts.LEVELS)
    bench_relbench.main()
    assert len((tmp_path / "bench" / "results.jsonl").read_text().splitlines()) == 1 + len(lines)


def test_a_script_that_a_level_does_not_change_is_refused(tmp_path):
    (tmp_path / "stypes.json").write_text("{}")
    assert "diskgnn" not in relbench_scripts.edited(SCRIPT, "memory", tmp_path, 0)
    changed = [relbench_scripts.edited(SCRIPT, level, tmp_path, 0) for level in ("loader", "graph", "folder")]
    imported = [f"from diskgnn.relbench import {name}\n" for name in ("NeighborLoader", "make_pkey_fkey_graph")]
    assert [[line in text for line in imported] for text in changed] == [[True, False], [True, True], [True, True]]
    assert ["dataset.get_db()" in text for text in changed] == [True, True, False]
    with pytest.raises(ValueError, match="import NeighborLoader"):
        relbench_scripts.edited("print()", "loader", tmp_path, 0)


def parts(batch):
    """What is in a batch, whatever its order: (type, tree, node), and edges between such."""
    places = {name: list(zip(batch[name].batch.tolist(), batch[name].n_id.tolist(), strict=True))
              for name in batch.node_types}  # fmt: skip
    nodes = Counter((name, *place) for name, found in places.items() for place in found)
    edges = Counter(
        (key, places[key[0]][source], places[key[2]][destination])
        for key in batch.edge_types for source, destination in batch[key].edge_index.t().tolist()
    )  # fmt: skip
    hops = {name: batch[name].num_sampled_nodes for name in batch.node_types}
    return nodes, edges, hops, {key: batch[key].num_sampled_edges for key in batch.edge_types}


@pytest.mark.parametrize(("fanouts", "strategy"), [([-1, -1], "uniform"), ([8, 6], "last")])
def test_draws_in_time_are_those_of_plain_python(fanouts, strategy):
    shop = Shop()
    kinds = {name: dict(columns) for name, columns in KINDS.items()}
    data, _ = make_pkey_fkey_graph(shop.get_db(), kinds, TextEmbedderConfig(Hashed(), batch_size=64))
    seeds = torch.arange(30).repeat(2)
    times = torch.full((60,), int(shop.val_timestamp.timestamp()))
    times[30:] -= 86400 * 200
    given = {"input_nodes": ("customer", seeds), "input_time": times, "batch_size": 25}
    found = NeighborLoader(data, fanouts, time_attr="time", temporal_strategy=strategy, **given)
    expected = NeighborLoader(data, fanouts, time_attr="time", neighbor_sampler=NeighborsInTime(data, fanouts), **given)
    numbers = []
    for one, other in zip(found, expected, strict=True):
        assert parts(one) == parts(other)
        numbers += one["review"].n_id.tolist()
    assert len({*numbers}) > 50


def test_uniform_draws_take_each_that_is_not_too_late_equally_often():
    data = HeteroData()
    data["plane"].num_nodes = 1
    data["flight"].time, data["flight"].num_nodes = torch.arange(8), 8
    data["flight", "of", "plane"].edge_index = torch.stack([torch.arange(8), torch.zeros(8, dtype=torch.int64)])
    torch.manual_seed(0)
    loader = NeighborLoader(data, [2], time_attr="time", input_nodes=("plane", torch.zeros(3000, dtype=torch.int64)),
                            input_time=torch.full((3000,), 3), batch_size=3000)  # fmt: skip
    (batch,) = loader
    drawn: dict[int, list[int]] = {}
    for tree, flight in zip(batch["flight"].batch.tolist(), batch["flight"].n_id.tolist(), strict=True):
        drawn.setdefault(tree, []).append(flight)
    counts = Counter(tuple(sorted(pair)) for pair in drawn.values())
    assert {*counts} == {*combinations(range(4), 2)}
    assert all(abs(count - 500) < 100 for count in counts.values())  # 5 deviations
