"""The device tier and the pinned tier: how static rows are split between them, and who shares them."""

import numpy as np
import pytest
import torch
from graphs import make_graph, prepare_graph

from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.loading.static_rows import open_static_rows


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """With 20 static rows of 10 bytes."""
    folder = tmp_path_factory.mktemp("static")
    graph = make_graph(folder / "graph", width=5, dtype="bfloat16")
    return Packed.open(prepare_graph(graph, folder, static_cache="10%", cpu_cache="15%", epochs=3))


def static_rows(packed, device_cache=None):
    (found,) = open_static_rows(packed, torch.device("cpu"), device_cache=device_cache, engine="threads")
    return found


@pytest.mark.parametrize(
    ("device_cache", "on_device"),
    [
        (None, 0),  # a cpu has no memory of its own
        (0, 0),
        (10, 1),
        (19, 1),
        (150, 15),
        ("5%", 10),
        ("1MiB", 20),
    ],
)
def test_static_rows_are_split_as_asked(packed, device_cache, on_device):
    found = static_rows(packed, device_cache)
    static = packed.manifest.array(artifacts.static_file("node"))
    assert (found.num_static, found.rows.row_bytes) == (20, 10)
    assert found.num_device == on_device
    assert found.on_device.dtype == torch.bfloat16
    assert found.on_device.view(torch.int16).numpy().tobytes() == static[:on_device].tobytes()
    assert found.pinned.tobytes() == static[on_device:].tobytes()


def test_static_rows_are_split_once_unless_asked_otherwise(packed):
    first = static_rows(packed, 50)
    second, other = static_rows(packed), static_rows(packed, 0)
    assert second.on_device is first.on_device
    assert np.shares_memory(first.pinned, second.pinned)
    assert (second.num_device, other.num_device) == (5, 0)
    del first, second, other
    assert static_rows(packed).num_device == 0
