"""The header of .npy files, as NumPy reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import load_npy, map_npy, npy_header, npy_header_bytes, npy_parts


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 127), st.binary(min_size=1, max_size=40))
def test_a_damaged_npy_header_raises_nothing_else(tmp_path: Path, position: int, content: bytes) -> None:
    good = npy_header_bytes(np.int32, (3, 4)) + bytes(48)
    path = tmp_path / "x.npy"
    path.write_bytes((good[:position] + content + good[position + len(content) :])[: len(good)])
    try:
        dtype, shape = npy_header(path)
    except ArtifactError:
        return
    loaded = np.load(path, mmap_mode="r")
    assert (loaded.dtype, loaded.shape) == (np.dtype(dtype), shape)


@pytest.mark.parametrize("length", [0, 1, 5, 600_000, 2_200_000])
@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_arrays_and_their_parts_are_numpys_and_the_checksum_is_the_files(
    tmp_path: Path, length: int, dtype: type[np.generic]
) -> None:
    """600,000 int64 are more than is read at once, and 2,200,000 are read past the page cache."""
    array = np.random.default_rng(length).integers(0, 100, length).astype(dtype)
    path = tmp_path / "x.npy"
    np.save(path, array)
    loaded, crc = load_npy(path)
    assert (loaded.dtype, crc) == (array.dtype, crc32c(path.read_bytes()))
    np.testing.assert_array_equal(loaded, array)
    parts = [(part.copy(), crc) for part, crc in npy_parts(path)]
    assert (parts[0][0].dtype, parts[-1][1]) == (array.dtype, crc32c(path.read_bytes()))
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), array)


def test_fields_that_a_user_renames_keep_their_names_in_files(tmp_path: Path) -> None:
    records = np.ones(3, [("a", "<i4"), ("b", "<f4")])
    for name in ("one.npy", "other.npy"):
        np.save(tmp_path / name, records)
    mapped = map_npy(tmp_path / "one.npy")
    mapped.dtype.names = ("x", "y")
    for name in ("one.npy", "other.npy"):
        assert map_npy(tmp_path / name).dtype.names == ("a", "b")
        np.testing.assert_array_equal(map_npy(tmp_path / name), records)
