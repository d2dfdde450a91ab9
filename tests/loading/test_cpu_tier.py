"""Restoring the cpu tier, against a replay of what the schedule admits."""

import numpy as np
import pytest
from graphs import make_graph, prepare_graph

from diskgnn.formats.packed import Packed
from diskgnn.loading.cpu_tier import CpuTier


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tier")
    graph = make_graph(folder / "graph", width=5, dtype="bfloat16")
    return Packed.open(prepare_graph(graph, folder, static_cache="10%", cpu_cache="15%", epochs=3))


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("window_bytes", [1, 40, 1 << 20])
def test_restoring_gives_what_the_schedule_left(packed, window_bytes, verify):
    """All over the cycle, against admissions replayed one after the other."""
    tier = CpuTier(packed, "train", 0, engine="threads", verify=verify)
    index = packed.index("train")
    data = packed.file("train.bin").read_bytes()
    initial = packed.manifest.array("train-initial-node.npy")
    cpu = np.zeros((len(tier.next_cycle_slots), 5), np.uint16)
    cpu[: len(initial)] = initial
    filled = np.arange(len(cpu)) < len(initial)
    for position, (extent, record) in enumerate(zip(index.extents, index.rows[:, 0], strict=True)):
        if position % 4 == 3:
            tier.restore(index, position, window_bytes=window_bytes)
            found = tier.slots.view(np.uint16).reshape(-1, 5)
            assert found[filled].tobytes() == cpu[filled].tobytes(), position
        start = int(extent["offset"])
        header = data[start : start + int(extent["header_bytes"])]
        admissions = np.frombuffer(header, np.int32, 2 * record["num_admissions"], record["admissions_offset"])
        rows = np.frombuffer(data, np.uint16, 5 * int(record["num_rows"]), start + int(record["rows_offset"]))
        for row, slot in admissions.reshape(-1, 2):
            cpu[slot] = rows.reshape(-1, 5)[row]
            filled[slot] = True
    assert filled.all()
