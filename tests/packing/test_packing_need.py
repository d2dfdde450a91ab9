"""How placing divides its memory among numbers that are loaded, minibatches that look up others, and scratch files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from diskgnn.packing.packing_need import least_placing_bytes, loaded_and_group, scratch_memory_bytes
from diskgnn.system.resources import Resources

MIB = 1 << 20
sizes = st.one_of(st.integers(0, 64), st.integers(0, 64 * MIB), st.integers(0, 1 << 40))


@given(st.lists(sizes, max_size=8), st.one_of(st.integers(0, 100), sizes))
def test_placing_stays_within_its_budget(file_bytes: list[int], more_bytes: int) -> None:
    """From the least budget on that packing accepts."""
    files = {f"file {number}": num_bytes for number, num_bytes in enumerate(file_bytes)}
    budget = least_placing_bytes(file_bytes) + more_bytes
    loaded, group_bytes = loaded_and_group(files, Resources(budget, 1))

    loaded_bytes = sum(files[name] for name in loaded)
    scratch_bytes = scratch_memory_bytes(Resources(budget - loaded_bytes, 1), group_bytes)
    windows_bytes = least_placing_bytes([])
    assert loaded_bytes + group_bytes + scratch_bytes <= budget - windows_bytes
    # So few passes that each number costs at most 200 bytes of reading, see `packing_need`.
    others = sum(file_bytes) - loaded_bytes
    assert group_bytes >= min(others // 4, 32 * MIB)
    if more_bytes >= 2 ** len(files) * sum(file_bytes):
        assert loaded == files.keys()


def test_what_is_loaded_leaves_room_for_the_rest() -> None:
    """Of small files with little memory, and of files that are larger the smaller the rest is."""
    files = {"a": 16 * MIB, "b": 8 * MIB, "c": 4 * MIB, "big": 200 * MIB}
    assert loaded_and_group(files, Resources(least_placing_bytes(files.values()), 1)) == (set(), 32 * MIB)
    files = {"a": 100 * MIB, "b": 50 * MIB, "c": 25 * MIB, "d": 12 * MIB, "big": 1000 * MIB}
    # Of 202 MiB, 32 are the group's, and 85 left for "a": of these "b" and half of the rest, "c", and then "d".
    budget = least_placing_bytes([]) + 202 * MIB
    loaded, group_bytes = loaded_and_group(files, Resources(budget, 1))
    assert (loaded, group_bytes) == ({"b", "c", "d"}, 32 * MIB)
    assert scratch_memory_bytes(Resources(budget - 87 * MIB, 1), group_bytes) == (115 * 3 // 4 - 32) * MIB + MIB // 4
