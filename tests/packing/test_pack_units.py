"""Packing that is killed: the next run goes on with whole units, and no byte changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import make_graph

from diskgnn.files import faults
from diskgnn.files.destination import staging_of
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.packing.pack import pack_request, place_request
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.row_sets import features_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.progress.reporter import SILENT, Advance, Reporter
from diskgnn.sampling.sample import sample
from diskgnn.specs.caches import CacheSpec
from diskgnn.specs.targets import NodeTarget
from diskgnn.system.resources import Resources

WINDOW_BYTES = 16 << 10
UNIT_BYTES = 1 << 10  # so that a stage has as many units as it has if it takes long


class Killed(BaseException):
    """Nobody handles it."""


class Packing:
    """What is packed, again and again."""

    def __init__(self, folder: Path, graph: Graph, **sampling: object) -> None:
        self.folder, self.graph = folder, graph
        sample(graph, folder / "samples", threads=1, **sampling)
        self.samples = Samples.open(folder / "samples")
        self.pack(folder / "whole", unit_bytes=None)
        self.digest = verify_artifact(folder / "whole").digest

    def request(self, cpu_cache: str = "20%", **given: Any) -> PackRequest:
        """What is to be packed."""
        cache = CacheSpec(cpu_cache, "10%", None)
        tiers = TierBudgets.of(cache, features_of(self.graph, self.samples.config), Resources(1 << 30, 1))
        return PackRequest(self.graph, self.samples, tiers, **given)

    def pack(self, out: Path, *, cpu_cache: str = "20%", unit_bytes: int | None = UNIT_BYTES, once: bool = False,
             reporter: Reporter = SILENT, window_bytes: int = WINDOW_BYTES,
             memory_bytes: int = 1 << 30) -> None:  # fmt: skip
        request, resources = self.request(cpu_cache, once=once), Resources(memory_bytes, 2, reporter)
        of_unit = faults.pretending("unit.bytes", unit_bytes) if unit_bytes else nullcontext()
        with of_unit, faults.pretending("window.bytes", window_bytes):
            pack_request(request, out, resources)


@pytest.fixture(scope="module")
def one_type(tmp_path_factory: pytest.TempPathFactory) -> Packing:
    folder = tmp_path_factory.mktemp("units")
    graph = make_graph(folder / "graph", num_nodes=900, width=300, splits={"train": 300, "valid": 60}, in_degree=4)
    return Packing(folder, graph, fanouts=[3, 3], batch_size=8, epochs=2)


@pytest.fixture(scope="module")
def several_types(tmp_path_factory: pytest.TempPathFactory) -> Packing:
    """Three row sets, one of them of edges; extents without rows of some of them."""
    folder, rng = tmp_path_factory.mktemp("units"), np.random.default_rng(0)
    papers, authors, edges = 500, 300, 700
    convert(folder / "graph", schema={
        "nodes": {
            "paper": {"features": rng.random((papers, 150), np.float32), "labels": rng.integers(0, 3, papers),
                      "train": np.arange(200), "valid": np.arange(200, 230)},
            "author": {"features": rng.random((authors, 99), np.float32)},
        },
        "edges": {
            "author:writes:paper": {"edges": np.stack([rng.integers(0, authors, edges), rng.integers(0, 300, edges)]),
                                    "features": rng.random((edges, 40), np.float32)},
            "paper:cites:paper": {"edges": rng.integers(0, papers, (900, 2))},
        },
    })  # fmt: skip
    graph = Graph.open(folder / "graph")
    return Packing(folder, graph, fanouts=[3, 2], batch_size=4, target=NodeTarget("paper"))


@pytest.fixture(params=["one_type", "several_types"])
def packing(request: pytest.FixtureRequest) -> Packing:
    return request.getfixturevalue(request.param)


class Passes:
    """Counts passes of a point, and kills at one of them."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.count, self._kill_after = 0, kill_after

    def __call__(self) -> None:
        if self.count == self._kill_after:
            raise Killed
        self.count += 1


def test_what_somebody_put_behind_static_rows_is_cut_off(one_type: Packing, tmp_path: Path) -> None:
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=10):
        one_type.pack(tmp_path / "packed")
    (static,) = staging_of(tmp_path / "packed").glob("static-*.npy")
    with static.open("ab") as file:
        file.write(bytes(3000))
    one_type.pack(tmp_path / "packed")
    assert verify_artifact(tmp_path / "packed").digest == one_type.digest


def test_a_static_tier_that_is_chosen_stays_chosen(one_type: Packing, tmp_path: Path) -> None:
    """Free memory of the GPU decided at first; a run that goes on finds less of it."""

    def pack_auto(out: Path, free_bytes: int) -> None:
        with faults.pretending("gpu.free", free_bytes):
            features = features_of(one_type.graph, one_type.samples.config)
            tiers = TierBudgets.of(CacheSpec("20%"), features, Resources(1 << 30, 1))
        request = PackRequest(one_type.graph, one_type.samples, tiers)
        with faults.pretending("unit.bytes", UNIT_BYTES), faults.pretending("window.bytes", WINDOW_BYTES):
            pack_request(request, out, Resources.of("1GiB", 1))

    pack_auto(tmp_path / "whole", 200_000)
    pack_auto(tmp_path / "other", 20_000)
    assert verify_artifact(tmp_path / "whole").digest != verify_artifact(tmp_path / "other").digest
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=10):
        pack_auto(tmp_path / "killed", 200_000)
    headers = Passes()
    with faults.armed("pack.header", headers):
        pack_auto(tmp_path / "killed", 20_000)
    assert headers.count == 0
    assert verify_artifact(tmp_path / "killed").digest == verify_artifact(tmp_path / "whole").digest


@pytest.mark.parametrize("is_damaged", [False, True])
def test_what_one_process_places_another_packs(packing: Packing, tmp_path: Path, is_damaged: bool) -> None:
    """With static rows that others have chosen; and all is placed again if what is there is not what was written."""
    names = [row_set.config.name for row_set in packing.request().row_sets]
    request, resources = (
        packing.request(static_nodes={name: np.array([7, 3, 90]) for name in names}),
        Resources.of("1GiB"),
    )
    pack_request(request, tmp_path / "whole", resources)
    out, headers = tmp_path / "packed", Passes()
    assert place_request(request, out, resources).written_bytes == 0
    assert not out.exists()
    if is_damaged:
        with (staging_of(out) / "train.bin").open("r+b") as file:
            file.write(b"else")
    with faults.armed("pack.header", headers):
        pack_request(request, out, resources)
    assert (headers.count > 0) == is_damaged
    assert verify_artifact(out).digest == verify_artifact(tmp_path / "whole").digest != packing.digest
    packed = Packed.open(out)
    assert all(packed.static_nodes(name).tolist() == [7, 3, 90] for name in names)


def test_a_kill_while_placing_costs_the_split(one_type: Packing, tmp_path: Path) -> None:
    sizes = one_type.samples.config.splits
    train, valid = (sizes[split].num_batches for split in ("train", "valid"))
    for after, expected in ((3, train + valid), (train - 1, train + valid), (train + 2, valid)):
        again, out = Passes(), tmp_path / f"killed-{after}"
        with pytest.raises(Killed), faults.armed("pack.header", Killed(), after=after):
            one_type.pack(out)
        with faults.armed("pack.header", again):
            one_type.pack(out)
        assert again.count == expected
        assert verify_artifact(out).digest == one_type.digest


def test_other_settings_begin_anew(one_type: Packing, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=20):
        one_type.pack(out)
    headers = Passes()
    with faults.armed("pack.header", headers):
        one_type.pack(out, cpu_cache="5%")
    assert headers.count == sum(size.num_batches for size in one_type.samples.config.splits.values())
    one_type.pack(tmp_path / "expected", cpu_cache="5%", unit_bytes=None)
    assert verify_artifact(out).digest == verify_artifact(tmp_path / "expected").digest


def test_what_is_small_or_played_once_is_not_recorded(one_type: Packing, tmp_path: Path) -> None:
    """A record would take longer than what it saves; and a window of fresh epochs is not gone on with."""
    with faults.armed("unit.written", Killed()):
        one_type.pack(tmp_path / "small", unit_bytes=None)
        one_type.pack(tmp_path / "once", once=True)
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=20):
        one_type.pack(tmp_path / "killed", unit_bytes=None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once", "small"]


class _Advances:
    """Adds up what a stage says it did."""

    def __init__(self) -> None:
        self.done, self.total = dict[str, int](), dict[str, int]()

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        self.total[description], self.done[description] = total, 0

        def advance(count: int) -> None:
            self.done[description] += count

        yield advance


def test_progress_counts_what_was_there(packing: Packing, tmp_path: Path) -> None:
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=12):
        packing.pack(tmp_path / "out")
    advances = _Advances()
    packing.pack(tmp_path / "out", reporter=advances)
    assert advances.done == advances.total


def test_a_disk_that_ran_full_and_has_room_again(one_type: Packing, tmp_path: Path) -> None:
    """What is on it counts as free: the same command is not refused for space that it has taken itself."""
    out = tmp_path / "out"
    with pytest.raises(Killed), faults.armed("pack.window", Killed(), after=20):
        one_type.pack(out)
    staging = tmp_path / ".out.partial"
    taken = sum(path.stat().st_blocks * 512 for path in staging.iterdir())
    total = verify_artifact(one_type.folder / "whole").total_bytes
    with faults.pretending("disk.free", max(0, total - taken) + (200 << 10)):
        one_type.pack(out)
    assert verify_artifact(out).digest == one_type.digest
