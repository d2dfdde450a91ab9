"""The tiers by themselves: the split of static rows, assembling x, and restoring the cpu tier, against a replay."""

import numpy as np
import pytest
import torch
from diskgnn.loading.feature_store import FeatureStore
from graphs import make_graph, prepare_graph

from diskgnn.errors import ConfigError
from diskgnn.loading import feature_store
from diskgnn.storage import artifacts, extents
from diskgnn.storage.manifest import open_artifact


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("store") / "graph", width=5, dtype="bfloat16")


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    return open_artifact(prepare_graph(graph, folder, static_cache="10%", cpu_cache="15%", epochs=3))


def open_store(packed, *, device_cache=None, pinned_cache=None, verify=False):
    return FeatureStore(
        packed, "train", torch.device("cpu"), device_cache=device_cache, pinned_cache=pinned_cache, engine="threads",
        verify=verify,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device_cache", "pinned_cache", "on_device"),
    [
        (None, None, 0),  # a cpu has no memory of its own
        (0, None, 0),
        (10, None, 1),
        (19, None, 1),
        ("1MiB", None, 20),
        (None, 0, 20),
        (None, 50, 15),
        (None, 59, 15),
        (None, "1GiB", 0),
        (100, 100, 10),
        (150, 100, 15),
    ],
)
def test_static_rows_are_split_as_asked(packed, device_cache, pinned_cache, on_device):
    store = open_store(packed, device_cache=device_cache, pinned_cache=pinned_cache)
    static = packed.array(artifacts.STATIC)
    assert (store.num_static, store.row_bytes) == (20, 10)
    assert store.num_device == on_device
    assert store.device_rows.dtype == torch.bfloat16
    assert store.device_rows.view(torch.int16).numpy().tobytes() == static[:on_device].tobytes()
    assert store.pinned.tobytes() == static[on_device:].tobytes()


def test_static_rows_are_split_once_unless_asked_otherwise(packed):
    first = open_store(packed, device_cache=50)
    second, other = open_store(packed), open_store(packed, device_cache=0)
    assert second.device_rows is first.device_rows
    assert (second.num_device, other.num_device) == (5, 0)
    del first, second, other
    assert open_store(packed).num_device == 0


@pytest.mark.parametrize(("device_cache", "pinned_cache"), [(0, 0), (100, 99), (9, 190)])
def test_static_rows_that_fit_nowhere(packed, device_cache, pinned_cache):
    with pytest.raises(ConfigError, match=r"200 B of static rows.*too small"):
        open_store(packed, device_cache=device_cache, pinned_cache=pinned_cache)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("window_bytes", [1, 40, 1 << 20])
def test_restoring_gives_what_the_schedule_left(packed, graph, monkeypatch, window_bytes, verify):
    """All over the cycle, against admissions replayed one after the other."""
    monkeypatch.setattr(feature_store, "_RESTORE_WINDOW_BYTES", window_bytes)
    store = open_store(packed, verify=verify)
    index = packed.array("train-index.npy")
    data = packed.file("train.bin").read_bytes()
    initial = packed.array("train-initial.npy")
    cpu = np.zeros((len(store.wrap), 5), np.uint16)
    cpu[: len(initial)] = initial
    filled = np.arange(len(cpu)) < len(initial)
    for position, record in enumerate(index):
        if position % 4 == 3:
            store.restore(index, position)
            found = store.cpu.view(np.uint16).reshape(-1, 5)
            assert found[filled].tobytes() == cpu[filled].tobytes(), position
        start = int(record["offset"])
        header = data[start : start + int(record["header_bytes"])]
        admissions = np.frombuffer(header, np.int32, 2 * record["num_admissions"], record["admissions_offset"])
        rows = np.frombuffer(data, np.uint16, 5 * int(record["num_rows"]), start + int(record["rows_offset"]))
        for row, slot in admissions.reshape(-1, 2):
            cpu[slot] = rows.reshape(-1, 5)[row]
            filled[slot] = True
    assert filled.all()
    assert index.dtype == extents.INDEX_DTYPE
