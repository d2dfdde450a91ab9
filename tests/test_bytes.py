"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "355d617be3e1cea6565f3d01c00f8f86",
        "samples": "5bba2fa7536f3dddc81a4ee4599570bf",
        "packed": "24655886a7b7f5e08ddcf5dfd1a1cc1f",
        "prepared": "e1ec7adc6ca0cc4f447f15dd65612787",
    },
    "int8": {
        "graph": "4e427add170335bb521e170bd5832ade",
        "samples": "d784a7c8dc6b7901e4135e99e3d15eb9",
        "packed": "e47d6d71aa572e7082081502bb34b197",
        "prepared": "141d25e34d18edb6feffee2864b5d88e",
    },
    "width 7": {
        "graph": "61bd478c962d114fde747c7af5b55b80",
        "samples": "ab32546c8ce3d1ed75414cb5b0222ad0",
        "packed": "e65a60ca4e4406a5bb5ce3104e758cae",
        "prepared": "f3a189e6204b8ddc6fb6200c45bb7735",
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
    keep_input_nodes = name != "float32"
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", keep_input_nodes=keep_input_nodes, **caches)
    diskgnn.prepare(graph, tmp_path / "prepared", memory="64KiB", **sampling, **caches)
    digests = {made: open_artifact(tmp_path / made).digest for made in ("graph", "samples", "packed", "prepared")}
    assert digests == GOLDEN[name]
