"""Rows of all nodes, against the same models on the whole graph in memory, PyG's layers, and NumPy."""

from __future__ import annotations

import errno
import itertools
import re
import warnings
from base64 import b85encode
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typed_graphs import citations
from uneven_graph import CLASSES, NUM_NODES, WIDTH, uneven_graph

import diskgnn
from diskgnn import ConfigError, DataWarning, DiskFullError, OutputExistsError
from diskgnn.batches.blocks import Block
from diskgnn.files import faults
from diskgnn.graph.graph import Graph
from diskgnn.importers.tables.table import TableColumns
from diskgnn.nn.block_models import BlockModel, elu_dropout, make_model
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.nn.typed_models import make_typed_model
from diskgnn.specs.schema import SourceSchema

PLENTY = "2GiB"


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    return uneven_graph(tmp_path_factory.mktemp("graph"))


def model(name: str, hidden: int = 8, layers: int = 2) -> torch.nn.Module:
    """By name, `sage` with an aggregation of its own behind a colon, a norm behind a plus, '+skip' at the end."""
    torch.manual_seed(7)
    name, *options = name.split("+")
    name, _, aggregation = name.partition(":")
    norm = next((each for each in options if each != "skip"), "none")
    net = make_model(
        name, WIDTH, hidden, CLASSES, layers, aggregation=aggregation or "mean", norm=norm, skip="skip" in options
    )
    return after_training(net)


def after_training(net: torch.nn.Module) -> torch.nn.Module:
    """In evaluation, with statistics and scales that are not those of the beginning."""
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.LayerNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 2)
            torch.nn.init.normal_(module.bias)
        if isinstance(module, torch.nn.BatchNorm1d):
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
    return net.eval()


def full_block(graph: Graph) -> Block:
    return Block(
        torch.from_numpy(graph.indptr.astype(np.int32)), torch.from_numpy(np.array(graph.indices)), graph.num_nodes
    )


@torch.no_grad()
def in_memory(net: torch.nn.Module, graph: Graph) -> np.ndarray:
    return net([full_block(graph)] * len(net.layers), torch.from_numpy(np.array(graph.features))).numpy()


def least_memory(graph: Graph, folder: Path, net: torch.nn.Module, **arguments) -> int:
    """What the refusal of one byte says that it takes."""
    with pytest.raises(ConfigError, match=r"memory: expected at least (\d+) bytes") as refused:
        diskgnn.infer(graph, folder / "refused.npy", net, memory=1, **arguments)
    assert not list(folder.glob("*refused*"))
    return int(str(refused.value).split()[4])


@pytest.mark.parametrize(
    "name",
    ["sage", "sage:sum", "sage:max", "gcn", "gat", "sage+batch", "sage+batch+skip", "gcn+layer+skip", "gat+batch+skip"],
)
def test_equals_the_whole_graph_in_memory_whatever_memory_and_threads(name: str, graph: Graph, tmp_path: Path):
    net, found = model(name), {}
    with faults.pretending("memory.anonymous", 0):
        least = least_memory(graph, tmp_path, net)
        for memory, threads in ((PLENTY, 2), (least, 1), (least + 300_000, 3)):
            out = tmp_path / f"{memory}.npy"
            report = diskgnn.infer(graph, out, net, memory=memory, threads=threads)
            found[memory] = out.read_bytes()
            if memory in (PLENTY, least):
                assert (report.details["panels"] != "1, 1") == (memory == least)
    assert len(set(found.values())) == 1
    np.testing.assert_allclose(np.load(tmp_path / f"{PLENTY}.npy"), in_memory(net, graph), rtol=1e-4, atol=1e-5)


def test_parquet_has_the_same_bytes_whatever_memory_and_threads(graph: Graph, tmp_path: Path):
    """Rows of 2 KiB, in groups of 8 MiB."""
    torch.manual_seed(0)
    net, nodes, found = make_model("sage", 20, 512, 5, 2), np.flatnonzero(np.arange(NUM_NODES) % 11), set()
    given = {"what": "embeddings", "nodes": nodes}
    with faults.pretending("memory.anonymous", 0):
        least = least_memory(graph, tmp_path, net, **given)
        for memory, threads in ((PLENTY, 2), (least, 1), (least + 1_000_000, 3)):
            out = tmp_path / f"{memory}.parquet"
            diskgnn.infer(graph, out, net, memory=memory, threads=threads, **given)
            found.add(out.read_bytes())
            metadata = pq.ParquetFile(out).metadata
            groups = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
            assert groups == [4096, len(nodes) - 4096]
    assert len(found) == 1
    np.testing.assert_array_equal(pq.read_table(out)["node"], nodes)


@pytest.mark.parametrize("name", ["sage", "sage:max", "sage+batch", "sage+layer", "gat"])
def test_equals_pygs_model_on_the_whole_graph(name: str, graph: Graph, tmp_path: Path):
    from torch_geometric.nn import GATConv, GraphSAGE

    ours = model(name, 32, 3)
    block, x = full_block(graph), torch.from_numpy(np.array(graph.features))
    edges = torch.stack([block.indices.long(), block.destinations.long()])
    with torch.no_grad():
        if name != "gat":
            norm, arguments = {"batch": ("batch_norm", None), "layer": ("layer_norm", {"mode": "node"})}.get(
                name.partition("+")[2], (None, None)
            )
            theirs = GraphSAGE(
                WIDTH, 32, 3, CLASSES, norm=norm, norm_kwargs=arguments, aggr="max" if name == "sage:max" else "mean"
            )
            for normalised, between in zip(theirs.norms or [], ours.between, strict=False):
                getattr(normalised, "module", normalised).load_state_dict(between.norm.state_dict())
            for convolution, layer in zip(theirs.convs, ours.layers, strict=True):
                convolution.lin_l.weight.copy_(layer.neighbours.weight)
                convolution.lin_l.bias.copy_(layer.own.bias)
                convolution.lin_r.weight.copy_(layer.own.weight)
            expected = theirs.eval()(x, edges)
        else:
            expected = x
            for number, layer in enumerate(ours.layers):
                convolution = GATConv(layer.in_channels, layer.out_channels, layer.heads, concat=layer.concat,
                                      add_self_loops=False, residual=True)  # fmt: skip
                convolution.lin.weight.copy_(layer.weight)
                convolution.att_src.copy_(layer.source_attention.unsqueeze(0))
                convolution.att_dst.copy_(layer.destination_attention.unsqueeze(0))
                convolution.res.weight.copy_(layer.residual.weight)
                convolution.bias.copy_(layer.bias)
                expected = convolution(expected, edges)
                expected = torch.nn.functional.elu(expected) if number < 2 else expected
    diskgnn.infer(graph, tmp_path / "out.npy", ours, memory=PLENTY)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected.numpy(), rtol=1e-4, atol=1e-4)


def typed_model(graph: Graph, name: str, layers: int = 2, norm: str = "none", skip: bool = False) -> torch.nn.Module:
    schema = SourceSchema(
        tuple((each.name, each.num_nodes, each.feature_file and each.feature_file.rows.num_features)
              for each in graph.nodes.values()),
        tuple((each.type, each.feature_file and each.feature_file.rows.num_features) for each in graph.edges.values()),
        "paper", "class", 3,
    )  # fmt: skip
    torch.manual_seed(3)
    spec = ModelSpec(name=name, hidden=12, heads=3, num_layers=layers, num_bases=2 if name == "rgcn" else None,
                     norm=norm, skip=skip)  # fmt: skip
    return after_training(make_typed_model(spec, schema, 3))


@pytest.mark.parametrize(("norm", "skip"), [("none", False), ("batch", True), ("layer", False)])
@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_typed_models_equal_the_whole_graph_in_memory(name: str, norm: str, skip: bool, tmp_path: Path):
    graph = citations(tmp_path / "graph")
    net = typed_model(graph, name, norm=norm, skip=skip)
    blocks = {}
    for edge_type, edges in graph.edges.items():
        edge_x = None if edges.feature_file is None else torch.from_numpy(np.array(edges.features))
        blocks[edge_type] = Block(
            torch.from_numpy(edges.indptr.astype(np.int32)), torch.from_numpy(np.array(edges.indices)),
            graph.nodes[edge_type[0]].num_nodes, edge_x=edge_x,
        )  # fmt: skip
    x = {name: torch.arange(each.num_nodes) if each.feature_file is None else torch.from_numpy(np.array(each.features))
         for name, each in graph.nodes.items()}  # fmt: skip
    with torch.no_grad():
        expected = net([blocks] * 2, x)["paper"].numpy()
    with faults.pretending("memory.anonymous", 0):
        least = least_memory(graph, tmp_path, net, ignore_times=True)
        found = []
        for memory in (least, PLENTY):
            diskgnn.infer(graph, tmp_path / f"{memory}.npy", net, memory=memory, threads=2, ignore_times=True)
            found.append(np.load(tmp_path / f"{memory}.npy"))
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)


def test_rows_of_another_type_before_the_last_layer(tmp_path: Path):
    graph = citations(tmp_path / "graph")
    net = typed_model(graph, "rgcn")
    diskgnn.infer(graph, tmp_path / "authors.npy", net, what="embeddings", node_type="author", memory=PLENTY,
                  ignore_times=True)  # fmt: skip
    assert np.load(tmp_path / "authors.npy").shape == (graph.nodes["author"].num_nodes, 12)
    with pytest.raises(ConfigError, match="node_type: the model has rows of paper there, found author"):
        diskgnn.infer(graph, tmp_path / "no.npy", net, node_type="author")


class Killed(BaseException):
    """What no code catches."""


def test_what_a_killed_run_left_of_another_model_is_not_believed(graph: Graph, tmp_path: Path):
    net = model("sage")
    with pytest.raises(Killed), faults.pretending("unit.bytes", 1), faults.armed("unit.written", Killed(), after=5):
        diskgnn.infer(graph, tmp_path / "out.npy", model("gcn"), memory=PLENTY)
    for name in ("out.npy", "fresh.npy"):
        diskgnn.infer(graph, tmp_path / name, net, memory=PLENTY)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "fresh.npy").read_bytes()


@pytest.mark.parametrize("after", [7, 11])
def test_another_activation_is_another_model(graph: Graph, tmp_path: Path, after: int):
    """It is a function, of which neither the weights nor the representation of the model say anything."""
    killed, other = model("sage"), model("sage")
    for between in killed.between:
        between.activation = lambda h, _: h.relu()
    for between in other.between:
        between.activation = lambda h, _: h.tanh()
    with pytest.raises(Killed), faults.pretending("unit.bytes", 1), faults.armed("unit.written", Killed(), after=after):
        diskgnn.infer(graph, tmp_path / "out.npy", killed, memory=PLENTY, threads=1)
    for name in ("out.npy", "fresh.npy"):
        diskgnn.infer(graph, tmp_path / name, other, memory=PLENTY, threads=1)
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "fresh.npy").read_bytes()
    assert not np.allclose(np.load(tmp_path / "out.npy"), in_memory(killed, graph))


def test_chosen_nodes_and_what_is_said_of_them(graph: Graph, tmp_path: Path):
    net, logits = model("sage"), in_memory(model("sage"), graph)
    nodes = np.array([8999, 3, 3, 5000])
    diskgnn.infer(graph, tmp_path / "some.npy", net, nodes=nodes, memory=PLENTY)
    np.testing.assert_allclose(np.load(tmp_path / "some.npy"), logits[nodes], rtol=1e-4, atol=1e-5)
    diskgnn.infer(graph, tmp_path / "some.parquet", net, nodes=nodes, what="classes", memory=PLENTY)
    table = pq.read_table(tmp_path / "some.parquet").to_pydict()
    assert table == {"node": sorted(nodes), "class": logits[np.sort(nodes)].argmax(1).tolist()}
    mask = np.arange(NUM_NODES) % 7 == 0
    diskgnn.infer(graph, tmp_path / "mask.parquet", net, nodes=mask, what="probabilities", memory=PLENTY)
    table = pq.read_table(tmp_path / "mask.parquet")
    np.testing.assert_array_equal(table["node"], np.flatnonzero(mask))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(np.stack(table["probabilities"].to_numpy()), expected[mask], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("what", ["logits", "classes"])
def test_rows_that_are_not_finite_are_told(graph: Graph, tmp_path: Path, what: str):
    """A class is written of them, too, as of any other."""
    features = np.array(graph.features)
    features[[17, 4000], 1] = np.inf, np.nan
    edges = np.stack([np.array(graph.indices), np.repeat(np.arange(NUM_NODES), np.diff(graph.indptr))])
    with pytest.warns(DataWarning, match="features hold"):
        diskgnn.convert(tmp_path / "odd", edges=edges, features=features)
    odd = Graph.open(tmp_path / "odd")
    wrong = np.flatnonzero(~np.isfinite(in_memory(model("sage"), odd)).all(1))
    assert 2 <= len(wrong) < NUM_NODES
    told = rf"^{len(wrong):,} of {NUM_NODES:,} rows that the model computed have NaN or infinite numbers"
    with pytest.warns(DataWarning, match=told):
        diskgnn.infer(odd, tmp_path / "all.npy", model("sage"), what=what, memory=PLENTY)
    nodes = np.array([wrong[0], *np.setdiff1d(np.arange(50), wrong)[:3]])
    with pytest.warns(DataWarning, match="^1 of 4 rows"):
        diskgnn.infer(odd, tmp_path / "some.npy", model("sage"), what=what, nodes=nodes, memory=PLENTY)
    with pytest.warns(DataWarning, match="^1 of 4 rows"):
        diskgnn.predict(odd, tmp_path / "drawn.npy", model("sage"), what=what, nodes=nodes, fanouts=[-1, -1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        diskgnn.infer(odd, tmp_path / "none.npy", model("sage"), what=what, nodes=nodes[1:], memory=PLENTY)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int4"])
def test_narrow_features(dtype: str, graph: Graph, tmp_path: Path):
    arrays = {"indptr": np.array(graph.indptr), "indices": np.array(graph.indices)}
    diskgnn.convert(tmp_path / "graph", **arrays, features=np.array(graph.features), labels=np.zeros(NUM_NODES, int),
                    train=np.arange(9), num_classes=CLASSES, quantise=dtype)  # fmt: skip
    narrow, net = Graph.open(tmp_path / "graph"), model("sage")
    file = narrow.feature_file
    x = file.x(file.rows.as_tensor(np.array(narrow.features))).float()
    block = full_block(narrow)
    with torch.no_grad():
        expected = net([block, block], x).numpy()
    diskgnn.infer(narrow, tmp_path / "out.npy", net, memory=PLENTY)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("suffix", [".npy", ".parquet", ".csv"])
@pytest.mark.parametrize(
    ("name", "hidden", "layers", "arguments"),
    [
        ("sage", 8, 2, {}),
        ("sage", 256, 2, {}),  # narrow between wide layers
        ("sage:max", 256, 3, {}),
        ("sage+batch+skip", 64, 2, {"nodes": [3, 3, 5000]}),
        ("sage", 128, 1, {"nodes": [7]}),
        ("gcn", 256, 3, {"nodes": [7], "what": "classes"}),
        ("gat", 64, 2, {"what": "embeddings"}),
    ],
)
def test_nothing_moves_fewer_bytes_than_the_minimum(
    name: str, hidden: int, layers: int, arguments: dict[str, object], suffix: str, graph: Graph, tmp_path: Path
):
    net = model(name, hidden, layers)
    report = diskgnn.infer(graph, tmp_path / f"out{suffix}", net, memory=PLENTY, **arguments)
    output_bytes = (tmp_path / f"out{suffix}").stat().st_size
    least = report.details["minimum_bytes"]
    assert NUM_NODES * WIDTH * 4 + output_bytes <= least <= report.details["moved_bytes"]


@pytest.mark.parametrize("nodes", [None, [1]])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", ["rgcn", "rgat", "hgt"])
def test_nor_where_only_some_types_are_needed(name: str, layers: int, nodes: list[int] | None, tmp_path: Path):
    graph = citations(tmp_path / "graph")
    report = diskgnn.infer(graph, tmp_path / "out.npy", typed_model(graph, name, layers), nodes=nodes, memory=PLENTY,
                           ignore_times=True)  # fmt: skip
    assert 70 * 4 * 4 * (nodes is None) < report.details["minimum_bytes"] <= report.details["moved_bytes"]


@pytest.mark.parametrize("dtype", ["float16", "int4"])
def test_nor_of_narrow_features(dtype: str, graph: Graph, tmp_path: Path):
    arrays = {"indptr": np.array(graph.indptr), "indices": np.array(graph.indices)}
    diskgnn.convert(tmp_path / "graph", **arrays, features=np.array(graph.features), labels=np.zeros(NUM_NODES, int),
                    train=np.arange(9), num_classes=CLASSES, quantise=dtype)  # fmt: skip
    report = diskgnn.infer(tmp_path / "graph", tmp_path / "out.npy", model("sage", 256), memory=PLENTY)
    assert report.details["minimum_bytes"] <= report.details["moved_bytes"]


class Convolution(torch.nn.Module):
    """A layer of PyG's own as a layer of blocks."""

    def __init__(self, convolution: torch.nn.Module, in_channels: int) -> None:
        super().__init__()
        self.convolution, self.in_channels = convolution, in_channels

    def forward(self, block: Block, x: torch.Tensor) -> torch.Tensor:
        edges = torch.stack([block.indices.long(), block.destinations.long()])
        return self.convolution((x, x[: block.num_dst]), edges)


def own_model(norm: str = "none", *, skip: bool = False) -> BlockModel:
    """Attention of another kind than ours, and an aggregation of PyG alone."""
    from torch_geometric.nn import GATv2Conv, SAGEConv

    torch.manual_seed(3)
    first = GATv2Conv(WIDTH, 4, heads=2, add_self_loops=False, dropout=0.5)
    layers = [Convolution(first, WIDTH), Convolution(SAGEConv(8, CLASSES, aggr="softmax"), 8)]
    return BlockModel(layers, elu_dropout, 0.5, norm=norm, skip=skip)


@pytest.mark.parametrize(("norm", "skip"), [("none", False), ("batch", True), ("layer", False)])
def test_layers_of_ones_own_equal_pyg_on_the_whole_graph(graph: Graph, tmp_path: Path, norm: str, skip: bool):
    net = after_training(own_model(norm, skip=skip))
    edges = torch.stack([full_block(graph).indices.long(), full_block(graph).destinations.long()])
    first, second = (layer.convolution for layer in net.layers)
    with torch.no_grad():
        x = torch.from_numpy(np.array(graph.features))
        rows = torch.nn.functional.elu(net.between[0].norm(first(x, edges)))
        rows = rows + x @ net.between[0].skip.weight.T if skip else rows
        expected = second(rows, edges).numpy()
    net.train()  # as a loop leaves it
    diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY)
    assert net.training
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-5)
    with faults.pretending("memory.anonymous", 0):
        least = least_memory(graph, tmp_path, net)
        diskgnn.infer(graph, tmp_path / "least.npy", net, memory=least, threads=1)
    assert (tmp_path / "least.npy").read_bytes() == (tmp_path / "out.npy").read_bytes()


class Wrong(torch.nn.Module):
    def __init__(self, in_channels: object, rows: object) -> None:
        super().__init__()
        self.in_channels, self.rows = in_channels, rows

    def forward(self, block: Block, x: torch.Tensor) -> object:
        return self.rows(block, x)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Wrong(None, lambda block, x: x), "layer Wrong to have an attribute in_channels, .*; found None"),
        (Wrong(WIDTH, lambda block, x: x), r"each of 3 destinations, float32 \[3, out\], found torch.float32 \[5,"),
        (Wrong(WIDTH, lambda block, x: x[:1]), r"each of 3 destinations, .* found torch.float32 \[1,"),
        (Wrong(WIDTH, lambda block, x: None), "a row for each of 3 destinations, .* found NoneType"),
        (Wrong(WIDTH, lambda block, x: x[block.edge_weight]), "it raised AttributeError: .*edge_weight"),
    ],
)
def test_what_is_no_layer_is_refused(graph: Graph, tmp_path: Path, layer: torch.nn.Module, message: str):
    with pytest.raises(ConfigError, match=message):
        diskgnn.infer(graph, tmp_path / "out.npy", BlockModel([layer], elu_dropout, 0.0), memory=PLENTY)
    assert not list(tmp_path.iterdir())


def test_layers_that_do_not_fit_one_another_are_refused_beforehand(graph: Graph, tmp_path: Path):
    layers = [Wrong(WIDTH, lambda block, x: x[: block.num_dst, :4]), Wrong(6, lambda block, x: x[: block.num_dst])]
    for following, norm in itertools.product((layers[1], model("sage", 6).layers[-1]), ("none", "batch", "layer")):
        net = BlockModel([layers[0], following], elu_dropout, 0.0, norm=norm, skip=norm == "batch")
        with pytest.raises(ConfigError, match=r"layer 1 gives rows of 4 columns, and layer 2 .* has in_channels=6"):
            diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY)
    assert not list(tmp_path.iterdir())


def test_a_killed_run_with_another_aggregation_is_not_gone_on_with(graph: Graph, tmp_path: Path):
    """Their weights are the same."""
    with pytest.raises(Killed), faults.armed("unit.written", Killed(), after=3):
        diskgnn.infer(graph, tmp_path / "out.npy", model("sage:max"), memory=PLENTY, threads=1)
    diskgnn.infer(graph, tmp_path / "out.npy", model("sage:sum"), memory=PLENTY, threads=1)
    expected = in_memory(model("sage:sum"), graph)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected, rtol=1e-4, atol=1e-4)


def test_disk_is_counted_and_refused_beforehand(graph: Graph, tmp_path: Path):
    net, peak, folder = model("sage", 32, 3), 0, tmp_path / ".out.npy.partial"
    with pytest.raises(DiskFullError, match=r"disk: inference needs exactly") as refused:
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY, disk=0, threads=1)
    needed, *_, missing = (int(each) for each in re.findall(r"(\d+) bytes", str(refused.value)))
    with faults.pretending("disk.free", needed), pytest.raises(DiskFullError, match="bytes are missing") as refused:
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY, threads=1)  # more waits to be removed
    unbounded = int(re.findall(r"(\d+) bytes", str(refused.value))[0])
    with faults.pretending("disk.free", unbounded - 1), pytest.raises(DiskFullError, match="1 bytes are missing"):
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY, threads=1)
    with pytest.raises(DiskFullError, match=r": 1 bytes are missing. Allow more with `disk`"):
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY, disk=missing - 1, threads=1)
    assert not list(tmp_path.iterdir())

    def num_bytes(path: Path) -> int:
        with suppress(FileNotFoundError):  # what is done with is removed meanwhile
            return path.stat().st_size
        return 0

    def measure() -> None:
        nonlocal peak
        peak = max(peak, sum(map(num_bytes, folder.iterdir())))

    with faults.armed("work.unit", measure):
        diskgnn.infer(graph, tmp_path / "out.npy", net, memory=PLENTY, disk=missing, threads=1)
    assert 0.8 * needed < peak <= needed
    full = OSError(errno.ENOSPC, "No space left on device")
    failing = faults.armed("unit.written", full, after=4)
    with failing, faults.pretending("unit.bytes", 1), pytest.raises(DiskFullError, match="the same command goes on"):
        diskgnn.infer(graph, tmp_path / "full.npy", net, memory=PLENTY, disk=missing, threads=1)
    diskgnn.infer(graph, tmp_path / "full.npy", net, memory=PLENTY, disk=missing, threads=1)
    assert (tmp_path / "full.npy").read_bytes() == (tmp_path / "out.npy").read_bytes()


@pytest.mark.parametrize("of_edges", [False, True])
def test_times_have_to_be_ignored_by_name(of_edges: bool, tmp_path: Path):
    rng = np.random.default_rng(5)
    times = {"times": np.arange(40) % 7}
    node, edges = {"features": rng.standard_normal((40, WIDTH), np.float32)}, {"edges": rng.integers(0, 40, (2, 40))}
    described = {"nodes": {"paper": node | ({} if of_edges else times)},
                 "edges": {"paper:cites:paper": edges | (times if of_edges else {})}}  # fmt: skip
    diskgnn.convert(tmp_path / "graph", schema=described)
    with pytest.raises(ConfigError, match=r"the model does not say .* edges of paper:cites:paper have times"):
        diskgnn.infer(tmp_path / "graph", tmp_path / "out.npy", model("sage"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        diskgnn.infer(tmp_path / "graph", tmp_path / "out.npy", model("sage"), ignore_times=True)
    assert len(np.load(tmp_path / "out.npy")) == 40


def test_refusals(graph: Graph, tmp_path: Path):
    net, out = model("sage"), tmp_path / "out.npy"
    for arguments, message in (
        ({"what": "label"}, "what: expected one of logits"),
        ({"node_type": "paper"}, "node_type: expected one of node"),
        ({"nodes": [NUM_NODES]}, "nodes: expected numbers of rows from 0 to 8999"),
        ({"nodes": [0.5]}, r"nodes: expected at least one id \[n\], or bool \[9000\], found float64"),
        ({"nodes": []}, "nodes: expected at least one id"),
        ({"nodes": np.zeros(NUM_NODES, bool)}, "nodes: expected at least one id .*found no True"),
    ):
        with pytest.raises(ConfigError, match=message):
            diskgnn.infer(graph, out, net, memory=PLENTY, **arguments)
    with pytest.raises(ConfigError, match=r"out: expected a file that ends in \.npy, \.parquet, \.csv, found out\.txt"):
        diskgnn.infer(graph, tmp_path / "out.txt", net)
    with pytest.raises(ConfigError, match="layers of your own, in float32, found Linear"):
        diskgnn.infer(graph, out, torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match=r"expected node nodes with 3 features, .* found 20 in .*; give the"):
        diskgnn.infer(graph, out, make_model("gcn", 3, 4, 5, 2))
    with pytest.raises(ConfigError, match="a model of one layer has no rows before"):
        diskgnn.infer(graph, out, model("gcn", layers=1), what="embeddings")
    assert not list(tmp_path.iterdir())
    out.write_bytes(b"mine")
    with pytest.raises(OutputExistsError):
        diskgnn.infer(graph, out, net)
    assert out.read_bytes() == b"mine"


def test_long_ids_do_not_exceed_the_disk(tmp_path: Path):
    """Those of the second half are long and do not compress: more than ids take on average, which is what is known."""
    rng, n, long = np.random.default_rng(4), 2000, np.arange(1000, 2000)
    ids = pa.array([f"n{v}" if v < n // 2 else b85encode(rng.bytes(400)).decode() for v in range(n)])
    x = rng.standard_normal((n, WIDTH)).astype(np.float32)
    rows = pa.FixedSizeListArray.from_arrays(x.reshape(-1), WIDTH)
    nodes = {"id": ids, "x": rows, "label": np.zeros(n, int), "split": ["train"] * n}
    pq.write_table(pa.table(nodes), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": ids, "dst": ids}), tmp_path / "edges.parquet")
    diskgnn.convert(tmp_path / "graph", nodes=tmp_path / "nodes.parquet", edges=tmp_path / "edges.parquet",
                    columns=TableColumns(features="x"))  # fmt: skip
    net, out = make_model("gcn", WIDTH, 4, 3, 1), tmp_path / "out.parquet"

    for stage in (diskgnn.infer, diskgnn.predict):
        arguments = {"nodes": long, "memory": PLENTY, "overwrite": True}
        stage(tmp_path / "graph", out, net, **arguments)
        assert pq.read_table(out)["id"].to_pylist() == ids[n // 2 :].to_pylist()
        most = out.stat().st_size
        refused: set[str] = set()
        out.unlink()
        for disk in range(most // 2, 8 * most, most // 4):
            try:
                stage(tmp_path / "graph", out, net, disk=disk, **arguments)
                break
            except DiskFullError as error:
                refused.add(str(error))
            kept = sum(path.stat().st_blocks * 512 for path in tmp_path.glob(".out.parquet*/**/*"))
            assert kept <= disk
            assert not out.exists()
        assert pq.read_table(out)["id"].to_pylist() == ids[n // 2 :].to_pylist()
        assert out.stat().st_size == most <= disk
        assert any("the next piece needs exactly" in message for message in refused)
