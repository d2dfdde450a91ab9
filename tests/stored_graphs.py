"""What tests of object stores send, read back and compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from object_store import Fault, Request

from diskgnn.formats.manifest import read_manifest

PREPARE = {"fanouts": [3, 2], "batch_size": 16, "epochs": 2, "cpu_cache": "10%", "static_cache": 0, "threads": 2}


def digest(path: Path | str) -> str:
    return read_manifest(path).digest


def file_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def same_files(one: Path, other: Path) -> bool:
    names = sorted(file.name for file in one.iterdir())
    return names == sorted(file.name for file in other.iterdir()) and all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in names
    )


def arrays() -> dict[str, np.ndarray]:
    """A graph of 50 nodes, but for their features."""
    edges = np.random.default_rng(0).integers(0, 50, (2, 200))
    return {"edges": edges, "labels": np.arange(50) % 3, "train": np.arange(20)}


def cut(request: Request, every: int = 5) -> Fault | None:
    """Every so many answers end in the middle."""
    return Fault(answer_bytes=700) if request.number % every == every - 1 else None
