"""The model of relational tables against sums written out in Python, column by column and neighbour by neighbour."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typed_batches import CITES, NODES, WRITES, WRITTEN, TypedGraph, schema, seed_pairs

from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.models import ModelSpec, RelationalModel, RGCNLayer
from diskgnn.nn.layer_types import LayerTypes
from diskgnn.nn.model_output import model_output
from diskgnn.nn.model_spec import MOST_CATEGORIES
from diskgnn.nn.relational_models import RelationalLayer, RowEncoder, age_features
from diskgnn.specs.schema import SourceSchema, TableColumn
from diskgnn.training.link_prediction import LinkPrediction
from diskgnn.training.model_check import made_up_minibatch
from diskgnn.training.named_models import model_for
from diskgnn.training.task import task_of

pytestmark = pytest.mark.usefixtures("one_thread")

HIDDEN = 4
COLUMNS = (
    TableColumn("age", "numerical", "int64", may_be_null=True),
    TableColumn("born", "timestamp", "int64", may_be_null=True),
    TableColumn("seen", "timestamp", "int64"),
    TableColumn("city", "categorical", "int32", num_values=40, may_be_null=True),
    TableColumn("plan", "categorical", "int32", num_values=2, may_be_null=True),
    TableColumn("paid", "boolean", "int32"),
)
NEVER = np.iinfo(np.int64).max
MICROSECONDS = [-(10**15) + 12345, 0, 1_700_000_000_123_456, 951_782_400 * 10**6]
CITY, CITY_NULL = [0, 39, -1, -1], [False, False, False, True]
TIMES, SEED_TIMES = [100, NEVER, 10**9, -(2**63)], [100, 7, 2 * 10**9, 7]


def rows_of_table() -> dict[str, Any]:
    """Four rows: null and unknown values, times before 1970, no time at all."""
    zeros = torch.zeros(4, dtype=torch.int64)
    return {
        "num_nodes": 4,
        "x": torch.tensor([[0.5, 1, 0, 1], [-1, 0, 1, 0], [2, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.float64),
        "columns": {
            "age": zeros, "born": torch.tensor(MICROSECONDS), "seen": torch.tensor(MICROSECONDS[::-1]),
            "city": torch.tensor(CITY, dtype=torch.int32), "plan": zeros.int(), "paid": zeros.int(),
        },
        "nulls": {
            "age": torch.tensor([False, True, False, True]), "born": torch.tensor([False, True, False, False]),
            "city": torch.tensor(CITY_NULL), "plan": torch.tensor([False] * 4),
        },
        "times": torch.tensor(TIMES), "seed_times": torch.tensor(SEED_TIMES),
    }  # fmt: skip


def encoder(norm: str, dates: tuple[int, ...] | None) -> RowEncoder:
    torch.manual_seed(0)
    return RowEncoder(4, COLUMNS, frozenset({"plan"}), True, HIDDEN, norm, 0.3, dates).double().eval()


def calendar(microseconds: int) -> list[float]:
    """Sines, then cosines, of day, week and year, which `datetime` says."""
    moment = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=microseconds)
    day = (moment - moment.replace(hour=0, minute=0, second=0, microsecond=0)) / timedelta(days=1)
    since = (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) / timedelta(days=1)
    week = ((moment.weekday() - 3) % 7 + day) / 7  # 1970 began on a Thursday
    year = since / 365.2425 % 1
    angles = [2 * math.pi * share for share in (day, week, year)]
    return [*map(math.sin, angles), *map(math.cos, angles)]


def age(time: int, seed_time: int) -> list[float]:
    if abs(time) >= NEVER:
        return [0.0] * 13 + [1.0]
    log = math.copysign(math.log1p(abs(seed_time - time)), seed_time - time)
    angles = [log * math.pi / 2**wave for wave in range(6)]
    return [log / 8, *map(math.sin, angles), *map(math.cos, angles), 0.0]


@pytest.mark.parametrize(("norm", "dates"), [("none", None), ("layer", None), ("none", (0,))])
def test_rows_are_sums_over_columns(norm: str, dates: tuple[int, ...] | None) -> None:
    """Each column by itself, and all of them added up. Where seeds have times in seconds, timestamps count against
    these, not their features in x."""
    net, given = encoder(norm, dates), rows_of_table()
    found = net(**given)
    features, bias = (each.detach().numpy() for each in (net.features.weight, net.features.bias))
    nulls, calendars = net.nulls.weight.detach().numpy(), net.calendars.weight.detach().numpy()
    cities, ages = net.categories[0].weight.detach().numpy(), net.age.weight.detach().numpy()
    assert len(net.categories) == 1  # x has the other one
    for row in range(4):
        total = bias.copy()
        for number, value in enumerate(given["x"][row].tolist()):
            total += features[:, number] * value * (number not in (dates or ()))
        for number, name in enumerate(["age", "born", "city", "plan"]):
            total += nulls[:, number] * bool(given["nulls"][name][row])
        for number, name in enumerate(["born", "seen"]):
            if name == "seen" or not given["nulls"][name][row]:
                parts = calendar(int(given["columns"][name][row]))
                total += calendars[:, 6 * number : 6 * number + 6] @ np.array(parts)
            if dates is not None:
                is_null = name == "born" and bool(given["nulls"][name][row])
                moment = NEVER if is_null else int(given["columns"][name][row]) // 10**6
                weights = net.dated.weight.detach().numpy()[:, 14 * number : 14 * number + 14]
                total += weights @ np.array(age(moment, SEED_TIMES[row]))
        code = CITY[row]
        total += cities[0 if CITY_NULL[row] else 1 if code < 0 else 2 + code]
        total += ages @ np.array(age(TIMES[row], SEED_TIMES[row]))
        if norm == "layer":
            total = (total - total.mean()) / np.sqrt(total.var() + net.norm.eps)
        mixed = net.mixed.weight.detach().numpy() @ np.maximum(total, 0) + net.mixed.bias.detach().numpy()
        np.testing.assert_allclose(found[row].detach(), total + mixed, rtol=1e-5, atol=1e-5)


def test_values_that_training_did_not_meet_add_nothing() -> None:
    """Unknown ones, and those beyond the most frequent ones; null has a vector of its own."""
    column = TableColumn("word", "categorical", "int32", num_values=MOST_CATEGORIES + 5, may_be_null=True)
    torch.manual_seed(0)
    net = RowEncoder(None, (column,), frozenset(), False, HIDDEN, "none", 0.0)
    assert net.categories[0].num_embeddings == MOST_CATEGORIES + 2
    codes = torch.tensor([-1, MOST_CATEGORIES, MOST_CATEGORIES + 4, MOST_CATEGORIES - 1, -1], dtype=torch.int32)
    null = torch.tensor([False, False, False, False, True])
    found = net(5, None, {"word": codes}, {"word": null}, None)
    nothing = net.constant + net.mixed(net.constant.relu())
    for row in found[:3]:
        torch.testing.assert_close(row, nothing)
    for row in found[3:]:
        assert not torch.allclose(row, nothing)


def test_lists_of_values_are_means() -> None:
    """Of those that are there; rare ones share a vector, and null is what an empty list is, but for its own weight."""
    column = TableColumn("tags", "multicategorical", "int32", 3, MOST_CATEGORIES + 5, may_be_null=True)
    torch.manual_seed(0)
    net = RowEncoder(None, (column,), frozenset(), False, HIDDEN, "none", 0.0)
    codes = [[4, 0, -1], [7, -1, -1], [-1, -1, -1], [2, MOST_CATEGORIES + 1, 3], [-1, -1, -1]]
    null = torch.tensor([False, False, False, False, True])
    found = net(5, None, {"tags": torch.tensor(codes, dtype=torch.int32)}, {"tags": null}, None)
    table = net.categories[0].weight
    means = [(table[6] + table[2]) / 2, table[9], 0, (table[4] + table[1] + table[5]) / 3, net.nulls.weight[:, 0]]
    for row, mean in zip(found, means, strict=True):
        total = net.constant + mean
        torch.testing.assert_close(row, total + net.mixed(total.relu()))


def test_null_of_numbers_as_they_are_is_nothing() -> None:
    """`raw` features of tables are NaN where they are null; of arrays that are given, NaN stays what it is."""
    raw = TableColumn("raw", "numerical", "float32", may_be_null=True)
    net = RowEncoder(1, (raw,), frozenset(), False, HIDDEN, "none", 0.0)
    nulls = {"raw": torch.tensor([True, True])}
    nan, zero = net(2, torch.tensor([[math.nan], [0.0]]), {}, nulls, None)
    torch.testing.assert_close(nan, zero)
    given = RowEncoder(1, (), frozenset(), False, HIDDEN, "none", 0.0)
    assert given(1, torch.tensor([[math.nan]]), {}, {}, None).isnan().all()


def test_ages_far_apart_and_near_differ() -> None:
    """Seconds, hours and decades alike; ages of rows later than their seed are negative."""
    ages = torch.tensor([0, 1, 2, 60, 3600, 86400, 10**6, 10**7, 10**8, 10**9, -1, -(10**6)])
    found = age_features(-ages, torch.zeros_like(ages))
    distances = torch.cdist(found, found) + torch.eye(len(ages))
    assert distances.min() > 0.2
    np.testing.assert_allclose(found, [age(-int(each), 0) for each in ages], atol=1e-4)


def test_layers_tell_how_many_neighbours_there_are() -> None:
    graph = TypedGraph()
    batch = graph.draw({"paper": [3, 11, 0, 28], "author": [2, 9]}, 1)
    types = LayerTypes(("paper", "author"), (CITES, WRITES, WRITTEN), (2, None, None))
    torch.manual_seed(1)
    rows = {name: torch.randn(number, 5, dtype=torch.float64) for name, number in batch.node_counts[0].items()}
    layer = RelationalLayer(5, HIDDEN, types).double()
    nn.init.normal_(layer.counts)
    plain = RGCNLayer(5, HIDDEN, types).double()
    plain.load_state_dict({name: each for name, each in layer.state_dict().items() if name != "counts"})
    expected = plain(batch.blocks[0], rows, batch.node_counts[1])
    for number, edge_type in enumerate(types.edges):
        block = batch.blocks[0][edge_type]
        for node in range(block.num_dst):
            count = int((block.destinations == node).sum())
            expected[edge_type[2]][node] += math.log(1 + count) * layer.counts[number]
    for name, found in layer(batch.blocks[0], rows, batch.node_counts[1]).items():
        torch.testing.assert_close(found, expected[name])


def timed_schema(**changes: Any) -> SourceSchema:
    return replace(schema(**changes), timed=("paper", "author"))


def with_times(batch: TypedMiniBatch) -> TypedMiniBatch:
    """The same with times; each input node is of the tree of a seed."""
    random, num_seeds = np.random.default_rng(3), len(batch.seeds)
    trees = {name: torch.from_numpy(random.integers(0, num_seeds, number))
             for name, number in batch.node_counts[0].items()}  # fmt: skip
    times = {name: torch.from_numpy(random.integers(0, 1000, batch.node_counts[0][name]))
             for name in ("paper", "author")}  # fmt: skip
    return replace(batch, trees=trees, times=times, seed_times=torch.from_numpy(random.integers(1000, 2000, num_seeds)))


def test_every_parameter_learns() -> None:
    """No vector for each node of a type without features, and nothing that has no part."""
    batch = with_times(TypedGraph(dtype=torch.float32).draw({"paper": list(range(20))}, 2))
    torch.manual_seed(0)
    task, spec = task_of(schema()), ModelSpec("relational", 16, dropout=0.0).fitted(timed_schema(), 2)
    net = model_for(spec, timed_schema(), task)
    assert not any(isinstance(module, nn.Embedding) for module in net.modules())
    assert NODES["place"] not in {side for each in net.parameters() for side in each.shape}
    assert net.takes_times
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        loss = task.loss(task.outputs(net, batch), batch)
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in net.parameters())
        optimizer.step()
    assert loss.item() < 0.3  # guessing costs 1.1


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_seeds_without_edges_and_types_without_nodes(norm: str) -> None:
    batch = with_times(TypedGraph(dtype=torch.float32).draw({"paper": [0, 1]}, 2, fanout=0))
    assert batch.node_counts[0]["author"] == 0
    net = model_for(ModelSpec("relational", 8, 2, norm=norm), timed_schema(), task_of(schema()))
    loss = F.cross_entropy(net(batch)["paper"], batch.y)
    loss.backward()
    assert torch.isfinite(loss)


def test_vectors_of_both_ends_of_links() -> None:
    seeds, pairs = seed_pairs()
    batch = with_times(TypedGraph(dtype=torch.float32).draw(seeds, 2, target=WRITES, pairs=pairs))
    of_links = timed_schema(target=WRITES, kind="link", outputs=1)
    net = model_for(ModelSpec("relational", 16, 2, norm="layer"), of_links, LinkPrediction(WRITES)).eval()
    assert {name: tuple(rows.shape) for name, rows in net(batch).items()} == {"paper": (10, 16), "author": (8, 16)}


def test_minibatches_of_one_type() -> None:
    """They come as `MiniBatch`es; the model gives the seeds' rows."""
    of_one = SourceSchema((("row", 9, 3),), ((("row", "f2p", "row"), None),), "row", "class", 2)
    torch.manual_seed(0)
    net = model_for(ModelSpec("relational").fitted(of_one, 2), of_one, task_of(of_one))
    batch = made_up_minibatch(of_one, 2, torch.float32)
    assert model_output(net, batch).shape == (1, 2)
    typed = model_for(ModelSpec("relational").fitted(schema(), 2), schema(), task_of(schema()))
    with pytest.raises(ConfigError, match="several types, found one of one type"):
        typed(batch)


def test_it_computes_in_half_precision() -> None:
    batch = with_times(TypedGraph(dtype=torch.float32).draw({"paper": [3, 11, 0, 28]}, 2))
    torch.manual_seed(0)
    net = model_for(ModelSpec("relational", 16, 2, norm="layer", dropout=0.0), timed_schema(), task_of(schema()))
    full = net(batch)["paper"]
    with torch.autocast("cpu", torch.bfloat16):
        half = net(batch)["paper"]
        half.float().sum().backward()
    np.testing.assert_allclose(half.detach().float(), full.detach(), atol=0.1)


def test_what_it_cannot_be() -> None:
    words = TableColumn("word", "categorical", "int32", num_values=1000)
    with_words = replace(schema(), tables=(("paper", (words,)),))
    with pytest.raises(ConfigError, match=r"1000 values of categories \(most of them of paper.word\) take 3.9 MiB"):
        ModelSpec("relational", embedding_memory="1MiB").fitted(with_words, 2)
    for option, value in {"skip": True, "heads": 2, "num_bases": 2, "embeddings": "disk"}.items():
        with pytest.raises(ConfigError, match=f"{option}: only for"):
            ModelSpec("relational", **{option: value}).fitted(schema(), 2)
    batch = TypedGraph(dtype=torch.float32).draw({"paper": [3, 11]}, 2)
    spec = ModelSpec("relational", 8, 2, norm="layer")
    with pytest.raises(ConfigError, match="columns of paper that the minibatch does not have: word"):
        RelationalModel(spec, with_words, 3)(batch)
    with pytest.raises(ConfigError, match=r"how long before its seed a row of paper was.*keep_times=True"):
        RelationalModel(spec, timed_schema(), 3)(batch)
    with pytest.raises(ConfigError, match="paper nodes with 5 features, minibatch has 4"):
        RelationalModel(spec, schema(), 3)(replace(batch, x={**batch.x, "paper": batch.x["paper"][:, :4]}))
