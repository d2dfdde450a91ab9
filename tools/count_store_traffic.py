#!/usr/bin/env python3
"""Bytes and requests between diskgnn and an S3 server on loopback, beside the least that could do.

Example:
    python tools/count_store_traffic.py --nodes 200000
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from object_store import BUCKET, MostAllocated, ObjectStore, object_store

import diskgnn
from diskgnn.files import faults
from diskgnn.formats.manifest import read_manifest


def main() -> None:
    """Generate a graph, and move it and what is prepared from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=200_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, object_store() as store:
        count(store, Path(folder), arguments.nodes)


def count(store: ObjectStore, folder: Path, num_nodes: int) -> None:
    """Print a line for each thing done."""
    (folder / "scratch").mkdir()
    tempfile.tempdir = str(folder / "scratch")
    diskgnn.generate(folder / "graph", num_nodes=num_nodes, avg_degree=12.5, num_classes=16, num_features=128,
                     train_fraction=0.1, valid_fraction=0.02, test_fraction=0.02, homophily=0.7)  # fmt: skip
    given = {"fanouts": [10, 10], "batch_size": 1024, "epochs": 2, "cpu_cache": "10%", "static_cache": 0}
    url = store.url
    graph, packed = url("graph"), url("packed")
    graph_bytes = _bytes(folder / "graph")
    less = diskgnn.Graph.open(folder / "graph").topology_bytes // 2
    print("| | to here | / least | from here | / least | requests |\n|---|---|---|---|---|---|")
    _line(store, "push the graph", lambda: diskgnn.push(folder / "graph", graph), 0, graph_bytes)
    diskgnn.prepare(folder / "graph", folder / "packed", **given)
    packed_bytes = _bytes(folder / "packed")
    _line(store, "prepare from and to the store, topology in memory",
          lambda: diskgnn.prepare(graph, packed, **given, memory="1GiB"),
          graph_bytes, packed_bytes)  # fmt: skip
    room = packed_bytes // 2
    with MostAllocated(folder / "scratch") as most:
        _line(store, "the same, in half of the room that what is packed takes",
              lambda: diskgnn.prepare(graph, url("half"), **given, memory="1GiB", disk=room),
              graph_bytes, packed_bytes)  # fmt: skip
    _line(store, "read an epoch, streamed", lambda: _read_an_epoch(packed),
          _epoch_bytes(folder / "packed", given["epochs"]), 0)  # fmt: skip
    with faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0):  # what a process takes itself
        _line(store, "prepare, topology swept (the output is there already)",
              lambda: diskgnn.prepare(graph, packed, **given, memory=less, overwrite=True), graph_bytes, 0)  # fmt: skip
    _line(store, "fetch what is packed", lambda: diskgnn.fetch(packed, folder / "fetched"), packed_bytes, 0)
    assert read_manifest(folder / "fetched").digest == read_manifest(folder / "packed").digest
    print(f"in half of the room ({room:,} bytes), files took at most {most.num_bytes:,} bytes")
    print(f"bucket {BUCKET}: the graph has {graph_bytes:,} bytes, what is packed {packed_bytes:,}")


def _line(store: ObjectStore, what: str, call: Callable[[], object], received: int, sent: int) -> None:
    store.proxy.reset()
    call()
    proxy = store.proxy
    shares = [f"{found / least:.3f}" if least else ""
              for found, least in ((proxy.received_bytes, received), (proxy.sent_bytes, sent))]  # fmt: skip
    cells = what, f"{proxy.received_bytes:,}", shares[0], f"{proxy.sent_bytes:,}", shares[1], len(proxy.requests)
    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def _read_an_epoch(packed: str) -> None:
    with diskgnn.Loader(packed, stream=True) as loader:
        for _ in loader.epoch(0):
            pass


def _epoch_bytes(packed: Path, epochs: int) -> int:
    """Extents of one epoch, and what memory starts with."""
    extents = packed / "train.bin"
    others = sum(file.stat().st_size for file in packed.glob("train-*"))
    return extents.stat().st_size // epochs + others


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


if __name__ == "__main__":
    main()
