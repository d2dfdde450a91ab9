"""A conversion that was killed goes on with what it finished, and its result is the same."""

from __future__ import annotations

import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from told_stages import Stages
from user_data import save_arrays, small_data

from diskgnn.errors import DataWarning, InputError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.containers.rows import of_array
from diskgnn.importers.convert import convert
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.system.resources import SmallBudgetError


@pytest.fixture
def schema(tmp_path: Path) -> dict[str, Any]:
    """Two edge types, in files."""
    files = save_arrays(tmp_path, small_data())
    np.save(tmp_path / "more.npy", np.random.default_rng(1).integers(0, 50, (2, 70)))
    np.save(tmp_path / "weights.npy", np.ones(70))
    nodes = {name: files[name] for name in ("features", "labels", "train")}
    return {"nodes": {"node": nodes}, "edges": {
        "node:to:node": {"edges": files["edges"]},
        "node:more:node": {"edges": tmp_path / "more.npy", "weights": tmp_path / "weights.npy"},
    }}  # fmt: skip


@pytest.mark.parametrize(
    ("point", "after", "sorted_again", "copied_again"),
    # Each edge type has three pieces: counted, scattered and sorted.
    [("work.piece", 0, 2, 1), ("work.piece", 3, 1, 1), ("work.piece", 6, 0, 1), ("artifact.sync", 0, 0, 0)],
)
def test_a_killed_conversion_goes_on(
    tmp_path: Path, schema: dict[str, Any], point: str, after: int, sorted_again: int, copied_again: int
) -> None:
    convert(tmp_path / "whole", schema=schema)
    stopped = faults.armed(point, KeyboardInterrupt(), after=after), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", schema=schema)
    assert not (tmp_path / "out").exists()
    stages = Stages()
    convert(tmp_path / "out", schema=schema, reporter=stages)
    assert Graph.open(tmp_path / "out").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest
    assert (stages.names.count("sort edges"), stages.names.count("copy features")) == (sorted_again, copied_again)
    assert [entry for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_what_changed_is_converted_anew(tmp_path: Path, schema: dict[str, Any]) -> None:
    stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", schema=schema)
    path = Path(schema["edges"]["node:to:node"]["edges"])
    os.utime(path, ns=(0, 0))
    stages = Stages()
    convert(tmp_path / "out", schema=schema, reporter=stages)
    assert stages.names.count("sort edges") == 2
    damaged = tmp_path / "other"
    stopped = faults.armed("work.piece", KeyboardInterrupt(), after=3), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        convert(damaged, schema=schema)
    (tmp_path / ".other.partial" / "indices-node.to.node.npy").write_bytes(b"damaged")
    convert(damaged, schema=schema)
    assert Graph.open(damaged).manifest.digest == Graph.open(tmp_path / "out").manifest.digest


def test_wrong_data_leave_nothing(tmp_path: Path, schema: dict[str, Any]) -> None:
    before = sorted(tmp_path.iterdir())
    np.save(tmp_path / "more.npy", np.full((2, 70), 50))
    with pytest.raises(InputError, match="found source 50"):
        convert(tmp_path / "out", schema=schema)
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("mapped", [False, True])
def test_arrays_in_memory_are_known_again(tmp_path: Path, mapped: bool) -> None:
    """By what is in them; mapped ones by their files."""
    given: dict[str, Any] = small_data()
    if mapped:
        files = save_arrays(tmp_path, given)
        given |= {name: np.load(path, mmap_mode="r") for name, path in files.items() if name != "memory"}
    convert(tmp_path / "whole", **given)

    def killed_and_again(then: dict[str, Any]) -> list[str]:
        stopped = faults.armed("artifact.sync", KeyboardInterrupt()), faults.pretending("unit.bytes", 1)
        with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "out", overwrite=True, **given)
        stages = Stages()
        convert(tmp_path / "out", overwrite=True, **then, reporter=stages)
        return stages.names

    assert killed_and_again(dict(given)) == []
    assert Graph.open(tmp_path / "out").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest
    other = np.array(given["features"])
    other[3, 1] += 1
    assert "copy features" in killed_and_again(given | {"features": other})
    assert Graph.open(tmp_path / "out").manifest.digest != Graph.open(tmp_path / "whole").manifest.digest


def _pyg_data() -> Any:
    data = pytest.importorskip("torch_geometric.data")
    small = small_data()
    train = torch.zeros(len(small["labels"]), dtype=torch.bool)
    train[torch.as_tensor(small["train"].copy())] = True
    return data.Data(x=torch.tensor(small["features"]), edge_index=torch.tensor(small["edges"]),
                     y=torch.tensor(small["labels"]), train_mask=train)  # fmt: skip


def _dgl_graph() -> Any:
    dgl = pytest.importorskip("dgl")
    data = _pyg_data()
    graph = dgl.graph(tuple(data.edge_index), num_nodes=len(data.y))
    graph.ndata.update(feat=data.x, label=data.y, train_mask=data.train_mask)
    return graph


@pytest.mark.parametrize("kind", ["data", "hetero", "pt", "dgl", "tensors", "objects"])
def test_graphs_in_memory_are_known_again(tmp_path: Path, kind: str) -> None:
    """What is complete is kept if the object is equal, not only if it is the same one."""

    def given(first_label: int = 0) -> dict[str, Any]:
        if kind == "dgl":
            graph = _dgl_graph()
            graph.ndata["label"][0] = first_label
            return {"source": graph}
        if kind == "objects":  # strings, as pandas has them
            small = small_data()
            names = np.array([f"node {n}" for n in range(len(small["labels"]))], object)
            small["labels"][0] = first_label
            rest = {name: small[name] for name in ("features", "labels")}
            return {"edges": names[small["edges"]], "ids": names, "train": names[small["train"]], **rest}
        data = _pyg_data()
        data.y[0] = first_label
        if kind == "tensors":
            nodes = torch.nonzero(data.train_mask)[:, 0]
            return {"edges": data.edge_index, "features": data.x, "labels": data.y, "train": nodes}
        if kind == "pt":
            torch.save(data, tmp_path / "data.pt")
            os.utime(tmp_path / "data.pt", ns=(first_label, first_label))
            return {"source": tmp_path / "data.pt"}
        if kind == "hetero":
            data = data.to_heterogeneous(node_type_names=["paper"], edge_type_names=[("paper", "cites", "paper")])
        return {"source": data}

    convert(tmp_path / "whole", **given())
    for label, again in ((0, 0), (1, 1)):
        stopped = faults.armed("artifact.sync", KeyboardInterrupt()), faults.pretending("unit.bytes", 1)
        with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
            convert(tmp_path / "out", overwrite=True, **given())
        stages = Stages()
        convert(tmp_path / "out", overwrite=True, reporter=stages, **given(label))
        assert stages.names.count("sort edges") == again
    out, whole = (Graph.open(tmp_path / name).nodes for name in ("out", "whole"))
    assert [next(iter(nodes.values())).labels[0] for nodes in (out, whole)] == [1, 0]


def test_rows_made_by_another_function_are_others(tmp_path: Path) -> None:
    """Of one array, so that nothing but the functions tells the sources apart."""
    table, small = np.random.default_rng(2).standard_normal((50, 6)).astype(np.float32), small_data()

    def given(column: int) -> GraphInput:
        rows = of_array("features", table).mapped((1,), table.dtype, lambda chunk: chunk[:, column : column + 1])
        return GraphInput({"node": NodeInput(features=rows)}, {("node", "to", "node"): EdgeInput(small["edges"])})

    stopped = faults.armed("artifact.sync", KeyboardInterrupt()), faults.pretending("unit.bytes", 1)
    with stopped[0], stopped[1], pytest.raises(KeyboardInterrupt):
        convert(tmp_path / "out", schema=given(0))
    convert(tmp_path / "out", schema=given(5))
    np.testing.assert_array_equal(Graph.open(tmp_path / "out").nodes["node"].features, table[:, 5:])


@pytest.mark.parametrize("quantise", [None, "int4"])
def test_a_kill_costs_some_rows_of_the_features(tmp_path: Path, quantise: str | None) -> None:
    """Rows that are written twice; what is said of them is the same."""
    rng = np.random.default_rng(0)
    given = small_data() | {"features": rng.standard_normal((50, 40_000)).astype(np.float32), "quantise": quantise}
    given["features"][7, 7] = 0 if quantise else np.nan
    np.save(tmp_path / "features.npy", given["features"])  # read in chunks of six rows
    given["features"] = tmp_path / "features.npy"
    writes: list[int] = []
    with warnings.catch_warnings(), faults.pretending("unit.bytes", 1 << 10):
        warnings.simplefilter("ignore")
        with faults.armed("artifact.write", lambda: writes.append(1)):
            whole = convert(tmp_path / "whole", **given)
        for after in (len(writes) - 6, len(writes) - 3):
            with pytest.raises(KeyboardInterrupt), faults.armed("artifact.write", KeyboardInterrupt(), after=after):
                convert(tmp_path / "out", **given)
            again: list[int] = []
            with faults.armed("artifact.write", lambda again=again: again.append(1)):
                if quantise is None:
                    with pytest.warns(DataWarning, match="1 NaN value in 1 node, the first at node 7, column"):
                        resumed = convert(tmp_path / "out", **given)
                else:
                    resumed = convert(tmp_path / "out", **given)
            assert resumed.details == whole.details
            assert (tmp_path / "out" / "manifest.json").read_bytes() == (
                tmp_path / "whole" / "manifest.json"
            ).read_bytes()
            assert len(again) < len(writes) - 4, (after, len(again), len(writes))
            shutil.rmtree(tmp_path / "out")


def test_less_memory_than_the_edges_of_a_node_take_costs_no_pass_over_them(tmp_path: Path) -> None:
    """Only counting them shows that, and the same command goes on with more memory."""
    random, count = np.random.default_rng(0), 20_000
    ends = np.where(np.arange(count) % 2 == 0, 5, random.integers(0, 1000, count))
    given = {"edges": np.stack([random.integers(0, 1000, count), ends]), "features": np.ones((1000, 1), np.float32)}

    def stages(memory: int) -> list[str]:
        told = Stages()
        convert(tmp_path / "graph", **given, memory=memory, reporter=told)
        return told.names

    with faults.pretending("unit.bytes", 1):
        with pytest.raises(SmallBudgetError, match=r"to sort the \d+ in-edges of nodes 5 to 5") as refused:
            stages(1)
        found = stages(refused.value.least_bytes)
    assert found
    assert "count edges" not in found
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]
    convert(tmp_path / "whole", **given, progress=False)
    assert open_artifact(tmp_path / "graph").digest == open_artifact(tmp_path / "whole").digest
