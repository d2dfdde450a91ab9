"""x of every minibatch, wherever its rows are and whoever gathers them, against the features themselves."""

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from graphs import make_graph, prepare_graph

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.formats.row_format import RowFormat
from diskgnn.loading import assembly
from diskgnn.loading.assembly import RowConversion
from diskgnn.loading.loader import Loader

DTYPES = ["float32", "float16", "bfloat16", "int8"]
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.fixture(scope="module", params=DTYPES)
def prepared(request, tmp_path_factory):
    """A graph of 200 nodes and its packed directory with 40 static rows."""
    folder = tmp_path_factory.mktemp("assembly")
    graph = make_graph(folder / "graph", width=5, dtype=request.param)
    return graph, prepare_graph(graph, folder, static_cache="20%", cpu_cache="10%", epochs=2)


def bits(x):
    return x.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def features_of(graph, batch):
    """Rows of the features as a tensor, read without diskgnn's loader."""
    rows = np.ascontiguousarray(graph.features[batch.input_nodes.cpu().numpy()])
    if graph.feature_file.rows.dtype == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kernel", [False, True], indirect=True)
@pytest.mark.parametrize("device_rows", [0, 13, 40])
@pytest.mark.parametrize("zero_copy", [False, True])
def test_x_is_bit_for_bit_the_features(prepared, device, kernel, device_rows, zero_copy):
    if device == "cuda" and zero_copy and not kernel:
        pytest.skip("refused, see below")
    graph, packed = prepared
    row_bytes = graph.feature_file.row_bytes
    options = {"device": device, "device_cache": device_rows * row_bytes, "zero_copy": zero_copy}
    with Loader(packed, **options) as loader:
        for epoch in range(3):
            for batch in loader.epoch(epoch):
                assert bits(batch.x) == bits(features_of(graph, batch))
                assert batch.x.device.type == batch.blocks[0].indices.device.type == device
        stats = loader.stats()
    if zero_copy:
        with Loader(packed, **options | {"zero_copy": False}) as loader:
            for epoch in range(3):
                list(loader.epoch(epoch))
            expected = loader.stats()
        for name in ("requested_rows", "device_rows", "pinned_rows", "cpu_rows", "disk_rows"):
            assert getattr(stats, name) == getattr(expected, name), name
    assert (stats.device_rows > 0, stats.pinned_rows > 0) == (device_rows > 0, device_rows < 40)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kernel", [False, True], indirect=True)
@pytest.mark.parametrize("zero_copy", [False, True])
def test_x_is_widened_on_the_device(tmp_path, device, kernel, zero_copy):
    if device == "cuda" and zero_copy and not kernel:
        pytest.skip("refused, see below")
    graph = make_graph(tmp_path / "graph", width=6, dtype="int8")
    packed = prepare_graph(graph, tmp_path, static_cache="20%", epochs=1)
    scale, zero_point = torch.rand(6), torch.arange(6)
    options = {"device": device, "device_cache": "5%", "zero_copy": zero_copy}
    with (
        Loader(packed, dtype=torch.float32, **options) as widened,
        Loader(packed, scale=scale, zero_point=zero_point, **options) as dequantised,
        Loader(packed, scale=0.25, **options) as halved,
    ):
        for plain, scaled, quarter in zip(widened.epoch(0), dequantised.epoch(0), halved.epoch(0), strict=True):
            expected = features_of(graph, plain).float()
            assert torch.equal(plain.x.cpu(), expected)
            assert torch.equal(scaled.x.cpu(), (expected - zero_point) * scale)
            assert torch.equal(quarter.x.cpu(), expected * 0.25)


@pytest.mark.parametrize(
    ("stored", "options", "message"),
    [
        ("float32", {"dtype": torch.float16}, "dtype: expected None"),
        ("float32", {"scale": 1.0}, "int8 rows"),
        ("int8", {"scale": 1.0, "dtype": torch.int8}, "int8 rows"),
        ("int8", {"scale": [1.0, 2.0]}, "scale: expected a number, or 3"),
        ("int8", {"scale": 1.0, "zero_point": "none"}, "zero_point: expected a number"),
        ("int8", {"scale": float("nan")}, "finite"),
    ],
)
def test_conversions_that_make_no_sense(stored, options, message):
    with pytest.raises(ConfigError, match=message):
        RowConversion(RowFormat(stored, 3), device=torch.device("cpu"), **options)


def test_without_triton_the_kernel_is_done_without(monkeypatch):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if find_spec("triton"):
        assert assembly.try_kernel(device)  # in the interpreter, where there is no GPU
    monkeypatch.setitem(sys.modules, "diskgnn.loading.device_gather", None)
    with pytest.warns(UserWarning, match=r"NotFoundError.*pip install triton"):
        assert not assembly.try_kernel(device)
    assert not assembly.runs_kernel(torch.device("cpu"))


def test_nothing_but_the_kernel_needs_triton(tmp_path):
    packed = prepare_graph(make_graph(tmp_path / "graph"), tmp_path, static_cache="20%")
    script = """
import sys, warnings
sys.modules["triton"] = None
import diskgnn
with diskgnn.Loader(sys.argv[1], zero_copy=True, device_cache="5%") as loader:
    assert len(list(loader.epoch(0))) == loader.num_batches
"""
    subprocess.run([sys.executable, "-W", "error", "-c", script, packed], check=True, timeout=60)


@pytest.mark.cuda
def test_zero_copy_without_the_kernel_is_refused(prepared):
    with (
        faults.pretending("loading.runs_kernel", False),
        Loader(prepared[1], device="cuda", zero_copy=True) as loader,
        pytest.raises(ConfigError, match="Triton"),
    ):
        next(loader.epoch(0))
