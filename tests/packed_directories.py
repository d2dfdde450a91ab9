"""What tests of the loader do to packed directories, and what they ask of minibatches."""

import time

import numpy as np
from graphs import bits_of

from diskgnn._native import io_uring_refusal
from diskgnn.formats import artifacts
from diskgnn.formats.manifest import open_artifact
from diskgnn.work.writer import ArtifactWriter

ENGINES = ["threads"] if io_uring_refusal() else ["threads", "io_uring"]


def key(batch):
    """All that makes a minibatch, comparable with ==."""
    return (
        batch.epoch,
        batch.batch_index,
        bits_of(batch),
        batch.seeds.tolist(),
        [b.indices.tolist() for b in batch.blocks],
    )


def batches_of(whole, epoch, first=0):
    """Of the keys in `whole`, those of one epoch, from minibatch `first` on."""
    return [batch for batch in whole if batch[0] == epoch and batch[1] >= first]


def wait_until(condition):
    """Returns when `condition` holds; fails after half a minute."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def flip(path, offset):
    """Change one bit of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 8]))


def forge(path, config=None, **arrays):
    """The packed directory `path` anew, with other arrays (by file name without .npy) or bytes, and their checksums."""
    manifest = open_artifact(path)
    forged = path.with_name("forged")
    with ArtifactWriter(forged, artifacts.PACKED, config=manifest.config | (config or {})) as writer:
        for name in manifest.files:
            replacement = arrays.get(name.removesuffix(".npy").removesuffix(".bin").replace("-", "_"))
            if isinstance(replacement, np.ndarray) and name.endswith(".npy"):
                writer.save_array(name, replacement)
                continue
            data = (path / name).read_bytes() if replacement is None or name.endswith(".npy") else replacement
            writer.path(name).write_bytes(data)
            writer.add(name)
        writer.publish()
    return forged
