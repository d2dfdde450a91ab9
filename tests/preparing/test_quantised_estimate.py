"""The estimate counts x as training gets it, not only the codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diskgnn.importers.convert import convert
from diskgnn.preparing.estimate import estimate

WIDTH = 24


def test_memory_for_x_is_counted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(-128, 128, (500, WIDTH))
    data = {"edges": rng.integers(0, 500, (2, 3000)), "labels": rng.integers(0, 3, 500), "train": np.arange(100)}
    convert(tmp_path / "numbers", **data, features=numbers.astype(np.int8))
    convert(tmp_path / "codes", **data, features=numbers.astype(np.float32), quantise="int8")
    plain, widened = (
        estimate(tmp_path / name, tmp_path / "packed", fanouts=[3, 3], batch_size=20, cpu_cache=0)
        for name in ("numbers", "codes")
    )
    assert widened.packed_bytes == plain.packed_bytes
    grown = widened.training_memory_bytes - plain.training_memory_bytes
    x_bytes = 4 * WIDTH * widened.rows_per_minibatch  # of a mean minibatch: the user's, and the next one
    assert 2 * x_bytes <= grown <= 3 * x_bytes
