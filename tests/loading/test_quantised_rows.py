"""x of graphs that `convert` quantised: bit for bit what NumPy makes of the codes of the input nodes."""

import shutil

import numpy as np
import pytest
import torch
from graphs import prepare_graph

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import open_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.loading.loader import Loader
from diskgnn.work.writer import ArtifactWriter

NUM_NODES = 200
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


def quantised_graph(folder, dtype, width=7):
    rng = np.random.default_rng(2)
    path = folder / f"{dtype}-{width}"
    convert(
        path, edges=rng.integers(0, NUM_NODES, (2, 1000)), labels=rng.integers(0, 4, NUM_NODES), train=np.arange(57),
        valid=np.arange(60, 81), quantise=dtype, features=rng.normal(3, 2, (NUM_NODES, width)).astype(np.float32),
    )  # fmt: skip
    return Graph.open(path)


def dequantised(graph):
    """[N, D], by the words of docs/FORMAT.md."""
    scale, zero_point = np.load(graph.manifest.file("quantisation-node.npy"))
    codes = np.array(graph.features)
    if codes.dtype == np.uint8:
        codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)[:, : len(scale)]
    return torch.from_numpy((codes.astype(np.float32) - zero_point) * scale)


@pytest.fixture(scope="module", params=[("int8", 7), ("int4", 7), ("int4", 16)], ids=str)
def prepared(request, tmp_path_factory):
    """A quantised graph and its packed directory with 40 static rows."""
    folder = tmp_path_factory.mktemp("quantised")
    graph = quantised_graph(folder, *request.param)
    return graph, prepare_graph(graph, folder, static_cache="20%", cpu_cache="10%", epochs=2)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(
    ("kernel", "device_rows", "zero_copy"),
    [(False, 0, False), (False, 13, False), (False, 13, True), (False, 40, False), (True, 0, False), (True, 13, True)],
    indirect=["kernel"],
)
def test_x_is_what_the_codes_mean(prepared, device, kernel, device_rows, zero_copy):
    if device == "cuda" and zero_copy and not kernel:
        pytest.skip("refused")
    graph, packed = prepared
    expected = dequantised(graph)
    options = {"device": device, "device_cache": device_rows * graph.feature_file.row_bytes, "zero_copy": zero_copy}
    with Loader(packed, **options) as loader:
        assert loader.num_features == expected.shape[1]
        for epoch in range(1 if kernel else 3):
            for batch in loader.epoch(epoch):
                assert batch.x.dtype is torch.float32
                assert torch.equal(batch.x.cpu(), expected[batch.input_nodes.cpu()])
        assert tuple(loader.sequence.largest_minibatch().x.shape[1:]) == tuple(expected.shape[1:])
    with Loader(packed, "valid", **options) as loader:
        for batch in loader:
            assert torch.equal(batch.x.cpu(), expected[batch.input_nodes.cpu()])


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kernel", [False, True], indirect=True)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_x_may_be_asked_for_in_sixteen_bits(prepared, device, kernel, dtype):
    graph, packed = prepared
    expected = dequantised(graph).to(dtype)
    with Loader(packed, device=device, device_cache="5%", dtype=dtype) as loader:
        for batch in loader.epoch(0):
            found, wanted = batch.x.cpu(), expected[batch.input_nodes.cpu()]
            assert found.dtype is dtype
            if kernel and (device, dtype) == ("cpu", torch.bfloat16):  # Triton's interpreter cuts off bits
                torch.testing.assert_close(found, wanted, rtol=2**-7, atol=0)
            else:
                assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_are_widened_as_torch_does(tmp_path, dtype):
    graph = quantised_graph(tmp_path, dtype)
    packed = prepare_graph(graph, tmp_path, epochs=1)
    features = torch.from_numpy(graph.features.view(np.int16).copy()).view(getattr(torch, dtype))
    with Loader(packed) as plain, Loader(packed, dtype=torch.float32) as widened:
        for one, other in zip(plain, widened, strict=True):
            assert torch.equal(one.x, features[one.input_nodes])
            assert torch.equal(other.x, features[other.input_nodes].float())


def test_scale_is_refused_where_the_directory_has_one(prepared):
    with pytest.raises(ConfigError, match="leave out scale and zero_point"):
        Loader(prepared[1], scale=0.5)
    with pytest.raises(ConfigError, match="scale: expected"):
        Loader(prepared[1], dtype=torch.float64)


def forged(packed, folder, meaning):
    """The packed directory with another quantisation.npy, or without one."""
    manifest = open_artifact(packed)
    with ArtifactWriter(folder / "forged", artifacts.PACKED, config=manifest.config) as writer:
        for name in manifest.files:
            if name != artifacts.packed_codes_file("node"):
                shutil.copy(packed / name, writer.path(name))
                writer.add(name)
            elif meaning is not None:
                writer.save_array(name, meaning)
        writer.publish()
    return folder / "forged"


@pytest.mark.parametrize(
    "meaning",
    [np.ones((2, 3), np.float32), np.ones((2, 7), np.int32), np.full((2, 7), np.inf, np.float32),
     -np.ones((2, 7), np.float32), np.ones(14, np.float32)],
)  # fmt: skip
def test_codes_that_mean_nothing_are_refused(tmp_path, meaning):
    packed = prepare_graph(quantised_graph(tmp_path, "int8"), tmp_path, epochs=1)
    with pytest.raises(ArtifactError, match=r"quantisation-node\.npy"):
        Loader(forged(packed, tmp_path, meaning))


def test_int4_without_its_meaning_is_refused(tmp_path):
    packed = prepare_graph(quantised_graph(tmp_path, "int4"), tmp_path, epochs=1)
    with pytest.raises(ArtifactError, match="int4 do not fit its files"):
        Loader(forged(packed, tmp_path, None))


def test_a_flipped_bit_in_what_codes_mean_is_found(tmp_path):
    packed = prepare_graph(quantised_graph(tmp_path, "int8"), tmp_path, epochs=1)
    data = bytearray((packed / artifacts.packed_codes_file("node")).read_bytes())
    data[-1] ^= 1
    (packed / artifacts.packed_codes_file("node")).write_bytes(data)
    with pytest.raises(ArtifactError, match=r"quantisation-node\.npy is damaged"):
        Loader(packed)
