"""verify lists all that is damaged, and repair makes just that again, equal to the byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from commands import run
from graphs import FEATURES, INDPTR, make_graph
from small_artifacts import names
from typed_batches import TypedGraph
from typed_directories import write_typed_graph

from diskgnn.errors import ArtifactError, BusyError, ConfigError
from diskgnn.files import faults
from diskgnn.files.locks import FileLock
from diskgnn.formats.packed import Packed
from diskgnn.formats.verification import Damage, find_damage, verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.packing.pack import pack
from diskgnn.preparing.prepare import prepare
from diskgnn.preparing.repair import repair
from diskgnn.sampling.sample import sample
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources

RESOURCES = Resources(1 << 30, threads=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """graph/, samples/ and packed/; the test split needs fewer cpu rows than there is room for."""
    folder = tmp_path_factory.mktemp("repair")
    graph = make_graph(folder / "graph", splits={"train": 57, "valid": 21, "test": 2})
    sample(graph, folder / "samples", fanouts=[3, 2], eval_fanouts=[2, 2], batch_size=2, epochs=3, seed=9)
    pack(graph, folder / "samples", folder / "packed", cpu_cache="20%", static_cache="5%", eval_cpu_cache="12%",
         keep_input_nodes=True)  # fmt: skip
    slots = {split: size.cpu_rows for split, size in Packed.open(folder / "packed").config.splits.items()}
    assert slots["test"] < slots["valid"] < slots["train"]
    return folder


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 16
    path.write_bytes(content)


def cut(path: Path, _: int) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def remove(path: Path, _: int) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [flip, cut, remove])
def test_every_file_is_repaired(made: Path, damaged: Path, damage: Callable[[Path, int], None]) -> None:
    """All of them at once; the manifest alone is needed."""
    for name in ("samples", "packed"):
        broken = [file for file in names(damaged / name) if file != "manifest.json"]
        for file in broken:
            damage(damaged / name / file, (damaged / name / file).stat().st_size // 2)
        found = repair(damaged / name, graph=damaged / "graph", samples=None, resources=RESOURCES)
        assert sorted(each.file for each in found) == broken
        assert files(damaged / name) == files(made / name)
    assert names(damaged) == ["graph", "packed", "samples"]


def test_only_what_is_damaged_is_replaced(made: Path, damaged: Path) -> None:
    flip(damaged / "samples" / "train-0001-00000.arrow", 500)
    flip(damaged / "packed" / "static-node.npy", 200)
    before = {path: path.stat().st_ino for name in ("samples", "packed") for path in (damaged / name).iterdir()}
    for name in ("samples", "packed"):
        repair(damaged / name, graph=damaged / "graph", resources=RESOURCES)
        assert files(damaged / name) == files(made / name)
    changed = {path.name for path, inode in before.items() if path.stat().st_ino != inode}
    assert changed == {"train-0001-00000.arrow", "static-node.npy"}


def test_damaged_extents_are_named_and_written_over_in_place(made: Path, damaged: Path) -> None:
    """A header, a row, what fills up after the header, and what fills up after the rows."""
    path, packed = damaged / "packed" / "train.bin", Packed.open(damaged / "packed")
    index = packed.index("train")
    offsets, headers = index.extents["offset"], index.extents["header_bytes"]
    rows_offsets, num_rows = index.rows["rows_offset"][:, 0], index.rows["num_rows"][:, 0]
    with_rows = np.flatnonzero(num_rows)
    padded = np.flatnonzero(headers < rows_offsets)
    places = {
        1: offsets[1] + 8,
        int(with_rows[5]): offsets[with_rows[5]] + rows_offsets[with_rows[5]],
        7: offsets[8] - 1,
    }
    if len(padded):
        places[int(padded[-1])] = offsets[padded[-1]] + headers[padded[-1]]
    assert rows_offsets[7] + num_rows[7] * index.row_bytes[0] < offsets[8] - offsets[7]
    for position in places.values():
        flip(path, int(position))
    _, found = find_damage(damaged / "packed")
    assert [(damage.file, damage.extents) for damage in found] == [("train.bin", tuple(sorted(places)))]
    inode = path.stat().st_ino
    assert (
        repair(damaged / "packed", graph=damaged / "graph", samples=damaged / "samples", resources=RESOURCES) == found
    )
    assert files(damaged / "packed") == files(made / "packed")
    assert path.stat().st_ino == inode


def damage_rows(folder: Path, split: str, number: int, row_set: int) -> bool:
    """Flip a bit in the rows of an extent, if it has some."""
    index = Packed.open(folder).index(split)
    record, start = index.rows[number, row_set], int(index.extents["offset"][number])
    if not record["num_rows"]:
        return False
    flip(
        folder / f"{split}.bin", start + int(record["rows_offset"] + record["num_rows"] * index.row_bytes[row_set] - 1)
    )
    return True


class Made(BaseException):
    """Something was made that should not be."""


@contextmanager
def nothing_else_is_made() -> Iterator[None]:
    """No shard of samples, no header, no window of all rows."""
    with ExitStack() as armed:
        for point in ("sample.minibatch", "pack.header", "pack.window", "pack.rows"):
            armed.enter_context(faults.armed(point, Made()))
        yield


@pytest.mark.parametrize("given", [None, "samples"])
@pytest.mark.parametrize("memory", [1 << 30, 1])  # topology that is loaded, and that is swept
def test_rows_are_made_again_from_their_minibatches_alone(
    made: Path, damaged: Path, given: str | None, memory: int
) -> None:
    packed = damaged / "packed"
    expected = {
        f"{split}.bin": tuple(number for number in numbers if damage_rows(packed, split, number, 0))
        for split, numbers in (("train", (3, 4, 40, 77)), ("valid", (0, 10)))
    }
    assert sum(map(len, expected.values())) > 3
    last = len(Packed.open(packed).index("train")) - 1
    flip(packed / "train.bin", (packed / "train.bin").stat().st_size - 1)  # what fills up the last extent
    expected["train.bin"] = (*expected["train.bin"], *({last} - {*expected["train.bin"]}))
    with nothing_else_is_made():
        found = repair(
            packed, graph=damaged / "graph", samples=given and damaged / given, resources=Resources(memory, threads=2)
        )
    assert {damage.file: damage.extents for damage in found} == expected
    assert files(packed) == files(made / "packed")
    assert names(damaged) == ["graph", "packed", "samples"]


def test_rows_of_several_types_and_of_edges_are_made_again(tmp_path: Path) -> None:
    rng, papers, authors, edges = np.random.default_rng(0), 120, 60, 400
    writes = np.stack([rng.integers(0, authors, edges), rng.integers(0, papers, edges)])
    convert(tmp_path / "graph", schema={
        "nodes": {
            "paper": {"features": rng.random((papers, 9), np.float32), "labels": rng.integers(0, 3, papers),
                      "times": rng.integers(0, 9, papers), "train": np.arange(60)},
            "author": {"features": rng.random((authors, 5), np.float32)},
        },
        "edges": {
            "author:writes:paper": {"edges": writes, "features": rng.random((edges, 3), np.float32), "reverse": True},
            "paper:cites:paper": {"edges": rng.integers(0, papers, (300, 2))},
        },
    })  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    for temporal in ("ignore", "uniform"):  # with trees, nodes repeat
        folder = tmp_path / str(temporal)
        sample(graph, folder / "samples", fanouts=[3, 2], batch_size=4, epochs=2, target=NodeTarget("paper"),
               temporal=temporal)  # fmt: skip
        pack(graph, folder / "samples", folder / "packed", cpu_cache="20%", static_cache="5%")
        whole, packed = files(folder / "packed"), Packed.open(folder / "packed")
        row_sets = range(len(packed.config.row_sets))
        assert len(row_sets) > 2
        count = sum(damage_rows(packed.path, "train", 2 + row_set, row_set) for row_set in row_sets)
        assert count > 1
        with nothing_else_is_made():
            (damage,) = repair(packed.path, graph=graph, resources=RESOURCES)
        assert len(damage.extents) == count
        assert files(packed.path) == whole
        flip(packed.path / "train.bin", 8)  # a header
        repair(packed.path, graph=graph, resources=RESOURCES)
        assert files(packed.path) == whole


class Killed(BaseException):
    """Nobody handles it."""


class Headers:
    """Counts the headers that are written, or what else a point is."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def inodes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of several types. Budgets are divided for each split, so that splits have other slots for a type."""
    folder = tmp_path_factory.mktemp("typed")
    graph = write_typed_graph(folder / "graph", TypedGraph(3))
    sample(graph, folder / "samples", fanouts=[3, 2], batch_size=4, epochs=2, seed=1, target=NodeTarget("paper"))
    pack(graph, folder / "samples", folder / "packed", cpu_cache="30%", static_cache="5%", eval_cpu_cache="25%")
    splits = Packed.open(folder / "packed").config.splits
    assert [each.cpu_rows for each in splits["valid"].row_sets] != [each.cpu_rows for each in splits["test"].row_sets]
    return folder


@pytest.fixture(params=["made", "typed"])
def either(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def test_one_file_is_made_again_without_packing_the_others(either: Path, tmp_path: Path) -> None:
    """With samples and without; no header is written where none is damaged, and no file but the damaged one."""
    graph, packed, whole = Graph.open(either / "graph"), tmp_path / "packed", files(either / "packed")
    shutil.copytree(either / "packed", packed)
    for number, name in enumerate(sorted(name for name in whole if name.endswith(".npy"))):
        before, written = inodes(packed), Headers()
        flip(packed / name, len(whole[name]) - 1)
        with faults.armed("pack.header", written):
            repair(packed, graph=graph, samples=either / "samples" if number % 2 else None, resources=RESOURCES)
        assert files(packed) == whole
        assert written.count == 0
        assert {changed for changed, inode in inodes(packed).items() if inode != before[changed]} == {name}


def test_headers_are_made_again_one_by_one(either: Path, tmp_path: Path) -> None:
    """Those of two splits; then beside static rows, an index and what a cpu tier starts with."""
    graph, packed, whole = Graph.open(either / "graph"), tmp_path / "packed", files(either / "packed")
    shutil.copytree(either / "packed", packed)
    for others in ([], [name for name in whole if name.startswith(("static-", "test-index", "valid-initial"))]):
        expected, written, before = {}, Headers(), inodes(packed)
        for split, numbers in (("train", (1, 4, 5)), ("valid", (0,))):
            for extent in Packed.open(packed).index(split).extents[list(numbers)]:
                flip(packed / f"{split}.bin", int(extent["offset"] + extent["header_bytes"] - 1))
            expected[f"{split}.bin"] = numbers
        for name in others:
            flip(packed / name, len(whole[name]) - 1)
        with faults.armed("pack.header", written):
            found = repair(packed, graph=graph, resources=RESOURCES)
        assert {damage.file: damage.extents for damage in found} == expected | dict.fromkeys(others, ())
        assert files(packed) == whole
        assert written.count == 4
        assert {changed for changed, inode in inodes(packed).items() if inode != before[changed]} == set(others)


def test_a_lost_file_of_extents_is_packed_again_and_nothing_else(made: Path, damaged: Path) -> None:
    packed, written = damaged / "packed", Headers()
    remove(packed / "valid.bin", 0)
    before = inodes(packed)
    with faults.armed("pack.header", written):
        repair(packed, graph=damaged / "graph", resources=RESOURCES)
    assert written.count == len(Packed.open(packed).index("valid"))
    assert files(packed) == files(made / "packed")
    assert {name for name, inode in inodes(packed).items() if inode != before.get(name)} == {"valid.bin"}


@pytest.mark.parametrize("point", ["sample.minibatch", "pack.header", "pack.window", "repair.made"])
def test_a_repair_that_is_killed_loses_nothing(made: Path, damaged: Path, point: str) -> None:
    packed = damaged / "packed"
    flip(packed / "train.bin", 8)
    flip(packed / "static-node.npy", 300)
    flip(packed / "valid-rows.npy", 300)
    before = files(packed)
    with pytest.raises(Killed), faults.armed(point, Killed()):
        repair(packed, graph=damaged / "graph", resources=RESOURCES)
    whole = files(made / "packed")
    assert all(content in (before[name], whole[name]) for name, content in files(packed).items())
    repair(packed, graph=damaged / "graph", resources=RESOURCES)
    assert files(packed) == whole
    assert names(damaged) == ["graph", "packed", "samples"]


@pytest.mark.parametrize(
    "way", ["stopped while sampling", "stopped while packing", "damaged meanwhile", "manifest damaged meanwhile"]
)
def test_a_killed_repair_goes_on(made: Path, damaged: Path, way: str) -> None:
    """Minibatches are counted as they are sampled, headers as they are placed."""
    packed, graph = damaged / "packed", damaged / "graph"
    for name in ("train.bin", "valid-rows.npy", "test-index.npy"):
        flip(packed / name, 8)
    # A shard has 32 minibatches, of 87 + 11 + 1; one split, test, is replaced.
    point, after = ("sample.minibatch", 70) if way == "stopped while sampling" else ("repair.made", 1)
    killed = faults.armed(point, Killed(), after=after), faults.pretending("unit.bytes", 1)
    with pytest.raises(Killed), killed[0], killed[1]:
        repair(packed, graph=graph, resources=Resources(1 << 30, threads=1))
    if way == "damaged meanwhile":
        shard = damaged / ".packed.repair" / "samples" / "train-0000-00000.arrow"
        flip(shard, shard.stat().st_size // 2)
    if way == "manifest damaged meanwhile":
        flip(damaged / ".packed.repair" / "samples" / "manifest.json", 40)
    sampled, placed = Headers(), Headers()
    with faults.armed("sample.minibatch", sampled), faults.armed("repair.made", placed):
        repair(packed, graph=graph, resources=Resources(1 << 30, threads=1))
    assert files(packed) == files(made / "packed")
    assert names(damaged) == ["graph", "packed", "samples"]
    assert not list(damaged.glob(".*"))
    if way == "stopped while sampling":
        assert (0 < sampled.count <= 45, placed.count) == (True, 3)
    else:
        assert (sampled.count, placed.count) == (0 if way == "stopped while packing" else 87 + 11, 2)


def test_one_of_several_ranks_is_repaired(made: Path, tmp_path: Path) -> None:
    """Its static rows are those of all; which they are, another rank says."""
    prepare(made / "graph", tmp_path / "out", fanouts=[3, 2], batch_size=2, epochs=2, cpu_cache="20%",
            static_cache="5%", ranks=2)  # fmt: skip
    packed = tmp_path / "out" / "rank-1-of-2"
    whole = files(packed)
    for broken in (["static_nodes-node.npy"], [name for name in whole if name != "manifest.json"]):
        for name in broken:
            damage = flip if whole[name] else remove  # this rank has none of a small split
            damage(packed / name, len(whole[name]) - 1)
        repair(packed, graph=made / "graph", resources=RESOURCES)
        assert files(packed) == whole
    assert names(tmp_path / "out") == ["rank-0-of-2", "rank-1-of-2"]


def test_rows_that_cannot_be_made_again_are_left(damaged: Path) -> None:
    assert damage_rows(damaged / "packed", "train", 3, 0)
    flip(damaged / "graph" / FEATURES, 3000)
    before = files(damaged / "packed")
    with pytest.raises(ArtifactError, match=r"features-node\.npy is damaged"):
        repair(damaged / "packed", graph=damaged / "graph", resources=RESOURCES)
    assert files(damaged / "packed") == before
    assert names(damaged) == ["graph", "packed", "samples"]


def test_extents_are_not_named_without_an_index_that_says_where_they_are(damaged: Path) -> None:
    flip(damaged / "packed" / "train.bin", 5000)
    flip(damaged / "packed" / "train-index.npy", 300)
    _, found = find_damage(damaged / "packed")
    assert [(damage.file, damage.extents) for damage in found] == [("train-index.npy", ()), ("train.bin", ())]


def test_what_a_killed_repair_left_is_removed(damaged: Path) -> None:
    (damaged / ".packed.repair" / "samples").mkdir(parents=True)
    (damaged / ".packed.lock").touch()
    assert repair(damaged / "packed", graph=None, resources=RESOURCES) == []
    assert names(damaged) == ["graph", "packed", "samples"]


def test_what_is_whole_needs_no_graph(made: Path) -> None:
    assert repair(made / "packed", graph=None, resources=RESOURCES) == []
    assert find_damage(made / "packed")[1] == []


def test_what_cannot_be_repaired_is_said_and_left_as_it_is(made: Path, damaged: Path, tmp_path: Path) -> None:
    other = make_graph(tmp_path / "other", seed=1).manifest.path
    sample(made / "graph", tmp_path / "samples", fanouts=[3, 2], batch_size=2, epochs=1)
    for name, file in (("graph", INDPTR), ("samples", "train-0000-00000.arrow"), ("packed", "train.bin")):
        flip(damaged / name / file, 300)
    before = files(damaged / "samples") | files(damaged / "packed")

    def refused(error: type[Exception], message: str, name: str, **arguments: Path | None) -> None:
        with pytest.raises(error, match=message):
            repair(damaged / name, **{"graph": made / "graph", **arguments}, resources=RESOURCES)

    refused(ArtifactError, r"indptr.*cannot be repaired: `diskgnn convert` it again", "graph")
    refused(ConfigError, "graph: expected the graph", "samples", graph=None)
    refused(ArtifactError, "was made from", "samples", graph=other)
    refused(ArtifactError, "another graph", "packed", graph=other)
    refused(ArtifactError, "was made from", "packed", samples=tmp_path / "samples")
    refused(ArtifactError, f"{INDPTR} is damaged", "samples", graph=damaged / "graph")
    refused(ArtifactError, r"00000\.arrow is damaged", "packed", samples=damaged / "samples")
    lock = FileLock(damaged / ".packed.lock")
    assert lock.acquire()
    refused(BusyError, "another process is writing", "packed")
    lock.release()
    assert files(damaged / "samples") | files(damaged / "packed") == before
    assert names(damaged) == ["graph", "packed", "samples"]


# diskgnn verify


def test_verify_lists_all_that_is_damaged(damaged: Path) -> None:
    index = Packed.open(damaged / "packed").index("train")
    for number in (2, 5):
        flip(damaged / "packed" / "train.bin", int(index.extents["offset"][number]) + 9)
    flip(damaged / "packed" / "static-node.npy", 200)
    remove(damaged / "packed" / "valid-wrap-node.npy", 0)
    told = run("verify", damaged / "packed", exit_code=4)
    assert told.stdout == ""
    assert "train.bin is damaged in 2 of its extents: 2, 5; repair it with `diskgnn verify " in told.stderr
    assert told.stderr.count(f"`diskgnn verify {damaged / 'packed'} --repair --graph GRAPH`") == 3
    assert "static-node.npy is damaged" in told.stderr
    assert "valid-wrap-node.npy, a part of" in told.stderr
    document = json.loads(run("verify", damaged / "packed", "--json", exit_code=4).stdout)
    assert {damage["file"]: damage["extents"] for damage in document["damaged"]} == {
        "train.bin": [2, 5], "static-node.npy": [], "valid-wrap-node.npy": [],
    }  # fmt: skip
    assert (document["error"]["kind"], document["error"]["exit_code"]) == ("DamagedError", 4)


def test_verify_repairs(made: Path, damaged: Path) -> None:
    flip(damaged / "packed" / "valid-initial-node.npy", 200)
    told = run("verify", damaged / "packed", "--repair", exit_code=2)
    assert "--graph: expected the graph" in told.stderr
    told = run("verify", damaged / "packed", "--repair", "--graph", damaged / "graph")
    assert "made again: valid-initial-node.npy" in told.stdout
    assert "is whole" in told.stdout
    assert files(damaged / "packed") == files(made / "packed")
    document = json.loads(run("verify", damaged / "packed", "--repair", "--json").stdout)
    assert document["damaged"] == document["repaired"] == []


def test_typed_directories_are_repaired(typed: Path, tmp_path: Path) -> None:
    shutil.copytree(typed / "packed", tmp_path / "packed")
    whole = files(typed / "packed")
    for name in [name for name in whole if name.endswith((".bin", ".npy")) and len(whole[name]) > 200]:
        flip(tmp_path / "packed" / name, len(whole[name]) - 1)
    repair(tmp_path / "packed", graph=typed / "graph", samples=typed / "samples", resources=RESOURCES)
    assert files(tmp_path / "packed") == whole


def test_damage_is_what_it_says(damaged: Path) -> None:
    flip(damaged / "packed" / "static-node.npy", 200)
    (found,) = find_damage(damaged / "packed")[1]
    assert isinstance(found, Damage)
    with pytest.raises(ArtifactError, match=r"1 of \d+ files of .* are damaged: .*static-node\.npy"):
        verify_artifact(damaged / "packed")
