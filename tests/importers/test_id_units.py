"""Replacing the user's ids, killed anywhere: the next run goes on with whole units, and no byte changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import EdgeInput, GraphInput, NodeInput, TableColumns, convert
from diskgnn.importers.ids import lookups, sampling_ids
from diskgnn.storage import faults
from diskgnn.storage.disk_space import allocated_bytes

pytestmark = pytest.mark.in_memory

USERS, BUYS, POINTS = 700, 9000, ("ids.spill", "ids.join", "unit.written", "work.piece")


class Killed(BaseException):
    """Nobody handles it."""


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> GraphInput:
    """Users are listed by strings, items are those that edges mention; some users have a label, by id."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    users = pa.array([f"user-{n:x}" for n in rng.permutation(1 << 20)[:USERS]])
    items = pa.array([f"item/{n}" for n in rng.permutation(1 << 20)[:300]])
    pq.write_table(pa.table({"id": users, "x": rng.random(USERS)}), folder / "users.parquet")
    ends = {"src": users.take(pa.array(rng.integers(0, USERS, BUYS))), "dst": items.take(rng.integers(0, 300, BUYS))}
    pq.write_table(pa.table({**ends, "weight": rng.random(BUYS) + 1}), folder / "buys.parquet", row_group_size=1000)
    labelled = users.take(pa.array(rng.permutation(USERS)[:400]))
    pq.write_table(pa.table({"id": labelled, "label": rng.integers(0, 3, 400)}), folder / "labels.parquet")
    pq.write_table(pa.table({name: column[:50] for name, column in ends.items()}), folder / "seeds.parquet")
    np.save(folder / "train.npy", labelled.slice(0, 60).to_numpy(zero_copy_only=False).astype(str))
    user = NodeInput(table=folder / "users.parquet", labels=folder / "labels.parquet", train=folder / "train.npy",
                     columns=TableColumns(features="x"))  # fmt: skip
    buys = EdgeInput(folder / "buys.parquet", columns=TableColumns(weight="weight"), reverse=True,
                     train=folder / "seeds.parquet")  # fmt: skip
    return GraphInput({"user": user, "item": NodeInput()}, {("user", "buys", "item"): buys})


@contextmanager
def in_units() -> Iterator[None]:
    """Small chunks, each of them a unit, and several ranges."""
    with ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setattr(sampling_ids, "_FIRST_CHUNK_IDS", 2000)
        patched.setattr(lookups, "NODES_AT_ONCE", 1000)
        stack.enter_context(faults.pretending("unit.bytes", 1))
        yield


def converted(out: Path, schema: GraphInput, memory: str = "1MiB") -> str:
    with in_units():
        convert(out, schema=schema, memory=memory, overwrite=True)
    return Graph.open(out).manifest.digest


@pytest.fixture(scope="module")
def whole(schema: GraphInput, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, int]]:
    """Digest of the graph, made without units; how often a run in units passes each point."""
    folder = tmp_path_factory.mktemp("whole")
    convert(folder / "graph", schema=schema)
    passes: dict[str, int] = {}
    with ExitStack() as stack:
        for point in POINTS:
            counted: Any = lambda point=point: passes.__setitem__(point, passes.get(point, 0) + 1)  # noqa: E731
            stack.enter_context(faults.armed(point, counted))
        digest = converted(folder / "units", schema)
    assert digest == Graph.open(folder / "graph").manifest.digest
    assert passes["ids.join"] > 4  # several ranges of both types
    return digest, passes


@pytest.mark.parametrize("point", POINTS)
def test_every_kill_costs_a_unit(
    schema: GraphInput, whole: tuple[str, dict[str, int]], tmp_path: Path, point: str
) -> None:
    digest, passes = whole
    for after in np.unique(np.linspace(0, passes[point] - 1, 5).astype(int)).tolist():
        with pytest.raises(Killed), in_units(), faults.armed(point, Killed(), after=after):
            convert(tmp_path / "graph", schema=schema, memory="1MiB")
        again: list[int] = []
        with faults.armed(point, lambda again=again: again.append(1)):
            assert converted(tmp_path / "graph", schema) == digest, after
        if point.startswith("ids"):  # of a spill for each chunk and end, and a range
            assert len(again) <= passes[point] - after + 2, (after, len(again), passes)
        assert [path.name for path in tmp_path.iterdir()] == ["graph"]
        shutil.rmtree(tmp_path / "graph")


@pytest.mark.parametrize(("first", "then"), [("1MiB", "300KiB"), ("300KiB", "4MiB")])
def test_another_budget_changes_no_byte(
    schema: GraphInput, whole: tuple[str, dict[str, int]], tmp_path: Path, first: str, then: str
) -> None:
    for point, after in (("ids.spill", 6), ("ids.join", 3)):
        with pytest.raises(Killed), in_units(), faults.armed(point, Killed(), after=after):
            convert(tmp_path / "graph", schema=schema, memory=first)
        assert converted(tmp_path / "graph", schema, then) == whole[0]
        shutil.rmtree(tmp_path / "graph")


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damaged_scratch_is_made_again(
    schema: GraphInput, whole: tuple[str, dict[str, int]], tmp_path: Path, how: str
) -> None:
    """Each file that was there, one at a time, after a kill in the join and one in the sorting."""
    for point, after in (("ids.join", 3), ("work.piece", 0)):
        with pytest.raises(Killed), in_units(), faults.armed(point, Killed(), after=after):
            convert(tmp_path / "graph", schema=schema, memory="1MiB")
        kept = tmp_path / "kept"
        (tmp_path / ".graph.partial").rename(kept)
        scratch = sorted(path for path in (kept / "ids.scratch").rglob("*") if path.is_file() and path.stat().st_size)
        for path in scratch[:: max(1, len(scratch) // 3)]:
            shutil.copytree(kept, tmp_path / ".graph.partial")
            damaged = tmp_path / ".graph.partial" / path.relative_to(kept)
            bits = bytearray(damaged.read_bytes())
            bits[len(bits) // 2] ^= 1
            damaged.unlink()
            if how != "gone":
                damaged.write_bytes(bits[: len(bits) // 2] if how == "cut" else bits)
            assert converted(tmp_path / "graph", schema) == whole[0], path
            shutil.rmtree(tmp_path / "graph")
        shutil.rmtree(kept)


@pytest.mark.parametrize("scratch", ["0/answers/*", "1/0"], ids=["answers", "dense"])
def test_what_is_damaged_after_the_join_gets_into_no_graph(tmp_path: Path, scratch: str) -> None:
    """The last id of a file, as soon as all are there; sources have names, destinations are rows."""
    rng = np.random.default_rng(1)
    names = pa.array([f"user-{n:x}" for n in rng.permutation(1 << 20)[:USERS]])
    pq.write_table(pa.table({"id": names}), tmp_path / "users.parquet")
    ends = {"src": names.take(pa.array(rng.integers(0, USERS, BUYS))), "dst": rng.integers(0, 300, BUYS)}
    pq.write_table(pa.table(ends), tmp_path / "buys.parquet")
    nodes = {"user": NodeInput(table=tmp_path / "users.parquet"), "item": NodeInput(num_nodes=300)}
    schema = GraphInput(nodes, {("user", "buys", "item"): EdgeInput(tmp_path / "buys.parquet")})
    convert(tmp_path / "whole", schema=schema)
    flipped: list[Path] = []

    def flip() -> None:
        found = sorted((tmp_path / ".graph.partial").glob(f"ids.scratch/*/1/{scratch}"))
        if not flipped and sum(path.stat().st_size for path in found) == 8 * BUYS:
            flipped.append(found[-1])
            bits = bytearray(found[-1].read_bytes())
            bits[-8] ^= 1
            found[-1].write_bytes(bits)

    with (
        pytest.raises(ArtifactError, match="run the same command again"),
        in_units(),
        faults.armed("unit.written", flip),
    ):
        convert(tmp_path / "graph", schema=schema, memory="1MiB")
    assert flipped
    assert not (tmp_path / "graph").exists()
    assert converted(tmp_path / "graph", schema) == Graph.open(tmp_path / "whole").manifest.digest


@pytest.mark.parametrize(("point", "after"), [("ids.spill", 9), ("ids.join", 4), ("unit.written", 12)])
def test_kill_9(tmp_path: Path, point: str, after: int) -> None:
    program = """
        import os, signal
        import numpy as np
        from diskgnn import convert
        from diskgnn.storage import faults
        ids = np.random.default_rng(0).permutation(9000).astype("U8")
        edges = ids[np.random.default_rng(1).integers(0, 9000, (2, 30000))]
        given = dict(edges=edges, ids=ids, features=np.ones((9000, 2), np.float32), labels=np.arange(9000) % 4,
                     train=ids[:100], memory="1MiB")
        held = faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0)
        with faults.pretending("unit.bytes", 1), held[0], held[1]:
            OUT
    """
    kill = f"with faults.armed({point!r}, lambda: os.kill(os.getpid(), signal.SIGKILL), after={after}): convert('out', "

    def run(what: str) -> int:
        text = textwrap.dedent(program).replace("OUT", what)
        return subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=False).returncode

    assert run(f"{kill}**given)") == -9
    assert allocated_bytes(tmp_path / ".out.partial") > 0
    assert run("convert('out', **given); given.pop('memory'); convert('whole', **given)") == 0
    assert Graph.open(tmp_path / "out").manifest.digest == Graph.open(tmp_path / "whole").manifest.digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "whole"]
