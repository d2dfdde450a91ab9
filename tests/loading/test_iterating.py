"""Where minibatches come from: going on, leaving early, going elsewhere, keeping what was yielded."""

import copy
import gc
import itertools
import pickle
import sys
import threading
from collections import deque

import numpy as np
import pytest
from graphs import assert_rows_are_features, prepare_graph
from packed_directories import ENGINES, batches_of, key, wait_until

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize("prefetch", [1, 2, 100])
def test_goes_on_from_its_state_wherever_it_was_left(packed, whole, prefetch):
    with Loader(packed, prefetch=prefetch) as first, Loader(packed, prefetch=prefetch) as second:
        for epoch, consumed in ((0, 0), (0, 3), (1, 5), (3, 7), (4, 1), (2, len(first))):
            received = [key(batch) for batch in itertools.islice(first.epoch(epoch), consumed)]
            assert received == batches_of(whole, epoch)[:consumed]
            state = first.state_dict()
            second.load_state_dict(state)
            assert second.state_dict() == state
            assert [key(batch) for batch in second.epoch(epoch)] == batches_of(whole, epoch, consumed)
            # What was skipped is skipped once, and only in the epoch that the state names.
            assert [key(batch) for batch in second.epoch(epoch)] == batches_of(whole, epoch)
            second.load_state_dict(state)
            assert [key(batch) for batch in second.epoch((epoch + 1) % 5)] == batches_of(whole, (epoch + 1) % 5)


@pytest.mark.parametrize("tier_bytes", [0, 500, 1 << 40])
def test_memory_that_is_released_between_epochs_changes_nothing(packed, whole, tier_bytes):
    with Loader(packed) as loader, Loader(packed) as going_back:
        for epoch in range(5):
            batches = loader.epoch(epoch)
            received = [key(next(batches))]
            loader.release_memory(tier_bytes)  # in the midst of an epoch
            assert received + [key(batch) for batch in batches] == batches_of(whole, epoch)
            before = loader.stats().restored_bytes
            loader.release_memory()
            loader.release_memory(tier_bytes)
            loader.release_memory(tier_bytes)
            assert len(list(going_back.epoch(1))) == len(loader)
            going_back.release_memory(tier_bytes)  # and then all of the tier is restored
            assert loader.stats().restored_bytes == before
        next(loader.epoch(5))
        assert (loader.stats().restored_bytes > before) == (tier_bytes > 0)
        assert [key(batch) for batch in going_back.epoch(1)] == batches_of(whole, 1)


def test_more_of_the_tier_is_released_on_a_second_call(packed, whole):
    with Loader(packed) as once, Loader(packed) as twice:
        restored = []
        for loader, shares in ((once, (2,)), (twice, (8, 2))):
            assert [key(batch) for batch in loader.epoch(0)] == batches_of(whole, 0)
            for share in shares:
                loader.release_memory(loader.tier_bytes // share)
            before = loader.stats().restored_bytes
            assert [key(batch) for batch in loader.epoch(1)] == batches_of(whole, 1)
            restored.append(loader.stats().restored_bytes - before)
        assert restored[0] == restored[1] > 0


def test_ctrl_c_anywhere_while_memory_is_released_changes_no_row(packed, graph):
    passes = {}  # of each line that runs meanwhile

    def interrupt_at(target):
        passes.clear()

        def trace(frame, event, _):
            name = frame.f_code.co_filename
            if not name.endswith(("loading/cpu_tier.py", "loading/sequence_reader.py")):
                return None
            if event == "line":
                place = (name, frame.f_lineno)
                passes[place] = passes.get(place, 0) + 1
                if (place, passes[place]) == target:
                    raise KeyboardInterrupt
            return trace

        return trace

    def release(loader, target):
        loader.release_memory(loader.tier_bytes // 8)
        before = sys.gettrace()
        sys.settrace(interrupt_at(target))
        try:
            loader.release_memory(loader.tier_bytes // 2)  # takes back what is lent, and lends more
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    with Loader(packed) as loader:
        assert len(list(loader.epoch(0))) == len(loader)
        assert not release(loader, None)
        targets = sorted(passes.items())  # each line, in its last pass
        assert len(targets) > 50
        for number, target in enumerate(targets):
            for epoch in (2 * number + 1, 2 * number + 2):  # up to where the same is lent again
                for batch in loader.epoch(epoch):
                    assert_rows_are_features(batch, graph)
            assert release(loader, target), target
        for batch in loader.epoch(2 * len(targets) + 1):
            assert_rows_are_features(batch, graph)


def test_state_counts_what_was_received_not_what_was_prefetched(packed):
    with Loader(packed, prefetch=5) as loader:
        batches = loader.epoch(1)
        assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (1, 0)
        for received, _ in enumerate(batches, 1):
            assert loader.state_dict()["batch"] == received


@pytest.mark.parametrize("send", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_pickled_loader_says_what_to_send_instead(packed, send):
    with Loader(packed) as loader:
        with pytest.raises(TypeError, match=r"a Loader cannot be pickled or copied: send its path and arguments, .*"):
            send(loader)
        next(loader.epoch(0))


def test_states_of_elsewhere_are_refused(packed, graph, tmp_path):
    other = prepare_graph(graph, tmp_path, seed=1)
    with Loader(packed) as train, Loader(packed, "valid") as valid, Loader(other) as foreign:
        for source in (valid, foreign):
            with pytest.raises(ArtifactError, match="other minibatches"):
                train.load_state_dict(source.state_dict())
        good = train.state_dict()
        spoilt = ({"batch": 10**6}, {"batch": -1}, {"epoch": "1"}, {"source": None})
        for bad in ({}, None, {"epoch": 0}, *(good | change for change in spoilt)):
            with pytest.raises((ConfigError, ArtifactError)):
                train.load_state_dict(bad)
        assert train.state_dict() == good


def test_leaving_early_and_epochs_out_of_order(packed, whole):
    with Loader(packed) as loader:
        for epoch, consumed in ((3, 2), (0, 0), (0, 1), (4, 8), (1, 8), (1, 1), (2, 3)):
            received = [key(batch) for batch in itertools.islice(loader.epoch(epoch), consumed)]
            assert received == batches_of(whole, epoch)[:consumed]


def test_epochs_in_order_restore_the_cpu_tier_once(packed):
    with Loader(packed) as loader:
        list(loader.epoch(0))
        restored = loader.stats().restored_bytes
        assert restored > 0
        for epoch in range(1, 5):
            list(loader.epoch(epoch))
        assert loader.stats().restored_bytes == restored
        list(itertools.islice(loader.epoch(0), 1))
        assert loader.stats().restored_bytes > restored


def test_starting_another_epoch_ends_the_one_before(packed):
    with Loader(packed) as loader:
        batches = loader.epoch(0)
        next(batches)
        list(loader.epoch(1))
        with pytest.raises(ConfigError, match="another epoch was started"):
            next(batches)


@pytest.mark.parametrize("prefetch", [1, 3])
def test_keeping_every_minibatch_also_beyond_the_loader(packed, whole, graph, prefetch):
    with Loader(packed, prefetch=prefetch) as loader:
        batches = [batch for epoch in range(3) for batch in loader.epoch(epoch)]
    del loader
    gc.collect()
    assert [key(batch) for batch in batches] == [batch for batch in whole if batch[0] < 3]
    for batch in batches:
        assert_rows_are_features(batch, graph)
        batch.x.zero_()  # the user's to write to; no neighbour suffers
        batch.y.zero_()
        batch.blocks[0].indices.zero_()


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_user_who_keeps_some_minibatches_still_has_the_next_assembled_ahead(packed, prefetch):
    with Loader(packed, prefetch=prefetch) as loader:
        assert len(loader) > 5 + prefetch
        loader.start_tracing()
        kept, batches = deque(maxlen=4), loader.epoch(0)
        kept.extend(itertools.islice(batches, 5))
        assembled = 0

        def enough():
            nonlocal assembled
            assembled += sum(event.stage == "scatter" for event in loader.take_trace())
            return assembled >= 5 + prefetch

        wait_until(enough)  # without being asked for


def test_part_of_a_minibatch_keeps_it_valid(packed, whole):
    with Loader(packed, prefetch=1) as loader:
        seeds = [batch.seeds for epoch in range(3) for batch in loader.epoch(epoch)]
    assert [one.tolist() for one in seeds] == [batch[3] for batch in whole if batch[0] < 3]


def test_writing_into_x_does_not_reach_the_tiers(packed, whole):
    with Loader(packed, device_cache=0) as loader:
        for epoch in range(4):
            for batch, expected in zip(loader.epoch(epoch), batches_of(whole, epoch), strict=True):
                assert key(batch) == expected
                batch.x.fill_(7)


def test_two_loaders_at_once(packed, whole):
    with Loader(packed, engine=ENGINES[0]) as one, Loader(packed, engine=ENGINES[-1]) as other:
        for left, right in zip(one.epoch(0), other.epoch(3), strict=True):
            assert (key(left), key(right)) == (whole[left.batch_index], batches_of(whole, 3)[right.batch_index])


def test_two_loaders_in_two_threads(packed, whole):
    results = {}

    def iterate(number):
        with Loader(packed) as loader:
            results[number] = [key(batch) for epoch in range(5) for batch in loader.epoch(epoch)]

    threads = [threading.Thread(target=iterate, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: whole, 1: whole}


def test_no_byte_is_read_that_was_not_asked_for(packed):
    extent_bytes = Packed.open(packed).index("valid").extent_bytes.sum()
    initial_bytes = np.load(packed / "valid-initial-node.npy").nbytes
    with Loader(packed, "valid") as loader:
        for count in (1, 2, 3):
            assert len(list(loader.epoch(count - 1))) == loader.num_batches
            expected = count * extent_bytes + initial_bytes
            stats = loader.stats()
            assert stats.read_bytes == expected
            # Each at most a chunk, and no smaller than a page.
            assert count <= stats.read_requests <= (expected - initial_bytes) // 4096


def test_negative_epochs_are_refused(packed):
    with Loader(packed) as loader, pytest.raises(ConfigError, match="epoch"):
        loader.epoch(-1)
