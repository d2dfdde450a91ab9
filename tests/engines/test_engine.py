"""Units and tasks of a stage that is not diskgnn's: engines know of no other."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from diskgnn.engines.engine import LocalEngine, open_engine
from diskgnn.engines.telling import Arrived, TellingReporter
from diskgnn.engines.work_units import MadeUnit
from diskgnn.engines.worker_tasks import make_units
from diskgnn.errors import ConfigError, DiskFullError
from diskgnn.system.resources import Resources
from diskgnn.work.work_folder import WorkFolder

RESOURCES = Resources(1 << 20, 1)


@dataclass(frozen=True)
class Word:
    """Leaves two files: the word, and how long it is."""

    text: str

    @property
    def files(self):
        return self.text, f"{self.text}.length"

    @property
    def amount(self):
        return len(self.text)

    @property
    def disk_share(self):
        return 2 * 4096


def write_words(given, units, folder, resources, advance):
    count = 0
    for unit in units:
        content = {unit.text: unit.text * given, f"{unit.text}.length": str(len(unit.text))}
        for name, text in content.items():
            resources.disk.claim(4096)
            (folder / name).write_text(text)
        advance(unit.amount)
        count += 1
        yield MadeUnit(unit, {name: zlib.crc32(text.encode()) for name, text in content.items()})
    return count


def words(*texts):
    return [Word(text) for text in texts]


def test_units_are_made_in_this_process(tmp_path: Path):
    engine, advanced = LocalEngine(), []
    with WorkFolder(tmp_path / "out", "words", resumable=False) as folder:
        making = engine.made(
            write_words, engine.send(3, "", ""), folder, iter(words("a", "bcd")), RESOURCES, advanced.append, 1
        )
        results = []

        def units():
            results.extend((yield from making))

        made = [each.unit.text for each in units()]
        assert results == [2]
        assert (made, advanced) == (["a", "bcd"], [1, 3])
        assert folder.path("bcd").read_text() == "bcdbcdbcd"


def test_a_worker_leaves_out_what_is_there_and_tells_what_has_arrived(tmp_path: Path):
    """A unit of which only one file is there is made again; what is on the way counts as taken."""
    arriving, told = tmp_path / "staging" / "arriving", []
    arriving.mkdir(parents=True)
    for name in ("a", "a.length", "bcd"):
        (tmp_path / "staging" / name).write_text("there")
    arrived, count = make_units(
        2, told.append, write_words, words("a", "bcd", "ef"), RESOURCES, str(arriving), None
    )  # fmt: skip
    assert count == 2
    assert told == arrived
    assert [each.made.unit.text for each in arrived if isinstance(each, Arrived)] == ["bcd", "ef"]
    found = {name: ((arriving / file).read_text(), size) for name, (file, size) in arrived[1].files.items()}
    assert found == {"ef": ("efef", 4), "ef.length": ("2", 1)}
    assert sorted(path.name for path in arriving.parent.iterdir()) == ["a", "a.length", "arriving", "bcd"]
    with pytest.raises(DiskFullError):  # seven files of a page are there, two more are to come
        make_units(2, told.append, write_words, words("a", "bcd", "ef"), RESOURCES, str(arriving), 8 * 4096)


def test_a_task_tells_of_its_stages_and_those_that_it_left_open_end():
    bars = []

    class Bars:
        @contextmanager
        def stage(self, description, total, unit):
            bars.append([description, total, unit, 0])
            yield lambda amount: bars[-1].__setitem__(3, bars[-1][3] + amount)
            bars[-1].append("ended")

    def task(given, tell, more):
        with TellingReporter(tell).stage("count", 5, "things") as advance:
            advance(2)
            advance(3)
        TellingReporter(tell).stage("left open", 1, "things").__enter__()
        return given + more

    engine = LocalEngine()
    assert engine.call(task, engine.send(40, "", ""), Resources(0, 1, Bars()), 2) == 42
    assert bars == [["count", 5, "things", 5, "ended"], ["left open", 1, "things", 0, "ended"]]


def test_names_of_engines():
    with open_engine("local") as engine:
        assert engine.is_here
        assert engine.num_workers(RESOURCES) == 1
        assert engine.each([1, 2], str) == ["1", "2"]
    with pytest.raises(ConfigError, match="engine: expected one of local, ray, found 'spark'"):
        open_engine("spark")
    with pytest.raises(ConfigError, match="address: only engine='ray' takes it"):
        open_engine("local", "auto")
