"""Means along paths of typed graphs against SciPy in float64, with memory from the least to plenty."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from least_budgets import with_least
from propagated_types import TypedGiven, assert_paths_are_exact, convert, name_of, random_typed_graph

import diskgnn
from diskgnn.cli import main
from diskgnn.errors import ConfigError, DataWarning, DiskFullError, InputError
from diskgnn.files import faults
from diskgnn.formats.hops import Hops
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.artifact_description import describe
from diskgnn.propagation.propagate import estimate_propagation

CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
WRITTEN, EMPLOYS = ("paper", "rev_writes", "author"), ("inst", "employs", "author")
LIKES = ("author", "likes", "paper")


def papers(*, width: int = 9) -> TypedGiven:
    """Papers and institutions have features, authors have none; two edge types lead from authors to papers."""
    random = np.random.default_rng(7)
    writes = np.stack([random.integers(0, 300, 900), random.integers(0, 190, 900)])
    edges = {
        CITES: random.integers(0, 190, (2, 700)), WRITES: writes, WRITTEN: writes[::-1],
        EMPLOYS: np.stack([random.integers(0, 20, 400), random.integers(0, 290, 400)]), LIKES: writes[:, :100],
    }  # fmt: skip
    features = {"paper": random.standard_normal((200, width)), "inst": random.standard_normal((20, 4))}
    exact = {name: each.astype(np.float32).astype(float) for name, each in features.items()}
    nodes = random.permutation(200)
    seeds = {"train": nodes[:60], "valid": nodes[60:90], "test": nodes[90:120]}
    weights = {WRITES: (random.random(900) + 0.1).astype(np.float32)}
    return TypedGiven({"paper": 200, "author": 300, "inst": 20}, exact, edges, "paper", seeds, weights)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(papers(), tmp_path_factory.mktemp("given") / "graph")


@pytest.mark.filterwarnings("ignore:edge type .* has no edges")
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1 << 20), hops=st.integers(1, 3))
def test_paths_are_scipys_whatever_the_memory(
    tmp_path_factory: pytest.TempPathFactory, seed: int, hops: int
) -> None:  # fmt: skip
    tmp_path = tmp_path_factory.mktemp("hops")
    graph_given = random_typed_graph(seed)
    paths = graph_given.paths(hops)
    graph = convert(graph_given, tmp_path / "graph")
    asked = {"target": graph_given.target, "hops": hops, "progress": False}
    if len(paths) > 32 or not any(paths):
        told = f"found {len(paths)} of at most" if len(paths) > 32 else "no path of 1 to"
        with pytest.raises(ConfigError, match=told):
            diskgnn.propagate(graph, tmp_path / "hops", **asked)
        some = sorted(paths - {()})[::7][:30]
        if not some:
            return
        asked |= {"hops": None, "paths": [name_of(path) for path in some]}
        paths = {*some} | ({()} & paths)
    with_least(partial(diskgnn.propagate, graph, tmp_path / "least", **asked))
    diskgnn.propagate(graph, tmp_path / "plenty", memory="1GiB", threads=3, **asked)
    assert open_artifact(tmp_path / "least").digest == verify_artifact(tmp_path / "plenty").digest
    assert_paths_are_exact(tmp_path / "least", graph_given, paths)


def test_all_paths_of_two_edge_types_by_default(graph: Path, tmp_path: Path) -> None:
    """The target is the only type with a train split."""
    report = diskgnn.propagate(graph, tmp_path / "hops", progress=False)
    names = (
        "x, paper:cites, paper:cites/paper:cites, author:writes/paper:rev_writes, author:writes/inst:employs, "
        "author:likes/paper:rev_writes, author:likes/inst:employs"
    )
    assert {*str(report.details["segments"]).split(", ")} == {*names.split(", ")}
    assert report.details["hops"] == 2
    assert_paths_are_exact(tmp_path / "hops", papers(), papers().paths(2))
    facts = describe(tmp_path / "hops").facts
    assert facts["segments"] == report.details["segments"]
    assert sorted(facts["numbers_per_segment"].split(", ")) == ["4", "4", "9", "9", "9", "9", "9"]


def test_paths_that_are_named(graph: Path, tmp_path: Path) -> None:
    """By whole edge types, by sources and names, or by names alone; longer than those by default."""
    given = "author:writes:paper/inst:employs, cites/cites/cites,likes/rev_writes"
    diskgnn.propagate(graph, tmp_path / "text", paths=given, progress=False)
    diskgnn.propagate(graph, tmp_path / "list", paths=given.split(","), target="paper", progress=False)
    assert open_artifact(tmp_path / "text").digest == open_artifact(tmp_path / "list").digest
    paths = {(), (WRITES, EMPLOYS), (CITES, CITES, CITES), (LIKES, WRITTEN)}
    assert_paths_are_exact(tmp_path / "text", papers(), paths)
    names = [segment.name for segment in Hops.open(tmp_path / "text").config.segments]
    assert names == ["x", "author:writes/inst:employs", "paper:cites/paper:cites/paper:cites",
                     "author:likes/paper:rev_writes"]  # fmt: skip


def test_seeds_without_features_and_all_nodes(graph: Path, tmp_path: Path) -> None:
    """Authors have none: their records have no x."""
    given = papers()
    asked = TypedGiven(given.num_nodes, given.features, given.edges, "author", {}, given.weights)
    diskgnn.propagate(graph, tmp_path / "hops", target="author", nodes="all", progress=False)
    assert_paths_are_exact(tmp_path / "hops", asked, asked.paths(2))
    assert "x" not in [segment.name for segment in Hops.open(tmp_path / "hops").config.segments]
    with diskgnn.HopsLoader(tmp_path / "hops", "nodes", batch_size=128) as loader:
        batch = next(iter(loader))
    assert batch.seeds.tolist() == [*range(100)]
    assert batch.x["inst:employs"].shape == (100, 4)
    assert batch.y is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "int8 codes", "int4 codes"])
def test_features_of_a_dtype_for_each_type(tmp_path: Path, dtype: str) -> None:
    given = papers(width=11)
    stored: dict[str, Any] = {}
    if dtype == "bfloat16":
        bits = given.features["paper"].astype(np.float32).view(np.uint32) >> 16
        stored, exact = {"features": bits.astype(np.uint16), "bfloat16": True}, (bits << 16).view(np.float32)
    elif dtype.endswith("codes"):
        convert(given, tmp_path / "graph", paper={"quantise": dtype.split()[0]})
        codes = np.load(tmp_path / "graph" / "features-paper.npy")
        if dtype == "int4 codes":
            codes = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)[:, :11]
        scale, zero_point = np.load(tmp_path / "graph" / "quantisation-paper.npy")
        exact = (codes.astype(np.float32) - zero_point) * scale
    else:
        exact = (given.features["paper"] * 20).astype(dtype)
        stored = {"features": exact}
    if stored:
        convert(given, tmp_path / "graph", paper=stored)
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", progress=False)
    features = given.features | {"paper": exact.astype(float)}
    meant = TypedGiven(given.num_nodes, features, given.edges, "paper", given.seeds, given.weights)
    assert_paths_are_exact(tmp_path / "hops", meant, meant.paths(2))


class Killed(BaseException):
    """Nobody handles it."""


@pytest.mark.parametrize("first", [34_000, 1 << 30])
def test_a_killed_run_goes_on_with_another_memory(graph: Path, tmp_path: Path, first: int) -> None:
    asked = {"hops": 2, "progress": False, "threads": 1}
    then = 34_000 + (1 << 30) - first
    diskgnn.propagate(graph, tmp_path / "undisturbed", memory=1 << 30, **asked)
    digest = open_artifact(tmp_path / "undisturbed").digest
    with faults.pretending("memory.anonymous", 0):
        panels = [estimate_propagation(graph, tmp_path / "none", memory=each, **asked).panels for each in (first, then)]
        assert max(panels) > 3
        assert min(panels) == 2
        for number in itertools.count():
            out = tmp_path / f"{number}"
            with faults.pretending("unit.bytes", 1):
                with suppress(Killed), faults.armed("work.piece", Killed(), after=3 * number):
                    diskgnn.propagate(graph, out, memory=first, **asked)
                    break
                diskgnn.propagate(graph, out, memory=then, **asked)
            assert verify_artifact(out).digest == digest
    assert number >= 4


def test_bytes_are_as_predicted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    given = TypedGiven(
        {"a": 60_000, "b": 30_000}, {"a": random.standard_normal((60_000, 24)), "b": np.ones((30_000, 6))},
        {("a", "r", "a"): random.integers(0, 60_000, (2, 300_000)),
         ("b", "s", "a"): np.stack([random.integers(0, 30_000, 200_000), random.integers(0, 60_000, 200_000)]),
         ("a", "rev_s", "b"): np.stack([random.integers(0, 60_000, 90_000), random.integers(0, 30_000, 90_000)])},
        "a", {"train": random.permutation(60_000)[:2000]},
    )  # fmt: skip
    graph = convert(given, tmp_path / "graph")
    digests = set()
    for memory in ("60MiB", "1GiB"):
        with faults.pretending("memory.anonymous", 40 << 20):
            found = estimate_propagation(graph, tmp_path / "none", hops=3, memory=memory, progress=False)
            report = diskgnn.propagate(graph, tmp_path / memory, hops=3, memory=memory, progress=False)
        assert report.read_bytes == pytest.approx(found.read_bytes, rel=0.02)
        assert report.written_bytes == pytest.approx(found.written_bytes, rel=0.02)
        assert found.output_bytes == pytest.approx(open_artifact(tmp_path / memory).total_bytes, rel=0.02)
        assert found.segments == tuple(segment.name for segment in Hops.open(tmp_path / memory).config.segments)
        digests.add(open_artifact(tmp_path / memory).digest)
    assert len(digests) == 1


def test_values_that_are_no_numbers_are_refused_by_type(tmp_path: Path) -> None:
    given = papers()
    given.features["inst"][[3, 5], 1] = np.nan
    with pytest.warns(DataWarning):
        graph = convert(given, tmp_path / "graph")
    with pytest.raises(InputError, match=r"of \d nodes .* node \d of type inst;"):
        diskgnn.propagate(graph, tmp_path / "hops", progress=False)
    diskgnn.propagate(graph, tmp_path / "hops", paths="cites", progress=False)


def test_what_cannot_be_propagated_is_refused_with_what_does(tmp_path: Path) -> None:
    given = papers()
    graph = convert(given, tmp_path / "graph")
    propagate = partial(diskgnn.propagate, graph, tmp_path / "hops", progress=False)
    for asked, told in {
        "a path that ends at authors": ({"paths": "writes"}, "author nodes have none.*`diskgnn prepare`.*trained"),
        "no such step": (
            {"paths": "cites/employs"},
            r"paths: expected edges to paper nodes \(paper:cites, .*'employs'",
        ),
        "twice": ({"paths": ["cites", "paper:cites"]}, "paths: expected different ones"),
        "none": ({"paths": []}, "paths: expected a list such as"),
        "both": ({"paths": "cites", "hops": 2}, "hops: expected none beside paths"),
        "another operator": ({"operators": "mean,gcn"}, "operators: expected mean in a graph with several types"),
        "no type": ({"target": "venue"}, "no node type 'venue', only paper, author, inst"),
        "nothing ends at features": ({"target": "inst", "nodes": "all"}, "no path of 1 to 2 .*`diskgnn prepare`"),
        "too far": ({"hops": 256}, "hops: expected at most 255"),
        "too long": ({"paths": "/".join(["cites"] * 256)}, "paths: expected at most 255 edge types, found 256"),
        "many": (
            {"hops": 5},
            r"hops: expected at most 32 paths, found \d+ of at most 5 .*x \(36 bytes\).* more; .*paths",
        ),
        "very many": ({"hops": 255}, "hops: expected at most 32 paths"),
    }.values():
        with pytest.raises(ConfigError, match=told):
            propagate(**asked)
    without = convert(replace(given, seeds={}), tmp_path / "without")
    with pytest.raises(ConfigError, match=r"none of them has a train split; give `nodes`, .*--target-seeds"):
        diskgnn.propagate(without, tmp_path / "hops")
    with pytest.raises(DiskFullError, match=r"Each of 120 records has x \(36 bytes\), .*with `paths`"):
        propagate(disk="20KiB")
    assert not (tmp_path / "hops").exists()


@pytest.mark.parametrize(
    ("carried", "told"),
    [
        ({"times": np.arange(700)}, "edges of type paper:cites:paper .*have times.*--temporal uniform.*ignore_times"),
        ({"features": np.ones((700, 2), np.float32)}, "edges of type paper:cites:paper .*have features.*`diskgnn prep"),
        ({"test": np.zeros((2, 3), int)}, None),  # another task's
    ],
)
def test_what_means_along_paths_would_pass_over_is_refused(tmp_path: Path, carried: Any, told: str | None) -> None:
    given, other = papers(), "author:likes/paper:rev_writes"
    nodes: dict[str, Any] = {name: {"num_nodes": count} for name, count in given.num_nodes.items()}
    for name, features in given.features.items():
        nodes[name] = {"features": features.astype(np.float32)}
    nodes["paper"] |= {"labels": np.zeros(200, int), **given.seeds}
    edges: dict[str, Any] = {":".join(name): {"edges": each} for name, each in given.edges.items()}
    edges["paper:cites:paper"] |= carried
    diskgnn.convert(tmp_path / "graph", schema={"nodes": nodes, "edges": edges}, progress=False)
    propagate = partial(diskgnn.propagate, tmp_path / "graph", tmp_path / "hops", progress=False)
    if told is None:
        propagate()
        return
    with pytest.raises(ConfigError, match=told):
        propagate()
    propagate(paths=other)
    if "times" in carried:
        propagate(ignore_times=True, overwrite=True)
        unweighted = TypedGiven(given.num_nodes, given.features, given.edges, "paper", given.seeds)
        assert_paths_are_exact(tmp_path / "hops", unweighted, unweighted.paths(2))


def test_the_command_says_what_hops_are_in_effect(tmp_path: Path) -> None:
    """A star: only papers have features, and every edge leads from them or to them."""
    given = papers()
    edges = {name: given.edges[name] for name in (WRITES, WRITTEN)}
    star = TypedGiven(given.num_nodes, {"paper": given.features["paper"]}, edges, "paper", given.seeds)
    graph, out = convert(star, tmp_path / "graph"), tmp_path / "hops"
    words = ["propagate", str(graph), str(out), "--hops", "3", "--target", "paper"]
    for flags in (["--estimate"], []):
        done = CliRunner().invoke(main, [*words, *flags])
        assert done.exit_code == 0, done.output
        assert "--hops 3 is 2 in effect" in done.output
        assert re.search(r"segments +x, author:writes/paper:rev_writes", done.output)
    assert_paths_are_exact(out, star, star.paths(3))
    assert CliRunner().invoke(main, ["verify", str(out)]).exit_code == 0
    refused = CliRunner().invoke(main, ["propagate", str(graph), str(out), "--hops", "1", "--overwrite"])
    assert refused.exit_code == 2
    assert "take more hops" in " ".join(refused.output.split())


def test_estimates_of_both_ways_stand_side_by_side(graph: Path, tmp_path: Path) -> None:
    for command in (["propagate", "--hops", "2"], ["prepare", "--fanouts", "5,5"]):
        name, *flags = command
        done = CliRunner().invoke(
            main, [name, str(graph), str(tmp_path / "out"), *flags, "--target", "paper", "--estimate"]
        )
        assert done.exit_code == 0, done.output
        assert re.search(r"sample \d+,\d+ ", done.output)
        assert "2 hops of mean" in done.output


def test_minibatches_have_segments_of_their_widths(graph: Path, tmp_path: Path) -> None:
    diskgnn.propagate(graph, tmp_path / "hops", progress=False)
    with diskgnn.HopsLoader(tmp_path / "hops", batch_size=25) as loader:
        assert loader.hops[0] == "x"
        mean, deviation = loader.statistics()
        assert {name: len(each) for name, each in mean.items()} == dict(loader.schema.segments)
        with pytest.raises(ConfigError, match="num_features: segments have 9, "):
            _ = loader.num_features
        seeds, found = [], []
        for batch in loader:
            assert [*batch.x] == [*loader.hops]
            seeds += batch.seeds.tolist()
            found.append((batch.x["author:writes/inst:employs"] - mean["author:writes/inst:employs"]).sum(0))
    assert sorted(seeds) == sorted(papers().seeds["train"].tolist())
    np.testing.assert_allclose(sum(found), 0, atol=1e-4)
    assert all((each > 0).all() for each in deviation.values())


def test_an_artifact_on_a_store_is_the_same(graph: Path, tmp_path: Path) -> None:
    diskgnn.propagate(graph, tmp_path / "hops", progress=False)
    diskgnn.push(tmp_path / "hops", f"local://{tmp_path / 'there'}", progress=False)
    diskgnn.fetch(f"local://{tmp_path / 'there'}", tmp_path / "here", progress=False)
    assert verify_artifact(tmp_path / "here").digest == open_artifact(tmp_path / "hops").digest
