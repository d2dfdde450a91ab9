"""Processes that ask for memory of one name have the same pages, filled once; none stay when their processes end."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import uuid
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from diskgnn.system.shared_memory import SharedMemory

NUM_BYTES = 10_000
EXPECTED = np.arange(NUM_BYTES, dtype=np.uint8)
PROCESSES = get_context("fork")


@pytest.fixture
def name():
    return uuid.uuid4().hex


def pages_of(memory) -> str:
    """Which file the kernel says that the array is a map of."""
    address = memory.ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if begin <= address < end:
            return " ".join(line.split()[3:5])
    raise AssertionError


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def ask(name, filled):
    """The memory; who fills it, appends its process to the file `filled`."""

    def fill(data):
        with filled.open("a") as file:
            file.write(f"{os.getpid()}\n")
        data[:] = EXPECTED

    return SharedMemory(name, NUM_BYTES, fill)


def _hold(name, filled, pipe):
    shared = ask(name, filled)
    pipe.send((pages_of(shared.data), bool((shared.data == EXPECTED).all())))
    pipe.recv()


class Holder:
    """A process that asks, says what it got, and ends when told."""

    def __init__(self, name, filled):
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_hold, args=(name, filled, theirs))
        self.process.start()

    def got(self):
        return self.pipe.recv()

    def end(self):
        self.pipe.send("end")
        self.process.join()


@pytest.mark.usefixtures("forks")
def test_all_that_ask_at_the_same_time_have_what_one_of_them_filled(name, tmp_path):
    holders = [Holder(name, tmp_path / "filled") for _ in range(4)]
    got = [holder.got() for holder in holders]
    assert len(set(got)) == 1
    assert got[0][1]
    assert len((tmp_path / "filled").read_text().splitlines()) == 1
    mine = ask(name, tmp_path / "filled")
    assert pages_of(mine.data) == got[0][0]
    for holder in holders:
        holder.end()
    assert (mine.data == EXPECTED).all()


def test_names_are_of_different_memory(name, tmp_path):
    one, other = ask(name, tmp_path / "filled"), ask(f"{name}-", tmp_path / "filled")
    assert pages_of(one.data) != pages_of(other.data)
    one.data[0] += 1
    assert (other.data == EXPECTED).all()


@pytest.mark.usefixtures("forks")
def test_what_a_killed_process_filled_stays_with_those_that_have_it(name, tmp_path):
    first = Holder(name, tmp_path / "filled")
    first.got()
    mine = ask(name, tmp_path / "filled")
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.join()
    assert (mine.data == EXPECTED).all()
    again = ask(name, tmp_path / "filled")
    assert pages_of(again.data) != pages_of(mine.data)
    assert len((tmp_path / "filled").read_text().splitlines()) == 2


@pytest.mark.usefixtures("forks")
def test_whoever_waits_for_one_that_fails_fills_it(name, tmp_path):
    filling, holders = threading.Event(), []

    def fail(data):
        filling.set()
        holders.append(Holder(name, tmp_path / "filled"))
        assert not holders[0].pipe.poll(0.2)  # it waits
        raise OSError("the disk failed")

    with pytest.raises(OSError, match="the disk failed"):
        SharedMemory(name, NUM_BYTES, fail)
    assert holders[0].got()[1]
    assert int((tmp_path / "filled").read_text()) == holders[0].process.pid
    holders[0].end()


def test_dropped_memory_is_forgotten_and_its_thread_ends(name, tmp_path):
    threads, descriptors = threading.active_count(), num_descriptors()
    for times in range(1, 4):
        shared = ask(name, tmp_path / "filled")
        assert threading.active_count() == threads + 1
        del shared
        assert (threading.active_count(), num_descriptors()) == (threads, descriptors)
        assert len((tmp_path / "filled").read_text().splitlines()) == times


@pytest.mark.usefixtures("forks")
def test_a_forked_child_does_not_keep_the_name(name, tmp_path):
    shared = ask(name, tmp_path / "filled")
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        try:
            whole = (shared.data == EXPECTED).all()
            del shared
            os.write(ready[1], b"y" if whole else b"n")
            os.close(release[1])
            os.read(release[0], 1)
        finally:
            os._exit(0)
    assert os.read(ready[0], 1) == b"y"
    theirs = Holder(name, tmp_path / "filled")  # the child has not taken the name away
    assert theirs.got() == (pages_of(shared.data), True)
    theirs.end()
    del shared
    again = ask(name, tmp_path / "filled")  # and does not keep it
    assert len((tmp_path / "filled").read_text().splitlines()) == 2
    del again
    for descriptor in (*ready, *release):
        os.close(descriptor)
    os.waitpid(child, 0)


def test_memory_of_another_size_under_the_same_name_is_not_taken(name, tmp_path):
    first = ask(name, tmp_path / "filled")
    other = SharedMemory(name, 5000, lambda data: data.fill(7))
    assert (len(other.data), set(other.data.tolist())) == (5000, {7})
    assert (first.data == EXPECTED).all()


@pytest.mark.usefixtures("forks")
def test_a_child_of_a_child_keeps_its_own_files(name, tmp_path):
    shared = ask(name, tmp_path / "filled")
    child = os.fork()
    if child == 0:
        files = [os.open(tmp_path / "filled", os.O_RDONLY) for _ in range(4)]  # their numbers are those that are free
        grandchild = os.fork()
        if grandchild == 0:
            os._exit(sum(not os.read(file, 1) for file in files))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del shared


def test_a_name_that_somebody_else_has_taken_stops_nobody(name, tmp_path):
    """Any user of the machine may bind it, and never listen: memory is then this process's own."""
    before = Path("/proc/net/unix").read_text()
    held = ask(name, tmp_path / "filled")
    taken = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if line not in before]
    (address,) = {each for each in taken if each.startswith("@diskgnn/")}
    del held
    gc.collect()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as squatter:
        squatter.bind(address.replace("@", "\0", 1))
        assert (ask(name, tmp_path / "filled").data == EXPECTED).all()
    assert len((tmp_path / "filled").read_text().splitlines()) == 2
