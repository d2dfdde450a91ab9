"""A small artifact of made-up files, for tests of what is true of all artifacts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diskgnn.formats.artifacts import GRAPH
from diskgnn.formats.manifest import Manifest
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.writer import ArtifactWriter


def write(path: Path, seed: int = 0, *, kind: str = GRAPH, overwrite: bool = False) -> Manifest:
    """a.npy, b.npy and c.bin; what else is left in the staging directory is not published."""
    rng = np.random.default_rng(seed)
    with ArtifactWriter(path, kind, config={"seed": seed}, overwrite=overwrite) as writer:
        writer.save_array("a.npy", rng.integers(0, 100, (20, 3)))
        with ArrayFile(writer, "b.npy", np.float16, 10, (2,)) as file:
            file.write(rng.random((4, 2)).astype(np.float16))
            file.write(rng.random((6, 2)).astype(np.float16))
        writer.path("c.bin").write_bytes(rng.bytes(5000))
        writer.add("c.bin")
        writer.path("scratch").write_bytes(b"x")
        writer.path("folder").mkdir()
        return writer.publish()


def names(folder: Path) -> list[str]:
    """What lies in `folder`, hidden files included."""
    return sorted(entry.name for entry in folder.iterdir())
