"""Steps under the runner: an external sort of lines, killed anywhere, damaged anywhere, ends with the same bytes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diskgnn._native import crc32c
from diskgnn.files import faults
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.destination import staging_of
from diskgnn.files.disk_space import JOURNAL, OWN_BYTES, DiskBudget, file_bytes
from diskgnn.formats.artifacts import GRAPH
from diskgnn.progress.reporter import Advance
from diskgnn.work.array_file import ArrayFile
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.fold import Output
from diskgnn.work.runner import Work
from diskgnn.work.shuffle import Shuffle
from diskgnn.work.step_file import SavedArray, StepFile
from diskgnn.work.work_folder import Note, State, WorkFolder
from diskgnn.work.writer import ArtifactWriter
from diskgnn.work.written_spans import Span

NUMBERS, PIECE, PARTITIONS = 400, 40, 5
VALUES = np.random.default_rng(0).integers(0, 1000, NUMBERS)


class Killed(BaseException):
    """Nobody handles it."""


class Asked:
    """Counts the numbers that were asked for."""

    def __init__(self) -> None:
        self.numbers = 0


def split(asked: Asked, found: Shuffle, state: State, output: Output) -> Generator[int, None, None]:
    """Numbers to partitions, a piece at a time; what is held in between is handed over before a commit."""
    held: list[list[int]] = [[] for _ in range(PARTITIONS)]

    def hand_over() -> None:
        for partition, numbers in enumerate(held):
            if numbers:
                found.add(partition, np.array(numbers))
                numbers.clear()

    output.before_commit(hand_over)
    for first in range(int(state["read"]), NUMBERS, PIECE):
        for number in VALUES[first : first + PIECE].tolist():
            asked.numbers += 1
            held[number * PARTITIONS // 1000].append(number)
        state["read"] += PIECE
        yield PIECE


def sorted_files(writer: ArtifactWriter) -> list[ArrayFile]:
    return [
        ArrayFile(writer, "numbers.npy", np.int64, None),
        ArrayFile(writer, "counts.npy", np.int32, PARTITIONS, checksums="checksums.npy"),
    ]


def merge(found: Shuffle, files: list[ArrayFile], state: State, output: Output) -> Generator[int, None, None]:
    """Partitions to one file, sorted, without duplicates; and a file of how many each has."""
    numbers, counts = files
    for partition in range(int(state["partitions"]), PARTITIONS):
        distinct = np.unique(found.content(partition, np.int64))
        numbers.write(distinct)
        counts.write(np.array([len(distinct)], np.int32))
        state["partitions"] += 1
        yield distinct.nbytes


def stage(asked: Asked, writer: ArtifactWriter, in_memory: bool, work: Work) -> int:
    found, files = work.shuffle("split", "found", PARTITIONS, in_memory=in_memory), sorted_files(writer)
    work.fold("split", partial(split, asked, found), {"read": 0})
    done = work.fold("merge", partial(merge, found, files), {"partitions": 0}, files=files, consumes=[found])
    return int(done["partitions"])


def sort(out: Path, *, in_memory: bool = False, disk: DiskBudget | None = None) -> int:
    """Numbers that were asked for."""
    asked = Asked()
    with (
        faults.pretending("unit.bytes", 1),
        ArtifactWriter(out, GRAPH, config={}, resumable=True, disk=disk or DiskBudget(None, ())) as writer,
    ):
        assert Work(writer, "sort").run(partial(stage, asked, writer, in_memory)) == PARTITIONS
        writer.publish()
    return asked.numbers


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert sort(out) == NUMBERS
    np.testing.assert_array_equal(np.load(out / "numbers.npy"), np.unique(VALUES))
    counts = [len(np.unique(VALUES[each == VALUES * PARTITIONS // 1000])) for each in range(PARTITIONS)]
    np.testing.assert_array_equal(np.load(out / "counts.npy"), counts)
    return content(out)


def test_memory_changes_no_byte(tmp_path: Path, whole: dict[str, bytes]) -> None:
    sort(tmp_path / "out", in_memory=True)
    assert content(tmp_path / "out") == whole


def test_a_small_step_is_committed_with_what_comes_after_it(tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Although what it had read was removed before."""
    asked = Asked()

    def count(state: State, output: Output) -> Generator[int, None, None]:
        yield 1
        if asked.numbers:
            raise Killed

    def sort_and_count(writer: ArtifactWriter, work: Work) -> None:
        stage(asked, writer, False, work)
        assert not writer.path("sort.found").exists()
        if asked.numbers:
            assert [path.name for path in writer.staging.glob("*.npz")] == []
        with faults.pretending("unit.bytes", 1):
            work.fold("count", count, {})

    def run() -> int:
        asked.numbers = 0
        with ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer:
            Work(writer, "sort").run(partial(sort_and_count, writer))
            writer.publish()
        return asked.numbers

    with pytest.raises(Killed):
        run()
    assert run() == 0
    assert content(tmp_path / "out") == whole


@pytest.mark.parametrize("point", ["work.piece", "shuffle.write", "unit.written", "artifact.write", "artifact.publish"])
def test_a_kill_costs_no_more_than_what_is_not_committed(tmp_path: Path, whole: dict[str, bytes], point: str) -> None:
    passes: list[int] = []
    with faults.armed(point, lambda: passes.append(1)):
        sort(tmp_path / "counted")
    for after in range(len(passes)):
        with pytest.raises(Killed), faults.armed(point, Killed(), after=after):
            sort(tmp_path / "out")
        again = sort(tmp_path / "out")
        if point == "work.piece":  # every piece before this one was committed
            assert again == NUMBERS - min(after, NUMBERS // PIECE) * PIECE
        if point == "artifact.write":  # only the second step writes there
            assert again == 0
        assert content(tmp_path / "out") == whole
        assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "out"]
        shutil.rmtree(tmp_path / "out")


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[int(place * (len(data) - 1))] ^= 1
        path.write_bytes(data)


def cut(path: Path, place: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(place * len(data))])


def remove(path: Path, place: float) -> None:
    path.unlink()


def lengthen(path: Path, place: float) -> None:
    with path.open("ab") as file:
        file.write(b"x" * int(1 + 5000 * place))


@settings(deadline=None, max_examples=60)
@given(
    point=st.sampled_from(["work.piece", "shuffle.write", "unit.written"]),
    after=st.integers(0, 14),
    harm=st.sampled_from([flip, cut, remove, lengthen]),
    place=st.floats(0, 1),
    which=st.integers(0, 20),
)
def test_whatever_is_damaged_is_made_again(
    tmp_path_factory: pytest.TempPathFactory,
    whole: dict[str, bytes],
    point: str,
    after: int,
    harm: Callable[[Path, float], None],
    place: float,
    which: int,
) -> None:
    folder = tmp_path_factory.mktemp("harmed")
    out = folder / "out"
    with pytest.raises(Killed), faults.armed(point, Killed(), after=after):
        sort(out)
    if (staging := staging_of(out)).exists():
        files = sorted(path for path in staging.iterdir() if path.is_file())
        harm(files[which % len(files)], place)
    sort(out)
    assert content(out) == whole
    shutil.rmtree(folder)


def chain(writer: ArtifactWriter, work: Work) -> None:
    """Three steps: numbers are split, their squares are split by another digit, and written in that order."""
    file = ArrayFile(writer, "squares.npy", np.int64, NUMBERS)
    first, second = (work.shuffle(step, f"{step}.found", PARTITIONS) for step in ("split", "square"))

    def square(state: State, output: Output) -> Generator[int, None, None]:
        for partition in range(int(state["partitions"]), PARTITIONS):
            squares = first.content(partition, np.int64) ** 2
            for digit in range(PARTITIONS):
                second.add(digit, squares[squares % PARTITIONS == digit])
            state["partitions"] += 1
            yield squares.nbytes

    def write(state: State, output: Output) -> Generator[int, None, None]:
        for digit in range(int(state["digits"]), PARTITIONS):
            squares = second.content(digit, np.int64)
            file.write(squares)
            state["digits"] += 1
            yield squares.nbytes

    work.fold("split", partial(split, Asked(), first), {"read": 0})
    work.fold("square", square, {"partitions": 0}, consumes=[first])
    work.fold("write", write, {"digits": 0}, files=[file], consumes=[second])


def run_chain(out: Path) -> None:
    with (
        faults.pretending("unit.bytes", 1),
        ArtifactWriter(out, GRAPH, config={}, resumable=True) as writer,
    ):
        Work(writer, "chain").run(partial(chain, writer))
        writer.publish()


CHAIN_PIECES = NUMBERS // PIECE + 2 * PARTITIONS
CHAIN_FILES = ["chain.split.found", "chain.square.found", "squares.npy"]
CHAIN_FILES += [f"chain.{step}.{turn}.npz" for step in ("split", "square", "write") for turn in ("even", "odd")]


@settings(deadline=None, max_examples=60)
@given(
    after=st.integers(1, CHAIN_PIECES - 1),
    harms=st.dictionaries(st.sampled_from(CHAIN_FILES), st.sampled_from([flip, cut, remove, lengthen]), min_size=2),
    place=st.floats(0, 1),
)
@example(after=NUMBERS // PIECE + 2, harms=dict.fromkeys(CHAIN_FILES[:2], flip), place=0.09)
def test_files_of_several_steps_are_damaged_at_once(
    tmp_path_factory: pytest.TempPathFactory, after: int, harms: dict[str, Callable[[Path, float], None]], place: float
) -> None:
    """Also of a step that is made again, and whose files are used up before a later one's turn out to be damaged."""
    folder = tmp_path_factory.mktemp("chain")
    out = folder / "out"
    with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
        run_chain(out)
    for name, harm in harms.items():
        if (path := staging_of(out) / name).exists():
            harm(path, place)
    run_chain(out)
    squares = VALUES[np.argsort(VALUES * PARTITIONS // 1000, kind="stable")] ** 2
    expected = squares[np.argsort(squares % PARTITIONS, kind="stable")]
    np.testing.assert_array_equal(np.load(out / "squares.npy"), expected)
    shutil.rmtree(folder)


def test_a_disk_that_does_not_keep_what_is_written_is_said_to_be_one(tmp_path: Path) -> None:
    def spoil() -> None:
        path = staging_of(tmp_path / "out") / "sort.found"
        path.write_bytes(bytes(path.stat().st_size))

    with (
        faults.armed("work.piece", spoil, after=NUMBERS // PIECE),
        pytest.raises(DamagedStepError, match="run the same"),
    ):
        sort(tmp_path / "out")


def test_damage_while_running_costs_the_step_once(tmp_path: Path, whole: dict[str, bytes]) -> None:
    spoilt: list[int] = []

    def spoil() -> None:
        if not spoilt:
            spoilt.append(1)
            flip(staging_of(tmp_path / "out") / "sort.found", 0.9)

    with faults.armed("work.piece", spoil, after=NUMBERS // PIECE):
        assert sort(tmp_path / "out") == 2 * NUMBERS
    assert content(tmp_path / "out") == whole


def test_damage_of_the_stage_around_is_left_to_it(tmp_path: Path, whole: dict[str, bytes]) -> None:
    asked, spoilt, inner_runs = Asked(), list[int](), list[int]()

    def spoil() -> None:
        if not spoilt:
            spoilt.append(1)
            flip(staging_of(tmp_path / "out") / "around.found", 0.9)

    def around(writer: ArtifactWriter, work: Work) -> None:
        found = work.shuffle("split", "found", PARTITIONS)
        work.fold("split", partial(split, asked, found), {"read": 0})

        def inside(inner: Work) -> None:
            inner_runs.append(1)
            files = sorted_files(writer)
            inner.fold("merge", partial(merge, found, files), {"partitions": 0}, files=files, consumes=[found])

        Work(writer, "inside").run(inside)

    with (
        faults.armed("work.piece", spoil, after=NUMBERS // PIECE),
        ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
    ):
        Work(writer, "around").run(partial(around, writer))
        writer.publish()
    assert (asked.numbers, len(inner_runs)) == (2 * NUMBERS, 2)
    assert content(tmp_path / "out") == whole


def test_what_is_finished_is_not_made_again_when_another_step_is_damaged(
    tmp_path: Path, whole: dict[str, bytes]
) -> None:
    """Although nothing was committed yet: neither was worth it."""
    asked, spoilt, made = Asked(), list[int](), list[int]()

    def spoil() -> None:
        if not spoilt:
            spoilt.append(1)
            flip(staging_of(tmp_path / "out") / "sort.found", 0.9)

    def with_another(writer: ArtifactWriter, work: Work) -> None:
        file = ArrayFile(writer, "made.npy", np.int64, 1)

        def make(state: State, output: Output) -> Generator[int, None, None]:
            file.write(np.ones(1, np.int64))
            made.append(1)
            yield 8

        work.fold("make", make, {}, files=[file])
        stage(asked, writer, False, work)

    with (
        faults.armed("work.piece", spoil, after=1 + NUMBERS // PIECE),
        ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
    ):
        Work(writer, "sort").run(partial(with_another, writer))
        writer.publish()
    assert (asked.numbers, made) == (2 * NUMBERS, [1])
    assert whole.items() - {("manifest.json", whole["manifest.json"])} <= content(tmp_path / "out").items()


def test_another_key_begins_anew(tmp_path: Path) -> None:
    """What a plan says that a killed run did not have is not gone on with."""

    def count(state: State, output: Output) -> Generator[int, None, None]:
        for _ in range(int(state["done"]), 4):
            state["done"] += 1
            yield 1

    def run(key: int) -> int:
        pieces: list[int] = []
        with (
            faults.pretending("unit.bytes", 1),
            faults.armed("work.piece", lambda: pieces.append(1)),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            writer.save_array("x.npy", np.zeros(1))
            writer.commit_files(["x.npy"])  # so that the folder stays
            Work(writer, "count").run(lambda work: work.fold("all", count, {"done": 0}, key=key))
        return len(pieces)

    assert (run(1), run(1), run(2), run(1)) == (4, 0, 4, 4)


class Bar:
    """Where a stage of a step began, and where it stands."""

    def __init__(self) -> None:
        self.begins_at, self.done = list[int](), 0

    @contextmanager
    def stage(self, description: str, total: int, unit: str) -> Iterator[Advance]:
        self.done = 0

        def advance(count: int) -> None:
            self.done += count
            told.append(count)

        told = list[int]()
        try:
            yield advance
        finally:
            self.begins_at.append(told[0])


def test_a_step_goes_on_although_an_array_of_its_is_saved_at_its_end_only(tmp_path: Path) -> None:
    pieces, bar = list[int](), Bar()

    def stage(writer: ArtifactWriter, work: Work) -> None:
        total = SavedArray(writer, "total.npy", np.zeros(1, np.int64))

        def add(state: State, output: Output) -> Generator[int, None, None]:
            with output.stage(bar, "add", 4, "numbers") as advance:
                for number in range(int(state["done"]), 4):
                    state["sum"] += number
                    state["done"] += 1
                    advance(1)
                    pieces.append(number)
                    yield 1
            total.array[:] = state["sum"]

        work.fold("add", add, {"done": 0, "sum": 0}, files=[total])

    def run() -> None:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            Work(writer, "sums").run(partial(stage, writer))
            writer.publish()

    for after in (2, 1):
        with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
            run()
    with pytest.raises(Killed), faults.armed("artifact.publish", Killed()):
        run()
    run()
    assert pieces == [0, 1, 2, 2, 3, 3]
    assert bar.begins_at == [0, 2, 3]
    assert bar.done == 4
    assert np.load(tmp_path / "out" / "total.npy").tolist() == [6]


def test_a_bar_that_steps_share_counts_what_killed_runs_did(tmp_path: Path) -> None:
    bar = Bar()

    def count(state: State, output: Output) -> Generator[int, None, None]:
        for _ in range(int(state["done"]), 3):
            state["done"] += 1
            output.advance(1)
            yield 1

    def run() -> None:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
            bar.stage("count", 6, "numbers") as advance,
        ):
            work = Work(writer, "numbers")
            for step in ("first", "second"):
                work.fold(step, count, {"done": 0}, advance=advance)
            raise Killed

    for after in (1, 3):  # within the first step, and within the second one
        with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
            run()
    with pytest.raises(Killed):
        run()
    assert bar.done == 6
    assert bar.begins_at == [1, 1, 3]


def test_what_notes_take_of_the_disk_is_known_before(tmp_path: Path) -> None:
    first = {"numbers": np.arange(5000), "records": np.zeros((300, 2), [("a", "<i8"), ("b", "<i4")])}

    def count(state: State, output: Output) -> Generator[int, None, None]:
        yield from [1] * 4

    with (
        faults.pretending("unit.bytes", 1),
        ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
    ):
        work = Work(writer, "noted")
        work.fold("step", count, first)
        taken = sum(file_bytes(path.stat().st_size) for path in writer.staging.glob("noted.step.*"))
        assert taken <= work.note_bytes(first) <= taken + 2 * file_bytes(1)


class FirstLines(StepFile):
    """A file that another step goes on with."""

    def written(self, state: State) -> list[Span]:
        lines = b"f\n" * int(state["lines"])
        return [Span(0, len(lines), crc32c(lines))]


class Following:
    """Two steps: lines of a file that a first step begins are followed by those of a second."""

    def __init__(self, out: Path) -> None:
        self.out, self.written = out, list[str]()

    def run(self, key: int = 0, *, is_streamed: bool = False) -> list[str]:
        """Returns the lines that were written by this run."""
        self.written.clear()
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(self.out, GRAPH, config={}, resumable=True) as writer,
        ):
            writer.save_array("x.npy", np.zeros(1))
            writer.commit_files(["x.npy"])  # so that the folder stays
            Work(writer, "follow").run(partial(self._stage, writer, key, is_streamed))
            writer.publish()
        return list(self.written)

    def _stage(self, writer: ArtifactWriter, key: int, is_streamed: bool, work: Work) -> None:
        path = writer.path("lines")

        def write(name: str, num_lines: int, state: State, output: Output) -> Generator[int, None, None]:
            for number in range(int(state["lines"]), num_lines):
                with path.open("r+" if path.exists() else "w") as file:
                    file.seek(2 * number + (4 if name == "second" else 0))
                    file.write(f"{name[0]}\n")
                self.written.append(name)
                state["lines"] += 1
                yield 1
            if name == "second":
                writer.add("lines")

        begun, ended = FirstLines(writer, "lines", ends=False), StepFile(writer, "lines", begins=False)
        work.fold("first", partial(write, "first", 2), {"lines": 0}, files=[begun], key=key)
        if is_streamed:
            work.forget("first")  # whose lines are used up
        ended.is_streamed = is_streamed
        second = partial(write, "second", 3)
        work.fold("second", second, {"lines": 0}, files=[ended], after=["first"])

    def kill(self, after: int, **given: Any) -> None:
        with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=after):
            self.run(**given)


ALL_LINES = ["first"] * 2 + ["second"] * 3


def test_a_step_goes_on_with_what_it_follows_from(tmp_path: Path) -> None:
    lines = Following(tmp_path / "out")
    lines.kill(4)
    assert lines.run() == ["second"]
    assert (tmp_path / "out" / "lines").read_text() == "f\nf\ns\ns\ns\n"


def test_a_step_begins_anew_with_what_it_follows_from(tmp_path: Path) -> None:
    """Which another key, or damage, has made again; in this run, or in one that was killed in between."""
    lines = Following(tmp_path / "out")
    lines.kill(4)
    assert lines.run(1) == ALL_LINES
    lines = Following(tmp_path / "killed")
    lines.kill(4)
    lines.kill(1, key=1)
    assert lines.run(1) == ["first", *["second"] * 3]
    lines = Following(tmp_path / "damaged")
    lines.kill(4)
    flip(staging_of(lines.out) / "lines", 0.0)
    assert lines.run() == ALL_LINES


def test_what_a_step_used_up_is_made_again(tmp_path: Path) -> None:
    lines = Following(tmp_path / "out")
    lines.kill(4, is_streamed=True)
    assert (staging_of(lines.out) / "lines").exists()
    assert lines.run() == ALL_LINES


def test_scratch_goes_with_its_block_and_with_the_run_after_a_kill(tmp_path: Path) -> None:
    """A budget that sufficed suffices again."""
    out, size = tmp_path / "out", 1 << 20
    staging = staging_of(out)

    def stage(work: Work) -> None:
        for name in ("one", "two"):
            with work.scratch(name) as scratch:
                scratch.claim(size)
                scratch.path("numbers").write_bytes(bytes(size))
                assert [path.name for path in (staging / "stage.scratch").iterdir()] == [name]
                faults.point("work.piece")

    def run() -> None:
        disk = DiskBudget(size + (64 << 10) + OWN_BYTES, [staging])
        with ArtifactWriter(out, GRAPH, config={}, resumable=True, disk=disk) as writer:
            writer.save_array("x.npy", np.zeros(1))
            writer.commit_files(["x.npy"])  # so that the folder stays
            Work(writer, "stage").run(stage)
            assert not list(staging.glob("*scratch"))
            writer.publish()

    # As SIGKILL leaves it: what a process does on its way out is undone.
    with pytest.raises(Killed), faults.armed("work.piece", Killed()):
        run()
    (staging / "stage.scratch" / "one").mkdir(parents=True)
    (staging / "stage.scratch" / "one" / "numbers").write_bytes(bytes(size))
    run()
    assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "x.npy"]


def test_what_is_decided_stays(tmp_path: Path) -> None:
    def decide(value: int) -> list[int | None]:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            work = Work(writer, "plan")
            before = work.state_of("plan").get("size")
            if before is None:
                work.note("plan", {"size": np.array([value])})
            work.fold("step", lambda state, output: iter_one(), {})
            return [None if before is None else int(before[0])]

    assert decide(3) == [None]
    assert decide(4) == [3]


def iter_one() -> Generator[int, None, None]:
    yield 1


def test_the_disk_budget_counts_the_log_and_gives_it_back(tmp_path: Path) -> None:
    staging = staging_of(tmp_path / "out")
    disk = DiskBudget(1 << 20, [staging])
    left = disk.left_bytes
    sort(tmp_path / "out", disk=disk)
    disk.look()
    assert disk.left_bytes == left
    assert not staging.exists()
    assert not (tmp_path / "out" / JOURNAL).exists()


PIECE_BYTES, PIECES = 64 << 10, 16


def write_pieces(writer: ArtifactWriter, work: Work) -> None:
    """One file; only its first piece is committed."""
    file = ArrayFile(writer, "x.npy", np.uint8, PIECES * PIECE_BYTES)

    def write(state: State, output: Output) -> Generator[int, None, None]:
        for piece in range(file.rows_written // PIECE_BYTES, PIECES):
            file.write(np.full(PIECE_BYTES, piece, np.uint8))
            yield int(piece == 0)

    work.fold("write", write, {}, files=[file])


@pytest.mark.parametrize("harm", [None, flip, cut, remove, lengthen])
def test_what_a_killed_run_left_is_counted_once(tmp_path: Path, harm: Callable[[Path, float], None] | None) -> None:
    """What is cut off, or made again, has room where it was: a budget that sufficed suffices for the run after."""
    staging = staging_of(tmp_path / "out")

    def run() -> None:
        disk = DiskBudget(PIECES * PIECE_BYTES + (OWN_BYTES + (48 << 10)), [staging])
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True, disk=disk) as writer,
        ):
            Work(writer, "pieces").run(partial(write_pieces, writer))
            writer.publish()

    with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=PIECES - 2):
        run()
    if harm is not None:
        harm(staging / "x.npy", 0.01)
    run()
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "x.npy"), np.repeat(np.arange(PIECES), PIECE_BYTES))


def test_a_finished_file_that_is_damaged_is_counted_once(tmp_path: Path) -> None:
    staging = staging_of(tmp_path / "out")

    def run() -> None:
        disk = DiskBudget(PIECES * PIECE_BYTES + (OWN_BYTES + (48 << 10)), [staging])
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True, disk=disk) as writer,
        ):
            work = Work(writer, "pieces")
            work.run(partial(write_pieces, writer))
            work.run(lambda work: work.fold("next", lambda state, output: iter_one(), {}))
            writer.publish()

    with pytest.raises(Killed), faults.armed("artifact.publish", Killed()):
        run()
    flip(staging / "x.npy", 0.5)
    run()
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "x.npy"), np.repeat(np.arange(PIECES), PIECE_BYTES))


def test_a_file_that_is_written_over_is_counted_once(tmp_path: Path) -> None:
    """What a killed run had not finished, and knows nothing of."""
    staging = staging_of(tmp_path / "out")
    content = np.zeros(PIECES * PIECE_BYTES, np.uint8)

    def run() -> None:
        disk = DiskBudget(content.nbytes + (OWN_BYTES + (24 << 10)), [staging])
        with ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True, disk=disk) as writer:
            writer.save_array("first.npy", np.zeros(1))
            writer.commit_files(["first.npy"])
            writer.save_array("x.npy", content)
            writer.publish()

    with pytest.raises(Killed), faults.armed("artifact.publish", Killed()):
        run()
    run()


NOTED = {"numbers": np.zeros(100_000, np.int64)}  # larger than what is set aside


def leave_a_note(out: Path, disk: DiskBudget) -> None:
    """As a killed run does: a file, and a note that it is committed."""
    with WorkFolder(out, "noted", disk=disk) as folder:
        folder.note("sort.split", Note(NOTED))
        with ChecksummedFile(folder.path("x"), disk=disk) as file:
            file.write(bytes(PIECE_BYTES))
        folder.complete({"x": file.crc32c})
        folder.commit()
        raise Killed


def test_a_note_that_is_forgotten_gives_its_room_back(tmp_path: Path) -> None:
    """Also one of a killed run, which the disk was asked about."""
    out = tmp_path / "out"
    disk = DiskBudget(4 << 20, [staging_of(out)])
    with pytest.raises(Killed):
        leave_a_note(out, disk)
    left = disk.left_bytes
    with WorkFolder(out, "noted", disk=disk) as folder:
        assert disk.left_bytes == left
        folder.forget("sort.split")
        assert disk.left_bytes == DiskBudget(4 << 20, [staging_of(out)]).left_bytes
        assert disk.left_bytes is not None
        assert left is not None
        assert disk.left_bytes > left + NOTED["numbers"].nbytes // 2


def test_what_is_removed_has_room_for_a_new_journal(tmp_path: Path) -> None:
    """A smaller budget suffices for something else that is smaller."""
    out = tmp_path / "out"
    with pytest.raises(Killed):
        leave_a_note(out, DiskBudget(4 << 20, [staging_of(out)]))
    disk = DiskBudget(OWN_BYTES, [staging_of(out)])
    with WorkFolder(out, "something else", disk=disk) as folder:
        assert folder.noted("sort.split") == {}


def test_checksums_of_chunks_are_not_written_again_at_each_commit(tmp_path: Path) -> None:
    """What is noted stays small, however long the file becomes; and the run after a kill goes on with both files."""
    rows, piece_rows, noted_bytes = 40 << 10, 1 << 10, list[int]()
    staging = staging_of(tmp_path / "out")
    values = np.random.default_rng(0).integers(0, 1 << 60, (rows, 32))

    def stage(writer: ArtifactWriter, work: Work) -> None:
        file = ArrayFile(writer, "x.npy", np.int64, rows, (32,), checksums="checksums.npy")

        def write(state: State, output: Output) -> Generator[int, None, None]:
            for first in range(file.rows_written, rows, piece_rows):
                file.write(values[first : first + piece_rows])
                yield piece_rows * 256

        work.fold("write", write, {}, files=[file])

    def measure() -> None:
        noted_bytes.extend(path.stat().st_size for path in staging.glob("*.npz"))

    def run() -> None:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            Work(writer, "long").run(partial(stage, writer))
            writer.publish()

    with faults.armed("unit.written", measure):
        with pytest.raises(Killed), faults.armed("work.piece", Killed(), after=30):
            run()
        run()
    found = np.load(tmp_path / "out" / "checksums.npy")
    data = (tmp_path / "out" / "x.npy").read_bytes()
    assert found.tolist() == [crc32c(data[first : first + 4096]) for first in range(0, len(data), 4096)]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "x.npy"), values)
    assert max(noted_bytes) < 4096 < found.nbytes


def test_a_forgotten_step_leaves_nothing_to_keep(tmp_path: Path) -> None:
    def run(error: Exception | None = None) -> None:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            work = Work(writer, "pieces")
            if error is not None:
                work.forget("write")
                raise error
            write_pieces(writer, work)
            writer.publish()

    with pytest.raises(Killed), faults.armed("artifact.publish", Killed()):
        run()
    assert staging_of(tmp_path / "out").exists()
    with pytest.raises(RuntimeError, match="stopped"):
        run(RuntimeError("stopped"))
    assert not staging_of(tmp_path / "out").exists()


def test_a_step_that_wrote_its_file_in_one_piece_is_committed(tmp_path: Path) -> None:
    """Although it yielded nothing."""
    runs: list[int] = []

    def stage(writer: ArtifactWriter, work: Work) -> None:
        file = ArrayFile(writer, "x.npy", np.int64, 1)

        def write(state: State, output: Output) -> Generator[int, None, None]:
            file.write(np.ones(1, np.int64))
            runs.append(1)
            yield from ()

        work.fold("write", write, {}, files=[file])

    def run() -> None:
        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(tmp_path / "out", GRAPH, config={}, resumable=True) as writer,
        ):
            Work(writer, "piece").run(partial(stage, writer))
            writer.publish()

    with pytest.raises(Killed), faults.armed("artifact.publish", Killed()):
        run()
    run()
    assert runs == [1]


def test_a_note_of_a_version_that_counted_less_is_not_believed(tmp_path: Path) -> None:
    """Its step begins anew: a count that is not noted would go on from its beginning, in silence."""
    out = tmp_path / "out"

    def run(first: State, killed_at: int) -> int:
        def count(state: State, output: Output) -> Generator[int, None, None]:
            for number in range(int(state["read"]), NUMBERS, PIECE):
                if number == killed_at:
                    raise Killed
                state["read"] += PIECE
                if "seen" in state:
                    state["seen"] += PIECE
                yield PIECE

        with (
            faults.pretending("unit.bytes", 1),
            ArtifactWriter(out, GRAPH, config={}, resumable=True) as writer,
        ):
            return int(Work(writer, "count").run(lambda work: work.fold("count", count, first))["seen"])

    with pytest.raises(Killed):
        run({"read": np.array(0)}, 3 * PIECE)
    assert run({"read": np.array(0), "seen": np.array(0)}, -1) == NUMBERS
