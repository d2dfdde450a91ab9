"""Import a synthetic data set in the layouts of others within a memory cgroup, page cache included.

    sudo python tools/bench_importing.py FOLDER --nodes 8000000 --edges 200000000 --memory 1GiB

Writes the data set as papers100M's .npz (or, with --compressed, deflated), as IGB's headerless arrays and as folders of
Parquet parts, one after the other, and removes each again. `diskgnn convert` then runs in a cgroup (v1 or v2; only as
root) of --memory and --spare. Prints, for each layout, seconds, what the process had resident at most, and what the
cgroup used at most, page cache included.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from diskgnn.compare.measurement import Measurement, run
from diskgnn.files.checked_files import npy_header_bytes
from diskgnn.units import parse_size

CHUNK = 1 << 20
PARTS = 16
CLASSES = 19


class DataSet:
    """Chunks of random arrays, the same at each call."""

    def __init__(self, nodes: int, edges: int, width: int) -> None:
        self.nodes, self.edges, self.width = nodes, edges, width
        self.step = max(1, (CHUNK << 2) // width)

    def ends(self, side: int) -> Iterator[npt.NDArray[np.int64]]:
        """Sources (0) or destinations (1) [E]."""
        for start in range(0, self.edges, CHUNK):
            random = np.random.default_rng([side, start])
            yield random.integers(0, self.nodes, min(CHUNK, self.edges - start))

    def features(self) -> Iterator[npt.NDArray[np.float32]]:
        """[N, D]."""
        for start in range(0, self.nodes, self.step):
            random = np.random.default_rng([2, start])
            yield random.random((min(self.step, self.nodes - start), self.width), np.float32)

    def labels(self) -> npt.NDArray[np.float32]:
        """[N]."""
        return np.random.default_rng(3).integers(0, CLASSES, self.nodes).astype(np.float32)


def write_ogb(folder: Path, data: DataSet, compressed: bool) -> list[Any]:
    """papers100M: raw/data.npz, raw/node-label.npz and a split."""
    raw, split = folder / "raw", folder / "split" / "time"
    raw.mkdir(parents=True)
    split.mkdir(parents=True)
    kind = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    with zipfile.ZipFile(raw / "data.npz", "w", kind, compresslevel=1) as archive:

        def add(name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterator[npt.NDArray[Any]]) -> None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                file.write(npy_header_bytes(dtype, shape))
                for chunk in chunks:
                    file.write(np.ascontiguousarray(chunk, dtype).data)

        add("edge_index", np.int64, (2, data.edges), (end for side in (0, 1) for end in data.ends(side)))
        add("node_feat", np.float32, (data.nodes, data.width), data.features())
        add("num_nodes_list", np.int64, (1,), iter([np.array([data.nodes])]))
    np.savez(raw / "node-label.npz", node_label=data.labels()[:, None])
    for number, name in enumerate(("train", "valid", "test")):
        ids = np.arange(number, data.nodes, 100)
        pa.csv.write_csv(pa.table({"": ids}), pa.CompressedOutputStream(split / f"{name}.csv.gz", "gzip"),
                         pa.csv.WriteOptions(include_header=False))  # fmt: skip
    return ["--from", "ogb", folder]


def write_igb(folder: Path, data: DataSet, compressed: bool) -> list[Any]:
    """IGB large: headerless features and labels, edges [E, 2]."""
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper__cites__paper"
    paper.mkdir(parents=True)
    cites.mkdir(parents=True)
    with (paper / "node_feat.npy").open("wb") as file:
        for chunk in data.features():
            file.write(chunk.data)
    data.labels().tofile(paper / "node_label_19.npy")
    with (cites / "edge_index.npy").open("wb") as file:
        file.write(npy_header_bytes(np.int64, (data.edges, 2)))
        for pair in zip(data.ends(0), data.ends(1), strict=True):
            file.write(np.stack(pair, axis=1).data)
    return ["--from", "igb", folder, "--set", f"width={data.width}"]


def write_parquet(folder: Path, data: DataSet, compressed: bool) -> list[Any]:
    """Parts as Spark writes them: edges (src, dst); nodes (features, label, split)."""
    nodes, edges = folder / "nodes", folder / "edges"
    nodes.mkdir(parents=True)
    edges.mkdir(parents=True)
    codec = "zstd" if compressed else "none"
    _parts(edges, codec, data.edges, (
        pa.table({"src": src, "dst": dst}) for src, dst in zip(data.ends(0), data.ends(1), strict=True)
    ))  # fmt: skip
    labels = data.labels().astype(np.int64)

    def rows() -> Iterator[pa.Table]:
        start = 0
        for chunk in data.features():
            ids = np.arange(start, start + len(chunk)) % 100
            values = pa.FixedSizeListArray.from_arrays(pa.array(chunk.reshape(-1)), data.width)
            words = pa.array(np.select([ids == 0, ids == 1, ids == 2], ["train", "valid", "test"], ""))
            yield pa.table({"features": values, "label": labels[start : start + len(chunk)], "split": words})
            start += len(chunk)

    _parts(nodes, codec, data.nodes, rows())
    return ["--edges", edges, "--nodes", nodes]


def _parts(folder: Path, codec: str, num_rows: int, tables: Iterator[pa.Table]) -> None:
    writer, written, number = None, 0, -1
    for table in tables:
        if written * PARTS // num_rows > number:
            if writer is not None:
                writer.close()
            number = written * PARTS // num_rows
            path = folder / f"part-{number:05}.snappy.parquet"
            writer = pq.ParquetWriter(path, table.schema, compression=codec, use_dictionary=False)
        assert writer is not None
        writer.write_table(table)
        written += len(table)
    if writer is not None:
        writer.close()


LAYOUTS: dict[str, Callable[[Path, DataSet, bool], list[Any]]] = {
    "ogb": write_ogb, "igb": write_igb, "parquet": write_parquet,
}  # fmt: skip


def main() -> None:
    """Write, import, print, remove."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="for data and graphs; must not exist; removed")
    parser.add_argument("--nodes", type=int, default=8_000_000)
    parser.add_argument("--edges", type=int, default=200_000_000)
    parser.add_argument("--width", type=int, default=256, help="float32 numbers per row")
    parser.add_argument("--memory", default="1GiB", help="--memory of convert")
    parser.add_argument("--spare", default="512MiB", help="the cgroup's limit beyond it; none: no cgroup")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--compressed", action="store_true")
    options = parser.parse_args()
    data = DataSet(options.nodes, options.edges, options.width)
    options.folder.mkdir(parents=True)
    limit = None if options.spare == "none" else parse_size(options.memory) + parse_size(options.spare)
    try:
        for layout in options.layouts.split(","):
            source, out = options.folder / layout, options.folder / "graph"
            given = LAYOUTS[layout](source, data, options.compressed)
            source_bytes = sum(file.stat().st_size for file in source.rglob("*") if file.is_file())
            command = [sys.executable, "-m", "diskgnn", "convert", out, *given, "--memory", options.memory, "--json"]
            found = run(Measurement(layout, command, limit))
            details = found.figures["details"]
            record = {"layout": layout, "source_bytes": source_bytes, **found.costs, "limit_bytes": limit}
            print(json.dumps(record | {name: details[name] for name in ("num_nodes", "num_edges")}), flush=True)
            shutil.rmtree(source)
            shutil.rmtree(out)
    finally:
        shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
