"""The bytes that converting, preparing and applying a model write: the same with the least memory, one thread and the
smallest units as with plenty of all, and the same as before.

Whoever changes a format on purpose replaces the digests: a failure prints those found, one in a line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from least_budgets import with_least

import diskgnn
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.manifest_document import FileEntry
from diskgnn.nn.block_models import make_model
from diskgnn.specs.targets import LinkTarget, NodeTarget

# By case, what is made, in order: the graph, then for each way of sampling the samples and the packed directory.
DIGESTS: dict[str, dict[str, str]] = {
    "float32": {
        "graph": "949bc9f95433364182e4eda7b8b5623a",
        "samples, plain": "e3f6332c090a0ab98c17ba4b882393e8",
        "packed, plain": "bf2db04800b6395134fbfde8e01e8e32",
        "samples, coordinated": "cadd8f66500df6725a51919482cf8458",
        "packed, coordinated": "30186cf0ad33e80f5dc0c75813da8761",
    },
    "int8": {
        "graph": "bfc4e82afc0ef909a94bc2db4ffe82ae",
        "samples, plain": "f527ef56c0e99b67d5701009cdddf62e",
        "packed, plain": "abe06babf858da6a4f87dff14ba9505d",
        "samples, coordinated": "8802bd1771ae9009d057466c9795f0fb",
        "packed, coordinated": "3ab42f29abf937034ec0f77bf6271aec",
    },
    "width 7": {
        "graph": "a0d28e39ac7e5ea1ba7c76ff2e56431f",
        "samples, plain": "5f547c344e4530be23723902252a450b",
        "packed, plain": "bf6553fef918024fb388a46f6dc5e52c",
        "samples, coordinated": "5506cab69fb5c04078021f2c4a2e7e4d",
        "packed, coordinated": "0b1c8129aa87690aa94593d25144089c",
    },
    "quantised to int8": {
        "graph": "0ee264ebf9f9b7cc3e457aff8afe0763",
    },
    "quantised to int4": {
        "graph": "ca9cec3eaad63657bd8693ffbb6b97d7",
        "samples, grouped": "7bcd2f56d5ae3328cff03f3b7d27bfed",
        "packed, grouped": "0df41832e2e21677936b8db9d7c26fba",
    },
    "several types": {
        "graph": "b4341f03db5084f02f8daada0fe1a7f9",
        "samples, edge ids": "b943c8c96ab39be6d512991a5a78ebc3",
        "packed, edge ids": "da0725ac3fc8497b1420828eb11df95d",
        "samples, in time": "e6b2db933ad8ff931b1d44cdd2408087",
        "packed, in time": "9c78ec56f9c57a582ba9a2d3e15962f1",
        "samples, weighted links": "bbd26c45e503c67b1890741bd7510fbd",
        "packed, weighted links": "bac9ea8c89d40a7f75d88d62e66b9fa1",
    },
    "listed ids": {
        "graph": "f6fd64b44d8501de80e5064d7ee79601",
        "samples, last": "642dcb013c12cedf01f25a080d8d72c3",
        "packed, last": "29e3012a9c2e48ab37a5b6f2c6ff40b1",
    },
    "mentioned ids": {
        "graph": "3864c0d9ebf66157b13da6af539acd4f",
    },
    "whole numbers": {
        "graph": "49b1171596019a684be3ce15c8f60642",
        "samples, expanded once": "8e40b7c6f36a59a2a45767a743f6e52c",
        "packed, expanded once": "41cd6ba1c6dbf5c9c73d4ee72757b492",
    },
    "hops": {
        "float32": "26d83c6d4c8cd31c5535b3f0a293c1cc",
        "int4, weighted": "9309ce4c9b89874824d2c6c436cef577",
    },
    "what a model says": {
        "infer": "07061314d23fbb6de06ceec16e75274f",
        "infer, some": "dc5703948269073096b69a30c0198265",
        "infer, classes": "f29706cdf86f1d962a881adfc31ef766",
        "predict": "5900988eefcf1aaf487d46c841fd5f69",
        "predict, pairs": "d0abfb8450e2a9bfa6a8426ca8e21c58",
    },
}

SAMPLING = {"fanouts": [5, 3], "batch_size": 64, "epochs": 2}
COORDINATED = SAMPLING | {"draws": "coordinated", "draw_period": 4}


@dataclass(frozen=True)
class Case:
    """What is converted, and how that is sampled and packed."""

    given: Callable[[Path], dict[str, Any]]  # arguments of `convert`; files go to the folder
    sampled: dict[str, dict[str, Any]] = field(default_factory=dict)  # arguments of `prepare`, by a name
    packed: dict[str, Any] = field(default_factory=lambda: {"cpu_cache": "10%", "static_cache": "2%"})


def one_type(folder: Path, *, dtype: str, width: int, seed: int, **options: Any) -> dict[str, Any]:
    """A graph of 3000 nodes, a few of which have most of the edges."""
    random = np.random.default_rng(seed)
    num_nodes, num_edges = 3000, 24000
    src = (num_nodes * random.random(num_edges) ** 3).astype(np.int64)
    dst = random.integers(0, num_nodes, num_edges)
    if dtype == "int8":
        x = random.integers(-128, 128, (num_nodes, width)).astype(np.int8)
    else:
        x = random.standard_normal((num_nodes, width)).astype(dtype)
    y = random.integers(0, 5, num_nodes)
    nodes = random.permutation(num_nodes)
    for name, array in {"edges": np.stack([src, dst]), "x": x, "y": y}.items():
        np.save(folder / f"{name}.npy", array)
    return {
        "edges": folder / "edges.npy", "features": folder / "x.npy", "labels": folder / "y.npy",
        "train": nodes[:900], "valid": nodes[900:1200], "test": nodes[1200:1500], "reverse": True, **options,
    }  # fmt: skip


def several_types(folder: Path) -> dict[str, Any]:
    """Edges of two types that carry all they can: one with a reverse type, the other symmetric, many of its edges given
    in both directions; a type without features, and one without edges."""
    random = np.random.default_rng(4)
    papers, authors, venues = 1000, 500, 12
    writes = np.stack([random.integers(0, authors, 6000), random.integers(0, papers, 6000)])
    cites = random.integers(0, 200, (2, 9000))
    shuffled = random.permutation(papers)
    paper = {
        "features": random.standard_normal((papers, 9)).astype(np.float16), "labels": random.integers(0, 4, papers),
        "times": random.integers(0, 50, papers), "train": shuffled[:200], "valid": shuffled[200:250],
    }  # fmt: skip
    return {"schema": {
        "nodes": {
            "paper": paper,
            "author": {"features": random.standard_normal((authors, 6)).astype(np.float32), "quantise": "int8"},
            "venue": {"num_nodes": venues},
        },
        "edges": {
            "author:writes:paper": {
                "edges": writes, "reverse": True, "keep_ids": True, "weights": random.random(6000) + 0.1,
                "features": random.standard_normal((6000, 3)).astype(np.float32),
                "train": writes[:, :130].T, "valid": writes[:, 130:190].T,
            },
            "paper:cites:paper": {
                "edges": cites, "symmetric": True, "keep_ids": True, "times": random.integers(0, 50, 9000),
                "features": random.integers(-9, 9, (9000, 2)).astype(np.int8),
            },
            "paper:at:venue": {"edges": np.stack([np.arange(papers), random.integers(0, venues, papers)])},
            "venue:of:paper": {"edges": np.empty((2, 0), np.int64), "features": np.empty((0, 2), np.float32)},
        },
    }}  # fmt: skip


def own_ids(folder: Path, *, listed: bool) -> dict[str, Any]:
    """Users are words, in a table or nowhere but in edges; items are large numbers, only mentioned."""
    random = np.random.default_rng(5)
    users = np.array([f"user/{number:x}" for number in random.permutation(50_000)[:2000]])
    items = random.integers(-(2**62), 2**62, 900)
    buys = {
        "src": users[random.integers(0, 2000, 3000)], "dst": items[random.integers(0, 900, 3000)],
        "weight": random.random(3000) + 0.1, "when": random.integers(0, 99, 3000),
    }  # fmt: skip
    likes = {"src": users[random.integers(0, 99, 2000)], "dst": users[random.integers(0, 99, 2000)]}
    table = {"id": users, "a": random.random(2000), "b": random.random(2000), "label": random.integers(0, 3, 2000)}
    for name, columns in {"buys": buys, "likes": likes, "users": table}.items():
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=700)
    user = {"table": folder / "users.parquet", "train": users[:500], "times": np.full(2000, 60)}
    return {"schema": {
        "nodes": {
            "user": user if listed else {},
            "item": {},
        },
        "edges": {
            "user:buys:item": {
                "edges": folder / "buys.parquet", "columns": {"weight": "weight", "time": "when"}, "reverse": True,
                "keep_ids": True,
            },
            "user:likes:user": {"edges": folder / "likes.parquet", "symmetric": True, "keep_ids": True},
        },
    }}  # fmt: skip


def whole_numbers(folder: Path) -> dict[str, Any]:
    """Features that add up exactly in whatever order; many equal edges, of which one is kept, and all self-loops."""
    random = np.random.default_rng(6)
    num_nodes = 9000  # three windows of inference
    return {
        "edges": np.stack([random.integers(0, 40, 20000) ** 2, random.integers(0, num_nodes, 20000)]),
        "features": random.integers(-1, 2, (num_nodes, 6)).astype(np.float32),
        "labels": random.integers(0, 5, num_nodes), "train": np.arange(500),
        "reverse": True, "self_loops": True, "drop_duplicates": True,
    }  # fmt: skip


CASES = {
    "float32": Case(
        partial(one_type, dtype="float32", width=32, seed=1),
        {"plain": SAMPLING | {"eval_fanouts": [4, -1], "seed": 1}, "coordinated": COORDINATED | {"seed": 1}},
        {"cpu_cache": "10%", "static_cache": 0},
    ),
    "int8": Case(
        partial(one_type, dtype="int8", width=24, seed=2),
        {"plain": SAMPLING | {"eval_fanouts": [4, -1], "seed": 2}, "coordinated": COORDINATED | {"seed": 2}},
        {"cpu_cache": "5%", "static_cache": "3%", "keep_input_nodes": True},
    ),
    "width 7": Case(
        partial(one_type, dtype="float32", width=7, seed=3),
        {"plain": SAMPLING | {"eval_fanouts": [4, -1], "seed": 3}, "coordinated": COORDINATED | {"seed": 3}},
        {"cpu_cache": "20%", "static_cache": "1%", "keep_input_nodes": True},
    ),
    "quantised to int8": Case(partial(one_type, dtype="float32", width=10, seed=7, quantise="int8")),
    "quantised to int4": Case(
        partial(one_type, dtype="float32", width=11, seed=8, quantise="int4"),
        {"grouped": SAMPLING | {"group_seeds": 8}},
    ),
    "several types": Case(
        several_types,
        {
            "edge ids": SAMPLING | {"temporal": "ignore", "edge_ids": True, "target": NodeTarget("paper")},
            "in time": SAMPLING | {"temporal": "uniform", "target": NodeTarget("paper")},
            "weighted links": SAMPLING
            | {"temporal": "ignore", "weighted": True, "target": LinkTarget("author:writes:paper", 2, 5)},
        },
    ),
    "listed ids": Case(partial(own_ids, listed=True), {"last": SAMPLING | {"temporal": "last"}}),
    "mentioned ids": Case(partial(own_ids, listed=False)),
    "whole numbers": Case(whole_numbers, {"expanded once": SAMPLING | {"expand_once": True, "shuffle": False}}),
}


def with_plenty(stage: Callable[..., object]) -> None:
    stage(memory="2GiB", threads=2)


BUDGETS = {"least": partial(with_least, memory=64 << 10), "plenty": with_plenty}


def digest_of(path: Path, graph: Path) -> str:
    """Of an artifact, without files of Parquet, in it and in its graph: their bytes follow the version of pyarrow."""
    files = open_artifact(path).files
    if not any(name.endswith(".parquet") for name in [*files, *open_artifact(graph).files]):
        return open_artifact(path).digest
    found = [(name, entry.bytes, entry.crc32c) for name, entry in files.items() if not name.endswith(".parquet")]
    return blake2b(repr(found).encode(), digest_size=16).hexdigest()


@pytest.mark.parametrize("name", CASES)
def test_artifacts_have_the_bytes_of_before(tmp_path: Path, name: str) -> None:
    case, found, exact = CASES[name], dict[str, dict[str, str]](), dict[str, dict[str, str]]()
    given = case.given(tmp_path)
    for budget, within in BUDGETS.items():
        folder = tmp_path / budget
        within(lambda memory, threads: diskgnn.convert(folder / "graph", memory=memory, **given))  # noqa: B023
        made = {"graph": folder / "graph"}
        for way, sampling in case.sampled.items():
            made |= {f"samples, {way}": folder / f"samples-{way}", f"packed, {way}": folder / f"packed-{way}"}
            within(partial(
                diskgnn.prepare, folder / "graph", folder / f"packed-{way}", samples=folder / f"samples-{way}",
                **case.packed, **sampling,
            ))  # fmt: skip
        found[budget] = {what: digest_of(path, folder / "graph") for what, path in made.items()}
        exact[budget] = {what: open_artifact(path).digest for what, path in made.items()}
    assert exact["least"] == exact["plenty"]
    assert found["plenty"] == DIGESTS[name]


def test_hops_have_the_bytes_of_before(tmp_path: Path) -> None:
    """Features are any numbers: sums are in float64 and in the order of edges, and do not follow the processor."""
    (tmp_path / "arrays").mkdir()
    weights = np.random.default_rng(9).random(24000).astype(np.float32) + np.float32(0.1)
    plain = one_type(tmp_path / "arrays", dtype="float32", width=10, seed=9)
    nodes = {name: each for name, each in plain.items() if name not in ("edges", "reverse")} | {"quantise": "int4"}
    edges = {"edges": plain["edges"], "weights": weights}
    diskgnn.convert(tmp_path / "float32", **plain)
    diskgnn.convert(
        tmp_path / "int4, weighted", schema={"nodes": {"node": nodes}, "edges": {"node:to:node": edges}}
    )  # fmt: skip
    found = {}
    for name in DIGESTS["hops"]:
        for budget, within in BUDGETS.items():
            out = tmp_path / f"{name} {budget}"
            within(partial(diskgnn.propagate, tmp_path / name, out, hops=3, operators="mean,symmetric,gcn", seed=9))
            found[budget] = found.get(budget, {}) | {name: open_artifact(out).files}
    assert found["least"] == found["plenty"]
    assert {name: digest_of_files(files) for name, files in found["plenty"].items()} == DIGESTS["hops"]


def digest_of_files(files: Mapping[str, FileEntry]) -> str:
    """Of their names, sizes and checksums: quantising made the graph of one."""
    return blake2b(repr([(name, e.bytes, e.crc32c) for name, e in files.items()]).encode(), digest_size=16).hexdigest()


@pytest.mark.filterwarnings("ignore:.*what was sampled is kept")
def test_what_a_model_says_has_the_bytes_of_before(tmp_path: Path) -> None:
    """Weights and features are whole numbers and sums are exact: results do not follow the processor."""
    diskgnn.convert(tmp_path / "graph", **whole_numbers(tmp_path))
    net, random = make_model("sage", 6, 4, 5, 2, aggregation="sum").eval(), np.random.default_rng(0)
    for weight in net.parameters():
        weight.data = torch.from_numpy(random.integers(-1, 2, weight.shape).astype(np.float32))
    some = random.permutation(9000)[:5000]
    calls = {
        "infer": partial(diskgnn.infer, nodes=None),
        "infer, some": partial(diskgnn.infer, nodes=some),
        "infer, classes": partial(diskgnn.infer, what="classes"),
        "predict": partial(diskgnn.predict, nodes=some[:300]),
        "predict, pairs": partial(diskgnn.predict, pairs=some[:300].reshape(-1, 2), edge_type="node:to:node"),
    }
    found = {}
    for name, call in calls.items():
        for suffix in ("npy", "parquet"):
            files = {budget: tmp_path / f"{name} {budget}.{suffix}" for budget in BUDGETS}
            for budget, within in BUDGETS.items():
                within(partial(call, tmp_path / "graph", files[budget], net))
            assert files["least"].read_bytes() == files["plenty"].read_bytes(), (name, suffix)
        found[name] = blake2b(files["plenty"].with_suffix(".npy").read_bytes(), digest_size=16).hexdigest()
    assert np.array_equal(np.load(tmp_path / "infer plenty.npy"), exact_rows(tmp_path / "graph", net))
    assert found == DIGESTS["what a model says"]


def exact_rows(graph: Path, net: torch.nn.Module) -> np.ndarray:
    """What two layers of GraphSAGE, which add neighbours up, say of all nodes: by SciPy, in float64."""
    names = ("indices-node.to.node", "indptr-node.to.node", "features-node")
    indices, indptr, x = (np.load(graph / f"{name}.npy") for name in names)
    edges = sp.csr_array((np.ones(len(indices)), indices, indptr))
    weights = {name: weight.detach().double().numpy() for name, weight in net.named_parameters()}
    for layer in range(2):
        own, bias, neighbours = (
            weights[f"layers.{layer}.{name}"] for name in ("own.weight", "own.bias", "neighbours.weight")
        )
        x = x @ own.T + bias + edges @ x @ neighbours.T
        x = np.maximum(x, 0) if layer == 0 else x
    return x
