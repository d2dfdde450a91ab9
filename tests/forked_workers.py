"""Several processes that run the tests which one has collected: `pytest --processes 3`.

To collect all tests takes 18 seconds of a core and 1 GB for what they import, and each process of pytest-xdist does it
by itself. These are forks of one that has done it. Each takes the next file when it has no other; so fixtures of a file
are made once. If one dies, the test that it was at has failed, and another one goes on after that.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from operator import attrgetter
from typing import Any

import pytest

_fork = get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="processes that share the files of tests")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    number = session.config.getoption("processes")
    if number < 2 or session.config.option.collectonly or session.testsfailed:
        return None  # pytest does it
    session.config._tmp_path_factory.getbasetemp()  # made here, so that it goes some runs later
    if reporter := session.config.pluginmanager.getplugin("terminalreporter"):
        reporter.showfspath = False  # files take turns
    files = Files([list(items) for _, items in groupby(session.items, attrgetter("path"))])
    workers: dict[Connection, Worker] = {}

    def start(items: Sequence[pytest.Item]) -> None:
        worker = Worker(session, files, items)
        workers[worker.said] = worker

    try:
        for _ in range(number):
            start([])
        while workers:
            for said in wait([*workers]):
                worker = workers[said]
                if worker.tell():
                    continue
                del workers[said]
                if worker.at is not None:
                    start(worker.items)
                elif worker.process.exitcode:
                    raise session.Failed("a process that ran tests has ended between two of them")
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
    finally:
        for worker in workers.values():
            worker.process.terminate()
            worker.process.join()
    return True


class Files:
    """Lists of tests; each goes to the process that asks next."""

    def __init__(self, files: list[list[pytest.Item]]) -> None:
        self._files, (self._numbers, numbers) = files, os.pipe()
        os.write(numbers, b"".join(number.to_bytes(4, "little") for number in range(len(files))))
        os.close(numbers)

    def take(self) -> int | None:
        """The number of the next one, None if there is none left."""
        number = os.read(self._numbers, 4)
        return int.from_bytes(number, "little") if number else None

    def __getitem__(self, number: int) -> list[pytest.Item]:
        return self._files[number]


class Worker:
    """A fork of this process that runs some tests and then files, and here what is known of it."""

    def __init__(self, session: pytest.Session, files: Files, items: Sequence[pytest.Item]) -> None:
        self._config, self._files = session.config, files
        self.items, self.at = list(items), None  # those that it has not begun; that which it runs
        self.said, saying = _fork.Pipe(duplex=False)
        self.process = _fork.Process(target=_work, args=(session, files, self.items, saying))
        self.process.start()
        saying.close()

    def tell(self) -> bool:
        """Has pytest know what it said next; False if it has ended."""
        try:
            what, said = pickle.loads(self.said.recv_bytes())
        except EOFError:
            self.process.join()
            if self.at is not None:  # it has died
                why = f"the process that ran it has ended with exit code {self.process.exitcode}"
                died = pytest.TestReport(self.at.nodeid, self.at.location, {}, "failed", why, "call")
                self._config.hook.pytest_runtest_logreport(report=died)
            return False
        if what == "took":
            self.items += self._files[said]
        elif what == "began":
            self.at = self.items.pop(0)
        elif what == "ended":
            self.at = None
        elif what == "reported":
            report = self._config.hook.pytest_report_from_serializable(config=self._config, data=said)
            self._config.hook.pytest_runtest_logreport(report=report)
        else:
            self._config.hook.pytest_warning_recorded.call_historic(kwargs=said)
        return True


def _work(session: pytest.Session, files: Files, items: list[pytest.Item], saying: Connection) -> None:
    plugins = session.config.pluginmanager
    for name in ("terminalreporter", "terminalprogress"):  # of the process that tells
        if plugins.hasplugin(name):
            plugins.unregister(name=name)
    capturing = plugins.getplugin("capturemanager")
    capturing.stop_global_capturing()  # into files that all would share
    capturing.start_global_capturing()
    capturing.suspend_global_capture()

    def say(what: str, said: Any) -> None:
        saying.send_bytes(pickle.dumps((what, said)))

    plugins.register(Saying(session.config, say))
    tests = _tests(files, items, say)
    item = next(tests, None)
    while item is not None and not (session.shouldfail or session.shouldstop):
        following = next(tests, None)
        say("began", None)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        say("ended", None)
        item = following


def _tests(files: Files, items: list[pytest.Item], say: Callable[[str, Any], None]) -> Iterator[pytest.Item]:
    """Those of one file after the other, which is taken with the last test of the one before: what both share stays."""
    yield from items
    while (number := files.take()) is not None:
        say("took", number)
        yield from files[number]


class Saying:
    """What pytest calls in a process that runs tests."""

    def __init__(self, config: pytest.Config, say: Callable[[str, Any], None]) -> None:
        self._config, self._say = config, say

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._say("reported", data)

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if when != "runtest":
            return  # it was told before this process was there
        try:
            pickle.dumps(warning_message)
        except Exception:
            warning_message.message = UserWarning(f"{warning_message.category.__name__}: {warning_message.message}")
            warning_message.category, warning_message.source = UserWarning, None
        told = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self._say("warned", told)
