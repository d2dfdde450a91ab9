"""Damaged inputs: no flipped bit of a graph or of samples gets into a packed directory that verify calls whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from graphs import make_graph
from small_artifacts import names

from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.preparing.prepare import prepare
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample, sample_plan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.system.resources import Resources

SETTINGS = {"fanouts": [3, 2], "batch_size": 8, "epochs": 2}
CACHES = {"cpu_cache": "10%", "static_cache": "5%"}
FLIPS_PER_FILE = 6
pytestmark = pytest.mark.filterwarnings("ignore:what was sampled is kept")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its features have some chunks that nobody needs."""
    path = tmp_path_factory.mktemp("damage") / "graph"
    make_graph(path, num_nodes=600, width=400, splits={"train": 20, "valid": 5}, in_degree=3)
    return path


def flip(path: Path, random: np.random.Generator) -> str:
    """Change one bit; says which."""
    content = bytearray(path.read_bytes())
    position, bit = int(random.integers(len(content))), int(random.integers(8))
    content[position] ^= 1 << bit
    modified = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(modified, modified))
    return f"bit {bit} of byte {position} of {path.name}"


@pytest.mark.parametrize("memory", ["auto", 0])  # topology that is loaded, and that is swept
def test_no_flipped_bit_of_a_graph_gets_into_what_is_packed(graph: Path, tmp_path: Path, memory: str | int) -> None:
    prepare(graph, tmp_path / "whole", **SETTINGS, **CACHES, memory=memory, threads=1)
    expected, random, found = verify_artifact(tmp_path / "whole").digest, np.random.default_rng(1), set()
    for name in names(graph):
        for flip_number in range(FLIPS_PER_FILE):
            shutil.rmtree(tmp_path / "flipped", ignore_errors=True)
            shutil.copytree(graph, tmp_path / "flipped")
            what = flip(tmp_path / "flipped" / name, random)
            out = tmp_path / f"{name}-{flip_number}"
            try:
                prepare(tmp_path / "flipped", out, **SETTINGS, **CACHES, memory=memory, threads=1)
            except ArtifactError as error:
                assert name in str(error) or name == "manifest.json", what  # noqa: PT017
                assert not out.exists()
                found.add(name)
            else:
                assert verify_artifact(out).digest == expected, what
    assert found == set(names(graph))


def test_no_flipped_bit_of_samples_gets_into_what_is_packed(graph: Path, tmp_path: Path) -> None:
    sample(graph, tmp_path / "samples", **SETTINGS)
    pack(graph, tmp_path / "samples", tmp_path / "whole", **CACHES)
    expected, random = open_artifact(tmp_path / "whole").digest, np.random.default_rng(2)
    for name in names(tmp_path / "samples"):
        for flip_number in range(FLIPS_PER_FILE):
            shutil.rmtree(tmp_path / "flipped", ignore_errors=True)
            shutil.copytree(tmp_path / "samples", tmp_path / "flipped")
            what, out = flip(tmp_path / "flipped" / name, random), tmp_path / f"{name}-{flip_number}"
            try:
                pack(graph, tmp_path / "flipped", out, **CACHES)
            except ArtifactError as error:
                assert name in str(error) or name == "manifest.json", what  # noqa: PT017
            else:
                assert verify_artifact(out).digest == expected, what


class Killed(BaseException):
    """Nobody handles it."""


def committed(staging: Path) -> list[Path]:
    """The shards that the journal names."""
    lines = (staging / "journal.jsonl").read_text().splitlines()[1:]
    return [staging / json.loads(line[9:])["file"] for line in lines]


def sample_in_shards(graph: Path, out: Path) -> str:
    plan = SamplingPlan(Graph.open(graph), SamplingSpec([3, 2], 1, 2))
    sample_plan(plan, out, Resources.of(threads=1), shard_minibatches=5)
    return verify_artifact(out).digest


@pytest.mark.parametrize("point", ["unit.written", "work.unit"])
def test_a_shard_that_the_journal_does_not_know_is_not_adopted(graph: Path, tmp_path: Path, point: str) -> None:
    killed = faults.armed(point, Killed(), after=2), faults.pretending("unit.bytes", 1)
    with killed[0], killed[1], pytest.raises(Killed):
        sample_in_shards(graph, tmp_path / "killed")
    shards = committed(tmp_path / ".killed.partial")
    assert len(shards) == 2
    stranger = tmp_path / ".killed.partial" / "train-0000-00002.arrow"
    stranger.write_bytes(shards[0].read_bytes())  # whole, and another one's
    assert sample_in_shards(graph, tmp_path / "killed") == sample_in_shards(graph, tmp_path / "whole")
