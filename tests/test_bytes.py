"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found. Last replaced when graphs got
version 3, with in-neighbours in the order of a hash.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "902629a9062ebb1a6bb229a140c3e58b",
        "samples": "152ada2af2d4225de704e37d391a6f8a",
        "coordinated": "98316fc2b05787b3f0ee720b9da9db3b",
        "packed": "708639dc22732309acefc4e713091048",
        "prepared": "18173da015660371e164380f2228dc57",
    },
    "int8": {
        "graph": "f7dbd19c86446d8003f5d40ccc992598",
        "samples": "ac8da246cc523c07f5a70caca3df90c4",
        "coordinated": "237a5237742a7efed316c814d2ce76c7",
        "packed": "970d21fe39ca0ddb6a97f02340556d82",
        "prepared": "3e5bb312ea6409cd6a6acb01475abf37",
    },
    "width 7": {
        "graph": "0ebce65875886afa8025b055b71f285b",
        "samples": "6ad7d9877c1b6027c050af4623e066a8",
        "coordinated": "7869b1eaa546fc2e2ea97f6afd242d95",
        "packed": "c75bad84d24ace2422229a4f4b94bc67",
        "prepared": "647975ff9e9f1c994aa29c0b5cfe3338",
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
