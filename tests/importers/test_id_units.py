"""Replacing the user's ids, killed anywhere: the next run goes on with whole units, and no byte changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import ObjectStore

from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.formats.verification import find_damage
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import EdgeInput, GraphInput, NodeInput, TableColumns, convert
from diskgnn.importers.ids import id_ranges, sampling_ids
from diskgnn.importers.ids.id_ranges import IdSample
from diskgnn.stores.locations import located
from diskgnn.system.resources import Resources, SmallBudgetError

USERS, BUYS, POINTS = 700, 9000, ("shuffle.write", "work.piece", "unit.written")
STAGING = ".graph.partial"


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
        patched.setattr(id_ranges, "MOST_PART_IDS", 1000)
        stack.enter_context(faults.pretending("unit.bytes", 1))
        yield


def converted(out: Path, schema: GraphInput, memory: str = "1MiB") -> str:
    with in_units():
        convert(out, schema=schema, memory=memory, overwrite=True)
    return Graph.open(out).manifest.digest


@dataclass
class Whole:
    """A graph that nobody killed."""

    digest: str
    passes: dict[str, int]  # of each point, in units
    join: int  # pieces before the first range is joined
    sorting: int  # pieces before edges are


@pytest.fixture(scope="module")
def whole(schema: GraphInput, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    convert(folder / "graph", schema=schema)
    digest, passes, pieces = Graph.open(folder / "graph").manifest.digest, dict[str, int](), list[set[str]]()
    (folder / "units").mkdir()
    with ExitStack() as stack:
        for point in POINTS:
            counted: Any = lambda point=point: passes.__setitem__(point, passes.get(point, 0) + 1)  # noqa: E731
            if point == "work.piece":
                counted = lambda: pieces.append({path.name for path in (folder / "units" / STAGING).iterdir()})  # noqa: E731
            stack.enter_context(faults.armed(point, counted))
        assert converted(folder / "units" / "graph", schema) == digest
    passes["work.piece"] = len(pieces)
    begun = {kind: [any(name.startswith(kind) for name in names) for names in pieces]
             for kind in ("ids.join-", "edges-")}  # fmt: skip
    # What is noted shows that a step has begun one piece late.
    found = Whole(digest, passes, begun["ids.join-"].index(True) - 1, begun["edges-"].index(True) - 1)
    assert found.sorting - found.join > 4  # several ranges of both types
    return found


def harm(path: Path, how: str, place: float) -> None:
    bits = bytearray(path.read_bytes())
    where = int(place * max(0, len(bits) - 1))
    path.unlink()
    if how == "flipped" and bits:
        bits[where] ^= 1
    if how != "gone":
        path.write_bytes(bits[:where] if how == "cut" else bits + bytes(5000 * (how == "longer")))


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphInput, str]:
    """Sources have names, destinations are rows; and the digest of the graph."""
    folder, rng = tmp_path_factory.mktemp("named"), np.random.default_rng(1)
    names = pa.array([f"user-{n:x}" for n in rng.permutation(1 << 20)[:USERS]])
    pq.write_table(pa.table({"id": names}), folder / "users.parquet")
    ends = {"src": names.take(pa.array(rng.integers(0, USERS, BUYS))), "dst": rng.integers(0, 300, BUYS)}
    pq.write_table(pa.table(ends), folder / "buys.parquet")
    nodes = {"user": NodeInput(table=folder / "users.parquet"), "item": NodeInput(num_nodes=300)}
    schema = GraphInput(nodes, {("user", "buys", "item"): EdgeInput(folder / "buys.parquet")})
    convert(folder / "whole", schema=schema)
    return schema, Graph.open(folder / "whole").manifest.digest


LOGS = {"answers": 4 * BUYS, "ranges": 2 * BUYS, "nodes": 8 * BUYS}  # what each holds in the end, without links


@pytest.mark.parametrize("kind", list(LOGS))
@pytest.mark.parametrize("times", [1, 100])
def test_what_is_damaged_after_the_join_gets_into_no_graph(
    named: tuple[GraphInput, str], tmp_path: Path, kind: str, times: int
) -> None:
    """A disk that loses it once is made good at once; one that always does so is said to be one."""
    schema, digest = named
    left: list[bytes] = []

    def spoil() -> None:
        for path in (tmp_path / STAGING).glob(f"ids.*.{kind}"):
            found = path.read_bytes()
            if len(found) >= LOGS[kind] and len(left) < times and found not in left:
                harm(path, "flipped", 1)
                left.append(path.read_bytes())

    with faults.armed("work.piece", spoil):
        if times == 1:
            assert converted(tmp_path / "graph", schema) == digest
        else:
            with pytest.raises(ArtifactError, match="run the same command again"):
                converted(tmp_path / "graph", schema)
            assert not (tmp_path / "graph").exists()
    assert left
    assert converted(tmp_path / "graph", schema) == digest


@pytest.mark.parametrize("kind", ["files", "tables"])
def test_damage_is_made_good_when_files_were_sent(store: ObjectStore, tmp_path: Path, kind: str) -> None:
    """Those of the first type of edges are on the store, and those of the second follow; with a journal and without."""
    rng = np.random.default_rng(2)
    names, edges = pa.array([f"user-{n:x}" for n in rng.permutation(1 << 20)[:USERS]]), dict[str, Any]()
    for name in "ab":
        table = pa.table({end: names.take(pa.array(rng.integers(0, USERS, BUYS))) for end in ("src", "dst")})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        edges[f"user:{name}:user"] = {"edges": tmp_path / f"{name}.parquet" if kind == "files" else table}
    schema = {"nodes": {"user": {}}, "edges": edges}
    sent, spoilt = store.url(f"{tmp_path.name}/graph"), list[Path]()

    def spoil() -> None:
        for path in (tmp_path / "scratch").rglob("ids.spread-2.0.answers"):
            if path.stat().st_size > LOGS["answers"] and not spoilt:
                spoilt.append(path)
                harm(path, "flipped", 1)

    with in_units(), faults.armed("work.piece", spoil):
        convert(sent, schema=schema, memory="1MiB")
    assert spoilt
    convert(tmp_path / "graph", schema=schema)
    assert Graph.open(sent).manifest.digest == Graph.open(tmp_path / "graph").manifest.digest
    assert find_damage(located(sent))[1] == []


def test_ids_that_no_part_has_room_for_are_refused_with_a_budget_of_the_whole_process() -> None:
    sample = IdSample(pa.string())
    sample.add(pa.array([f"{number:040}" for number in range(100_000)]))
    with pytest.raises(SmallBudgetError, match="to join one part in 4096 of 100000 ids") as refused:
        sample.ranges(Resources(1000, 1, held_bytes=50 << 20))
    left = Resources(refused.value.least_bytes - (50 << 20), 1, held_bytes=50 << 20)
    assert sample.ranges(left).count <= 4096
