"""The header of .npy files, as NumPy reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diskgnn.errors import ArtifactError
from diskgnn.storage.checked_files import npy_header, npy_header_bytes


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
