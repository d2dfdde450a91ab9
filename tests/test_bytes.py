"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found. Last replaced when samples said
how seeds are grouped.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "902629a9062ebb1a6bb229a140c3e58b",
        "samples": "5ff56c1a56b8d0e001b2da33aefcc6d2",
        "coordinated": "d17bdb0e7862d0def55e46bb6c124379",
        "packed": "0edc744a1ff5478e8f6c6a0ff09a4328",
        "prepared": "8f3c40cc5c26fb5b135928f7afd90960",
    },
    "int8": {
        "graph": "f7dbd19c86446d8003f5d40ccc992598",
        "samples": "ca5c1f05de3748c67be31bb01d0a7a68",
        "coordinated": "f96bf79d892c747bdcd26713141fed97",
        "packed": "1a572d7d9a39b1d9b7337b989e2a23aa",
        "prepared": "5eac21f9bad0d3e723ca20d4892c040f",
    },
    "width 7": {
        "graph": "0ebce65875886afa8025b055b71f285b",
        "samples": "65db2f85542f7fe55e9a611f196af99c",
        "coordinated": "7b9602b0a3f5e7b9822f605272d0dd36",
        "packed": "467c598cd9ba18f9b18be56be07990b8",
        "prepared": "bc718427ef7edc5f19115d98e21f5a38",
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
