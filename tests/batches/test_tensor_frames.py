"""Rows of tables as TensorFrames, against those that torch_frame makes of the same data frames."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import diskgnn
from diskgnn.batches import tensor_frames
from diskgnn.errors import ConfigError, DataWarning, UnavailableError
from diskgnn.graph.graph import Graph
from diskgnn.importers.graph_input import TableColumns
from diskgnn.importers.source_formats.relational_source import RelationalSource

torch_frame = pytest.importorskip("torch_frame", reason="compared with torch_frame: pip install pytorch-frame")
pd = pytest.importorskip("pandas")
data = pytest.importorskip("torch_geometric.data")
from torch_frame.config import TextEmbedderConfig  # noqa: E402
from torch_frame.data import Dataset  # noqa: E402
from torch_frame.data.mapper import TimestampTensorMapper  # noqa: E402
from torch_frame.data.stats import StatType  # noqa: E402

USERS, ORDERS = 400, 3000
STYPES = {
    "users": {
        "visits": "numerical", "big": "numerical", "money": "numerical", "plan": "categorical", "born": "timestamp",
        "a face": "embedding", "about": "text_embedded", "Bio": "text_embedded", "tags": "multicategorical",
    },
    "orders": {"price": "numerical", "at noon": "timestamp", "a mark": "embedding"},
}  # fmt: skip


def embed(texts: list[str]) -> torch.Tensor:
    return torch.tensor([[len(text), sum(map(ord, text)), -1.5] for text in texts], dtype=torch.float32)


@pytest.fixture(scope="module")
def frames() -> dict[str, Any]:
    random = np.random.default_rng(5)
    born = random.integers(-(9 * 10**15), 10**15, USERS).astype("datetime64[us]")
    born[::7] = "NaT"
    tags = np.array(["red", "green", "blue", "grün"])
    lists = [list(tags[random.random(4) < [0.1, 0.6, 0.3, 0.8]]) for _ in range(USERS)]
    users = pd.DataFrame({
        "id": np.arange(USERS), "since": pd.to_datetime(random.integers(0, 10**9, USERS), unit="s"),
        "visits": random.integers(0, 9, USERS), "big": random.integers(-(2**62), 2**62, USERS),
        "money": np.where(random.random(USERS) < 0.1, np.nan, random.normal(50, 20, USERS)), "born": born,
        "plan": random.choice(["a", "b", None, "c"], USERS, p=[0.1, 0.6, 0.1, 0.2]),
        "a face": list(random.normal(size=(USERS, 5))),
        "about": [f"text {number}" for number in range(USERS)], "Bio": [f"likes {number}" for number in range(USERS)],
        "tags": [None if number % 11 == 0 else each for number, each in enumerate(lists)],
    })  # fmt: skip
    users.loc[3, "money"] = np.inf
    orders = pd.DataFrame({
        "user": random.integers(0, USERS, ORDERS), "at": pd.to_datetime(random.integers(0, 10**9, ORDERS), unit="s"),
        "price": random.random(ORDERS).astype(np.float32), "a mark": list(random.random((ORDERS, 2))),
        "at noon": pd.to_datetime(random.integers(-(10**9), 10**9, ORDERS), unit="s"),
    })  # fmt: skip
    links = pd.DataFrame({"user": random.integers(0, USERS, 300), "friend": random.integers(0, USERS, 300)})
    labels = pd.DataFrame({
        "user": random.integers(0, USERS, 500), "day": pd.to_datetime(np.full(500, 10**9), unit="s"),
        "left": random.random(500) < 0.4,
    })  # fmt: skip
    return {"users": users, "orders": orders, "links": links, "train": labels}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory, frames: dict[str, Any]) -> Path:
    def keyed(name: str, fkeys: dict[str, str], pkey: str | None = None, time: str | None = None) -> SimpleNamespace:
        return SimpleNamespace(df=frames[name], pkey_col=pkey, fkey_col_to_pkey_table=fkeys, time_col=time)

    database = {
        "users": keyed("users", {}, "id", "since"), "orders": keyed("orders", {"user": "users"}, None, "at"),
        "links": keyed("links", {"user": "users", "friend": "users"}),
    }  # fmt: skip
    task = {"train": keyed("train", {"user": "users"}, None, "day"), "label": "left"}
    source = RelationalSource.of(SimpleNamespace(table_dict=database), {"churn": task})
    path = tmp_path_factory.mktemp("frames") / "graph"
    sys.modules["embedder_of_frames"] = SimpleNamespace(embed=embed)  # type: ignore[assignment]
    encode = {"users.about": "embedder_of_frames:embed", "users.Bio": "embedder_of_frames:embed"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of infinite numbers, and of times later than the row
        diskgnn.convert(path, source=source, options={"keep_columns": True}, columns=TableColumns(encode=encode))
    return path


@pytest.fixture(scope="module")
def expected(frames: dict[str, Any]) -> dict[str, Any]:
    return {
        name: Dataset(
            frames[name], {column: torch_frame.stype(kind) for column, kind in stypes.items()},
            col_to_text_embedder_cfg=TextEmbedderConfig(embed),
        ).materialize()
        for name, stypes in STYPES.items()
    }  # fmt: skip


def assert_same_frames(found: Any, expected: Any) -> None:
    """Bit for bit, but for the order of the values of a cell, which is that of a set in torch_frame."""
    assert found.num_rows == expected.num_rows
    assert found.col_names_dict == expected.col_names_dict
    for stype, values in expected.feat_dict.items():
        of_stype = found.feat_dict[stype]
        assert type(of_stype) is type(values)
        if stype is torch_frame.multicategorical:
            for row in range(found.num_rows):
                for column in range(values.num_cols):
                    assert sorted(of_stype[row, column].tolist()) == sorted(values[row, column].tolist())
            assert of_stype.values.dtype == values.values.dtype
        elif stype is torch_frame.embedding:
            assert torch.equal(of_stype.offset, values.offset)
            torch.testing.assert_close(of_stype.values, values.values, rtol=0, atol=0)
        else:
            torch.testing.assert_close(of_stype, values, rtol=0, atol=0, equal_nan=True)


def test_rows_of_a_graph_are_those_of_torch_frame(
    graph: Path, frames: dict[str, Any], expected: dict[str, Any]
) -> None:
    """All rows, some in any order, and none."""
    nodes = Graph.open(graph).nodes
    for stype, count in (("plan", StatType.COUNT), ("tags", StatType.MULTI_COUNT)):
        counts = expected["users"].col_stats[stype][count][1]
        assert len({*counts}) == len(counts), "values of equal counts have no order in torch_frame"
    for name, dataset in expected.items():
        features = nodes[name].features
        assert_same_frames(nodes[name].tensor_frame(features), dataset.tensor_frame)
        chosen = np.random.default_rng(1).integers(0, len(features), 50)
        assert_same_frames(nodes[name].tensor_frame(features[chosen]), dataset.tensor_frame[torch.from_numpy(chosen)])
        none = nodes[name].tensor_frame(features[:0])
        assert (none.num_rows, none.col_names_dict) == (0, dataset.tensor_frame.col_names_dict)
        assert none.feat_dict.keys() == dataset.tensor_frame.feat_dict.keys()
    constant = nodes["links"].tensor_frame(np.empty(len(frames["links"])))
    assert_same_frames(constant, Dataset(
        pd.DataFrame({"__const__": np.ones(len(frames["links"]))}), {"__const__": torch_frame.numerical}
    ).materialize().tensor_frame)  # fmt: skip


@pytest.mark.parametrize(("temporal", "fanouts"), [("last", [2, 3, 3]), ("ignore", [3, 2]), ("ignore", [1])])
def test_minibatches_have_a_frame_of_each_type(
    graph: Path, frames: dict[str, Any], expected: dict[str, Any], tmp_path: Path, temporal: str, fanouts: list[int]
) -> None:
    """With rows in all tiers, of trees whose nodes repeat, and of types of which a minibatch has no rows."""
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=fanouts, batch_size=48, target="churn", temporal=temporal,
                    keep_input_nodes=True, cpu_cache="20%", static_cache="5%")  # fmt: skip
    with diskgnn.Loader(tmp_path / "packed", "train") as loader:
        for batch in loader.epoch(0):
            found = batch.to_pyg()
            found.validate()
            assert {*found.node_types} == {"users", "orders", "links", "churn"}
            for name in found.node_types:
                store = found[name]
                assert store.tf.num_rows == len(store.n_id) == store.num_nodes
                if name in expected:
                    assert_same_frames(store.tf, expected[name].tensor_frame[store.n_id])
                else:
                    assert store.tf.col_names_dict == {torch_frame.numerical: ["__const__"]}
                    assert (store.tf.feat_dict[torch_frame.numerical] == 1).all()
            assert (found["orders"].tf.num_rows == 0) == (len(fanouts) == 1)


def test_encoders_of_torch_frame_take_frames_and_statistics(graph: Path, expected: dict[str, Any]) -> None:
    """Rows of a table become what they do with torch_frame's own statistics: by RelBench's encoders of each stype."""
    nodes = Graph.open(graph).nodes["users"]
    frame, found = nodes.tensor_frame(nodes.features), []
    encoders = {
        torch_frame.categorical: torch_frame.nn.EmbeddingEncoder(),
        torch_frame.numerical: torch_frame.nn.LinearEncoder(),
        torch_frame.multicategorical: torch_frame.nn.MultiCategoricalEmbeddingEncoder(),
        torch_frame.embedding: torch_frame.nn.LinearEmbeddingEncoder(),
        torch_frame.timestamp: torch_frame.nn.TimestampEncoder(na_strategy=torch_frame.NAStrategy.MEDIAN_TIMESTAMP),
    }  # fmt: skip
    for stats in (nodes.col_stats(), expected["users"].col_stats):
        torch.manual_seed(0)
        encoder = torch_frame.nn.StypeWiseFeatureEncoder(8, stats, frame.col_names_dict, encoders)
        found.append(encoder(frame)[0])
    assert found[0].shape == (USERS, len(STYPES["users"]), 8)
    torch.testing.assert_close(*found, equal_nan=True)
    links = Graph.open(graph).nodes["links"]
    ones = torch_frame.nn.StypeWiseFeatureEncoder(
        8,
        links.col_stats(),
        {torch_frame.numerical: ["__const__"]},
        {torch_frame.numerical: torch_frame.nn.LinearEncoder()},
    )
    assert ones(links.tensor_frame(np.empty(9)))[0].isfinite().all()


@settings(deadline=None)
@given(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=50))
def test_calendars_are_those_of_torch_frame(moments: list[int]) -> None:
    """Of any microsecond that NumPy knows: before 1970, before year 0, leap days, far in the future."""
    series = pd.Series(np.array(moments, "datetime64[us]"))
    assert torch.equal(tensor_frames.calendar(torch.tensor(moments)), TimestampTensorMapper.to_tensor(series))


def test_without_torch_frame_it_is_said(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minibatches have x, which needs no torch_frame; what only makes frames refuses."""
    diskgnn.prepare(graph, tmp_path / "packed", fanouts=[2], batch_size=400, target="churn", temporal="last")
    monkeypatch.setitem(sys.modules, "torch_frame", None)
    with diskgnn.Loader(tmp_path / "packed", "train") as loader, pytest.warns(DataWarning, match="pytorch-frame"):
        found = next(iter(loader.epoch(0))).to_pyg()
    assert "x" in found["users"]
    assert "tf" not in found["users"]
    users = Graph.open(graph).nodes["users"]
    with pytest.raises(UnavailableError, match="pip install pytorch-frame"):
        users.tensor_frame(users.features[:3])
    monkeypatch.setitem(sys.modules, "torch_frame.data.stats", None)
    with pytest.raises(UnavailableError, match="pip install pytorch-frame"):
        users.col_stats()


def test_vectors_are_no_frames(tmp_path: Path) -> None:
    edges = np.array([[0, 1], [1, 0]])
    diskgnn.convert(tmp_path / "graph", edges=edges, features=np.ones((2, 3), np.float32))
    node = Graph.open(tmp_path / "graph").nodes["node"]
    with pytest.raises(ConfigError, match="found vectors"):
        node.tensor_frame(node.features)
    with pytest.raises(ConfigError, match="found vectors"):
        node.col_stats()
