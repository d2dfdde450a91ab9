"""Seeds that come after all rows and the window draw nothing: that is told, and only then."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diskgnn
from diskgnn.formats.samples import Samples
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.null_times import MISSING
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import NodeTarget

EMPTY, NONE_OF_THESE = "it leaves them nothing to draw", "it leaves them none of these to draw"
OLD, NEW = 1_000_000, 1_000_050  # the latest times of views and of orders


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    """Users; orders that refer to them, and have times; views of them, which have times. The last of many are late."""
    users, count = 5, 40_000
    of = np.arange(count) % users
    order_times = np.where(np.arange(count) == count - 7, NEW, OLD - 1000)
    order_times[:3] = MISSING
    view_times = np.where(np.arange(count) == 5, OLD, OLD - 1000)
    diskgnn.convert(tmp_path / "graph", null_time="never", schema={
        "nodes": {"user": {"features": np.ones((users, 1), np.float32)},
                  "order": {"num_nodes": count, "times": order_times}},
        "edges": {
            "order:of:user": {"edges": np.stack([np.arange(count), of]), "foreign_key": True},
            "user:views:user": {"edges": np.stack([of, (of + 1) % users]), "times": view_times},
        },
    })  # fmt: skip
    return Graph.open(tmp_path / "graph")


def told(graph: Graph, moments: list[int], window: Any, fanouts: Any = (-1,), **said: Any) -> list[str]:
    target = NodeTarget("user", {"train": np.arange(len(moments)) % 5}, {"train": np.array(moments)})
    spec = SamplingSpec.of(fanouts=fanouts, temporal="last", target=target, temporal_window=window, **said)
    plan = SamplingPlan(graph, spec)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        plan.warn()
    return [str(each.message) for each in found if "it leaves them " in str(each.message)]


@pytest.mark.parametrize(
    ("moments", "window", "count"),
    [
        ([NEW, NEW + 9], 10, 0),
        ([NEW, NEW + 10], 10, 1),  # (t - 10, t] begins after NEW
        ([NEW + 10, NEW + 11, NEW + 10**9], 10, 3),
        ([NEW + 10**9], 2 * 10**9, 0),
        ([NEW + 10**9], 2**63 - 1, 0),
        ([NEW + 1, NEW + 2], 1, 2),
        # Of two types, the one that reaches farther counts.
        ([OLD + 100, NEW + 100], {"user:views:user": 100, "order:of:user": 10}, 2),
        ([OLD + 99, NEW + 100], {"user:views:user": 100, "order:of:user": 10}, 1),
        ([NEW + 100], {"user:views:user": 10**6, "order:of:user": 10}, 0),
    ],
)
def test_seeds_after_all_windows(graph: Graph, moments: list[int], window: Any, count: int) -> None:
    found = told(graph, moments, window)
    assert [each.startswith(f"{count} of {len(moments)} seeds ") for each in found] == ([True] if count else [])


@pytest.mark.parametrize(("moment", "num_edges"), [(OLD + 4, 6), (OLD + 5, 5)])
def test_edge_types_without_a_window_are_drawn_all_the_same(
    graph: Graph, tmp_path: Path, moment: int, num_edges: int
) -> None:
    """Of orders, the latest one of each user up to then; of views, that of the user who was viewed at OLD."""
    target, window = NodeTarget("user", {"train": np.arange(5)}, {"train": np.full(5, moment)}), {"user:views:user": 5}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        diskgnn.sample(graph, tmp_path / "samples", target=target, fanouts=[1], temporal="last", batch_size=5,
                       temporal_window=window, progress=False)  # fmt: skip
    (minibatch,) = Samples.open(tmp_path / "samples").read("train")
    assert minibatch.num_edges == num_edges
    messages = [str(each.message) for each in found if "it leaves them" in str(each.message)]
    assert len(messages) == 6 - num_edges
    for message in messages:
        assert message.startswith(f"5 of 5 seeds are asked at {OLD + 5} or later")
        assert (
            f"the latest time of edges of user:views:user in {graph.manifest.path}, {OLD}: {NONE_OF_THESE}" in message
        )


def test_a_window_of_0_is_no_news(graph: Graph) -> None:
    """It says that nothing is to be drawn, so neither does it hide that others leave nothing."""
    assert told(graph, [NEW + 1], 0) == []
    assert told(graph, [NEW + 1], {"user:views:user": 0}) == []
    (found,) = told(graph, [NEW + 1], {"user:views:user": 5, "order:of:user": 0})
    assert EMPTY in found
    assert f"the latest time of edges of user:views:user in {graph.manifest.path}, {OLD}" in found
    # Orders are newer than views: where nothing is drawn of them, that does not count.
    assert len(told(graph, [OLD + 9], {"user:views:user": 5, "order:of:user": 0})) == 1
    (found,) = told(graph, [NEW + 5], {"user:views:user": 5, "order:of:user": 5})
    assert EMPTY in found
    assert "user:views" not in found


def test_edge_types_that_are_not_followed_do_not_count(graph: Graph) -> None:
    windows = {"user:views:user": 10**6, "order:of:user": 10}
    (found,) = told(graph, [NEW + 100], windows, fanouts={"order:of:user": [-1]})
    assert f"the latest time in {graph.manifest.path}, {NEW}" in found
    assert told(graph, [NEW + 100], windows, fanouts={"user:views:user": [-1]}) == []


def test_nothing_is_told_without_windows_or_times_of_seeds(graph: Graph) -> None:
    assert told(graph, [NEW + 10**9], None) == []


def test_what_is_told_is_what_is_drawn(graph: Graph, tmp_path: Path) -> None:
    """At the first moment that is told of nothing is drawn, and one before it something is."""
    for moment, num_edges in ((NEW + 9, 1), (NEW + 10, 0)):
        target = NodeTarget("user", {"train": np.arange(5)}, {"train": np.full(5, moment)})
        diskgnn.prepare(graph, tmp_path / str(moment), target=target, fanouts=[-1], temporal="last", batch_size=5,
                        temporal_window=10, cpu_cache=0)  # fmt: skip
        with diskgnn.Loader(tmp_path / str(moment)) as loader:
            (batch,) = loader
        assert sum(len(block.indices) for block in batch.blocks[0].values()) == num_edges
