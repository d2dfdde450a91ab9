"""The end of a loader: closed, dropped, interrupted, forked, alive at exit. No hang, no thread left behind."""

import gc
import textwrap
import threading
import time
from collections import Counter

import numpy as np
import pytest
from commands import run_python
from graphs import threads_of_this_process, threads_that_stay
from packed_directories import ENGINES, batches_of, key

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["close", "close twice", "drop", "with", "drop the loop"])
def test_no_thread_outlives_the_loader(packed, engine, how):
    before = threads_of_this_process()
    loader = Loader(packed, engine=engine)
    assert threads_of_this_process() == before  # nothing is taken before it is wanted
    batches = loader.epoch(0)
    batch = next(batches)
    assert threads_of_this_process() > before
    if how == "with":
        with loader:
            pass
    elif how.startswith("close"):
        loader.close()
        if how == "close twice":
            loader.close()
    if how.startswith("drop"):
        if how == "drop the loop":
            del batches
        else:
            batches = None
        del loader
        gc.collect()
    assert threads_that_stay(before) <= before
    assert len(batch.x) > 0


def test_closing_while_iterating(packed):
    loader = Loader(packed)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    with pytest.raises(ConfigError, match="closed"):
        next(batches)
    for use in (lambda: loader.epoch(2), lambda: next(iter(loader))):  # it stays closed
        with pytest.raises(ConfigError, match="closed: make a new one"):
            use()
    counted = loader.stats().requested_rows
    loader.close()
    assert loader.stats().requested_rows == counted > 0
    assert loader.state_dict()["batch"] == 1  # may still be asked for


def test_ctrl_c_then_going_on(packed, whole):
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        received = [key(next(batches)) for _ in range(3)]
        with faults.armed("loading.minibatch", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        received += [key(batch) for batch in loader.epoch(0)]
    assert received == batches_of(whole, 0)


def test_a_forked_child_can_drop_the_loader_and_is_told_not_to_use_it(packed):
    script = textwrap.dedent("""
        import gc, os, sys
        from diskgnn.loading.loader import Loader
        from diskgnn.errors import ConfigError

        def refused(call):
            try:
                call()
            except ConfigError as error:
                return "fork" in str(error)

        loader = Loader(sys.argv[1], prefetch=1)
        batches = loader.epoch(0)
        batch = next(batches)
        for how in ("exit", "drop", "close"):
            child = os.fork()
            if child == 0:
                for use in (lambda: loader.epoch(1), lambda: next(batches), loader.stats, loader.take_trace):
                    if not refused(use):
                        os._exit(3)
                del batch, batches
                if how == "close":
                    loader.close()
                if how != "exit":
                    del loader
                    gc.collect()
                sys.exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status == 0, (how, status)
        rest = len(list(batches))
        assert rest == len(loader) - 1, rest
    """)
    run_python("-c", script, packed, check=True, timeout=300, ends_whole=True)


@pytest.mark.parametrize("ahead", [False, True])
def test_closing_from_another_thread_whatever_the_loader_does(packed, whole, ahead):
    """Iterating and seeking end in a ConfigError, or before the loader was closed; what was received is right."""
    random, outcomes = np.random.default_rng(0), Counter()

    def use(loader, received, ended):
        try:
            for epoch in (1, 0, 1):  # each one but the first seeks back
                for batch in loader.epoch(epoch):
                    received.append(key(batch))
                    loader.stats()
            ended.append("done")
        except Exception as error:
            ended.append(f"{type(error).__name__}: {error}")

    with faults.pretending("loading.transfers_ahead", ahead):
        for _ in range(60):
            loader, received, ended = Loader(packed), [], []
            user = threading.Thread(target=use, args=(loader, received, ended))
            user.start()
            time.sleep(float(random.exponential(0.01)))
            closers = [threading.Thread(target=loader.close) for _ in range(2)]
            for closer in closers:
                closer.start()
            loader.stats()
            for thread in (user, *closers):
                thread.join(60)
                assert not thread.is_alive()
            assert received == (batches_of(whole, 1) + batches_of(whole, 0) + batches_of(whole, 1))[: len(received)]
            assert ended[0] == "done" or "ConfigError: " in ended[0], ended
            outcomes[ended[0] == "done", bool(received)] += 1
    assert outcomes[False, False] + outcomes[False, True] > 20, outcomes


def test_a_loader_that_is_alive_at_exit_does_not_hang(packed):
    script = "import sys, diskgnn; loader = diskgnn.Loader(sys.argv[1]); batches = loader.epoch(0); next(batches)"
    ended = run_python("-c", script, packed, timeout=300, capture_output=True, check=True, ends_whole=True)
    assert ended.stderr == b""


def test_memory_that_runs_out_is_not_called_damage(packed):
    full = RuntimeError("CUDA out of memory")
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        with faults.armed("loading.minibatch", full), pytest.raises(RuntimeError, match="out of memory"):
            next(batches)
