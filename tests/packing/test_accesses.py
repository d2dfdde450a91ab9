"""The rows that minibatches need, sorted: beside NumPy's sorting."""

import os
from pathlib import Path

import numpy as np
import pytest

from diskgnn.packing.accesses import Accesses
from diskgnn.work.runner import Scratch

SIZES = (50, 3, 5_000_000)  # rows of three row sets


def minibatches() -> list[list[np.ndarray]]:
    random = np.random.default_rng(0)
    dtypes = (np.int32, np.int32, np.int64)
    return [
        [random.permutation(min(size, 1000))[: random.integers(min(size, 1000) + 1)].astype(dtype)
         for size, dtype in zip(SIZES, dtypes, strict=True)]
        for _ in range(7)
    ]  # fmt: skip


ALL_BYTES = sum(nodes.nbytes + 4 * len(nodes) for minibatch in minibatches() for nodes in minibatch)


@pytest.mark.parametrize(("threads", "memory_bytes"), [(1, 0), (3, 0), (1, ALL_BYTES // 2), (3, 2 * ALL_BYTES)])
def test_several_row_sets_are_sorted_in_one_pass(tmp_path: Path, threads: int, memory_bytes: int) -> None:
    given = minibatches()
    row_sets = {f"rows of {size}": size for size in SIZES}
    found = Accesses.sort_all(iter(given), row_sets, Scratch(tmp_path), threads=threads, memory_bytes=memory_bytes)
    for number, accesses in enumerate(found):
        expected = [nodes[number] for nodes in given]
        batches = range(len(given))
        assert (accesses.num_batches, accesses.num_nodes) == (len(given), SIZES[number])
        np.testing.assert_array_equal(np.diff(accesses.offsets), [len(nodes) for nodes in expected])
        for nodes, sorted_nodes in zip(expected, accesses.nodes(batches), strict=True):
            assert sorted_nodes.dtype == nodes.dtype
            np.testing.assert_array_equal(sorted_nodes, np.sort(nodes))
        for nodes, order in zip(expected, accesses.order(batches), strict=True):
            np.testing.assert_array_equal(order, np.argsort(nodes))
    read_bytes = sum(accesses.read_bytes for accesses in found)
    assert read_bytes == {0: ALL_BYTES, 2 * ALL_BYTES: 0}.get(memory_bytes, read_bytes)
    assert memory_bytes + read_bytes >= ALL_BYTES


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_process_with_room_for_more_than_the_machine_has_can_fork(tmp_path: Path) -> None:
    """Room that nobody has written to is not memory that a fork would need again."""
    memory_bytes = 4 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    accesses = Accesses.sort([np.array([2, 0], np.int32)], 3, Scratch(tmp_path), memory_bytes=memory_bytes)
    if (child := os.fork()) == 0:
        os._exit(next(accesses.nodes(range(1))).tolist() != [0, 2])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_row_that_is_none_is_refused(tmp_path: Path) -> None:
    wrong = [[np.array([1], np.int32), np.array([3], np.int32)]]
    with pytest.raises(IndexError):
        Accesses.sort_all(wrong, {"a": 2, "b": 3}, Scratch(tmp_path))
