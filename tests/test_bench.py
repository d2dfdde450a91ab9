"""tools/bench runs as written, at a size where its figures say nothing: so that it cannot rot. And its two oracles."""

import itertools
import json
import sys
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from commands import forked_mib
from graphs import make_graph

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))


@pytest.mark.slow
@pytest.mark.usefixtures("measured_forked")
def test_every_line_of_the_table_is_measured(tmp_path, monkeypatch, capsys):
    from benchmarks.__main__ import main

    folder, record = tmp_path / "data", tmp_path / "bench.json"
    options = ["--nodes", "3000", "--classes", "5", "--width", "9", "--dtype", "float16", "--train-fraction", "0.2",
               "--fanouts", "3,3", "--batch-size", "64", "--repeat", "1", "--train-minibatches", "3", "--hidden", "8",
               "--memory", f"{forked_mib() + 110}MiB", "--draws", "coordinated", "--draw-period", "4",
               "--group-seeds", "8", "--quantise", "int8"]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["bench", "--folder", str(folder), "--json", str(record), *options])
    main()
    told = capsys.readouterr().out
    assert not folder.exists()
    found = json.loads(record.read_text())
    for line in found["table"]:
        assert line["ratio"] > 0, line
        assert line["stage"] in told
    assert {line["aim"] for line in found["table"] if line["reached"] is None} == {""}
    rows, peer = found["results"]["rows"], found["results"]["random_reads"]
    # Five minibatches: the best rounds may differ in turn, the planner's are all the same.
    assert rows["small_bound_rows"] <= rows["small_planned_rows"] < 1.03 * rows["small_bound_rows"]
    # Nothing reads less than Belady's schedule does; LRU starts empty here, and the others with a full cache.
    assert rows["planned_rows"] <= min(rows["static_cache_rows"], peer["missed_rows"]) < rows["accesses"]
    assert peer["requested_rows"] == rows["accesses"]


def fewest_misses(batches, capacity):
    """The fewest misses over all ways to choose what is kept, by trying every one of them; the first time is free."""
    states = {frozenset(): 0}
    for batch in batches:
        needed = frozenset(batch)
        following: dict[frozenset, int] = {}
        for kept, misses in states.items():
            at_hand = kept | needed
            for chosen in map(frozenset, itertools.combinations(sorted(at_hand), min(capacity, len(at_hand)))):
                following[chosen] = min(misses + len(needed - kept), following.get(chosen, sys.maxsize))
        states = following
    return min(states.values())


@pytest.mark.parametrize("seed", range(5))
def test_belady_by_brute_force_is_the_least_of_all_ways(seed):
    from benchmarks.rows import belady_rows

    random = np.random.default_rng(seed)
    batches = [random.choice(7, 3, replace=False) for _ in range(4)]
    rounds = 12
    late, early = (fewest_misses(batches * count, 2) for count in (2 * rounds, rounds))
    assert belady_rows(batches, 2, 7, rounds=2 * rounds) == (late - early) / rounds


def test_the_peer_reads_what_a_plain_lru_cache_lacks(tmp_path):
    from benchmarks.random_reads import measure_epoch

    features = make_graph(tmp_path / "graph", num_nodes=300, width=100).feature_file
    random = np.random.default_rng(0)
    batches = [random.choice(300, 40, replace=False) for _ in range(12)]
    cached: OrderedDict[int, None] = OrderedDict()  # from the least recently used
    misses = 0
    for node in np.concatenate(batches).tolist():
        misses += node not in cached
        cached[node] = None
        cached.move_to_end(node)
        if len(cached) > 60:
            cached.popitem(last=False)
    epoch = measure_epoch(features, batches, 60, max_seconds=1e9)
    assert (epoch.missed_rows, epoch.read_rows, epoch.requested_rows) == (misses, misses, 12 * 40)
    assert epoch.read_bytes % 4096 == 0
    assert 0 < epoch.requests <= misses
