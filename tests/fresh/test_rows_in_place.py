"""Windows whose rows stay in the graph: the same minibatches, read from the features page by page."""

import numpy as np
import pytest
import torch
from graphs import assert_rows_are_features, make_graph, write_graph
from packed_directories import flip
from sources import assert_same
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.baselines.in_memory import InMemory
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.fresh.fresh_epochs import FreshEpochs
from diskgnn.fresh.rows_in_place import stay_in_the_graph
from diskgnn.fresh.window_job import WindowPreparer
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.packing.tiers import TierBudgets
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import LinkTarget, SamplingSpec

pytestmark = pytest.mark.usefixtures("one_thread")

SAMPLING = {"fanouts": [3, 2], "batch_size": 8, "seed": 4}


@pytest.fixture(params=[True])
def stay(request):
    """What is chosen."""
    with faults.pretending("fresh_epochs.by_reference", request.param):
        yield request.param


def fresh(graph, folder, **options):
    return FreshEpochs(graph, folder, **({"cpu_cache": "20%", "keep_input_nodes": True} | SAMPLING | options))


@pytest.mark.usefixtures("stay")
@pytest.mark.parametrize("width", [1, 7, 1500, 9000])  # rows of less than a page, of one and more, of more than 32 KiB
@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_every_epoch_is_what_online_sampling_draws(tmp_path, width, engine):
    """Epochs have 8 minibatches: windows of 5 end within them and beyond them. The last one begins within an epoch."""
    graph = make_graph(tmp_path / "graph", width=width)
    options = {"loader_options": LoaderOptions(engine=engine), "cpu_cache": 40 * 4 * width, "window": 5}
    with fresh(graph, tmp_path / "scratch", **options) as source, InMemory(graph, **SAMPLING) as online:
        for epoch in (0, 1, 5):
            for batch, expected in zip(source.epoch(epoch), online.epoch(epoch), strict=True):
                assert_same(batch, expected)
        source.load_state_dict({**source.state_dict(), "epoch": 5, "batch": 3})  # of a window that is open
        first, *_ = source.epoch(5)
        assert_same(first, list(online.epoch(5))[3])
        stats = source.stats()
    assert 0 < stats.cpu_rows < stats.disk_rows
    assert stats.read_bytes > stats.disk_rows * graph.feature_file.row_bytes


@pytest.mark.usefixtures("stay")
@pytest.mark.parametrize(("dtype", "width"), [("float16", 5), ("bfloat16", 3), ("int8", 1)])
def test_rows_bit_for_bit_beside_static_ones(tmp_path, dtype, width):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width)
    with fresh(graph, tmp_path / "scratch", static_cache="10%", window=3) as source:
        for batch in source.epoch(3):
            assert_rows_are_features(batch, graph)
        stats = source.stats()
    assert min(stats.pinned_rows, stats.cpu_rows, stats.disk_rows) > 0


@pytest.mark.usefixtures("stay")
@pytest.mark.parametrize("sampling", [{}, {"target": LinkTarget(WRITES, negatives=2)}])
def test_rows_of_several_types(tmp_path, sampling):
    graph = write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    options = {"fanouts": [3, 2], "batch_size": 8, "seed": 1, **sampling}
    with InMemory(graph, **options) as online, FreshEpochs(graph, tmp_path, cpu_cache="20%", **options) as source:
        for epoch in range(2):
            for batch, expected in zip(source.epoch(epoch), online.epoch(epoch), strict=True):
                assert batch.x.keys() == expected.x.keys()
                assert all(torch.equal(x, expected.x[name]) for name, x in batch.x.items())


@pytest.mark.parametrize("stay", [True, False], indirect=True)
def test_rows_that_stay_are_not_written(tmp_path, stay):
    graph = make_graph(tmp_path / "graph", num_nodes=2000, width=1000, in_degree=20)
    with fresh(graph, tmp_path / "scratch", num_epochs=1, fanouts=[10, 10], cpu_cache=0, window=8) as source:
        rows_bytes = sum(len(batch.input_nodes) for batch in source.epoch(0)) * graph.feature_file.row_bytes
        written_bytes = source.stats().prepare_written_bytes
    assert (written_bytes < 0.1 * rows_bytes) if stay else (written_bytes > rows_bytes)


@pytest.mark.usefixtures("stay")
def test_damaged_features_are_named(tmp_path):
    graph = make_graph(tmp_path / "graph", width=1024)  # a row takes a page, which are parts of two
    with InMemory(graph, **SAMPLING) as online:
        node = int(next(online.epoch(0)).input_nodes[-1])
    features = graph.feature_file
    place = features.data_offset_bytes + node * features.row_bytes
    flip(features.local_path, place)
    with fresh(graph, tmp_path / "scratch") as source:
        with pytest.raises(ArtifactError, match=r"features.* is damaged: between its bytes"):
            next(source.epoch(0))
        flip(features.local_path, place)
        assert_rows_are_features(next(source.epoch(0)), graph)  # it goes on
    flip(features.local_path, place)
    with fresh(graph, tmp_path / "scratch", loader_options=LoaderOptions(verify=False)) as source:
        next(source.epoch(0))  # as it was asked for


@pytest.mark.usefixtures("stay")
def test_short_gaps_between_rows_are_read_along_and_not_compared(tmp_path):
    """Rows of 4 KiB, 128 bytes into a page: row 0 lies in pages 0 and 1, row 5 in 5 and 6, row 12 in 12 and 13. At most
    four pages between two are read along: one request has pages 0 to 6, one has 12 and 13. The extent is a page."""
    features = np.random.default_rng(0).standard_normal((16, 1024)).astype(np.float32)
    graph = write_graph(
        tmp_path / "graph", np.zeros(17), np.empty(0, np.int32), features, {"train": np.array([0, 5, 12])}
    )
    assert graph.feature_file.data_offset_bytes == 128
    flip(graph.feature_file.local_path, 3 * 4096 + 5)  # nobody uses that
    options = {"fanouts": [2], "batch_size": 3, "cpu_cache": 0, "num_epochs": 1}
    with fresh(graph, tmp_path / "scratch", **options) as source:
        (batch,) = source.epoch(0)
        assert_rows_are_features(batch, graph)
        stats = source.stats()
    assert (stats.read_requests, stats.read_bytes) == (3, 10 * 4096)


@pytest.mark.usefixtures("stay")
@pytest.mark.parametrize(("num_seeds", "length"), [(20, 10), (100, 32), (800, 50)])
def test_the_first_window_is_an_eighth_of_an_epoch_but_tens_of_minibatches(tmp_path, num_seeds, length):
    features = np.zeros((num_seeds, 1), np.float32)
    graph = write_graph(
        tmp_path / "graph", np.zeros(num_seeds + 1), np.empty(0, np.int32), features, {"train": np.arange(num_seeds)}
    )
    plan = SamplingPlan(graph, SamplingSpec([2], 2, splits=("train",)))
    preparer = WindowPreparer(plan, TierBudgets(0, 0, 0), "1GiB", keep_input_nodes=False)
    assert preparer.shortest_window(range(num_seeds // 2)) == (length, 8)
    preparer.close()


@pytest.mark.usefixtures("stay")
def test_a_window_is_read_by_the_process_that_made_it(tmp_path):
    graph = make_graph(tmp_path / "graph")
    with fresh(graph, tmp_path / "scratch") as source:
        next(source.epoch(0))
        (packed,) = (tmp_path / "scratch").glob("*/window-00000000/packed")
        with pytest.raises(ArtifactError, match="refers to rows of a graph"):
            diskgnn.Loader(packed)


@pytest.mark.parametrize(
    ("num_batches", "computes_here", "stays"), [(1, True, True), (1, False, False), (1000, True, False)]
)
def test_rows_stay_where_that_costs_less(tmp_path, num_batches, computes_here, stays):
    """A seed alone, whose row of 1 KiB lies in two pages: 8 KiB and a request, which is as 49 KiB. Packed, a stretch of
    32 KiB is read, once in a window, and the row written and read: 34 KiB in a window of one minibatch; in one of 1000,
    4 MiB are read once for all."""
    features = np.zeros((4096, 256), np.float32)
    graph = write_graph(
        tmp_path / "graph", np.zeros(4097), np.empty(0, np.int32), features, {"train": np.arange(3, 4096, 4)}
    )
    plan = SamplingPlan(graph, SamplingSpec([2], 1, splits=("train",)))
    minibatch = plan.minibatches("train", 0)[0].draw(plan.load_sampler())
    row_sets = row_sets_of(graph, plan.config())
    assert stay_in_the_graph(row_sets, minibatch, num_batches, computes_here=computes_here) == stays


@pytest.mark.usefixtures("stay")
def test_an_epoch_left_early_and_the_next(tmp_path):
    """The second epoch begins in the middle of the window that was being prepared."""
    graph = make_graph(tmp_path / "graph")
    with fresh(graph, tmp_path / "scratch", window=5) as source, InMemory(graph, **SAMPLING) as online:
        for epoch in range(3):
            assert_same(next(source.epoch(epoch)), next(online.epoch(epoch)))
