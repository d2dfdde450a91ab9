"""Artifact directories: graph/, samples/, packed/ and hops/: what their formats and files are called.

An artifact is a directory that is immutable once published. Its manifest.json names the format and version, the full
config of the stage that wrote it, every file's size, checksum, dtype and shape, and the digest of the artifact that
it was made from. `writer` writes artifacts, `manifest` opens them. docs/FORMAT.md has the pages.
"""

from __future__ import annotations

import re
from typing import Any

from diskgnn.specs.schema import EdgeType

GRAPH, SAMPLES, PACKED, HOPS = "diskgnn.graph", "diskgnn.samples", "diskgnn.packed", "diskgnn.hops"
TABLES = "diskgnn.tables"  # of a database, in the work folder of a graph that is made of them
DERIVED = "diskgnn.derived"  # from a graph, by a later room, which alone knows its config and its files
RECORD = "record"  # the feature dtype of rows that are records
VERSIONS = {GRAPH: 5, SAMPLES: 3, PACKED: 3, HOPS: 1, TABLES: 1, DERIVED: 1}
# Of those with rows that are records, or constants, which programs that read the others do not know.
_RECORD_VERSIONS = {GRAPH: 6, PACKED: 4}
MADE_BY = {
    GRAPH: "diskgnn convert",
    SAMPLES: "diskgnn sample",
    PACKED: "diskgnn prepare",
    HOPS: "diskgnn propagate",
    TABLES: "diskgnn convert",
    DERIVED: "diskgnn compare",
}
REPAIRED = (SAMPLES, PACKED)  # what `diskgnn verify --repair` makes again: all of it follows from a graph
MANIFEST = "manifest.json"
CHECKPOINT = "checkpoint.pt"  # in the directory that training leaves, which has no manifest


def rank_directory(rank: int, world_size: int) -> str:
    """Names the samples or packed directory of one of several ranks in a folder that `prepare` wrote."""
    return f"rank-{rank}-of-{world_size}"


def rank_named(directory: str) -> tuple[int, int] | None:
    """Returns the rank and world size that the name of such a directory says; None if it is another name."""
    found = re.fullmatch(r"rank-(\d+)-of-(\d+)", directory)
    return None if found is None else (int(found[1]), int(found[2]))


# graph/: kinds of files; each type of nodes or edges has its own, named by `node_file` or `edge_file`
INDPTR, INDICES = "indptr", "indices"
FEATURES, EDGE_FEATURES = "features", "edge_features"
LABELS, TIMES, WEIGHTS, EDGE_IDS = "labels", "times", "weights", "edge_ids"
FEATURE_CHECKSUMS, EDGE_FEATURE_CHECKSUMS = "features_crc", "edge_features_crc"  # of each CHECKSUM_CHUNK_BYTES of them
FEATURE_CODES = "quantisation"  # of int8 and int4 features: scale and zero point of each column


def version_of(format: str, config: Any) -> int:  # noqa: A002
    """Returns the version of an artifact of this format and config."""
    listed = {GRAPH: "node_types", PACKED: "row_sets"}.get(format)
    types = config.get(listed) if listed is not None and isinstance(config, dict) else None
    found = [each for each in types if isinstance(each, dict)] if isinstance(types, list) else []
    if any(each.get("feature_dtype") == RECORD or each.get("constant") for each in found) or (
        format == PACKED and isinstance(config, dict) and config.get("constants")
    ):
        return _RECORD_VERSIONS[format]
    return VERSIONS[format]


def node_file(kind: str, node_type: str) -> str:
    """graph/: what all nodes of a type have, or the node ids of a split, which is a kind of its own."""
    return f"{kind}-{node_type}.npy"


def categories_file(node_type: str) -> str:
    """graph/: what the codes of categories stand for, of a type whose rows are records."""
    return f"categories-{node_type}.parquet"


def ids_file(node_type: str) -> str:
    """graph/: the user's own ids of all nodes of a type, if they are not 0, 1, 2, ..."""
    return f"ids-{node_type}.parquet"


def edge_file(kind: str, edge_type: EdgeType) -> str:
    """graph/: what all edges of a type have, or the seed edges of a split. Type names hold no dot."""
    return f"{kind}-{'.'.join(edge_type)}.npy"


# samples/
def shard_file(split: str, epoch: int, shard: int) -> str:
    """samples/: some consecutive minibatches of one epoch of one split."""
    return f"{split}-{epoch:04d}-{shard:05d}.arrow"


# samples/ and packed/; hops/ has the graph's own, in the order of records
def given_file(name: str, split: str) -> str:
    """Returns the `seeds` of a split, or their `times`, where the user gave them in place of the graph's own."""
    return f"{name}-{split}.npy"


# hops/
STATISTICS = "statistics.npy"  # mean and deviation of each column of train records


def records_file(split: str) -> str:
    """hops/: a row of hop features for each seed."""
    return f"records-{split}.npy"


def record_checksums_file(split: str) -> str:
    """hops/: of each CHECKSUM_CHUNK_BYTES of `records_file`."""
    return f"records_crc-{split}.npy"


# packed/: those of one row set carry its name, see `packed_config.RowSetConfig.name`
def packed_codes_file(row_set: str) -> str:
    """packed/: of int8 and int4 rows: scale and zero point of each column."""
    return f"quantisation-{row_set}.npy"


def static_file(row_set: str) -> str:
    """packed/: the static rows, hottest first."""
    return f"static-{row_set}.npy"


def static_nodes_file(row_set: str) -> str:
    """packed/ of one of several ranks: whose rows the static ones are; the same in all of them."""
    return f"static_nodes-{row_set}.npy"


def extents_file(split: str) -> str:
    """packed/: the extents of one split's sequence."""
    return f"{split}.bin"


def index_file(split: str) -> str:
    """packed/: where each extent of `extents_file` starts."""
    return f"{split}-index.npy"


def rows_file(split: str) -> str:
    """packed/: where the rows of each row set are in each extent."""
    return f"{split}-rows.npy"


def initial_cpu_rows_file(split: str, row_set: str) -> str:
    """packed/: the rows in the cpu tier when the sequence starts, in slot order."""
    return f"{split}-initial-{row_set}.npy"


def next_cycle_slots_file(split: str, row_set: str) -> str:
    """packed/: where each slot's row comes from when the sequence starts over."""
    return f"{split}-wrap-{row_set}.npy"
