"""The bytes that converting, sampling, packing and preparing write, on three graphs, are those of before.

Whoever changes a format on purpose replaces the digests: a failure prints those found. Last replaced when the config of
samples got what sampling by type can be asked for; what the files hold stayed the same.
"""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.storage.manifest import open_artifact

GOLDEN = {
    "float32": {
        "graph": "0f9ee91bf5cbcbfbc59b34894ea83d60",
        "samples": "aac1b1493b667600f0edc01ed0ecf68f",
        "coordinated": "ae35702c54a83db9506881ac597c3a1a",
        "packed": "ef79aa6c7c80d1a1b65ad1a757760f5a",
        "prepared": "90da64eec695d03ad303f7f99e1fe7b5",
    },
    "int8": {
        "graph": "2f6f638d71c9b57442eac41edb48db09",
        "samples": "4b5bc1ab129e3152ee0b7d69a96fabaf",
        "coordinated": "a6b9839aaa6c779678782c12fa0936cc",
        "packed": "a8068de27692e1ff63908820b435c168",
        "prepared": "7c783ccc0f9b619f8077c5708d7d2103",
    },
    "width 7": {
        "graph": "3be70f3350799dc4ae38e060b08d78ba",
        "samples": "b71a45a923e72d4e57e2f687b6c25b98",
        "coordinated": "07d1083aa8efc47191c7088f07ffd1cc",
        "packed": "5b7da1c2ae755ea2060c176628ed0109",
        "prepared": "8ae1691773cf925436d3c40ec9064cf7",
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
