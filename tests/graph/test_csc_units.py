"""Sorting edges that is killed: the next run goes on with whole units of each pass, and no byte changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from diskgnn.files import faults
from diskgnn.formats.artifacts import GRAPH, INDICES, INDPTR, edge_file
from diskgnn.graph.csc import EdgeList, EdgeOptions, write_csc
from diskgnn.graph.edge_buckets import EdgeChunk
from diskgnn.progress.reporter import SILENT
from diskgnn.specs.schema import ONE_EDGE_TYPE
from diskgnn.system.resources import Resources
from diskgnn.work.writer import ArtifactWriter

NODES, EDGES, CHUNK = 3000, 60_000, 2000
SMALL = 400_000  # of memory: with scratch
SRC, DST = np.random.default_rng(0).integers(0, NODES, (2, EDGES)).astype(np.int32)


class Killed(BaseException):
    """Nobody handles it."""


class Edges:
    """The edges, from any on; counts those that it gave."""

    def __init__(self) -> None:
        self.given = 0

    def __call__(self, first: int = 0) -> Iterator[EdgeChunk]:
        for start in range(first, EDGES, CHUNK):
            self.given += len(SRC[start : start + CHUNK])
            yield SRC[start : start + CHUNK], DST[start : start + CHUNK]


def sort(
    out: Path, memory_bytes: int, *, drop_duplicates: bool, seeks: bool = True, source: Edges | None = None
) -> int:
    """Edges that the source was asked for."""
    source = source or Edges()
    given = EdgeList(
        ONE_EDGE_TYPE, source, NODES, NODES, EdgeOptions(drop_duplicates=drop_duplicates), num_input_edges=EDGES,
        seek=source if seeks else None,
    )  # fmt: skip
    with (
        faults.pretending("unit.bytes", 1),
        ArtifactWriter(out, GRAPH, config={}, resumable=True) as writer,
    ):
        write_csc(writer, given, Resources(memory_bytes, 2, SILENT))
        writer.publish()
    return source.given


def content(out: Path) -> list[bytes]:
    return [(out / edge_file(kind, ONE_EDGE_TYPE)).read_bytes() for kind in (INDPTR, INDICES)]


@pytest.fixture(scope="module", params=[False, True], ids=["all", "distinct"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, list[bytes]]:
    out = tmp_path_factory.mktemp("whole") / "graph"
    assert sort(out, SMALL, drop_duplicates=request.param) == 2 * EDGES
    found = np.load(out / edge_file(INDPTR, ONE_EDGE_TYPE))
    oracle = scipy.sparse.csc_array((np.ones(EDGES, np.int64), (SRC, DST)), (NODES, NODES))
    oracle.sum_duplicates()
    degrees = np.diff(oracle.indptr) if request.param else np.bincount(DST, minlength=NODES)
    np.testing.assert_array_equal(np.diff(found), degrees)
    return request.param, content(out)


@pytest.mark.parametrize("after", [7, 50, 61])  # edges are counted, scattered, sorted
def test_a_kill_has_no_edges_read_again(whole: tuple[bool, list[bytes]], tmp_path: Path, after: int) -> None:
    distinct, expected = whole
    source = Edges()
    with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
        sort(tmp_path / "killed", SMALL, drop_duplicates=distinct, source=source)
    first = source.given
    again = sort(tmp_path / "killed", SMALL, drop_duplicates=distinct)
    # Every piece is committed here, so no more than one chunk is read again: that which was not, or one too early.
    assert first + again <= 2 * EDGES + 2 * CHUNK, (after, first, again)
    assert content(tmp_path / "killed") == expected


def test_a_source_that_cannot_seek_is_read_from_its_beginning(whole: tuple[bool, list[bytes]], tmp_path: Path) -> None:
    distinct, expected = whole
    with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=EDGES // CHUNK + 9):
        sort(tmp_path / "killed", SMALL, drop_duplicates=distinct)
    sort(tmp_path / "killed", SMALL, drop_duplicates=distinct, seeks=False)
    assert content(tmp_path / "killed") == expected
