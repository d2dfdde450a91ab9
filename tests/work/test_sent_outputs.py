"""Outputs on a store: sent while they are made, in the room that there is, and gone on with after a kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from commands import run_python
from graphs import make_graph
from object_store import Fault, MostAllocated, ObjectStore, Request

import diskgnn
from diskgnn._native import crc32c
from diskgnn.errors import DiskFullError, OutputExistsError, StoreError
from diskgnn.files import faults
from diskgnn.files.destination import Destination, staging_of
from diskgnn.files.disk_space import DiskBudget, allocated_bytes
from diskgnn.formats.artifacts import MANIFEST, SAMPLES
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack_request
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.tiers import TierRows
from diskgnn.stores import remote_files
from diskgnn.stores.locations import located
from diskgnn.system.resources import Resources
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.fold import Output
from diskgnn.work.runner import UnitFiles, Work
from diskgnn.work.work_folder import State
from diskgnn.work.writer import ArtifactWriter

SAMPLE = {"fanouts": [4, 3], "batch_size": 4, "epochs": 2, "threads": 1}
PREPARE = {"fanouts": [4, 3], "batch_size": 32, "epochs": 2, "cpu_cache": "5%", "static_cache": "2%", "threads": 1}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    """6,000 nodes with rows of 512 bytes."""
    path = tmp_path_factory.mktemp("graph") / "graph"
    make_graph(path, num_nodes=6000, width=128, splits={"train": 1500, "valid": 150})
    return path


@pytest.fixture(scope="module")
def packed(graph: Path) -> Path:
    """What `PREPARE` makes of it on this machine."""
    diskgnn.prepare(graph, graph.with_name("packed"), **PREPARE)
    return graph.with_name("packed")


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def sent(store: ObjectStore, name: str) -> dict[str, bytes]:
    return {file: store.read(f"{name}/{file}") for file in store.names(name)}


def written(store: ObjectStore) -> list[str]:
    """Names of the objects that were written, in order; one in several parts when they were put together."""
    found = []
    for request in store.proxy.requests:
        path, _, query = request.path.partition("?")
        whole = request.method == "PUT" and "partNumber" not in query
        if whole or (request.method == "POST" and "uploadId" in query):
            found.append(path.rpartition("/")[2])
    return found


def killed(graph: Path, what: str, keywords: dict, out: str, point: str, after: int) -> None:
    """A process that dies at a point of making `out`."""
    script = (
        f"import os, signal, diskgnn\nfrom diskgnn.files import faults\n"
        f"with faults.armed({point!r}, lambda: os.kill(os.getpid(), signal.SIGKILL), after={after}):\n"
        f"    diskgnn.{what}({str(graph)!r}, {out!r}, **{keywords!r})"
    )
    assert run_python("-c", script).returncode == -signal.SIGKILL


def test_what_is_packed_needs_less_room_here_than_it_has_bytes(store, graph, packed, tmp_path):
    most, total_bytes = 5 << 20, read_manifest(packed).total_bytes
    assert total_bytes > 2 * most
    with MostAllocated(tmp_path / "scratch") as found:
        diskgnn.prepare(graph, store.url(f"{tmp_path.name}/packed"), **PREPARE, disk=most)
    assert sent(store, f"{tmp_path.name}/packed") == files(packed)
    assert most // 4 < found.num_bytes <= most
    assert written(store)[-1] == MANIFEST
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


def test_too_little_room_is_refused_and_leaves_nothing_there(store, graph, tmp_path):
    with pytest.raises(DiskFullError, match="are missing"), pytest.warns(match="is kept"):
        diskgnn.prepare(graph, store.url(f"{tmp_path.name}/packed"), **PREPARE, disk="2MiB")
    assert MANIFEST not in store.names(f"{tmp_path.name}/packed")


def test_a_killed_sample_goes_on_with_the_shards_that_were_sent(store, graph, tmp_path):
    out, keywords = store.url(f"{tmp_path.name}/samples"), SAMPLE
    killed(graph, "sample", keywords, out, "push.file", 3)
    before = set(store.names(f"{tmp_path.name}/samples"))
    assert before
    assert MANIFEST not in before
    store.proxy.reset()
    diskgnn.sample(graph, out, **keywords)
    again = before & set(written(store))
    assert len(again) <= 4  # those on the way
    assert len(before) > len(again) or len(before) <= 4
    diskgnn.sample(graph, tmp_path / "samples", **keywords)
    assert sent(store, f"{tmp_path.name}/samples") == files(tmp_path / "samples")


def test_other_settings_after_a_stop_remove_what_was_sent(store, graph, tmp_path):
    out = store.url(f"{tmp_path.name}/samples")
    with faults.armed("push.file", KeyboardInterrupt(), after=3), pytest.raises(KeyboardInterrupt):
        diskgnn.sample(graph, out, **SAMPLE)
    assert store.names(f"{tmp_path.name}/samples")
    diskgnn.sample(graph, out, **SAMPLE | {"epochs": 1})
    diskgnn.sample(graph, tmp_path / "samples", **SAMPLE | {"epochs": 1})
    assert sent(store, f"{tmp_path.name}/samples") == files(tmp_path / "samples")


def test_a_stage_goes_on_only_with_what_it_sent_itself(store, graph, tmp_path):
    """Whatever else was sent to the same place meanwhile, under the same names."""
    out = store.url(f"{tmp_path.name}/samples")
    for seed in (1, 2):
        diskgnn.sample(graph, tmp_path / f"seed-{seed}", **SAMPLE, seed=seed)
    stopped = OSError("stopped")
    with faults.armed("push.file", stopped, after=2), pytest.raises(OSError, match="stopped"):
        diskgnn.sample(graph, out, **SAMPLE, seed=1)
    with faults.armed("push.file", stopped, after=2), pytest.raises(OSError, match="stopped"):
        diskgnn.push(tmp_path / "seed-2", out)
    diskgnn.sample(graph, out, **SAMPLE, seed=1)
    assert sent(store, f"{tmp_path.name}/samples") == files(tmp_path / "seed-1")


def test_a_killed_prepare_goes_on_with_its_samples(store, graph, packed, tmp_path):
    out, keywords = store.url(f"{tmp_path.name}/packed"), PREPARE | {"disk": 5 << 20}
    killed(graph, "prepare", keywords, out, "push.part", 0)
    assert MANIFEST not in store.names(f"{tmp_path.name}/packed")
    reports = diskgnn.prepare(graph, out, **keywords)
    assert [report.stage for report in reports] == ["pack"]
    assert sent(store, f"{tmp_path.name}/packed") == files(packed)


def test_static_rows_that_others_have_chosen_are_sent_in_parts(store, graph, tmp_path):
    diskgnn.sample(graph, tmp_path / "samples", **SAMPLE | {"batch_size": 32})
    tiers = [TierRows(static=0, train=300, valid=75, test=75)]
    request = PackRequest(Graph.open(graph), Samples.open(tmp_path / "samples"), tiers,
                          static_nodes={"node": np.array([4000, 17, 2999])})  # fmt: skip
    resources, out = Resources.of("1GiB", 1), tmp_path / "out"
    pack_request(request, tmp_path / "here", resources)
    assert Packed.open(tmp_path / "here").static_nodes("node").tolist() == [4000, 17, 2999]
    target = located(store.url(f"{tmp_path.name}/packed"))
    few = replace(resources, disk=DiskBudget(2 << 20, [staging_of(out)]))
    assert allocated_bytes(tmp_path / "here") > 2 * few.disk.num_bytes
    pack_request(request, Destination(out, target), few)
    assert sent(store, f"{tmp_path.name}/packed") == files(tmp_path / "here")


def test_a_store_that_fails_meanwhile_has_nothing_that_looks_whole(store, graph, packed, tmp_path):
    out = store.url(f"{tmp_path.name}/packed")

    def fault(request: Request) -> Fault | None:
        return Fault(status=403, code="AccessDenied") if "train.bin" in request.path else None

    with store.proxy.failing(fault), pytest.raises(StoreError), pytest.warns(match="what was sampled is kept"):
        diskgnn.prepare(graph, out, **PREPARE)
    assert MANIFEST not in store.names(f"{tmp_path.name}/packed")
    diskgnn.prepare(graph, out, **PREPARE)
    assert sent(store, f"{tmp_path.name}/packed") == files(packed)


def test_what_is_overwritten_stays_until_the_new_one_is_whole(store, graph, packed, tmp_path):
    out = store.url(f"{tmp_path.name}/packed")
    diskgnn.prepare(graph, out, **PREPARE | {"epochs": 1})
    old = read_manifest(out).digest
    with faults.armed("pack.window", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt), pytest.warns(match="kept"):
        diskgnn.prepare(graph, out, **PREPARE, overwrite=True)
    assert read_manifest(out).digest == old
    diskgnn.prepare(graph, out, **PREPARE, overwrite=True)
    assert sent(store, f"{tmp_path.name}/packed") == files(packed)


def test_ranks_are_sent_while_they_are_made_and_a_killed_run_goes_on_with_those_that_are_missing(
    store, graph, tmp_path
):
    out, folder, keywords = store.url(f"{tmp_path.name}/ranks"), f"{tmp_path.name}/ranks", PREPARE | {"ranks": 2}
    killed(graph, "prepare", keywords, out, "push.files", 1)
    manifests = [name for name in store.names(folder) if name.endswith(MANIFEST)]
    assert manifests == [f"rank-0-of-2/{MANIFEST}"]
    with pytest.raises(OutputExistsError, match="holds rank-0-of-2 of another `cpu_cache`; remove that there"):
        diskgnn.prepare(graph, out, **keywords | {"cpu_cache": "4%"})
    store.proxy.reset()
    reports = diskgnn.prepare(graph, out, **keywords)
    assert [report.stage for report in reports] == ["pack"]
    assert store.proxy.sent_bytes < 0.1 * sum(map(len, sent(store, f"{folder}/rank-1-of-2").values()))
    diskgnn.prepare(graph, tmp_path / "ranks", **keywords)
    for name in ("rank-0-of-2", "rank-1-of-2"):
        assert sent(store, f"{folder}/{name}") == files(tmp_path / "ranks" / name)
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []
    with pytest.raises(OutputExistsError, match="holds all of 2 ranks already; remove that there"):
        diskgnn.prepare(graph, out, **keywords)
    with pytest.raises(OutputExistsError, match="never overwritten on a store"):
        diskgnn.prepare(graph, out, **keywords, overwrite=True)
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match=r"is a 'diskgnn.packed', no folder of ranks"):
            diskgnn.prepare(graph, f"{out}/rank-0-of-2", **keywords, overwrite=overwrite)
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


@pytest.mark.parametrize("point", ["push.published", "prepare.packed"])
def test_what_was_killed_when_all_was_there_leaves_nothing(store, graph, packed, tmp_path, point):
    """The next run says that the output exists, and ends what the killed one did not."""
    out, folder = store.url(f"{tmp_path.name}/packed"), f"{tmp_path.name}/packed"
    killed(graph, "prepare", PREPARE, out, point, 0)
    with pytest.raises(OutputExistsError, match="exists already"):
        diskgnn.prepare(graph, out, **PREPARE)
    assert sent(store, folder) == files(packed)
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


@pytest.mark.parametrize(("point", "after"), [("pack.window", 0), ("push.file", 0)])
def test_a_run_that_was_killed_needs_no_more_room_than_it_had(store, graph, packed, tmp_path, point, after):
    """The rows of the killed run are written again: their space is given back first."""
    out, keywords = store.url(f"{tmp_path.name}/packed"), PREPARE | {"disk": 5 << 20}
    killed(graph, "prepare", keywords, out, point, after)
    with MostAllocated(tmp_path / "scratch") as found:
        diskgnn.prepare(graph, out, **keywords)
    assert sent(store, f"{tmp_path.name}/packed") == files(packed)
    assert found.num_bytes <= 5 << 20
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


def test_a_rank_that_was_killed_when_all_of_it_was_there_leaves_nothing(store, graph, tmp_path):
    out, keywords = store.url(f"{tmp_path.name}/ranks"), PREPARE | {"ranks": 2}
    killed(graph, "prepare", keywords, out, "push.published", 0)
    diskgnn.prepare(graph, out, **keywords)
    diskgnn.prepare(graph, tmp_path / "ranks", **keywords)
    for name in ("rank-0-of-2", "rank-1-of-2"):
        assert sent(store, f"{tmp_path.name}/ranks/{name}") == files(tmp_path / "ranks" / name)
    assert list((tmp_path / "scratch").glob("diskgnn-*/*")) == []


@pytest.mark.parametrize("are_there", [True, False])
def test_what_this_run_sends_is_not_sent_again_when_the_stage_runs_again(store, tmp_path, are_there):
    """Because what another step had left was damaged. The files have arrived then, or are on their way."""
    target, ran, passes, again = located(store.url(f"{tmp_path.name}/samples")), [], [], threading.Event()
    names = [f"file-{unit}" for unit in range(3)]

    def write(missing: Iterator[str]) -> Generator[tuple[str, UnitFiles], None, None]:
        for name in missing:
            ran.append(name)
            writer.path(name).write_bytes(name.encode())
            yield name, {name: crc32c(name.encode())}

    def stage(work: Work) -> None:
        work.map(names, write, files=lambda name: [name])
        passes.append("")
        if len(passes) == 1:
            if are_there:
                writer.outbox.drain()
            raise DamagedStepError("stage.other", "another step")
        again.set()

    writer = ArtifactWriter(Destination(tmp_path / "out", target), SAMPLES, config={}, resumable=True)
    with writer, faults.armed("push.file", lambda: are_there or again.wait(60)):
        Work(writer, "stage").run(stage)
        writer.publish()
    assert ran == names
    assert sorted(written(store)) == sorted([*names, MANIFEST])
    assert {name: sent(store, f"{tmp_path.name}/samples")[name] for name in names} == {
        name: name.encode() for name in names
    }


def test_a_step_that_is_made_again_waits_until_its_file_has_arrived(store, tmp_path):
    """Which is removed here then, and not what was written in its place meanwhile. Nobody could go on with it."""
    target, passes, arrives = located(store.url(f"{tmp_path.name}/samples")), [], threading.Event()
    halves = np.arange(100).reshape(2, 50)

    def write(file: ArrayFile, state: State, output: Output) -> Generator[int, None, None]:
        for half in halves:
            file.write(half)
            if len(passes) == 1:
                arrives.set()
                writer.outbox.drain()
            yield half.nbytes

    def stage(work: Work) -> None:
        file = ArrayFile(writer, "x.npy", halves.dtype, halves.size)
        work.fold("write", partial(write, file), {}, files=[file])
        passes.append("")
        if len(passes) == 1:
            threading.Timer(1, arrives.set).start()
            raise DamagedStepError("stage.other", "another step")

    writer = ArtifactWriter(Destination(tmp_path / "out", target), SAMPLES, config={}, resumable=False)
    with writer, faults.armed("push.file", lambda: arrives.wait(60)):
        Work(writer, "stage").run(stage)
        writer.publish()
    (tmp_path / "x.npy").write_bytes(sent(store, f"{tmp_path.name}/samples")["x.npy"])
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), halves.reshape(-1))
