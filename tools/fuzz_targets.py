"""What is fuzzed: code that reads bytes which may be damaged or hostile, whatever checksums were forged for them.

A target takes bytes. It returns whether they were accepted, and computes with what was. Refusals are errors of the
kind that is promised; any other exception, a crash or a hang is a bug. `fuzz.py` calls targets with bytes of its own
making, the tests with those in tests/corpus/.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import diskgnn
from diskgnn.batches.blocks import Block
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import load_npy, npy_header
from diskgnn.files.checked_lines import checked_line
from diskgnn.files.disk_space import JOURNAL
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import MANIFEST
from diskgnn.formats.extents import ROWS_DTYPE
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.manifest_document import content_digest
from diskgnn.formats.minibatch_checks import checked_header
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.packed import Packed
from diskgnn.formats.packed_config import PackedConfig
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.nn.aggregation import neighbour_mean
from diskgnn.work.journal import Journal

_SCRATCH = tempfile.TemporaryDirectory(prefix="diskgnn-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
_FOLDER = Path(_SCRATCH.name)  # removed when the process ends
_MOST_NODES = 1 << 16  # of a block that is computed with, so that memory is not what is tested


def header(data: bytes) -> bool:
    """A header of a graph of one type."""
    return _header("packed", data)


def typed_header(data: bytes) -> bool:
    """A header of link prediction with times, edge features and edge ids, on a graph of two types."""
    return _header("links", data)


def _header(directory: str, data: bytes) -> bool:
    """`data` is what the index says of the extent, then the header."""
    layout = _layout(directory)
    index_bytes = len(layout.row_sets) * ROWS_DTYPE.itemsize
    if len(data) < index_bytes:
        return False
    records = np.frombuffer(data[:index_bytes], ROWS_DTYPE)
    message = np.empty(len(data) - index_bytes, np.uint8)
    message[:] = np.frombuffer(data, np.uint8, offset=index_bytes)
    try:
        found = checked_header(message, layout, records)
    except ValueError:
        return False
    if found.node_counts.max() > _MOST_NODES:
        return False
    for counts, blocks in zip(found.node_counts, found.blocks, strict=False):
        for (source, _), block in zip(layout.edge_types, blocks, strict=True):
            num_src = int(counts[source])
            tensors = torch.from_numpy(block.indptr.copy()), torch.from_numpy(block.indices.copy())
            assert (neighbour_mean(torch.ones(num_src, 2), Block(*tensors, num_src)) <= 1).all()
    return True


def npy(data: bytes) -> bool:
    """A .npy file."""
    path = _FOLDER / "x.npy"
    path.write_bytes(data)
    try:
        dtype, shape = npy_header(path)
        loaded, _ = load_npy(path)
    except ArtifactError:
        return False
    assert loaded.shape == shape
    np.testing.assert_array_equal(loaded.reshape(-1).view(np.uint8), np.load(path).reshape(-1).view(np.uint8))
    return bool(dtype)


def manifest(data: bytes) -> bool:
    """A manifest.json, as it is."""
    (_FOLDER / MANIFEST).write_bytes(data)
    try:
        read_manifest(_FOLDER)
    except ArtifactError:
        return False
    return True


def forged_manifest(data: bytes) -> bool:
    """A manifest.json whose digest fits what it says, and the config in it."""
    try:
        document = json.loads(data)
        document["digest"] = content_digest({
            key: document[key] for key in ("format", "version", "config", "source", "files")
        })  # fmt: skip
        text = json.dumps(document)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False
    (_FOLDER / MANIFEST).write_text(text)
    try:
        found = read_manifest(_FOLDER)
        parse = _CONFIGS.get(found.format)
        if parse is not None:
            parsed = found.parsed(parse)
            if isinstance(parsed, PackedConfig):
                parsed.header_layout()
                parsed.schema()
    except ArtifactError:
        return False
    return True


def journal(data: bytes) -> bool:
    """A journal of a staging directory."""
    path = _FOLDER / JOURNAL
    path.write_bytes(checked_line('{"is": "made"}') + data)
    return Journal(path, {"is": "made"}).read()


_CONFIGS: dict[str, Callable[[dict[str, Any]], object]] = {
    artifacts.GRAPH: GraphConfig.parse,
    artifacts.SAMPLES: SamplesConfig.parse,
    artifacts.PACKED: PackedConfig.parse,
}
TARGETS: dict[str, Callable[[bytes], bool]] = {
    target.__name__: target for target in (header, typed_header, npy, manifest, forged_manifest, journal)
}


@cache
def _layout(directory: str) -> MinibatchLayout:
    return Packed.open(sound_directories() / directory).config.header_layout()


@cache
def sound_directories() -> Path:
    """A folder of small directories of each kind, made for this."""
    folder = Path(tempfile.mkdtemp(dir=_FOLDER))
    random = np.random.default_rng(0)
    diskgnn.convert(folder / "graph", edges=random.integers(0, 60, (2, 300)), labels=random.integers(0, 3, 60),
                    features=random.random((60, 4), np.float32), train=np.arange(30))  # fmt: skip
    writes = np.stack([random.integers(0, 40, 90), random.integers(0, 30, 90)])
    author = {"features": random.random((40, 3), np.float32), "times": random.integers(0, 5, 40)}
    by = {"edges": writes[::-1], "features": random.random((90, 2), np.float32), "keep_ids": True}
    diskgnn.convert(folder / "typed", schema={
        "nodes": {"author": author, "paper": {"num_nodes": 30, "times": random.integers(0, 5, 30)}},
        "edges": {
            "author:writes:paper": {"edges": writes, "train": writes[:, :20].T, "keep_ids": True},
            "paper:by:author": by,
        },
    })  # fmt: skip
    sampling = {"fanouts": [2, 2], "batch_size": 5, "cpu_cache": "10%"}
    diskgnn.prepare(folder / "graph", folder / "packed", keep_input_nodes=True, samples=folder / "samples", **sampling)
    target = diskgnn.LinkTarget("author:writes:paper")
    diskgnn.prepare(folder / "typed", folder / "links", target=target, temporal="uniform", edge_ids=True, **sampling)
    diskgnn.propagate(folder / "graph", folder / "hops", hops=2, operators="mean,gcn")
    _write_tables(folder / "database")
    diskgnn.convert(folder / "tables", source=folder / "database", options={"keep_columns": True})
    diskgnn.prepare(folder / "tables", folder / "columns", target="left", temporal="last", **sampling)
    return folder


def _write_tables(folder: Path) -> None:
    """Users with columns of each kind, what they bought, and a task."""
    folder.mkdir()
    random, moments = np.random.default_rng(1), pa.array(range(0, 400, 10), pa.timestamp("s"))
    users = {
        "id": range(40), "since": moments, "age": random.integers(0, 99, 40), "height": random.random(40),
        "seen": moments, "paid": random.random(40) < 0.5, "plan": random.choice(["a", "b"], 40),
        "face": list(random.random((40, 3), np.float32)), "tags": [["a", "b"], ["b"]] * 20,
    }  # fmt: skip
    orders = {"user": random.integers(0, 40, 90), "price": random.random(90)}
    left = {"user": random.integers(0, 40, 30), "at": np.full(30, 500), "label": random.random(30) < 0.5}
    for name, columns in {"users": users, "orders": orders, "left": left}.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    (folder / "relational.yaml").write_text(
        "tables:\n"
        "  users: {file: users.parquet, pkey: id, time: since}\n"
        "  orders: {file: orders.parquet, fkeys: {user: users}}\n"
        "tasks:\n"
        "  left: {train: left.parquet, entity: {user: users}, label: label, time: at}\n"
    )


_KINDS = ("graph", "typed", "samples", "packed", "links", "hops", "tables", "columns")


def sound_inputs() -> dict[str, list[bytes]]:
    """Bytes that each target accepts, to begin with."""
    folder = sound_directories()
    manifests = [(folder / name / MANIFEST).read_bytes() for name in _KINDS]
    return {
        "header": _headers(folder / "packed"),
        "typed_header": _headers(folder / "links"),
        "npy": [path.read_bytes() for path in sorted((folder / "graph").glob("*.npy"))],
        "manifest": manifests,
        "forged_manifest": manifests,
        "journal": [checked_line('{"file": "train-0000-00000.arrow", "bytes": 12, "crc32c": 3}')],
    }


def _headers(path: Path) -> list[bytes]:
    packed = Packed.open(path)
    index, data = packed.index("train"), (path / artifacts.extents_file("train")).read_bytes()
    return [
        records.tobytes() + data[int(extent["offset"]) :][: int(extent["header_bytes"])]
        for extent, records in zip(index.extents[:3], index.rows, strict=False)
    ]
