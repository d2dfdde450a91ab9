"""The one bounded executor: results in order, no more ahead than was said."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diskgnn.ordered import in_order


def later(number: int, seconds: float = 0.0) -> int:
    time.sleep(seconds)
    return number


@given(st.lists(st.sampled_from([0.0, 0.001, 0.003]), max_size=12), st.integers(0, 5), st.integers(1, 4))
def test_results_come_in_the_order_of_the_calls(seconds: list[float], ahead: int, threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        calls = (partial(later, number, each) for number, each in enumerate(seconds))
        assert list(in_order(pool, calls, ahead)) == list(range(len(seconds)))


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_calls_are_asked_for_when_there_is_room(ahead: int) -> None:
    asked = 0

    def calls() -> Iterator[Callable[[], int]]:
        nonlocal asked
        for number in range(10):
            asked += 1
            yield partial(later, number)

    with ThreadPoolExecutor(2) as pool:
        for number in in_order(pool, calls(), ahead):
            assert asked == min(number + 1 + ahead, 10)


def test_an_error_comes_in_its_turn_and_nothing_begins_after_it() -> None:
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 2:
            raise ValueError("two")
        return number

    found = []
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="two"):  # noqa: PT012
        for result in in_order(pool, (partial(call, number) for number in range(100)), ahead=3):
            found.append(result)
    assert found == [0, 1]
    assert max(begun) <= 2 + 3


def test_closing_cancels_what_has_not_begun() -> None:
    release, begun = threading.Event(), []

    def call(number: int) -> int:
        begun.append(number)
        if number:
            assert release.wait(60)
        return number

    with ThreadPoolExecutor(1) as pool:
        results = in_order(pool, (partial(call, number) for number in range(5)), ahead=4)
        assert next(results) == 0
        results.close()  # type: ignore[attr-defined]
        release.set()
    assert set(begun) <= {0, 1}
