"""What edges carry, killed on its way: the next run goes on with whole units, and no byte changes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from diskgnn.files import faults
from diskgnn.formats import artifacts
from diskgnn.graph.csc import EdgeList, EdgeOptions, write_csc
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.graph.edge_records import EdgeColumn
from diskgnn.progress.reporter import SILENT
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter

TYPE, NODES, EDGES, CHUNK = ("user", "rates", "item"), 500, 12_000, 400
SMALL, LARGE = 250_000, 16 << 20  # of memory: edges in a scratch file, or held
SRC, DST = np.random.default_rng(0).integers(0, NODES, (2, EDGES)).astype(np.int32)
ITEMS = {
    artifacts.EDGE_IDS: np.arange(EDGES),
    artifacts.WEIGHTS: np.random.default_rng(1).random(EDGES, np.float32) + 1,
    artifacts.EDGE_FEATURES: np.random.default_rng(2).random((EDGES, 9), np.float32),
}


class Killed(BaseException):
    """Nobody handles it."""


class Source:
    """Edges and their items, from any on, in chunks; counts those that it gave."""

    def __init__(self, chunk: int = CHUNK) -> None:
        self.chunk, self.edges, self.items = chunk, 0, 0

    def edges_from(self, first: int = 0) -> Iterator[EdgeChunk]:
        for start in range(first, EDGES, self.chunk):
            self.edges += len(SRC[start : start + self.chunk])
            yield SRC[start : start + self.chunk], DST[start : start + self.chunk]

    def items_from(self, kind: str, first: int) -> Iterator[np.ndarray]:
        for start in range(first, EDGES, 70):
            part = ITEMS[kind][start : start + 70]
            self.items += len(part)
            yield part


def write(out: Path, memory_bytes: int, source: Source, *, reverse: bool = False, unit_bytes: int = 1) -> None:
    columns = tuple(
        EdgeColumn(kind, kind, array.dtype, array.shape[1:], partial(source.items_from, kind))
        for kind, array in ITEMS.items()
    )
    given = EdgeList(TYPE, source.edges_from, NODES, NODES, EdgeOptions(reverse), columns, EDGES,
                     seek=source.edges_from)  # fmt: skip
    with (
        faults.pretending("unit.bytes", unit_bytes),
        ArtifactWriter(out, artifacts.GRAPH, config={}, resumable=True) as writer,
    ):
        write_csc(writer, given, Resources(memory_bytes, 2, SILENT))
        writer.publish()


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module", params=[False, True], ids=["forward", "both"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, dict[str, bytes]]:
    """`tests/graph/test_edge_records.py` has the oracle of what is written."""
    out = tmp_path_factory.mktemp("whole") / "graph"
    write(out, SMALL, Source(), reverse=request.param)
    return request.param, content(out)


@pytest.mark.parametrize("after", [20, 45, 75])
def test_a_kill_has_nothing_read_again(whole: tuple[bool, dict[str, bytes]], tmp_path: Path, after: int) -> None:
    reverse, expected = whole
    out, source = tmp_path / "killed", Source()
    with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
        write(out, SMALL, source, reverse=reverse)
    write(out, SMALL, source, reverse=reverse)
    assert content(out) == expected
    assert source.items <= len(ITEMS) * (EDGES + 2 * CHUNK), source.items
    assert source.edges <= 2 * EDGES + 2 * CHUNK, source.edges


@pytest.mark.parametrize("memory_bytes", [SMALL, LARGE])
def test_short_chunks_make_no_more_pieces(
    whole: tuple[bool, dict[str, bytes]], tmp_path: Path, memory_bytes: int
) -> None:
    """Pieces are read one by one, so a source that comes in crumbs would make a disk seek for each."""
    reverse, expected = whole
    pieces = []
    for chunk in (EDGES, 10):
        passes: list[int] = []
        with faults.armed("shuffle.write", lambda passes=passes: passes.append(1)):
            write(tmp_path / "graph", memory_bytes, Source(chunk), reverse=reverse, unit_bytes=1 << 30)
        assert content(tmp_path / "graph") == expected
        shutil.rmtree(tmp_path / "graph")
        pieces.append(len(passes))
    assert pieces[1] <= 1.1 * pieces[0]
