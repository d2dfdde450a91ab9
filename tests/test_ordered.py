"""Work in threads whose results come in order: never more ahead than allowed, and nothing begins after the end."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

import pytest

from diskgnn.ordered import Threads, as_finished, in_order, made_in_order, submitted


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ahead", [0, 1, 5, 100])
def test_results_come_in_order_with_so_many_ahead(threads, ahead):
    asked = []

    def calls():
        for number in range(30):
            asked.append(number)
            yield partial(pow, number, 2)

    with ThreadPoolExecutor(threads) as pool:
        for received, result in enumerate(in_order(pool, calls(), ahead)):
            assert result == received**2
            assert len(asked) == min(30, received + 1 + ahead)
    assert received == 29


@pytest.mark.parametrize("threads", [1, 3])
def test_so_many_threads_make_what_comes_in_order(threads):
    """One is that which asks, which makes each as it is asked for; the calls are always asked for by that."""
    here, asked, waiting = threading.get_ident(), [], threading.Barrier(threads)

    def call(number):
        if number < threads:
            waiting.wait(timeout=60)  # as many at once
        return number, threading.get_ident()

    def calls():
        for number in range(20):
            asked.append(threading.get_ident())
            yield partial(call, number)

    made = []
    for received, (number, thread) in enumerate(made_in_order(calls(), threads)):
        assert number == received
        assert received < len(asked) <= received + 1 + (threads if threads > 1 else 0)
        made.append(thread)
    assert {*asked} == {here}
    assert len(made) == 20
    assert ({*made} == {here}) == (threads == 1)


def test_an_error_comes_in_its_turn_and_what_has_not_begun_never_will():
    begun = []

    def call(number):
        begun.append(number)
        if number == 2:
            raise OSError("disk on fire")
        return number

    received = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="disk on fire"):
        received.extend(in_order(pool, (partial(call, number) for number in range(30)), 4))
    assert received == [0, 1]
    assert max(begun) <= 2 + 4


def test_closing_cancels_what_has_not_begun():
    first_goes_on, begun = threading.Event(), []

    def call(number):
        begun.append(number)
        if number == 1:
            first_goes_on.wait()
        return number

    with ThreadPoolExecutor(1) as pool:
        results = in_order(pool, (partial(call, number) for number in range(30)), 5)
        assert list(islice(results, 1)) == [0]
        results.close()
        first_goes_on.set()
    assert begun in ([0], [0, 1])


def test_futures_are_yielded_before_they_are_done():
    goes_on = threading.Event()
    with ThreadPoolExecutor(1) as pool, ThreadPoolExecutor(1) as second:
        calls = (partial(lambda number: goes_on.wait() and number, number) for number in range(1, 9))
        doubled = in_order(second, (partial(lambda f: 2 * f.result(), f) for f in submitted(pool, calls, 2)), 1)
        threading.Timer(0.05, goes_on.set).start()
        assert list(doubled) == [2 * number for number in range(1, 9)]


def test_results_come_as_they_are_finished():
    """The first call waits until all others were yielded."""
    others_are_there, received = threading.Event(), []

    def call(number):
        if number == 0:
            assert others_are_there.wait(60)
        return number

    with ThreadPoolExecutor(3) as pool:
        for number in as_finished(pool, (partial(call, number) for number in range(30)), 2):
            received.append(number)
            if len(received) == 29:
                others_are_there.set()
    assert sorted(received) == list(range(30))
    assert received[-1] == 0


def test_what_was_finished_comes_before_an_error_and_what_runs_ends_before_the_iterator_does():
    both_run, running, ended = threading.Barrier(2), threading.Event(), []

    def slow():
        both_run.wait(60)
        running.wait(0.2)
        ended.append("slow")

    def failing():
        both_run.wait(60)
        raise OSError("disk on fire")

    with ThreadPoolExecutor(2) as pool:
        results = as_finished(pool, [slow, failing, *[partial(ended.append, "later")] * 9], 1)
        with pytest.raises(OSError, match="disk on fire"):
            list(results)
        assert ended == ["slow"]


def test_ctrl_c_while_it_waits_leaves_no_thread_at_work():
    main, is_leaving, done = threading.get_ident(), threading.Event(), []

    def work():
        is_leaving.wait()
        time.sleep(0.2)  # the main thread waits for this one by then
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.5)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        with Threads(1) as pool:
            pool.submit(work)
            is_leaving.set()
        pytest.fail("Ctrl-C was lost")
    assert done == [True]


def test_ctrl_c_while_a_thread_is_started_leaves_none_at_work(monkeypatch):
    has_begun, done = threading.Event(), []

    def work():
        has_begun.set()
        time.sleep(0.5)
        done.append(True)

    start = threading.Thread.start

    def interrupted(thread):
        start(thread)
        has_begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), Threads(1) as pool:
        pool.submit(work)
    assert done == [True]
