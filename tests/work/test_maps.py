"""Maps under the runner: squares in units, summed in pairs that consume them, killed and damaged anywhere."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diskgnn.errors import DiskFullError
from diskgnn.files import faults
from diskgnn.files.checked_files import ChecksummedFile
from diskgnn.files.destination import staging_of
from diskgnn.files.disk_space import OWN_BYTES, DiskBudget, folder_bytes
from diskgnn.ordered import in_order
from diskgnn.work.damage import DamagedStepError
from diskgnn.work.runner import SOME_UNITS, UnitFiles, Work
from diskgnn.work.work_folder import WorkFolder

UNITS, ITEMS = 12, 3000  # numbers a unit
POINTS = ["work.unit", "unit.written", "artifact.write"]


class Killed(BaseException):
    """Nobody handles it."""


def numbers(unit: int) -> np.ndarray:
    return np.arange(unit * ITEMS, (unit + 1) * ITEMS, dtype=np.int64)


EXPECTED = np.sum([numbers(unit) ** 2 for unit in range(UNITS)], axis=0)


def write(folder: WorkFolder, name: str, content: np.ndarray) -> dict[str, int]:
    faults.point("artifact.write")
    with ChecksummedFile(folder.path(name), disk=folder.disk) as file:
        file.write(content.view(np.uint8))
    return {name: file.crc32c}


class Squares:
    """The stage; counts the units that it ran."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, folder: WorkFolder, work: Work) -> None:
        def square(unit: int) -> tuple[int, UnitFiles]:
            self.ran.append(f"square-{unit}")
            return unit, write(folder, f"square-{unit}", numbers(unit) ** 2)

        def squares(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
            with ThreadPoolExecutor(2) as pool:
                yield from in_order(pool, (partial(square, unit) for unit in missing), 2)

        def sums(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
            for unit in missing:
                self.ran.append(f"sum-{unit}")
                both = [np.fromfile(folder.path(f"square-{each}"), np.int64) for each in (2 * unit, 2 * unit + 1)]
                yield unit, write(folder, f"sum-{unit}", both[0] + both[1])

        def total(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
            for unit in missing:
                self.ran.append("total")
                parts = [np.fromfile(folder.path(f"sum-{each}"), np.int64) for each in range(UNITS // 2)]
                yield unit, write(folder, "total", np.sum(parts, axis=0))

        work.map(range(UNITS), squares, files=lambda unit: [f"square-{unit}"])
        work.map(
            range(UNITS // 2),
            sums,
            files=lambda unit: [f"sum-{unit}"],
            consumes=lambda unit: [f"square-{2 * unit}", f"square-{2 * unit + 1}"],
        )
        work.map(
            range(1), total, files=lambda _: ["total"], consumes_at_end=[f"sum-{each}" for each in range(UNITS // 2)]
        )


def run(out: Path, *, unit_bytes: int = 1, disk: int | None = None) -> list[str]:
    """Sums all squares into file `out`; returns the units that ran."""
    squares, folder = Squares(), WorkFolder(out, "squares", disk=DiskBudget(disk, [staging_of(out)]))
    with faults.pretending("unit.bytes", unit_bytes), folder:
        Work(folder, "squares").run(partial(squares, folder))
        assert sorted(path.name for path in folder.staging.iterdir()) == ["journal.jsonl", "total"]
        np.testing.assert_array_equal(np.fromfile(folder.path("total"), np.int64), EXPECTED)
        folder.path("total").rename(out)
    shutil.rmtree(folder.staging)
    return squares.ran


def test_all_units_run_once(tmp_path: Path) -> None:
    expected = [f"square-{unit}" for unit in range(UNITS)] + [f"sum-{unit}" for unit in range(UNITS // 2)] + ["total"]
    assert sorted(run(tmp_path / "out")) == sorted(expected)


@pytest.mark.parametrize("point", POINTS)
def test_no_committed_unit_is_repeated(tmp_path: Path, point: str) -> None:
    for after in range(2 * UNITS):
        first, folder = Squares(), WorkFolder(tmp_path / "out", "squares")
        with (
            suppress(Killed),
            faults.armed(point, Killed(), after=after),
            faults.pretending("unit.bytes", 1),
            folder,
        ):
            Work(folder, "squares").run(partial(first, folder))
        again = run(tmp_path / "out")
        assert len(set(first.ran) & set(again)) <= 5  # those in flight
        (tmp_path / "out").unlink()


def test_what_was_consumed_unit_by_unit_may_be_consumed_at_the_end(tmp_path: Path) -> None:
    """As another engine does that goes on: finished units stay, the others find what they read."""

    def copies(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
        for unit in missing:
            ran.append(unit)
            yield unit, write(folder, f"copy-{unit}", np.fromfile(folder.path(f"square-{unit}"), np.int64))

    def squares(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
        for unit in missing:
            yield unit, write(folder, f"square-{unit}", numbers(unit) ** 2)

    def stage(work: Work, *, at_end: bool) -> None:
        work.map(range(UNITS), squares, files=lambda unit: [f"square-{unit}"])
        names = [f"square-{unit}" for unit in range(UNITS)]
        work.map(
            range(UNITS), copies, files=lambda unit: [f"copy-{unit}"],
            consumes=lambda unit: [] if at_end else [names[unit]], consumes_at_end=names if at_end else [],
        )  # fmt: skip
        for unit in range(UNITS):
            np.testing.assert_array_equal(np.fromfile(folder.path(f"copy-{unit}"), np.int64), numbers(unit) ** 2)

    ran, folder = list[int](), WorkFolder(tmp_path / "out", "copies")
    stopping = faults.armed("work.unit", Killed(), after=UNITS + UNITS // 2)
    with suppress(Killed), faults.pretending("unit.bytes", 1), stopping, folder:
        Work(folder, "copies").run(partial(stage, at_end=False))
    before, ran, folder = ran, [], WorkFolder(tmp_path / "out", "copies")
    with faults.pretending("unit.bytes", 1), folder:
        Work(folder, "copies").run(partial(stage, at_end=True))
    assert len(set(before) & set(ran)) <= 1
    assert len(before) == UNITS // 2 + 1


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


@settings(deadline=None, max_examples=60)
@given(
    point=st.sampled_from(POINTS),
    after=st.integers(0, 2 * UNITS),
    harm=st.sampled_from([flip, cut, Path.unlink]),
    which=st.integers(0, 40),
)
def test_whatever_is_damaged_is_made_again(
    tmp_path_factory: pytest.TempPathFactory, point: str, after: int, harm: Callable[[Path], None], which: int
) -> None:
    out = tmp_path_factory.mktemp("harmed") / "out"
    with suppress(Killed), faults.armed(point, Killed(), after=after):
        run(out)
    if (staging := staging_of(out)).exists():
        files = sorted(staging.iterdir())
        harm(files[which % len(files)])
    out.unlink(missing_ok=True)
    run(out)
    shutil.rmtree(out.parent)


def test_a_torn_last_line_of_the_journal_costs_work_and_nothing_else(tmp_path: Path) -> None:
    """It said which files were used up: these are missing then, and so are some of those that they are made of."""

    def stage(work: Work) -> None:
        def read(name: str) -> np.ndarray:
            try:
                return np.fromfile(folder.path(name), np.int64)
            except FileNotFoundError as error:
                raise DamagedStepError(SOME_UNITS, str(error)) from error

        def firsts(missing: Iterator[int]) -> Units:
            for unit in missing:
                found = write(folder, f"in-{unit}", numbers(unit)) | write(folder, f"own-{unit}", numbers(unit))
                yield unit, found

        def sums(missing: Iterator[int]) -> Units:
            for unit in missing:
                yield unit, write(folder, f"sum-{unit}", np.sum([read(name) for name in inputs], axis=0) + unit)

        def lasts(missing: Iterator[int]) -> Units:
            for unit in missing:
                yield unit, write(folder, f"last-{unit}", read(f"own-{unit}") + read(f"sum-{unit}"))

        inputs = [f"in-{unit}" for unit in range(3)]
        work.map(range(3), firsts, files=lambda unit: [f"in-{unit}", f"own-{unit}"])
        work.map(range(3), sums, files=lambda unit: [f"sum-{unit}"], consumes_at_end=inputs)
        work.map(
            range(3), lasts, files=lambda unit: [f"last-{unit}"],
            consumes=lambda unit: [f"own-{unit}", f"sum-{unit}"],
        )  # fmt: skip
        for unit in range(3):
            total = np.sum([numbers(each) for each in range(3)], axis=0)
            np.testing.assert_array_equal(read(f"last-{unit}"), total + unit + numbers(unit))

    folder = WorkFolder(tmp_path / "out", "torn")
    stopping = faults.armed("work.unit", Killed(), after=3 + 3 + 1)  # the first of the last ones is committed
    with suppress(Killed), faults.pretending("unit.bytes", 1), stopping, folder:
        Work(folder, "torn").run(stage)
    journal = folder.staging / "journal.jsonl"
    assert b"own-0" in journal.read_bytes().splitlines()[-1]
    journal.write_bytes(journal.read_bytes()[:-5])
    folder = WorkFolder(tmp_path / "out", "torn")
    with faults.pretending("unit.bytes", 1), folder:
        Work(folder, "torn").run(stage)


def test_what_an_error_ends_keeps_its_finished_units(tmp_path: Path) -> None:
    """Also where no commit was due: whoever may still write, writes down what is there."""
    with pytest.raises(OSError, match="stopped"), faults.armed("artifact.write", OSError("stopped"), after=UNITS + 2):
        run(tmp_path / "out", unit_bytes=1 << 40)
    assert len(run(tmp_path / "out")) == UNITS // 2 - 2 + 1


def test_a_budget_of_the_disk_has_consumed_files_removed_early(tmp_path: Path) -> None:
    """All squares and one sum fit: each sum has to wait for the removal of what the one before consumed."""
    file_bytes = -(-ITEMS * 8 // 4096) * 4096
    budget, most = OWN_BYTES + UNITS * file_bytes + file_bytes + 4096, [0]

    def measure() -> None:
        most[0] = max(most[0], folder_bytes(staging_of(tmp_path / "out")))

    with faults.armed("work.unit", measure):
        run(tmp_path / "out", unit_bytes=1 << 40, disk=budget)
    assert UNITS * file_bytes < most[0] <= budget


def test_a_disk_that_keeps_nothing_is_said_to_be_one(tmp_path: Path) -> None:
    def keeps_nothing(folder: WorkFolder, work: Work) -> None:
        def first(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
            for unit in missing:
                yield unit, write(folder, "first", numbers(unit))

        def second(missing: Iterator[int]) -> Generator[tuple[int, UnitFiles], None, None]:
            for unit in missing:
                yield unit, write(folder, "second", numbers(unit))

        work.map(range(1), first, files=lambda _: ["first"])
        work.map(range(1), second, files=lambda _: ["second"], consumes=lambda _: ["first"])
        flip(folder.path("second"))
        work.map(range(1), second, files=lambda _: ["second"], consumes=lambda _: ["first"])

    folder = WorkFolder(tmp_path / "out", "x")
    with faults.pretending("unit.bytes", 1), pytest.raises(DamagedStepError, match="run the same command"), folder:
        Work(folder, "x").run(partial(keeps_nothing, folder))


Units = Generator[tuple[int, UnitFiles], None, None]


def one_file_each(folder: WorkFolder, began: list[str], missing: Iterator[int]) -> Units:
    began.append("")  # a step may load here what all its units share
    for unit in missing:
        yield unit, write(folder, f"file-{unit}", numbers(unit))


def test_a_step_without_a_missing_unit_does_not_begin(tmp_path: Path) -> None:
    began: list[str] = []

    def run_once(units: int) -> None:
        folder = WorkFolder(tmp_path / "out", "x")
        with faults.pretending("unit.bytes", 1), folder:
            run = partial(one_file_each, folder, began)
            Work(folder, "x").run(lambda work: work.map(range(units), run, files=lambda unit: [f"file-{unit}"]))

    for units, expected in ((0, 0), (2, 1), (2, 1), (3, 2)):
        run_once(units)
        assert len(began) == expected


def test_a_unit_leaves_the_files_that_it_said(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path / "out", "x")
    run = partial(one_file_each, folder, [])
    with pytest.raises(AssertionError), folder:
        Work(folder, "x").run(lambda work: work.map(range(2), run, files=lambda unit: [f"other-{unit}"]))


def test_a_journal_of_many_units_is_counted(tmp_path: Path) -> None:
    """It grows beyond what is set aside for it: then the budget is used up, and never exceeded."""
    staging, most = staging_of(tmp_path / "out"), [0]
    budget = OWN_BYTES + 120_000

    def name(unit: int) -> str:
        return f"{'a-file-with-quite-a-long-name-' * 8}{unit:05d}"

    def empty_files(missing: Iterator[int]) -> Units:
        for unit in missing:
            folder.path(name(unit)).touch()
            yield unit, {name(unit): 0}

    def measure() -> None:
        most[0] = max(most[0], folder_bytes(staging))

    folder = WorkFolder(tmp_path / "out", "x", disk=DiskBudget(budget, [staging]))
    with (
        faults.armed("work.unit", measure),
        faults.pretending("unit.bytes", 1),
        pytest.raises(DiskFullError, match="the next piece"),
        folder,
    ):
        Work(folder, "x").run(lambda work: work.map(range(4000), empty_files, files=lambda unit: [name(unit)]))
    assert OWN_BYTES < most[0] <= budget
