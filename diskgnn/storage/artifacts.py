"""Artifact directories: graph/, samples/ and packed/: what their formats and files are called.

An artifact is a directory that is immutable once published. Its manifest.json names the format and version, the full
config of the stage that wrote it, every file's size, checksum, dtype and shape, and the digest of the artifact that
it was made from. `writer` writes artifacts, `manifest` opens them. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

GRAPH, SAMPLES, PACKED = "diskgnn.graph", "diskgnn.samples", "diskgnn.packed"
PARTITIONS, SEGMENTED = "diskgnn.partitions", "diskgnn.segmented"  # of baselines: partition_buffer, segmented_packed
VERSIONS = {GRAPH: 1, SAMPLES: 1, PACKED: 1, PARTITIONS: 1, SEGMENTED: 1}
MADE_BY = {
    GRAPH: "diskgnn convert",
    SAMPLES: "diskgnn sample",
    PACKED: "diskgnn prepare",
    PARTITIONS: "diskgnn.baselines.partitioning.write_partitions",
    SEGMENTED: "diskgnn.baselines.segmented_packing.prepare_segmented_packed",
}
MANIFEST = "manifest.json"
RESUME_STAMP = "resume.json"  # in the staging directory of a resumable writer: what it is making

# graph/
INDPTR, INDICES, FEATURES, LABELS = "indptr.npy", "indices.npy", "features.npy", "labels.npy"


def split_file(split: str) -> str:
    """graph/: the node ids of one split."""
    return f"{split}.npy"


# samples/
def shard_file(split: str, epoch: int, shard: int) -> str:
    """samples/: some consecutive minibatches of one epoch of one split."""
    return f"{split}-{epoch:04d}-{shard:05d}.arrow"


# packed/
STATIC = "static.npy"


def extents_file(split: str) -> str:
    """packed/: the extents of one split's sequence."""
    return f"{split}.bin"


def index_file(split: str) -> str:
    """packed/: where each extent of `extents_file` starts and what it holds."""
    return f"{split}-index.npy"


def initial_cpu_rows_file(split: str) -> str:
    """packed/: the rows in the cpu tier when the sequence starts, in slot order."""
    return f"{split}-initial.npy"


def next_cycle_slots_file(split: str) -> str:
    """packed/: where each slot's row comes from when the sequence starts over."""
    return f"{split}-wrap.npy"


# Until everybody imports these from where they are.
initial_file, wrap_file = initial_cpu_rows_file, next_cycle_slots_file

if TYPE_CHECKING:
    from diskgnn.specs import SPLITS as SPLITS
    from diskgnn.storage.checked_files import ChecksummedFile as ChecksummedFile
    from diskgnn.storage.checked_files import npy_data_offset as npy_data_offset
    from diskgnn.storage.checked_files import npy_header as npy_header
    from diskgnn.storage.checked_files import npy_header_bytes as npy_header_bytes
    from diskgnn.storage.disk_space import free_bytes as free_bytes
    from diskgnn.storage.disk_space import require_free_bytes as require_free_bytes
    from diskgnn.storage.manifest import Manifest as Manifest
    from diskgnn.storage.manifest import open_artifact as open_artifact
    from diskgnn.storage.manifest import verify_artifact as verify_artifact
    from diskgnn.storage.manifest import verify_file as verify_file
    from diskgnn.storage.writer import ArtifactWriter as ArtifactWriter
else:

    def __getattr__(name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        from importlib import import_module

        homes = {
            "specs": ("SPLITS",),
            "storage.checked_files": ("ChecksummedFile", "npy_data_offset", "npy_header", "npy_header_bytes"),
            "storage.disk_space": ("free_bytes", "require_free_bytes"),
            "storage.manifest": ("Manifest", "open_artifact", "verify_artifact", "verify_file"),
            "storage.writer": ("ArtifactWriter",),
        }
        for module, names in homes.items():
            if name in names:
                return getattr(import_module(f"diskgnn.{module}"), name)
        raise AttributeError(name)
