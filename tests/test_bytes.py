"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found. Last replaced when samples got
version 3, with columns for each type of node and edge.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "902629a9062ebb1a6bb229a140c3e58b",
        "samples": "7e420f9bd24659521b5a8c6cf073b444",
        "coordinated": "f62d1717056910946eeaaa74eafd671c",
        "packed": "e60aae4956c41e8260c01ad7178a6641",
        "prepared": "b3808294823d0dc4753f774261f1b1b4",
    },
    "int8": {
        "graph": "f7dbd19c86446d8003f5d40ccc992598",
        "samples": "7ad0fa1f13500d511f5f27c22a700031",
        "coordinated": "8945c7e6f996bd9c88bbdadad737e752",
        "packed": "b6fab4c4ed60a0f21117d1cdc43ff962",
        "prepared": "611e322db1b35061c44c407ac37f6b41",
    },
    "width 7": {
        "graph": "0ebce65875886afa8025b055b71f285b",
        "samples": "a1fdb697af420e8ed55b3acc0f3ea0fe",
        "coordinated": "b120ff32f5d9cb311ee4aca3a712fea6",
        "packed": "638d46edf2cff61d510cd322a2e6c41f",
        "prepared": "4aaddb228504248c7d867ea71fed0db3",
    },
}


def convert(folder: Path, dtype: str, num_features: int, seed: int) -> Path:
    """A graph of 3000 nodes, a few of which have most of the edges."""
    random = np.random.default_rng(seed)
    num_nodes, num_edges = 3000, 24000
    src = (num_nodes * random.random(num_edges) ** 3).astype(np.int64)
    dst = random.integers(0, num_nodes, num_edges)
    if dtype == "int8":
        x = random.integers(-128, 128, (num_nodes, num_features)).astype(np.int8)
    else:
        x = random.standard_normal((num_nodes, num_features)).astype(dtype)
    y = random.integers(0, 5, num_nodes)
    nodes = random.permutation(num_nodes)
    for name, array in {"edges": np.stack([src, dst]), "x": x, "y": y}.items():
        np.save(folder / f"{name}.npy", array)
    diskgnn.convert(
        folder / "graph", edges=folder / "edges.npy", features=folder / "x.npy", labels=folder / "y.npy",
        train=nodes[:900], valid=nodes[900:1200], test=nodes[1200:1500], reverse=True,
    )  # fmt: skip
    return folder / "graph"


@pytest.mark.parametrize(
    ("name", "dtype", "num_features", "seed", "cpu_cache", "static_cache"),
    [
        ("float32", "float32", 32, 1, "10%", 0),
        ("int8", "int8", 24, 2, "5%", "3%"),
        ("width 7", "float32", 7, 3, "20%", "1%"),
    ],
)
def test_bytes_are_those_of_before(tmp_path, name, dtype, num_features, seed, cpu_cache, static_cache):
    graph = convert(tmp_path, dtype, num_features, seed)
    sampling = {"fanouts": [5, 3], "batch_size": 64, "epochs": 2, "seed": seed}
    caches = {"cpu_cache": cpu_cache, "static_cache": static_cache}
    diskgnn.sample(graph, tmp_path / "samples", eval_fanouts=[4, -1], **sampling)
    diskgnn.sample(graph, tmp_path / "coordinated", draws="coordinated", draw_period=4, **sampling)
    keep_input_nodes = name != "float32"
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", keep_input_nodes=keep_input_nodes, **caches)
    diskgnn.prepare(graph, tmp_path / "prepared", memory="64KiB", **sampling, **caches)
    digests = {made: open_artifact(tmp_path / made).digest for made in GOLDEN[name]}
    assert digests == GOLDEN[name]
