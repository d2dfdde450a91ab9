"""Writing artifacts: what is published is whole, and nothing is lost or left."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from small_artifacts import names, write

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError, BusyError, ConfigError, DiskFullError, OutputExistsError
from diskgnn.files import faults
from diskgnn.files.checked_files import sync
from diskgnn.files.checked_lines import checked_line
from diskgnn.files.disk_space import free_bytes, require_free_bytes
from diskgnn.formats.artifacts import GRAPH, PACKED, SAMPLES
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.work import writer as writing
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.journal import Journal
from diskgnn.work.work_folder import Note
from diskgnn.work.writer import ArtifactWriter


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


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        with ArrayFile(writer, "x.npy", array.dtype, len(array) if known else None, array.shape[1:]) as file:
            for part in np.split(array, sorted(cuts)):
                file.write(part)
        path = writer.publish().file("x.npy")
    verify_artifact(tmp_path / "graph")
    found = np.load(path)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@pytest.mark.parametrize("known", [False, True])
def test_bytes_that_the_disk_changes_before_the_file_is_whole_are_damage(tmp_path: Path, known: bool) -> None:
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:
        with ArrayFile(writer, "x.npy", np.int64, 40_000 if known else None) as file:
            file.write(np.arange(40_000))
            with file.path.open("r+b") as disk:  # a page that is written already
                disk.seek(200)
                disk.write(b"!")
        writer.publish()
    with pytest.raises(ArtifactError, match=r"x\.npy"):
        verify_artifact(tmp_path / "graph")


def test_array_file_wants_the_rows_it_was_promised(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:
        with pytest.raises(AssertionError), ArrayFile(writer, "x.npy", np.int8, 3) as file:
            file.write(np.zeros(2, np.int8))
        with pytest.raises(AssertionError), ArrayFile(writer, "x.npy", np.int8, 3) as file:
            file.write(np.zeros(4, np.int8))


def test_digest_names_the_content(tmp_path: Path) -> None:
    one, same, other = write(tmp_path / "1"), write(tmp_path / "2"), write(tmp_path / "3", seed=1)
    assert one.digest == same.digest != other.digest
    with ArtifactWriter(tmp_path / "s", SAMPLES, config={}, source=one) as writer:
        samples = writer.publish()
    assert samples.source == {"format": GRAPH, "digest": one.digest}


def test_failure_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stop"), ArtifactWriter(tmp_path / "graph", GRAPH, config={}) as writer:  # noqa: PT012
        writer.save_array("a.npy", np.zeros(3))
        raise RuntimeError("stop")
    assert names(tmp_path) == []
    with ArtifactWriter(tmp_path / "graph", GRAPH, config={}):
        pass  # never published
    assert names(tmp_path) == []


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def write_and_die(path: Path, point: str, after: int, overwrite: bool) -> None:
    """In a child process."""
    with (
        faults.armed(point, die, after=after),
        ArtifactWriter(path, GRAPH, config={"new": 1}, overwrite=overwrite) as writer,
    ):
        writer.save_array("a.npy", np.zeros(3))
        writer.save_array("b.npy", np.zeros(3))
        writer.publish()


@pytest.mark.parametrize(
    ("point", "after", "overwrite"),
    [
        *(("artifact.write", 1, overwrite) for overwrite in (False, True)),
        *(("artifact.sync", syncs, overwrite) for syncs in (0, 2, 3, 4) for overwrite in (False, True)),
        ("artifact.exchanged", 0, True),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork")
def test_killed_half_way(tmp_path: Path, point: str, after: int, overwrite: bool) -> None:
    path = tmp_path / "graph"
    before = write(path).digest if overwrite else None
    child = os.fork()
    if child == 0:
        try:
            write_and_die(path, point, after, overwrite)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == -signal.SIGKILL
    renamed = (point, after) in (("artifact.sync", 4), ("artifact.exchanged", 0))  # the last sync makes it durable
    if renamed:
        assert verify_artifact(path).config == {"new": 1}
    elif overwrite:
        assert verify_artifact(path).digest == before
    else:
        assert not path.exists()
    after = write(path, overwrite=overwrite or renamed)
    assert verify_artifact(path) == after
    assert names(tmp_path) == ["graph"]


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("resumable", [False, True])
def test_killed_between_the_rename_and_the_end(tmp_path: Path, overwrite: bool, resumable: bool) -> None:
    """The artifact is whole, and what its writer left in it goes with the next run; what a user put there stays."""
    path = tmp_path / "graph"

    def write_all(config: int) -> None:
        with ArtifactWriter(path, GRAPH, config={"n": config}, overwrite=True, resumable=resumable) as writer:
            writer.save_array("a.npy", np.zeros(3))
            writer.path("scratch.bin").write_bytes(b"1")
            writer.path("scratch").mkdir()
            writer.path("scratch").joinpath("more.bin").write_bytes(b"2")
            writer.publish()

    if overwrite:
        write_all(0)
    if (child := os.fork()) == 0:
        try:
            with faults.armed("artifact.sync", die, after=3):  # a.npy, the manifest, the directory; then its parent
                write_all(1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert verify_artifact(path).config == {"n": 1}
    assert names(path) == ["a.npy", "journal.jsonl", "manifest.json", "scratch", "scratch.bin"]
    with pytest.raises(OutputExistsError, match="exists already"):
        ArtifactWriter(path, GRAPH, config={}, resumable=resumable)
    assert names(path) == ["a.npy", "manifest.json"]
    assert names(tmp_path) == ["graph"]
    (path / "mine.txt").touch()
    with pytest.raises(OutputExistsError, match=r"mine\.txt"):
        write_all(2)


def test_what_a_journal_says_of_leftovers_is_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path / "graph").folder
    (tmp_path / "precious").touch()
    hostile = ["../precious", "/etc/passwd", "..", "", ".", "a.npy", "manifest.json", 3]
    for leaving in (*([name] for name in hostile), None, "a.npy", {"a.npy": 1}):
        (path / "journal.jsonl").write_bytes(b"[\n" + checked_line(json.dumps({"leaving": leaving})) + b"{")
        with pytest.raises(OutputExistsError, match="exists already"):
            ArtifactWriter(path, GRAPH, config={})
        assert names(tmp_path) == ["graph", "precious"]
        assert "journal.jsonl" not in names(path)
        verify_artifact(path)


def test_a_name_that_is_not_believed_keeps_no_other_one(tmp_path: Path) -> None:
    path = write(tmp_path / "graph").folder
    (tmp_path / "precious").touch()
    (path / "scratch").mkdir()
    said = checked_line(json.dumps({"leaving": ["../precious", 3, ".lock", "scratch"]}))
    (path / "journal.jsonl").write_bytes(checked_line("{}") + said)
    write(path, seed=1, overwrite=True)
    assert names(tmp_path) == ["graph", "precious"]
    assert names(path) == ["a.npy", "b.npy", "c.bin", "manifest.json"]


def test_no_damage_of_a_journal_is_believed(tmp_path: Path) -> None:
    """Whatever byte changes: what was decided is that, or is decided anew, and then nothing counts that came after."""

    def begin() -> ArtifactWriter:
        return ArtifactWriter(tmp_path / "samples", SAMPLES, config={"seed": 1}, resumable=True)

    def finish(writer: ArtifactWriter, name: str) -> None:
        writer.path(name).write_bytes(name.encode())
        writer.add(name, crc32c=crc32c(name.encode()))
        writer.commit_files([name])

    def decided(writer: ArtifactWriter, value: int) -> int:
        if not writer.noted("budget"):
            writer.note("budget", Note({"bytes": np.array(value)}))
            writer.commit()
        return int(writer.noted("budget")["bytes"])

    with pytest.raises(KeyboardInterrupt), begin() as writer:  # noqa: PT012
        finish(writer, "before.bin")
        assert decided(writer, 640) == 640
        finish(writer, "after.bin")
        raise KeyboardInterrupt
    staging = tmp_path / ".samples.partial"
    shutil.copytree(staging, tmp_path / "kept")
    whole, random, found = (staging / "journal.jsonl").read_bytes(), np.random.default_rng(0), set()
    for position in range(-1, len(whole)):
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(tmp_path / "kept", staging)
        damaged = bytearray(whole)
        if position >= 0:
            damaged[position] ^= 1 << int(random.integers(8))
        (staging / "journal.jsonl").write_bytes(damaged)
        with pytest.raises(KeyboardInterrupt), begin() as writer:  # noqa: PT012
            adopted = writer.adopt("before.bin"), decided(writer, 5), writer.adopt("after.bin")
            found.add(adopted)
            finish(writer, "more.bin")
            raise KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt), begin() as writer:  # noqa: PT012
            assert decided(writer, 7) == adopted[1]
            assert writer.adopt("more.bin")
            raise KeyboardInterrupt
    assert found == {(True, 640, True), (True, 640, False), (True, 5, False), (False, 5, False)}


def test_resuming(tmp_path: Path) -> None:
    def begin(**config: int) -> ArtifactWriter:
        return ArtifactWriter(tmp_path / "samples", SAMPLES, config=config, resumable=True)

    with pytest.raises(KeyboardInterrupt), begin(seed=1) as writer:  # noqa: PT012
        writer.path("half.bin").write_bytes(b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []  # nothing was finished, so nothing is kept
    with pytest.raises(KeyboardInterrupt), begin(seed=1) as writer:  # noqa: PT012
        writer.path("part.bin").write_bytes(b"done")
        writer.add("part.bin")
        writer.commit_files(["part.bin"])
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


def test_records_of_how_far_a_stage_is(tmp_path: Path) -> None:
    """The newest that is whole counts: one that a kill or a disk damages costs a unit, not all of them."""

    def begin() -> ArtifactWriter:
        return ArtifactWriter(tmp_path / "samples", SAMPLES, config={}, resumable=True)

    def recorded() -> list[int] | None:
        with pytest.raises(KeyboardInterrupt), begin() as writer:  # noqa: PT012
            found = writer.noted("stage")
            raise KeyboardInterrupt
        return found["done"].tolist() if found else None

    def record(*numbers: int) -> None:
        with begin() as writer:
            for number in numbers:
                writer.note("stage", Note({"done": np.array([number, number])}, ["rows"] if number == 1 else []))
                writer.commit()

    with pytest.raises(FileNotFoundError):  # a claim that is not there
        record(1)
    for _ in range(2):
        record(2, 3, 4)
        assert recorded() == [4, 4]
    with pytest.raises(SystemExit), faults.armed("unit.written", SystemExit("killed")):
        record(5)
    assert recorded() == [4, 4]
    files = sorted((tmp_path / ".samples.partial").glob("stage*"), key=lambda path: path.stat().st_mtime_ns)
    record(6)
    for number, expected in ((0, [6, 6]), (1, None)):
        content = bytearray(files[number].read_bytes())
        content[-100] ^= 1
        files[number].write_bytes(content)
        assert recorded() == expected
    with begin() as writer:
        writer.save_array("a.npy", np.zeros(3))
        writer.publish()
    assert names(tmp_path / "samples") == ["a.npy", "manifest.json"]


@pytest.mark.parametrize(
    ("resumable", "kept", "left"),
    [(False, "nothing is left", []), (True, "what is complete was kept", [".samples.partial"])],
)
def test_a_disk_that_runs_full(tmp_path: Path, resumable: bool, kept: str, left: list[str]) -> None:
    def write_two() -> None:
        with ArtifactWriter(tmp_path / "samples", SAMPLES, config={}, resumable=resumable) as writer:
            writer.save_array("a.npy", np.zeros(3))
            writer.commit_files(["a.npy"])
            writer.save_array("b.npy", np.zeros(3))

    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        faults.armed("artifact.write", full, after=1),
        pytest.raises(DiskFullError, match=f"ran full .*; {kept}"),
    ):
        write_two()
    assert names(tmp_path) == left


def test_a_disk_without_room_for_a_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Journal, "begin", full)
    with (
        pytest.raises(DiskFullError, match="nothing is left"),
        ArtifactWriter(tmp_path / "samples", SAMPLES, config={}, resumable=True),
    ):
        pass
    assert names(tmp_path) == []


def test_two_writers(tmp_path: Path) -> None:
    first = ArtifactWriter(tmp_path / "graph", GRAPH, config={})
    with first:
        first.save_array("a.npy", np.zeros(3))
        with (
            pytest.raises(BusyError, match="another process is writing"),
            ArtifactWriter(tmp_path / "graph", GRAPH, config={}),
        ):
            pass
        first.publish()
    assert verify_artifact(tmp_path / "graph").files.keys() == {"a.npy"}


def test_overwriting(tmp_path: Path) -> None:
    path = tmp_path / "graph"
    write(path)
    with pytest.raises(OutputExistsError, match="overwrite=True"):
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
        ArtifactWriter(tmp_path / "graph", PACKED, config={}, overwrite=True)
    assert open_artifact(tmp_path / "graph").digest == digest


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


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EINVAL])
def test_where_directories_cannot_be_exchanged_at_once(tmp_path: Path, code: int) -> None:
    write(tmp_path / "graph")
    with faults.armed("artifact.exchange", OSError(code, os.strerror(code))):
        assert write(tmp_path / "graph", seed=1, overwrite=True).config == {"seed": 1}
    assert names(tmp_path) == ["graph"]


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize(
    ("point", "after", "seed", "made"),
    [
        ("artifact.aside", 0, 0, False), ("artifact.aside", 0, 0, True), ("artifact.exchanged", 0, 1, False),
        ("artifact.sync", 4, 1, False),
    ],
)  # fmt: skip
def test_killed_where_directories_cannot_be_exchanged_at_once(
    tmp_path: Path, point: str, after: int, seed: int, made: bool, resumable: bool
) -> None:
    """The name is that of one of both again when the next run begins, also of one that may not replace it, and if a
    folder was made of that name meanwhile."""
    path = tmp_path / "graph"

    def replace(seed: int, *, overwrite: bool = True) -> None:
        with ArtifactWriter(path, GRAPH, config={"seed": seed}, overwrite=overwrite, resumable=resumable) as writer:
            writer.save_array("a.npy", np.zeros(3))
            writer.save_array("b.npy", np.zeros(3))
            writer.publish()

    before = write(path).digest
    if (child := os.fork()) == 0:
        try:
            with faults.armed("artifact.exchange", OSError(errno.EINVAL, "no")), faults.armed(point, die, after=after):
                replace(1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    if made:
        path.mkdir()
    with pytest.raises(OutputExistsError, match="exists already"):
        replace(1, overwrite=False)
    assert verify_artifact(path).config == {"seed": seed}
    assert (verify_artifact(path).digest == before) == (seed == 0)
    replace(2)
    assert verify_artifact(path).config == {"seed": 2}
    assert names(tmp_path) == ["graph"]


@pytest.mark.parametrize("atomic", [False, True])
def test_what_is_replaced_stays_until_the_new_name_is_durable(
    tmp_path: Path, atomic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "graph")
    synced = []

    def sync_and_look(path: Path) -> None:
        if path == tmp_path and open_artifact(tmp_path / "graph").config == {"seed": 1}:
            synced.append([entry.name for entry in tmp_path.iterdir() if (entry / "c.bin").exists()])
        sync(path)

    monkeypatch.setattr(writing, "sync", sync_and_look)
    refused = nullcontext() if atomic else faults.armed("artifact.exchange", OSError(errno.EINVAL, "no"))
    with refused:
        write(tmp_path / "graph", seed=1, overwrite=True)
    assert [len(found) for found in synced] == [2]
    assert names(tmp_path) == ["graph"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link", seed=1, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert open_artifact(tmp_path / "real").config == {"seed": 1}


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    free = free_bytes(tmp_path / "not" / "there")
    require_free_bytes(tmp_path, 0, "nothing")
    with pytest.raises(DiskFullError, match=r"packing needs .* bytes are missing.*another disk"):
        require_free_bytes(tmp_path, free + (1 << 50), "packing")


# What killed runs leave beside an output that exists


def test_leftovers_are_cleaned_when_the_output_exists(tmp_path: Path) -> None:
    write(tmp_path / "graph")
    leftovers = tmp_path / ".graph.partial"
    leftovers.mkdir()
    (leftovers / "half.npy").touch()
    (tmp_path / ".graph.lock").touch()
    with pytest.raises(OutputExistsError):
        ArtifactWriter(tmp_path / "graph", GRAPH, config={})
    assert names(tmp_path) == ["graph"]


def test_what_another_process_works_with_is_not_cleaned(tmp_path: Path) -> None:
    first = ArtifactWriter(tmp_path / "graph", GRAPH, config={})
    with first:
        first.save_array("a.npy", np.zeros(3))
        (tmp_path / "graph").mkdir()
        (tmp_path / "graph" / "mine").touch()
        with pytest.raises(OutputExistsError):
            ArtifactWriter(tmp_path / "graph", GRAPH, config={})
        shutil.rmtree(tmp_path / "graph")
        write_elsewhere = write(tmp_path / "other")
        (tmp_path / "other").rename(tmp_path / "graph")
        with pytest.raises(OutputExistsError):
            ArtifactWriter(tmp_path / "graph", GRAPH, config={})
        assert (tmp_path / ".graph.partial" / "a.npy").exists()
        assert write_elsewhere.config == {"seed": 0}
    assert names(tmp_path) == ["graph"]


def test_what_overwriting_would_go_on_with_is_not_cleaned(tmp_path: Path) -> None:
    def begin(seed: int, overwrite: bool = False) -> ArtifactWriter:
        return ArtifactWriter(tmp_path / "samples", SAMPLES, config={"seed": seed}, overwrite=overwrite, resumable=True)

    with begin(1) as writer:
        writer.save_array("a.npy", np.zeros(3))
        writer.publish()
    with pytest.raises(KeyboardInterrupt), begin(2, overwrite=True) as writer:  # noqa: PT012
        writer.note("stage", Note({"done": np.zeros(3)}))
        writer.commit()
        raise KeyboardInterrupt
    with pytest.raises(OutputExistsError, match=r"exists already.*\.samples\.partial has what a run .* stopped at"):
        begin(2)
    assert names(tmp_path) == [".samples.partial", "samples"]
    with begin(1, overwrite=True):  # of the one that is there: nobody goes on with it
        pass
    with pytest.raises(OutputExistsError):
        begin(1)
    assert names(tmp_path) == ["samples"]
