"""Graph directories of sparse files: larger than any disk here, but for the few bytes that are not zero."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn._native import crc32c, crc32c_combine
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES, npy_header_bytes
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import edge_file, node_file
from diskgnn.formats.graph_config import EdgeTypeConfig, GraphConfig, NodeTypeConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.work.writer import ArtifactWriter

Pieces = Mapping[int, np.ndarray]  # by the row where each begins; all other rows are zeros


def write_sparse_graph(
    path: Path, num_nodes: int, num_edges: int, *, indptr: Pieces, indices: Pieces, features: Pieces, width: int
) -> None:
    """A graph of one type with int8 features of `width` bytes, and without labels."""
    rows, dtype = RowFormat("int8", width), np.dtype(np.int64 if num_nodes >= 1 << 31 else np.int32)
    config = GraphConfig(
        (NodeTypeConfig(ONE_NODE_TYPE, num_nodes, rows, None),), (EdgeTypeConfig(ONE_EDGE_TYPE, num_edges),)
    )
    with ArtifactWriter(path, artifacts.GRAPH, config=config.to_json({})) as writer:
        _write(writer, edge_file(artifacts.INDPTR, ONE_EDGE_TYPE), np.dtype(np.int64), (num_nodes + 1,), indptr)
        _write(writer, edge_file(artifacts.INDICES, ONE_EDGE_TYPE), dtype, (num_edges,), indices)
        name = node_file(artifacts.FEATURES, ONE_NODE_TYPE)
        written = _write(writer, name, np.dtype(np.int8), (num_nodes, width), features)
        checksums = _chunk_checksums(writer.path(name), written)
        writer.save_array(node_file(artifacts.FEATURE_CHECKSUMS, ONE_NODE_TYPE), checksums)
        writer.publish()


def _write(writer: ArtifactWriter, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], pieces: Pieces) -> set[int]:
    """The .npy file `name`; the chunks of it that are not all zeros."""
    row_bytes = dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64))
    header = npy_header_bytes(dtype, shape)
    crc, end, chunks = crc32c(header), len(header), {0}
    with writer.path(name).open("wb") as file:
        file.write(header)
        file.truncate(len(header) + shape[0] * row_bytes)
        for row, values in sorted(pieces.items()):
            data, offset = np.ascontiguousarray(values, dtype).tobytes(), len(header) + row * row_bytes
            assert offset >= end, "pieces overlap"
            file.seek(offset)
            file.write(data)
            crc = crc32c(data, _with_zeros(crc, offset - end))
            end = offset + len(data)
            chunks.update(range(offset // CHECKSUM_CHUNK_BYTES, -(-end // CHECKSUM_CHUNK_BYTES)))
    crc = _with_zeros(crc, len(header) + shape[0] * row_bytes - end)
    writer.add(name, crc32c=crc)
    return chunks


def _with_zeros(crc: int, num_bytes: int) -> int:
    """The CRC-32C of what had `crc`, and of so many zeros after it."""
    zeros, length = crc32c(b"\0"), 1
    while num_bytes:
        if num_bytes & 1:
            crc = crc32c_combine(crc, zeros, length)
        zeros, length, num_bytes = crc32c_combine(zeros, zeros, length), 2 * length, num_bytes >> 1
    return crc


def _chunk_checksums(path: Path, written: set[int]) -> np.ndarray:
    num_bytes = path.stat().st_size
    checksums = np.full(-(-num_bytes // CHECKSUM_CHUNK_BYTES), crc32c(bytes(CHECKSUM_CHUNK_BYTES)), np.uint32)
    with path.open("rb") as file:
        for chunk in {*written, len(checksums) - 1}:
            file.seek(chunk * CHECKSUM_CHUNK_BYTES)
            checksums[chunk] = crc32c(file.read(CHECKSUM_CHUNK_BYTES))
    return checksums
