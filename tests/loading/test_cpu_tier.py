"""Restoring the cpu tier, against a replay of what the schedule admits; and lending its memory."""

import shutil

import numpy as np
import pytest
from graphs import make_graph, prepare_graph
from packed_directories import flip

from diskgnn.errors import ArtifactError
from diskgnn.files import faults
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
            with faults.pretending("window.bytes", window_bytes):
                tier.restore(index, position)
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


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8, 2.0])
def test_slots_that_were_lent_hold_what_they_held(packed, share):
    """Whoever has their memory writes to it."""
    tier, index = CpuTier(packed, "train", 0, engine="threads", verify=True), packed.index("train")
    lent = set()
    for position in range(0, len(index.extents), 5):
        tier.restore(index, position)
        before = tier.slots.copy()
        num_bytes = tier.lend(index, position, int(share * len(tier.slots)))
        assert num_bytes <= share * len(tier.slots)
        assert tier.lend(index, position, 100) == 0  # until it is taken back
        tier.slots[:num_bytes] = 170
        with faults.pretending("window.bytes", 40):
            assert tier.take_back(index) > 0
        np.testing.assert_array_equal(tier.slots, before)
        assert tier.take_back(index) == 0
        lent.add(num_bytes)
    assert min(lent) >= int(min(share, 0.5) * len(tier.slots)) // 10 * 10 > 0


@pytest.mark.parametrize("position", [0, 12])
def test_rows_that_changed_on_disk_while_their_slots_were_lent_are_told(packed, tmp_path, position):
    copy = Packed.open(shutil.copytree(packed.location, tmp_path / "packed"))
    tier, index = CpuTier(copy, "train", 0, engine="threads", verify=True), copy.index("train")
    tier.restore(index, position)
    tier.lend(index, position, len(tier.slots))
    if position == 0:
        flip(tmp_path / "packed" / "train-initial-node.npy", 200)
        told = "train-initial-node.npy is damaged"
    else:
        place = int(index.extents["offset"][position - 1] + index.rows["rows_offset"][position - 1, 0])
        for row in range(int(index.rows["num_rows"][position - 1, 0])):
            flip(tmp_path / "packed" / "train.bin", place + 10 * row)
        told = f"extent {position - 1} of .* is damaged: its rows are not those that were read before"
    with pytest.raises(ArtifactError, match=told):
        tier.take_back(index)
