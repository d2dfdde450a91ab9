from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from diskgnn import Block, ConfigError
from diskgnn.nn.aggregation import attention, own_and_mean, weighted_sums
from diskgnn.nn.block_models import make_model
from diskgnn.nn.layers import GATLayer, GCNLayer, SAGELayer, transforming_first_is_less_work
from diskgnn.nn.model_spec import ONE_TYPE_MODELS

pytestmark = pytest.mark.usefixtures("one_thread")


def make_block(neighbours: list[list[int]], num_src: int) -> Block:
    indptr = np.cumsum([0, *map(len, neighbours)], dtype=np.int32)
    return Block(torch.from_numpy(indptr), torch.tensor(list(chain(*neighbours)), dtype=torch.int32), num_src)


def random_block(num_src: int, num_dst: int, num_edges: int, seed: int = 0) -> Block:
    rng = np.random.default_rng(seed)
    counts = np.bincount(rng.integers(num_dst, size=num_edges), minlength=num_dst)
    indptr = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    indices = rng.integers(num_src, size=num_edges, dtype=np.int32)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src)


BLOCKS = {
    "mixed": make_block([[0, 3, 4], [], [3], [5, 1, 1]], 6),
    "no-edges": make_block([[], []], 3),
    "square": make_block([[1], [0, 1, 2], [2]], 3),
    "one-node": make_block([[0]], 1),
}


@st.composite
def random_blocks(draw: st.DrawFn) -> Block:
    num_dst = draw(st.integers(1, 5))
    num_src = num_dst + draw(st.integers(0, 4))
    neighbours = st.lists(st.integers(0, num_src - 1), max_size=5)
    return make_block(draw(st.lists(neighbours, min_size=num_dst, max_size=num_dst)), num_src)


both_orders = pytest.mark.parametrize("transform_first", [True, False], ids=["transform-first", "sum-first"])


# Dense references in NumPy: edge counts as a matrix, so that every sum over neighbours is a matrix product.


def counts(block: Block) -> np.ndarray:
    matrix = np.zeros((block.num_dst, block.num_src))
    for i in range(block.num_dst):
        for j in block.indices[block.indptr[i] : block.indptr[i + 1]].tolist():
            matrix[i, j] += 1
    return matrix


def arrays(layer: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}


def dense_sage(layer: SAGELayer, block: Block, x: np.ndarray) -> np.ndarray:
    p, edges = arrays(layer), counts(block)
    found = edges @ x
    if layer.aggregation == "mean":
        found /= np.maximum(edges.sum(1, keepdims=True), 1)
    if layer.aggregation == "max":
        largest = np.where(edges[:, :, None] > 0, x, -np.inf).max(axis=1, initial=-np.inf)
        found = np.where(np.isinf(largest), 0, largest)
    return x[: block.num_dst] @ p["own.weight"].T + p["own.bias"] + found @ p["neighbours.weight"].T


def dense_gcn(layer: GCNLayer, block: Block, x: np.ndarray) -> np.ndarray:
    p, edges = arrays(layer), counts(block) + np.eye(block.num_dst, block.num_src)
    in_degrees = edges.sum(1, keepdims=True)
    out_degrees = np.maximum(edges.sum(0, keepdims=True), 1)
    return edges / np.sqrt(in_degrees * out_degrees) @ x @ p["weight"].T + p["bias"]


def dense_gat(layer: GATLayer, block: Block, x: np.ndarray) -> np.ndarray:
    p, edges, heads = arrays(layer), counts(block), []
    for head in range(layer.heads):
        h = x @ p["weight"].reshape(layer.heads, layer.out_channels, -1)[head].T
        scores = (h[: block.num_dst] @ p["destination_attention"][head])[:, None]
        scores = scores + h @ p["source_attention"][head]
        weights = edges * np.exp(np.where(scores > 0, scores, 0.2 * scores))
        totals = weights.sum(1, keepdims=True)
        heads.append(weights / np.where(totals > 0, totals, 1) @ h)
    out = np.concatenate(heads, 1) if layer.concat else np.mean(heads, 0)
    out = out + p["bias"]
    return out + x[: block.num_dst] @ p["residual.weight"].T if layer.residual is not None else out


LAYERS = {
    "sage": (lambda first: SAGELayer(3, 2, transform_first=first), dense_sage),
    "sage-sum": (lambda first: SAGELayer(3, 2, aggregation="sum", transform_first=first), dense_sage),
    "sage-max": (lambda first: SAGELayer(3, 2, aggregation="max", transform_first=first), dense_sage),
    "gcn": (lambda first: GCNLayer(3, 2, transform_first=first), dense_gcn),
    "gat": (lambda first: GATLayer(3, 2, heads=2, transform_first=first), dense_gat),
    "gat-mean": (lambda first: GATLayer(3, 2, heads=2, concat=False, transform_first=first), dense_gat),
    "gat-residual": (lambda first: GATLayer(3, 2, heads=2, residual=True, transform_first=first), dense_gat),
    "gat-mean-residual": (
        lambda first: GATLayer(3, 2, heads=3, concat=False, residual=True, transform_first=first),
        dense_gat,
    ),
}


def make_layer(name: str, transform_first: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    layer = LAYERS[name][0](transform_first).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)  # biases start at zero, where a missing one would go unnoticed
    return layer


@both_orders
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_dense_references(name: str, transform_first: bool):
    layer = make_layer(name, transform_first)

    @settings(deadline=None, max_examples=50)
    @given(random_blocks(), st.integers(0, 2**32 - 1))
    def check(block: Block, seed: int):
        x = np.random.default_rng(seed).normal(size=(block.num_src, 3)) * 10
        out = layer(block, torch.from_numpy(x))
        np.testing.assert_allclose(out.detach(), LAYERS[name][1](layer, block, x), atol=1e-10)

    check()


@both_orders
@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
@pytest.mark.parametrize("name", LAYERS)
def test_layer_gradients(name: str, block: Block, transform_first: bool):
    layer = make_layer(name, transform_first)
    x = torch.randn(block.num_src, 3, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (block, x))

    assert torch.autograd.gradcheck(call, (x, *parameters))


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS)
def test_aggregation_gradients(block: Block):
    def variable(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    sources, destinations = variable(block.num_src, 2), variable(block.num_dst, 2)
    assert torch.autograd.gradcheck(lambda x: own_and_mean(x, block), variable(block.num_src, 3))
    for distinct in (1, 2):
        x, weights = variable(block.num_src, distinct, 3), variable(block.num_edges, 2)
        assert torch.autograd.gradcheck(lambda x, w: weighted_sums(x, w, block), (x, weights))
        assert torch.autograd.gradcheck(lambda *a: attention(*a, block), (x, sources, destinations))


def test_without_torchs_private_product(monkeypatch: pytest.MonkeyPatch):
    block = random_block(num_src=300, num_dst=200, num_edges=40_000)  # more edges than are gathered at a time
    x, weights = torch.randn(block.num_src, 2, 3), torch.randn(block.num_edges, 2, requires_grad=True)

    def gradient() -> torch.Tensor:
        (found,) = torch.autograd.grad(weighted_sums(x, weights, block).square().sum(), weights)
        return found

    class Without:
        """A torch whose aten has no private product."""

        def __getattr__(self, name: str, aten=torch.ops.aten):
            if name.endswith("per_sample_weights_backward"):
                raise AttributeError(name)
            return getattr(aten, name)

    expected = gradient()
    monkeypatch.setattr(torch.ops, "aten", Without())
    torch.testing.assert_close(gradient(), expected)


def test_attention_survives_scores_that_overflow_exp():
    block = BLOCKS["mixed"]
    sources = torch.linspace(-500, 1000, block.num_src).unsqueeze(1)
    out = attention(torch.ones(block.num_src, 1, 2), sources, torch.zeros(block.num_dst, 1), block)
    expected = (block.in_degrees > 0).float().view(-1, 1, 1).expand(-1, 1, 2)
    torch.testing.assert_close(out, expected)


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation makes."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return out


@both_orders
@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("widths", [(16, 64), (64, 16)], ids=str)
def test_no_message_per_edge_is_materialised(name: str, widths: tuple[int, int], transform_first: bool):
    block = random_block(num_src=300, num_dst=200, num_edges=10_000)
    layer = {
        "sage": lambda: SAGELayer(*widths, transform_first=transform_first),
        "gcn": lambda: GCNLayer(*widths, transform_first=transform_first),
        "gat": lambda: GATLayer(widths[0], widths[1] // 4, heads=4, transform_first=transform_first),
    }[name]()
    x = torch.randn(block.num_src, widths[0], requires_grad=True)
    with LargestTensor() as largest:
        layer(block, x).sum().backward()
    assert x.grad is not None
    assert 0 < largest.numel < block.num_edges * min(widths)


@pytest.mark.parametrize(
    ("block", "widths", "heads", "expected"),
    [
        (random_block(10_000, 1_000, 10_000), (256, 40), 1, False),  # sampled: ten sources to a destination
        (random_block(1_000, 1_000, 20_000), (256, 40), 1, True),  # dense: as many destinations as sources
        (random_block(1_000, 1_000, 20_000), (40, 256), 1, False),
        (random_block(1_000, 1_000, 20_000), (64, 64), 4, True),  # four sums of 64, or four of 16
    ],
)
def test_order_follows_the_work(block: Block, widths: tuple[int, int], heads: int, expected: bool):
    assert transforming_first_is_less_work(block, *widths, heads) is expected


@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_models_compose_their_layers(name: str, num_layers: int):
    blocks = [random_block(12 - 2 * k, 10 - 2 * k, 20, seed=k) for k in range(num_layers)]
    model = make_model(name, in_channels=5, hidden_channels=8, out_channels=3, num_layers=num_layers).eval()
    h = x = torch.randn(12, 5)
    activation = F.elu if name == "gat" else F.relu
    for k, (layer, block) in enumerate(zip(model.layers, blocks, strict=True)):
        h = layer(block, h)
        if k < num_layers - 1:
            assert h.shape == (block.num_dst, 8)
            h = activation(h)
    logits = model(blocks, x)
    assert logits.shape == (blocks[-1].num_dst, 3)
    assert torch.equal(logits, h)


@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.float64])
def test_features_are_cast_to_the_parameters(name: str, dtype: torch.dtype):
    blocks = [random_block(9, 6, 15), random_block(6, 2, 4)]
    model = make_model(name, 5, 8, 3, 2).eval()
    x = (torch.randn(9, 5) * 10).to(dtype)
    logits = model(blocks, x)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, model(blocks, x.float()))


@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_parameters_may_have_another_dtype(name: str, dtype: torch.dtype):
    blocks = [random_block(9, 6, 0), random_block(6, 2, 4)]
    model = make_model(name, 5, 8, 3, 2).to(dtype)
    logits = model(blocks, torch.randn(9, 5))
    logits.sum().backward()
    assert logits.dtype == dtype
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
def test_nodes_without_neighbours_get_finite_gradients(name: str):
    blocks = [BLOCKS["mixed"], make_block([[], [0], []], 4)]
    model = make_model(name, 5, 8, 3, 2, dropout=0.0)
    x = torch.randn(6, 5, requires_grad=True)
    model(blocks, x).square().sum().backward()
    assert all(variable.grad.isfinite().all() for variable in (x, *model.parameters()))


@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
def test_dropout_acts_in_training_only(name: str):
    blocks = [random_block(40, 20, 80), random_block(20, 10, 40)]
    model, x = make_model(name, 5, 8, 3, 2, dropout=0.5), torch.randn(40, 5)
    assert not torch.equal(model(blocks, x), model(blocks, x))
    model.eval()
    assert torch.equal(model(blocks, x), model(blocks, x))


@pytest.mark.parametrize(("num_layers", "num_blocks"), [(2, 3), (3, 2)])
def test_depth_must_match_the_blocks(num_layers: int, num_blocks: int):
    model = make_model("sage", 4, 8, 3, num_layers)
    expected = (
        f"model has {num_layers} layers, minibatch has {num_blocks} blocks; "
        f"prepare with {num_layers} fanouts or set num_layers={num_blocks}"
    )
    with pytest.raises(ConfigError) as error:
        model([BLOCKS["one-node"]] * num_blocks, torch.zeros(1, 4))
    assert str(error.value) == expected


def test_width_must_match_the_features():
    with pytest.raises(ConfigError, match="takes features 4 wide, minibatch has features 5 wide"):
        make_model("sage", 4, 8, 3, 1)([BLOCKS["one-node"]], torch.zeros(1, 5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "gin"}, "model: expected one of sage, gat, gcn, found 'gin'"),
        ({"aggregation": "min"}, "aggregation: expected one of mean, sum, max, found 'min'"),
        ({"num_layers": 0}, "num_layers: expected at least 1, found 0"),
        ({"hidden_channels": -1}, "hidden_channels: expected at least 1, found -1"),
        ({"dropout": 1.0}, r"dropout: expected a number in \[0, 1\), found 1.0"),
        ({"name": "gat", "hidden_channels": 10}, "gat: .* multiple of heads=4, found 10"),
    ],
)
def test_impossible_models_are_refused(changes: dict, message: str):
    arguments = {"name": "sage", "in_channels": 4, "hidden_channels": 8, "out_channels": 3, "num_layers": 2}
    with pytest.raises(ConfigError, match=message):
        make_model(**(arguments | changes))


@both_orders
@pytest.mark.cuda
@pytest.mark.parametrize("name", ONE_TYPE_MODELS)
@pytest.mark.parametrize("num_edges", [0, 500])
def test_cuda_equals_cpu(name: str, num_edges: int, transform_first: bool):
    blocks = [random_block(90, 60, num_edges), random_block(60, 20, num_edges // 5)]
    model, x = make_model(name, 5, 8, 3, 2, dropout=0.0).double(), torch.randn(90, 5)
    for layer in model.layers:
        layer.transform_first = transform_first
    results = []
    for device in ("cpu", "cuda"):
        model.to(device).zero_grad()
        logits = model([block.to(device) for block in blocks], x.to(device))
        logits.square().sum().backward()
        found = [logits.detach(), *(parameter.grad for parameter in model.parameters())]
        results.append([tensor.cpu().clone() for tensor in found])  # model.to moves gradients in place
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_norms_are_pygs(norm: str) -> None:
    """In training, so that batch norm takes the statistics of the rows at hand."""
    from torch_geometric.nn import GraphSAGE

    torch.manual_seed(0)
    block = random_block(40, 40, 200)
    ours = make_model("sage", 6, 8, 3, num_layers=3, dropout=0.0, norm=norm)
    pyg_norm, arguments = {
        "none": (None, None),
        "batch": ("batch_norm", None),
        "layer": ("layer_norm", {"mode": "node"}),
    }[norm]
    theirs = GraphSAGE(6, 8, 3, 3, norm=pyg_norm, norm_kwargs=arguments)
    with torch.no_grad():
        for convolution, layer in zip(theirs.convs, ours.layers, strict=True):
            convolution.lin_l.weight.copy_(layer.neighbours.weight)
            convolution.lin_l.bias.copy_(layer.own.bias)
            convolution.lin_r.weight.copy_(layer.own.weight)
        for module in (*ours.modules(), *theirs.modules()):
            if isinstance(weight := getattr(module, "weight", None), torch.Tensor) and weight.dim() == 1:
                weight.copy_(torch.linspace(0.5, 2, len(weight)))
    x, edges = torch.randn(40, 6), torch.stack([block.indices.long(), block.destinations.long()])
    for _ in range(2):
        torch.testing.assert_close(ours([block] * 3, x), theirs(x, edges))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours([block] * 3, x), theirs(x, edges))


def test_a_skip_is_pygs_residual_connection() -> None:
    from torch_geometric.nn import DeepGCNLayer, SAGEConv

    torch.manual_seed(0)
    block = random_block(40, 40, 200)
    ours = make_model("sage", 8, 8, 8, num_layers=2, dropout=0.0, norm="batch", skip=True)
    convolution, x = SAGEConv(8, 8), torch.randn(40, 8)
    theirs = DeepGCNLayer(convolution, torch.nn.BatchNorm1d(8), torch.nn.ReLU(), block="res")
    with torch.no_grad():
        convolution.lin_l.weight.copy_(ours.layers[0].neighbours.weight)
        convolution.lin_l.bias.copy_(ours.layers[0].own.bias)
        convolution.lin_r.weight.copy_(ours.layers[0].own.weight)
    h = theirs(x, torch.stack([block.indices.long(), block.destinations.long()]))
    torch.testing.assert_close(ours([block] * 2, x), ours.layers[1](block, h))


def test_a_skip_takes_the_destinations_rows_to_another_width() -> None:
    """By hand: node 0 has the neighbour 1, the layers are zero but for what is added."""
    model = make_model("sage", 2, 1, 1, num_layers=2, dropout=0.0, skip=True)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(model.between[0].skip.weight, 10)
    torch.nn.init.ones_(model.layers[1].own.weight)
    blocks = [make_block([[1]], 2), make_block([[0]], 1)]
    assert model(blocks, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[30.0]]


@pytest.mark.parametrize("num_dst", [0, 1])
def test_batch_norm_takes_rows_that_have_no_spread(num_dst: int) -> None:
    """A minibatch of one seed without neighbours; a node type of which it has none."""
    model = make_model("sage", 4, 8, 3, num_layers=2, norm="batch")
    block = make_block([[]] * num_dst, num_dst)
    out = model.train()([block, block], torch.randn(num_dst, 4))
    assert out.shape == (num_dst, 3)
    assert out.isfinite().all()
    assert model.between[0].norm.running_mean.eq(0).all()


def test_a_norm_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match="norm: expected one of none, batch, layer, found 'group'"):
        make_model("sage", 4, 8, 3, 2, norm="group")
