"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found. Last replaced when graphs got
version 4, with names of files and a config by type; what the files hold stayed the same.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "0f9ee91bf5cbcbfbc59b34894ea83d60",
        "samples": "48e39c0da4b7f6aae007f782ab2c1128",
        "coordinated": "5c5f30da2a39f38c6e50b46b3fc11de1",
        "packed": "6ad6203939537d5d56c1f9ab718b7884",
        "prepared": "d5f63a07de14a3cc32968c39d3edb7cb",
    },
    "int8": {
        "graph": "2f6f638d71c9b57442eac41edb48db09",
        "samples": "a3f67b81027b56c5e8fa0e019444baab",
        "coordinated": "09c63e33359f913c8882b59b1a8387bb",
        "packed": "c20cb11c95edfa5c84c13674fd17abaf",
        "prepared": "33d78832ce3904fd569cf9cdcf42b83e",
    },
    "width 7": {
        "graph": "3be70f3350799dc4ae38e060b08d78ba",
        "samples": "8c2216a0039d93f6da6a01abc53de36c",
        "coordinated": "ea94ad7669ac8532627c1e49a6a4e322",
        "packed": "f17a6f29860d956f8d28073d2bbd51fd",
        "prepared": "6daab2dc67b6634a3255323e17181c2e",
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
