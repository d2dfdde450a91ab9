"""Artifacts: what is published is whole and checked; what is damaged, hostile or unfinished is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from diskgnn.errors import ArtifactError, ConfigError, DiskFullError, OutputExistsError
from diskgnn.graph.graph import Graph
from diskgnn.storage import artifacts, manifest
from diskgnn.storage.artifacts import GRAPH, SAMPLES, ArtifactWriter, open_artifact, verify_artifact


def write(path: Path, seed: int = 0, *, overwrite: bool = False, format: str = GRAPH) -> artifacts.Manifest:  # noqa: A002
    rng = np.random.default_rng(seed)
    with ArtifactWriter(path, format, config={"seed": seed}, overwrite=overwrite) as writer:
        writer.save_array("a.npy", rng.integers(0, 100, (20, 3)))
        with writer.array_file("b.npy", np.float16, 10, (2,)) as file:
            file.write(rng.random((4, 2)).astype(np.float16))
            file.write(rng.random((6, 2)).astype(np.float16))
        writer.path("c.bin").write_bytes(rng.bytes(5000))
        writer.add("c.bin")
        writer.path("scratch").write_bytes(b"x")
        writer.path("folder").mkdir()
        return writer.publish()


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_round_trip(tmp_path: Path) -> None:
    written = write(tmp_path / "deep" / "graph")
    opened = open_artifact(tmp_path / "deep" / "graph", GRAPH)
    assert opened == written
    assert names(opened.path) == ["a.npy", "b.npy", "c.bin", "manifest.json"]
    assert names(tmp_path / "deep") == ["graph"]
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(opened.array("a.npy"), rng.integers(0, 100, (20, 3)))
    assert opened.files["b.npy"].shape == (10, 2)
    assert opened.total_bytes == sum(opened.file(name).stat().st_size for name in opened.files)
    assert not opened.array("a.npy").flags.writeable
    verify_artifact(opened.path)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    hnp.arrays(
        st.one_of(hnp.integer_dtypes(), hnp.floating_dtypes(), hnp.unsigned_integer_dtypes()),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=9),
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.booleans(),
)
def test_array_file_equals_numpy(tmp_path: Path, array: np.ndarray, cuts: list[int], known: bool) -> None:
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}, overwrite=True) as writer:
        with writer.array_file("x.npy", array.dtype, len(array) if known else None, array.shape[1:]) as file:
            for part in np.split(array, sorted(cuts)):
                file.write(part)
        path = writer.publish().file("x.npy")
    verify_artifact(tmp_path / "graph")
    found = np.load(path)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_array_file_wants_the_rows_it_was_promised(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:
        with pytest.raises(AssertionError), writer.array_file("x.npy", np.int8, 3) as file:
            file.write(np.zeros(2, np.int8))
        with pytest.raises(AssertionError), writer.array_file("x.npy", np.int8, 3) as file:
            file.write(np.zeros(4, np.int8))


def test_digest_names_the_content(tmp_path: Path) -> None:
    one, same, other = write(tmp_path / "1"), write(tmp_path / "2"), write(tmp_path / "3", seed=1)
    assert one.digest == same.digest != other.digest
    with ArtifactWriter(tmp_path / "s", SAMPLES, config={}, source=one) as writer:
        samples = writer.publish()
    assert samples.source == {"format": GRAPH, "digest": one.digest}


# Damage

DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda p: shutil.rmtree(p), r"is not there; make it with `diskgnn convert`"),
    (lambda p: (shutil.rmtree(p), p.write_text("")), r"is not a directory"),
    (lambda p: (p / "manifest.json").unlink(), r"has no manifest\.json, so it is no diskgnn artifact"),
    (lambda p: (p / "manifest.json").write_text("{"), r"manifest\.json is damaged"),
    (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), r"manifest\.json is damaged"),
    (lambda p: (p / "manifest.json").write_text("[" * 100_000), r"manifest\.json is damaged"),
    (lambda p: (p / "manifest.json").write_text("[]"), r"manifest\.json is damaged"),
    (lambda p: (p / "c.bin").unlink(), r"c\.bin, a part of .*, is not there"),
    (lambda p: os.truncate(p / "c.bin", 4999), r"c\.bin has 4999 bytes, expected 5000"),
    (lambda p: os.truncate(p / "a.npy", 50), r"a\.npy has 50 bytes"),
    (lambda p: np.save(p / "a.npy", np.zeros((20, 3), np.uint64)), r"a\.npy holds .*<u8.* expected .*<i8"),
    (lambda p: np.save(p / "a.npy", np.zeros((3, 20), int)), r"a\.npy holds .*\(3, 20\).* expected .*\(20, 3\)"),
    (lambda p: np.save(p / "a.npy", np.zeros((20, 3), int, order="F")), r"Fortran order"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE, ids=[message for _, message in DAMAGE])
def test_damage_is_found_on_opening(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write(tmp_path / "graph")
    damage(tmp_path / "graph")
    with pytest.raises(ArtifactError, match=message):
        open_artifact(tmp_path / "graph", GRAPH)


@pytest.mark.parametrize("name", ["a.npy", "b.npy", "c.bin"])
def test_any_flipped_bit_is_found_by_verify(tmp_path: Path, name: str) -> None:
    write(tmp_path / "graph")
    path = tmp_path / "graph" / name
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError, match=name):
            verify_artifact(tmp_path / "graph")
    path.write_bytes(content)
    verify_artifact(tmp_path / "graph")


def test_any_flipped_bit_of_the_manifest_is_found(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    path = tmp_path / "graph" / "manifest.json"
    content = path.read_bytes()
    for position in range(len(content)):
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 7
        path.write_bytes(flipped)
        try:
            opened = open_artifact(tmp_path / "graph", GRAPH)
        except ArtifactError:
            continue
        assert json.loads(flipped) == json.loads(content), position  # white space
        assert opened.files.keys() == {"a.npy", "b.npy", "c.bin"}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 127), st.binary(min_size=1, max_size=40))
def test_a_damaged_npy_header_raises_nothing_else(tmp_path: Path, position: int, content: bytes) -> None:
    good = artifacts.npy_header_bytes(np.int32, (3, 4)) + bytes(48)
    path = tmp_path / "x.npy"
    path.write_bytes((good[:position] + content + good[position + len(content) :])[: len(good)])
    try:
        dtype, shape = artifacts.npy_header(path)
    except ArtifactError:
        return
    loaded = np.load(path, mmap_mode="r")
    assert (loaded.dtype, loaded.shape) == (np.dtype(dtype), shape)


# Hostile manifests: their digest is right


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((path / "manifest.json").read_text())
    change(document)
    content = {key: document.get(key) for key in ("format", "version", "config", "source", "files")}
    document["digest"] = manifest.content_digest(content)
    (path / "manifest.json").write_text(json.dumps(document))


def file_named(name: str) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        document["files"][name] = document["files"].pop("c.bin")

    return change


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"]["a.npy"].update(changes)


HOSTILE: list[Callable[[dict[str, Any]], object]] = [
    *(file_named(n) for n in ("../c.bin", "/etc/hostname", "x/y", "..", ".", "", "manifest.json", "a\0b", ".hidden",
                              "resume.json", "x" * 300, "-rf", "a\nb")),
    *(entry_with(bytes=n) for n in (-1, "12", 1.5, True, None, [608], 10**400)),
    *(entry_with(crc32c=c) for c in (17, "", "-0000001", "0x00000", "123456789", "GGGGGGGG", None)),
    *(entry_with(shape=s) for s in (None, 3, "20", [20.0, 3], [True, 3], [-20, -3], [2**70], {}, [60])),
    *(entry_with(dtype=d) for d in (None, 3, "|O", "<f4", ["<i8"])),
    lambda d: d["files"].update({"a.npy": 3}),
    lambda d: d["files"]["a.npy"].pop("dtype"),
    lambda d: d["files"]["a.npy"].pop("bytes"),
    lambda d: d.update(files=[]), lambda d: d.update(files=None), lambda d: d.update(config=[]),
    lambda d: d.update(external=[]), lambda d: d.update(external={"zzz": {"path": "/etc/hostname", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": 3, "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "/dev/zero", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "\0", "mtime_ns": 1}}),
    lambda d: d.update(external={"c.bin": {"path": "/etc/hostname", "mtime_ns": "1"}}),
    lambda d: d.update(external={"c.bin": []}),
    lambda d: d.update(source=3), lambda d: d.update(source={}), lambda d: d.update(source={"format": 1, "digest": 2}),
    lambda d: d.update(version="1"), lambda d: d.update(version=True), lambda d: d.update(version=2),
    lambda d: d.update(format=3), lambda d: d.update(format=[]), lambda d: d.update(format="diskgnn.other"),
    lambda d: d.update(format=SAMPLES),
    lambda d: d.pop("format"), lambda d: d.pop("files"), lambda d: d.pop("external"), lambda d: d.pop("source"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_hostile_manifest(tmp_path: Path, number: int) -> None:
    write(tmp_path / "graph")
    forge(tmp_path / "graph", lambda document: None)
    open_artifact(tmp_path / "graph", GRAPH)  # forging alone is not what is refused
    forge(tmp_path / "graph", HOSTILE[number])
    with pytest.raises(ArtifactError):
        open_artifact(tmp_path / "graph", GRAPH)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_manifest_of_any_json_raises_nothing_else(tmp_path: Path, data: st.DataObject) -> None:
    if not (tmp_path / "graph").exists():
        write(tmp_path / "graph")
        shutil.copy(tmp_path / "graph" / "manifest.json", tmp_path / "good.json")
    document = json.loads((tmp_path / "good.json").read_text())
    place = document
    for _ in range(data.draw(st.integers(0, 2))):
        children = [key for key, value in place.items() if isinstance(value, dict) and value]
        if children:
            place = place[data.draw(st.sampled_from(children))]
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JSON)
    (tmp_path / "graph" / "manifest.json").write_text(json.dumps(document))
    try:
        opened = open_artifact(tmp_path / "graph")
    except ArtifactError:
        return
    assert set(opened.files) == {"a.npy", "b.npy", "c.bin"}


def test_a_huge_manifest_is_not_read(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    os.truncate(tmp_path / "graph" / "manifest.json", 1 << 40)  # sparse
    with pytest.raises(ArtifactError, match=r"damaged .*larger than 64\.0 MiB"):
        open_artifact(tmp_path / "graph")


def test_a_file_that_is_not_part_of_it(tmp_path: Path) -> None:
    opened = write(tmp_path / "graph")
    with pytest.raises(ArtifactError, match=r"has no file features\.npy; diskgnn convert again"):
        opened.array(artifacts.FEATURES)


# Writing: all or nothing


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:  # noqa: PT012
        writer.save_array("a.npy", np.zeros(3))
        raise RuntimeError("stop")
    assert names(tmp_path) == []
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}):
        pass  # never published
    assert names(tmp_path) == []


def die(*args: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(path: Path, where: str, overwrite: bool) -> None:
    """In a child process."""
    with ArtifactWriter(path, GRAPH, config={"new": 1}, overwrite=overwrite) as writer:
        writer.save_array("a.npy", np.zeros(3))
        if where == "writing":
            die()
        if where.startswith("sync"):
            syncs = iter([artifacts.sync] * int(where[4:]) + [die])
            artifacts.sync = lambda path: next(syncs)(path)
        if where == "exchanged":
            artifacts.shutil.rmtree = die
        writer.publish()


@pytest.mark.parametrize(
    ("where", "overwrite"),
    [("exchanged", True), *((where, o) for where in ("writing", "sync0", "sync2", "sync3") for o in (False, True))],
)
@pytest.mark.filterwarnings("ignore:.*fork")
def test_killed_half_way(tmp_path: Path, where: str, overwrite: bool) -> None:
    path = tmp_path / "graph"
    before = write(path).digest if overwrite else None
    child = os.fork()
    if child == 0:
        try:
            write_and_die(path, where, overwrite)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -signal.SIGKILL
    renamed = where in ("sync3", "exchanged")  # the last sync makes the renaming durable
    if renamed:
        assert verify_artifact(path).config == {"new": 1}
    elif overwrite:
        assert verify_artifact(path).digest == before
    else:
        assert not path.exists()
    after = write(path, overwrite=overwrite or renamed)
    assert verify_artifact(path) == after
    assert names(tmp_path) == ["graph"]


def test_resuming(tmp_path: Path) -> None:
    def begin(**config: int) -> ArtifactWriter:
        return ArtifactWriter(tmp_path / "samples", SAMPLES, config=config, resumable=True)

    with pytest.raises(KeyboardInterrupt), begin(seed=1) as writer:  # noqa: PT012
        writer.path("part.bin").write_bytes(b"done")
        raise KeyboardInterrupt
    assert not (tmp_path / "samples").exists()
    with pytest.raises(KeyboardInterrupt), begin(seed=1) as writer:  # noqa: PT012
        assert writer.path("part.bin").read_bytes() == b"done"
        raise KeyboardInterrupt
    with begin(seed=2) as writer:  # something else: what is there is of no use
        assert not writer.path("part.bin").exists()
        writer.path("part.bin").write_bytes(b"else")
        writer.add("part.bin")
        writer.publish()
    assert names(tmp_path / "samples") == ["manifest.json", "part.bin"]
    assert names(tmp_path) == ["samples"]


def test_two_writers(tmp_path: Path) -> None:
    first = ArtifactWriter(tmp_path / "graph", GRAPH, config={})
    with first:
        first.save_array("a.npy", np.zeros(3))
        with (
            pytest.raises(ArtifactError, match="another process is writing"),
            ArtifactWriter(tmp_path / "graph", GRAPH, config={}),
        ):
            pass
        first.publish()
    assert verify_artifact(tmp_path / "graph").files.keys() == {"a.npy"}


def test_overwriting(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    write(path)
    with pytest.raises(OutputExistsError, match="--overwrite"):
        write(path, seed=1)
    assert write(path, seed=1, overwrite=True).config == {"seed": 1}
    (path / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError, match=r"no part of the artifact \(notes.txt\)"):
        write(path, seed=2, overwrite=True)
    assert (path / "notes.txt").read_text() == "mine"


def test_an_empty_directory_is_a_fine_output(tmp_path: Path) -> None:
    (tmp_path / "graph").mkdir()
    write(tmp_path / "graph")
    assert names(tmp_path) == ["graph"]


def test_an_artifact_of_another_kind_is_never_overwritten(tmp_path: Path) -> None:
    digest = write(tmp_path / "graph").digest
    with pytest.raises(OutputExistsError, match=r"is a 'diskgnn.graph'"):
        ArtifactWriter(tmp_path / "graph", artifacts.PACKED, config={}, overwrite=True)
    assert artifacts.open_artifact(tmp_path / "graph").digest == digest


def test_a_file_that_is_referred_to_is_not_deleted_with_the_output(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    inside = next(path for path in (tmp_path / "graph").iterdir() if path.suffix == ".npy")
    with (
        pytest.raises(OutputExistsError, match="would be deleted"),
        ArtifactWriter(tmp_path / "graph", GRAPH, config={}, overwrite=True) as writer,
    ):
        writer.add_external("features.npy", inside, crc32c=0)
    assert inside.exists()
    assert names(tmp_path) == ["graph"]


def test_an_output_that_cannot_be_written_is_a_clear_error() -> None:
    with pytest.raises(ConfigError, match="cannot write /proc/graph"):
        write(Path("/proc/graph"))


@pytest.mark.parametrize("content", [{"manifest.json": '{"name": "a browser extension"}'}, {"x": "y"}])
def test_only_artifacts_are_overwritten(tmp_path: Path, content: dict[str, str]) -> None:
    path = tmp_path / "graph"
    path.mkdir()
    for name, text in content.items():
        (path / name).write_text(text)
    with pytest.raises(OutputExistsError, match="no artifact"):
        write(path, overwrite=True)
    assert {entry.name: entry.read_text() for entry in path.iterdir()} == content
    shutil.rmtree(path)
    path.write_text("a file")
    with pytest.raises(OutputExistsError):
        write(path, overwrite=True)
    assert path.read_text() == "a file"


def test_damaged_artifacts_can_be_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    os.truncate(tmp_path / "graph" / "c.bin", 1)
    write(tmp_path / "graph", overwrite=True)
    verify_artifact(tmp_path / "graph")


def test_an_output_that_appears_meanwhile_is_not_lost(tmp_path: Path) -> None:
    with pytest.raises(OutputExistsError), ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:  # noqa: PT012
        (tmp_path / "graph").mkdir()
        (tmp_path / "graph" / "mine").touch()
        writer.publish()
    assert names(tmp_path) == ["graph"]


def test_exchange_without_the_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifacts.ctypes, "CDLL", lambda *args, **options: object())
    write(tmp_path / "graph")
    assert write(tmp_path / "graph", seed=1, overwrite=True).config == {"seed": 1}
    assert names(tmp_path) == ["graph"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", seed=1, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert open_artifact(tmp_path / "real").config == {"seed": 1}


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    free = artifacts.free_bytes(tmp_path / "not" / "there")
    artifacts.require_free_bytes(tmp_path, 0, "nothing")
    with pytest.raises(DiskFullError, match=r"packing needs .* bytes are missing.*another disk"):
        artifacts.require_free_bytes(tmp_path, free + (1 << 50), "packing")


# A graph whose files are whole but do not fit each other

FITTING: dict[str, np.ndarray] = {
    artifacts.INDPTR: np.array([0, 2, 3]), artifacts.INDICES: np.array([0, 1, 1], np.int32),
    artifacts.FEATURES: np.zeros((2, 3), np.float32), artifacts.LABELS: np.array([0, -1]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "array"),
    [
        (artifacts.INDPTR, np.array([0, 2, 4])), (artifacts.INDPTR, np.array([1, 2, 3])),
        (artifacts.INDPTR, np.array([0, 1, 2, 3])), (artifacts.INDPTR, np.array([0, 2, 3], np.int32)),
        (artifacts.INDPTR, np.zeros(0, np.int64)), (artifacts.INDICES, np.array([0.0, 1, 1])),
        (artifacts.INDICES, np.zeros((3, 1), np.int32)), (artifacts.FEATURES, np.zeros((3, 3), np.float32)),
        (artifacts.FEATURES, np.zeros((2, 3), np.float16)), (artifacts.FEATURES, np.zeros(2, np.float32)),
        (artifacts.FEATURES, None), (artifacts.LABELS, np.array([0])),
    ],
)  # fmt: skip
def test_files_of_different_graphs(tmp_path: Path, name: str, array: np.ndarray | None) -> None:
    def write_graph(path: Path, files: dict[str, np.ndarray | None]) -> None:
        with ArtifactWriter(path, GRAPH, config={"num_classes": 1, "feature_dtype": "float32"}) as writer:
            for name, content in files.items():
                if content is not None:
                    writer.save_array(name, content)
            writer.publish()

    write_graph(tmp_path / "good", {**FITTING})
    assert Graph.open(tmp_path / "good").num_edges == 3
    write_graph(tmp_path / "bad", {**FITTING, name: array})
    with pytest.raises(ArtifactError, match="diskgnn convert` again"):
        Graph.open(tmp_path / "bad")
