"""A small graph as a user has it: arrays in memory, or .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

NUM_NODES, WIDTH = 50, 7


def small_data() -> dict[str, Any]:
    """Arguments of `convert`, in memory."""
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, NUM_NODES)
    labels[40:] = -1
    return {
        "edges": rng.integers(0, NUM_NODES, (2, 300)),
        "features": rng.standard_normal((NUM_NODES, WIDTH), np.float32),
        "labels": labels,
        "train": np.arange(20)[::-1],
        "valid": np.arange(20, 30),
        "test": np.arange(30, 40),
        "memory": "1MiB",
    }


def save_arrays(folder: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The same with every array in a .npy file."""
    for name, value in data.items():
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.npy", value)
    return {k: folder / f"{k}.npy" if isinstance(v, np.ndarray) else v for k, v in data.items()}
