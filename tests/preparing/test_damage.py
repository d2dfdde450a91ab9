"""Damaged inputs: no flipped bit of a graph or of samples gets into a packed directory that verify calls whole."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path

import numpy as np
import pytest
from commands import run_python
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
from diskgnn.specs.targets import NodeTarget
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


# Damage between a kill and the next run

KILLED_WHILE_SAMPLING = textwrap.dedent("""
    import os, signal, sys
    from diskgnn.graph.graph import Graph
    from diskgnn.sampling.plan import SamplingPlan
    from diskgnn.sampling.sample import sample_plan
    from diskgnn.specs.sampling import SamplingSpec
    from diskgnn.files import faults
    from diskgnn.system.resources import Resources
    plan = SamplingPlan(Graph.open(sys.argv[1]), SamplingSpec([3, 2], 1, 2))
    killed = faults.armed(sys.argv[3], lambda: os.kill(os.getpid(), signal.SIGKILL), after=int(sys.argv[4]))
    with killed, faults.pretending("unit.bytes", 1):
        sample_plan(plan, sys.argv[2], Resources.of(threads=1), shard_minibatches=5)
""")


def kill_while_sampling(graph: Path, out: Path, point: str, after: int) -> None:
    died = run_python("-c", KILLED_WHILE_SAMPLING, graph, out, point, after)
    assert died.returncode < 0


def committed(staging: Path) -> list[Path]:
    """The shards that the journal names."""
    lines = (staging / "journal.jsonl").read_text().splitlines()[1:]
    return [staging / json.loads(line[9:])["file"] for line in lines]


def sample_in_shards(graph: Path, out: Path) -> str:
    plan = SamplingPlan(Graph.open(graph), SamplingSpec([3, 2], 1, 2))
    sample_plan(plan, out, Resources.of(threads=1), shard_minibatches=5)
    return verify_artifact(out).digest


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x").touch()


def flip_any(path: Path) -> None:
    flip(path, np.random.default_rng(3))


@pytest.mark.parametrize("damage", [flip_any, shorten, lengthen, empty, make_directory, Path.unlink])
def test_a_shard_damaged_between_a_kill_and_the_next_run_is_made_again(graph: Path, tmp_path: Path, damage) -> None:
    kill_while_sampling(graph, tmp_path / "killed", "unit.written", 4)
    staging = tmp_path / ".killed.partial"
    shards = committed(staging)
    assert len(shards) == 4
    untouched = {path.name: path.stat().st_ino for path in shards[:1] + shards[2:]}
    damage(shards[1])
    assert sample_in_shards(graph, tmp_path / "killed") == sample_in_shards(graph, tmp_path / "whole")
    kept = {path.name: path.stat().st_ino for path in (tmp_path / "killed").iterdir()}
    assert untouched.items() <= kept.items()  # only what was damaged was made again
    assert names(tmp_path) == ["killed", "whole"]


@pytest.mark.parametrize("point", ["unit.written", "work.unit"])
def test_a_shard_that_the_journal_does_not_know_is_not_adopted(graph: Path, tmp_path: Path, point: str) -> None:
    kill_while_sampling(graph, tmp_path / "killed", point, 2)
    shards = committed(tmp_path / ".killed.partial")
    assert len(shards) == 2
    stranger = tmp_path / ".killed.partial" / "train-0000-00002.arrow"
    stranger.write_bytes(shards[0].read_bytes())  # whole, and another one's
    assert sample_in_shards(graph, tmp_path / "killed") == sample_in_shards(graph, tmp_path / "whole")


@pytest.mark.parametrize("position", [0, 40, 200, -2])
def test_a_damaged_journal_costs_time_and_nothing_else(graph: Path, tmp_path: Path, position: int) -> None:
    kill_while_sampling(graph, tmp_path / "killed", "unit.written", 4)
    (journal,) = (tmp_path / ".killed.partial").glob("journal*")
    content = bytearray(journal.read_bytes())
    content[position] ^= 0x84  # no text any more
    journal.write_bytes(content)
    assert sample_in_shards(graph, tmp_path / "killed") == sample_in_shards(graph, tmp_path / "whole")


@pytest.mark.parametrize("damage", [flip_any, shorten, empty, Path.unlink])
def test_a_damaged_decision_is_made_again(graph: Path, tmp_path: Path, damage) -> None:
    """Which rows are static, where that follows from the machine: placing notes them."""
    caches = CACHES | {"static_cache": "auto"}
    sample(graph, tmp_path / "samples", **SETTINGS)
    pack(graph, tmp_path / "samples", tmp_path / "whole", **caches)
    killed = faults.armed("unit.written", KeyboardInterrupt(), after=1), faults.pretending("unit.bytes", 1)
    with killed[0], killed[1], pytest.raises(KeyboardInterrupt):
        pack(graph, tmp_path / "samples", tmp_path / "packed", **caches)
    notes = list((tmp_path / ".packed.partial").glob("pack.place-*.npz"))
    assert notes
    for note in notes:
        damage(note)
    pack(graph, tmp_path / "samples", tmp_path / "packed", **caches)
    assert verify_artifact(tmp_path / "packed").digest == verify_artifact(tmp_path / "whole").digest


@pytest.mark.parametrize("damage", [flip_any, shorten, empty, Path.unlink])
@pytest.mark.parametrize("name", ["train-0000-00000.arrow", "manifest.json", "seeds-train.npy"])
def test_scratch_samples_damaged_before_packing_goes_on_are_made_again(
    graph: Path, tmp_path: Path, name: str, damage
) -> None:
    settings = SETTINGS | CACHES
    if name == "seeds-train.npy":
        settings["target"] = NodeTarget("node", {"train": np.arange(40)})
    with faults.armed("pack.header", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        prepare(graph, tmp_path / "packed", **settings)
    damage(tmp_path / ".packed.preparing" / "samples" / name)
    prepare(graph, tmp_path / "packed", **settings)
    prepare(graph, tmp_path / "whole", **settings)
    assert verify_artifact(tmp_path / "packed").digest == verify_artifact(tmp_path / "whole").digest
    assert names(tmp_path) == ["packed", "whole"]
