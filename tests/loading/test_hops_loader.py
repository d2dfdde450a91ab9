"""Minibatches of hop features against what NumPy reads from the files that `propagate` wrote."""

from __future__ import annotations

import os
import signal
import threading
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from propagated_graphs import random_graph

import diskgnn
from diskgnn import ArtifactError, ConfigError, HopsLoader
from diskgnn.loading import hop_order
from diskgnn.loading.hop_order import HopOrder
from diskgnn.specs.shard import Shard


@pytest.fixture(scope="module")
def hops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hops")
    given = random_graph(1, num_nodes=3000)
    diskgnn.convert(folder / "graph", edges=given.edges, features=given.features.astype(np.float32), progress=False,
                    labels=np.arange(3000) % 7, **given.seeds)  # fmt: skip
    diskgnn.propagate(folder / "graph", folder / "hops", hops=2, operators="mean,symmetric", progress=False)
    return folder / "hops"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two records: 375 of them have 188 blocks, which are two pools."""
    monkeypatch.setattr(hop_order, "BLOCK_BYTES", 2 * 5 * 7 * 4)


def assert_one_epoch(batches: list[diskgnn.HopBatch], hops: Path, split: str = "train") -> list[int]:
    """Each seed is there once, with its own record and label; returns the seeds in their order."""
    records, seeds = np.load(hops / f"records-{split}.npy"), np.load(hops / f"seeds-{split}.npy")
    found = torch.cat([batch.seeds for batch in batches]).numpy()
    assert sorted(found) == sorted(seeds)
    places = np.argsort(seeds)[np.searchsorted(np.sort(seeds), found)]
    x = torch.cat([batch.x for batch in batches])
    assert x.shape == (len(seeds), 5, 7)
    np.testing.assert_array_equal(x.flatten(1).numpy(), records[places])
    np.testing.assert_array_equal(torch.cat([batch.y for batch in batches]).numpy(), found % 7)
    return found.tolist()


@pytest.mark.parametrize("memory", ["1MiB", 1])
@pytest.mark.parametrize("batch_size", [1, 64, 374, 375, 1000])
def test_each_seed_comes_once_with_its_record(
    hops: Path, memory: int | str, batch_size: int, small_blocks: None
) -> None:
    with HopsLoader(hops, batch_size=batch_size, memory=memory) as loader:
        orders = []
        for _ in range(2):
            batches = list(loader)
            sizes = [len(batch.seeds) for batch in batches]
            assert len(sizes) == len(loader) == -(-375 // batch_size)
            assert max(sizes) - min(sizes) <= 1
            assert [(batch.epoch, batch.batch_index) for batch in batches] == [
                (len(orders), number) for number in range(len(sizes))
            ]
            orders.append(assert_one_epoch(batches, hops))
        assert orders[0] != orders[1]
        assert loader.stats().requested_rows == 750
        stats, num_bytes = loader.stats(), (hops / "records-train.npy").stat().st_size
        kept = memory == "1MiB"
        assert (stats.filled_rows, stats.cpu_rows, stats.disk_rows) == ((375, 750, 0) if kept else (0, 0, 750))
        assert stats.read_bytes >= num_bytes * (1 if kept else 2)


def test_minibatches_are_those_of_seed_and_epoch_whatever_the_memory(hops: Path, small_blocks: None) -> None:
    kept, read = HopsLoader(hops, batch_size=32), HopsLoader(hops, batch_size=32, memory=1, prefetch=5)
    other = HopsLoader(hops, batch_size=32, shuffle_seed=1)
    for epoch in (5, 0):
        pairs = list(zip(kept.epoch(epoch), read.epoch(epoch), other.epoch(epoch), strict=True))
        for one, two, _ in pairs:
            assert torch.equal(one.x, two.x)
            assert torch.equal(one.y, two.y)
            assert torch.equal(one.seeds, two.seeds)
        assert not all(torch.equal(one.seeds, three.seeds) for one, _, three in pairs)


@pytest.mark.parametrize("batch_size", [1, 30])
@pytest.mark.parametrize("memory", ["1MiB", 1])
def test_minibatches_that_are_held_stay_as_they_are(
    hops: Path, memory: int | str, batch_size: int, small_blocks: None
) -> None:
    """The memory of those that are dropped serves the next ones."""
    records, held = np.load(hops / "records-train.npy"), list[diskgnn.HopBatch]()
    with HopsLoader(hops, batch_size=batch_size, memory=memory) as loader:
        for _ in range(3):
            held += [batch for batch in loader if batch.batch_index % 5 == 2]
    places = {seed: place for place, seed in enumerate(np.load(hops / "seeds-train.npy").tolist())}
    assert len(held) == 3 * len(range(2, -(-375 // batch_size), 5))
    for batch in held:
        expected = records[[places[seed] for seed in batch.seeds.tolist()]]
        np.testing.assert_array_equal(batch.x.flatten(1).numpy(), expected)


def test_records_are_kept_where_evaluation_fits_beside_them(hops: Path) -> None:
    num_bytes = 375 * 5 * 7 * 4
    for memory, kept in ((num_bytes, False), (20 * num_bytes, True)):
        with HopsLoader(hops, memory=memory, batch_size=16) as loader:
            assert len(list(loader)) == len(loader)
            assert loader.stats().cpu_rows == (375 if kept else 0)


def test_other_splits_keep_their_order(hops: Path) -> None:
    for split in ("valid", "test"):
        with HopsLoader(hops, split, batch_size=50) as loader:
            found = assert_one_epoch(list(loader.epoch(3)), hops, split)
        assert found == np.load(hops / f"seeds-{split}.npy").tolist()


@settings(max_examples=60)
@given(count=st.integers(1, 700), row_bytes=st.sampled_from([4, 600, 1 << 20, 1 << 22]), size=st.integers(1, 300),
       ranks=st.integers(1, 9), seed=st.none() | st.integers(0, 9), epoch=st.integers(0, 3),
       block_bytes=st.sampled_from([1, 1500, 1 << 20]))  # fmt: skip
def test_ranks_share_an_epoch(
    count: int, row_bytes: int, size: int, ranks: int, seed: int | None, epoch: int, block_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hop_order, "BLOCK_BYTES", block_bytes * 4)
        orders = [HopOrder(count, row_bytes, size, seed, Shard(rank, ranks)) for rank in range(ranks)]
        records = [[*chain.from_iterable(pool.numbers() for pool in order.pools(epoch))] for order in orders]
    assert sorted(chain.from_iterable(records)) == list(range(count))
    assert max(map(len, records)) - min(map(len, records)) <= 1
    if seed is None:
        assert list(chain.from_iterable(records)) == list(range(count))
    if size > 1 and count >= ranks:
        assert len({order.num_batches for order in orders}) == 1
    for order, mine in zip(orders, records, strict=True):
        bounds = [order.bounds(number) for number in range(order.num_batches)]
        sizes = [end - begin for begin, end in bounds]
        assert sum(sizes) == len(mine)
        # Of 3 and 4 records in twos, both ranks have one minibatch, so that none is of one record.
        most = size if size != 2 else 3 if len({*map(len, records)}) == 1 else 4
        assert all(0 < each <= most for each in sizes)
        assert size == 1 or len(mine) == 1 or 1 not in sizes
        assert all(before[1] == after[0] for before, after in pairwise(bounds))


def test_ranks_have_as_many_minibatches_and_all_seeds(hops: Path, small_blocks: None) -> None:
    loaders = [HopsLoader(hops, batch_size=20, rank=rank, world_size=4, memory=1) for rank in range(4)]
    assert [len(loader) for loader in loaders] == [5] * 4
    assert_one_epoch(list(chain.from_iterable(loader.epoch(2) for loader in loaders)), hops)


@pytest.mark.parametrize("memory", ["1MiB", 1])
def test_iterating_goes_on_where_it_was_saved(hops: Path, memory: int | str, small_blocks: None) -> None:
    with HopsLoader(hops, batch_size=16, memory=memory) as loader:
        whole = [batch.seeds.tolist() for batch in loader.epoch(4)]
        for stop in (0, 1, 11, len(whole)):
            batches = loader.epoch(4)
            for _ in range(stop):
                next(batches)
            state = loader.state_dict()
            batches.close()
            with HopsLoader(hops, batch_size=16, memory="1MiB") as other:
                other.load_state_dict(state)
                assert [batch.seeds.tolist() for batch in other.epoch(4)] == whole[stop:]
    with pytest.raises(ArtifactError, match="its batch_size is 16, expected 17"):
        HopsLoader(hops, batch_size=17).load_state_dict(state)


def test_no_thread_stays_behind(hops: Path) -> None:
    loader = HopsLoader(hops, batch_size=16, memory=1)
    batches = loader.epoch(0)
    next(batches)
    loader.close()
    with pytest.raises(ConfigError, match="was closed"):
        next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("diskgnn")]
    with pytest.raises(ConfigError, match="closed: make a new one"):
        loader.epoch(1)


def test_a_fork_does_not_wait_for_the_threads_of_an_epoch_before_it(hops: Path) -> None:
    with HopsLoader(hops, batch_size=16, memory=1) as loader:
        batches = iter(loader)
        whole = [next(batches).seeds.tolist()]
        if not (child := os.fork()):
            signal.alarm(60)  # of a child that hangs
            told = 1
            try:
                list(batches)
            except ConfigError as error:
                told = "before a fork" not in str(error) or len(list(loader.epoch(1))) != len(loader)
            finally:
                os._exit(told)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        whole += [batch.seeds.tolist() for batch in batches]
        assert whole == [batch.seeds.tolist() for batch in loader.epoch(0)]


@pytest.mark.parametrize("memory", ["1MiB", 1])
def test_damaged_records_are_noticed(hops: Path, tmp_path: Path, memory: int | str) -> None:
    copy = tmp_path / "hops"
    diskgnn.propagate(hops.parent / "graph", copy, hops=2, operators="mean,symmetric", progress=False)
    content = bytearray((copy / "records-train.npy").read_bytes())
    content[30_000] ^= 1
    (copy / "records-train.npy").write_bytes(content)
    with pytest.raises(
        ArtifactError, match=r"records-train.npy is damaged at byte 28672; .diskgnn propagate. it again"
    ):
        list(HopsLoader(copy, memory=memory))
    assert len(list(HopsLoader(copy, memory=memory, verify=False, batch_size=375))) == 1


def test_statistics_have_the_shape_of_a_record(hops: Path) -> None:
    with HopsLoader(hops) as loader:
        mean, deviation = loader.statistics()
        x = np.load(hops / "records-train.npy").reshape(-1, 5, 7).astype(float)
        np.testing.assert_allclose(mean.numpy(), x.mean(0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(deviation.numpy(), x.std(0), rtol=1e-5)
        assert loader.hops == ("x", "mean/1", "mean/2", "symmetric/1", "symmetric/2")
        assert "segments: x [7], mean/1 [7]" in repr(loader)
        assert str(next(iter(loader))) == (
            "HopBatch(epoch 0, minibatch 0: 375 seeds)\n  x: float32 [375, 5, 7]\n  y: int64 [375]"
        )


def test_deviations_too_small_for_float32_are_one(tmp_path: Path) -> None:
    features = np.zeros((1000, 2), np.float32)
    features[3, 0] = np.finfo(np.float32).smallest_subnormal
    edges = np.stack([np.arange(1000), np.roll(np.arange(1000), 1)])
    diskgnn.convert(tmp_path / "graph", edges=edges, features=features, labels=np.arange(1000) % 3,
                    train=np.arange(1000), progress=False)  # fmt: skip
    diskgnn.propagate(tmp_path / "graph", tmp_path / "hops", hops=1, progress=False)
    with HopsLoader(tmp_path / "hops") as loader:
        assert 0 < np.load(tmp_path / "hops" / "statistics.npy")[1, 0] < float(features[3, 0]) / 2
        assert loader.statistics()[1].tolist() == [[1, 1], [1, 1]]


def test_nodes_that_were_chosen_have_no_labels(hops: Path, tmp_path: Path) -> None:
    for nodes, expected in (("all", np.arange(3000)), ([7, 3, 2999], [7, 3, 2999])):
        diskgnn.propagate(hops.parent / "graph", tmp_path / "some", hops=1, nodes=nodes, progress=False, overwrite=True)
        with HopsLoader(tmp_path / "some", "nodes", batch_size=700) as loader:
            batches = list(loader)
        assert all(batch.y is None for batch in batches)
        np.testing.assert_array_equal(torch.cat([batch.seeds for batch in batches]).numpy(), expected)
        with pytest.raises(ArtifactError, match=r"no records of train, only of nodes: without nodes, .diskgnn"):
            HopsLoader(tmp_path / "some")


def test_arguments_that_cannot_work(hops: Path, tmp_path: Path) -> None:
    for options, told in (({"batch_size": 0}, "batch_size: expected at least 1"), ({"prefetch": 0}, "prefetch"),
                          ({"memory": "much"}, "size"), ({"engine": "fast"}, "engine"), ({"rank": 0}, "both"),
                          ({"shuffle_seed": "x"}, "shuffle_seed"), ({"shuffle_seed": -1}, r"shuffle_seed: .* to 2\^64"),
                          ({"shuffle_seed": 1 << 64}, "shuffle_seed: ")):  # fmt: skip
        with pytest.raises(ConfigError, match=told):
            HopsLoader(hops, **options)
    with pytest.raises(TypeError, match="batchsize"):
        HopsLoader(hops, batchsize=3)
    with pytest.raises(ArtifactError, match=r"expected a 'diskgnn\.hops'"):
        HopsLoader(hops.parent / "graph")
    with pytest.raises(ArtifactError, match="not there"):
        HopsLoader(tmp_path / "nothing")


def test_epochs_are_whole_numbers_from_0(hops: Path) -> None:
    with HopsLoader(hops) as loader:
        for call in (loader.epoch, loader.set_epoch):
            for epoch in (-1, 0.5, None, "3"):
                with pytest.raises(ConfigError, match="epoch: expected"):
                    call(epoch)
        assert next(loader.epoch(np.int32(2))).seeds.tolist() == next(loader.epoch(2)).seeds.tolist()


def test_seeds_with_several_labels_and_numbers(tmp_path: Path) -> None:
    given = random_graph(2)
    labels = {"multilabel": np.random.default_rng(0).integers(0, 2, (500, 3)).astype(np.uint8),
              "regression": np.linspace(0, 1, 500, dtype=np.float32)}  # fmt: skip
    for kind, y in labels.items():
        graph = tmp_path / kind
        nodes = {"features": given.features.astype(np.float32), "labels": y, "task": kind, **given.seeds}
        schema = {"nodes": {"node": nodes}, "edges": {"node:to:node": {"edges": given.edges}}}
        diskgnn.convert(graph, schema=schema, progress=False)
        diskgnn.propagate(graph, tmp_path / f"{kind}-hops", hops=1, progress=False)
        with HopsLoader(tmp_path / f"{kind}-hops") as loader:
            (batch,) = loader
            assert batch.y.dtype == (torch.uint8 if kind == "multilabel" else torch.float32)
            np.testing.assert_array_equal(batch.y.numpy(), y.reshape(500, -1)[batch.seeds.numpy()])
            assert loader.schema.num_outputs == batch.y.shape[1]
