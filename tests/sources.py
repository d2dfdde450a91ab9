"""What tests ask of sources of minibatches, whatever they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
import torch
from graphs import bits_of

from diskgnn.batches.minibatch import MiniBatch
from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.graph.graph import Graph


def assert_same(left: MiniBatch, right: MiniBatch) -> None:
    """The same minibatch at the same place, bit for bit."""
    assert (left.epoch, left.batch_index) == (right.epoch, right.batch_index)
    assert bits_of(left) == bits_of(right)
    for name in ("y", "seeds", "input_nodes"):
        assert torch.equal(getattr(left, name), getattr(right, name)), name
    for one, other in zip(left.blocks, right.blocks, strict=True):
        assert one.num_src == other.num_src
        assert torch.equal(one.indptr, other.indptr)
        assert torch.equal(one.indices, other.indices)


def assert_goes_on(make: Callable[[], Any], epoch: int, consumed: Sequence[int]) -> None:
    """After so many minibatches, another source goes on from the state with the others, and skips these once."""
    with make() as source:
        whole = list(source.epoch(epoch))
    for count in (*consumed, len(whole)):
        with make() as first, make() as second:
            list(islice(first.epoch(epoch), count))
            state = first.state_dict()
            assert (state["epoch"], state["batch"]) == (epoch, count)
            second.load_state_dict(state)
            assert second.state_dict() == state
            for left, right in zip(second.epoch(epoch), whole[count:], strict=True):
                assert_same(left, right)
            assert len(list(second.epoch(epoch))) == len(whole)
            second.load_state_dict(state)
            assert len(list(second.epoch(epoch + 1))) == len(whole)


def assert_refuses_states_of(other: Any, source: Any, what: str) -> None:
    """The error says `what` differs."""
    with pytest.raises(ArtifactError, match=what):
        other.load_state_dict(source.state_dict())


def assert_runs_in_plain_loops(source: Any) -> None:
    """Epochs count up, `set_epoch` chooses, another epoch ends the one before and says so."""
    assert len(source) == source.num_batches > 1
    assert [batch.epoch for _ in range(2) for batch in source] == [0] * len(source) + [1] * len(source)
    source.set_epoch(5)
    assert {batch.epoch for _ in range(2) for batch in source} == {5}
    with pytest.raises(ConfigError, match="epoch"):
        source.epoch(-1)
    batches = source.epoch(0)
    next(batches)
    next(source.epoch(1))
    with pytest.raises(ConfigError, match="another epoch was started"):
        next(batches)


def assert_is_closed(source: Any) -> None:
    """No epoch starts any more, and closing again is nothing."""
    source.close()
    with pytest.raises(ConfigError, match="closed"):
        source.epoch(0)


def threads_of(name: str) -> list[threading.Thread]:
    """Threads of the baseline `name` that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"diskgnn-{name}-")]


@contextmanager
def damaged(graph: Graph, *names: str) -> Iterator[None]:
    """Some of the graph's files are damaged where they begin: whoever loads them notices."""

    def flip() -> None:
        for name in names:
            with graph.manifest.file(name).open("r+b") as file:
                byte = file.read(1)[0]
                file.seek(0)
                file.write(bytes([byte ^ 255]))

    flip()
    try:
        yield
    finally:
        flip()
