"""Artifact directories: graph/, samples/ and packed/: what their formats and files are called.

An artifact is a directory that is immutable once published. Its manifest.json names the format and version, the full
config of the stage that wrote it, every file's size, checksum, dtype and shape, and the digest of the artifact that
it was made from. `writer` writes artifacts, `manifest` opens them. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

GRAPH, SAMPLES, PACKED = "diskgnn.graph", "diskgnn.samples", "diskgnn.packed"
PARTITIONS, SEGMENTED = "diskgnn.partitions", "diskgnn.segmented"  # of baselines: partition_buffer, segmented_packed
VERSIONS = {GRAPH: 3, SAMPLES: 3, PACKED: 2, PARTITIONS: 1, SEGMENTED: 1}
MADE_BY = {
    GRAPH: "diskgnn convert",
    SAMPLES: "diskgnn sample",
    PACKED: "diskgnn prepare",
    PARTITIONS: "diskgnn.baselines.partitioning.write_partitions",
    SEGMENTED: "diskgnn.baselines.segmented_packing.prepare_segmented_packed",
}
MANIFEST = "manifest.json"
JOURNAL = "journal.jsonl"  # in the staging directory of a resumable writer: what it is making, and what is finished

# graph/
INDPTR, INDICES, FEATURES, LABELS = "indptr.npy", "indices.npy", "features.npy", "labels.npy"
FEATURE_CHECKSUMS = "features-crc.npy"  # of each CHECKSUM_CHUNK_BYTES of FEATURES
QUANTISATION = "quantisation.npy"  # of int8 and int4 features: scale and zero point of each column; in packed/, too


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
