import os
import shutil
import threading
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from neighbor_order import in_order

from diskgnn import ConfigError, DiskFullError, Graph
from diskgnn._native import FeatureType, GraphGenerator
from diskgnn.errors import OutputExistsError
from diskgnn.files import faults
from diskgnn.formats.graph_config import GraphConfig
from diskgnn.formats.row_format import RowFormat
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.generation import generate
from diskgnn.graph.generation_spec import SIGNAL_RATIO

SMALL = {
    "num_nodes": 3001, "avg_degree": 6, "num_classes": 5, "num_features": 7, "train_fraction": 0.3,
    "valid_fraction": 0.1, "test_fraction": 0.2, "homophily": 0.7, "threads": 2, "memory": "64MiB",
}  # fmt: skip


def make_generator(num_nodes=1000, num_classes=4, homophily=0.7, width=3, signal=1.0, seed=1):
    return GraphGenerator(
        num_nodes=num_nodes,
        num_classes=num_classes,
        homophily=homophily,
        num_features=width,
        feature_signal=signal,
        seed=seed,
    )


def draw_edges(generator, count, first=0, dtype=np.int32):
    src, dst = np.empty(count, dtype), np.empty(count, dtype)
    generator.edges(first, src, dst)
    return src, dst


def draw_labels(generator, count, first=0):
    labels = np.empty(count, np.int64)
    generator.labels(first, labels)
    return labels


def draw_nodes(generator, count, first=0):
    nodes = np.empty(count, np.int64)
    generator.shuffled_nodes(first, nodes)
    return nodes


def draw_features(generator, count, first=0, name="float32", width=3):
    storage = np.dtype({"float32": "f4", "float16": "f2", "bfloat16": "u2", "int8": "i1"}[name])
    rows = np.empty((count, width * storage.itemsize), np.uint8)
    generator.features(first, FeatureType[name], rows)
    return rows.view(storage)


@given(st.integers(1, 300), st.integers(2, 3000), st.integers(0, 2**64 - 1))
def test_every_node_has_one_class_and_one_place_in_the_shuffle(num_classes, num_nodes, seed):
    num_classes = min(num_classes, num_nodes // 2)
    generator = make_generator(num_nodes, num_classes, seed=seed)
    sizes = np.bincount(draw_labels(generator, num_nodes), minlength=num_classes)
    assert len(sizes) == num_classes
    assert set(sizes) <= {num_nodes // num_classes, -(-num_nodes // num_classes)}
    np.testing.assert_array_equal(np.sort(draw_nodes(generator, num_nodes)), np.arange(num_nodes))


@given(st.integers(1, 300), st.integers(2, 3000), st.integers(0, 2**64 - 1), st.sampled_from([0.0, 1.0]))
def test_edges_agree_with_labels(num_classes, num_nodes, seed, homophily):
    num_classes = min(num_classes, num_nodes // 2)
    generator = make_generator(num_nodes, num_classes, homophily, seed=seed)
    labels = draw_labels(generator, num_nodes)
    src, dst = draw_edges(generator, 500)
    assert src.min() >= 0
    assert max(src.max(), dst.max()) < num_nodes
    assert (src != dst).all()
    inside = labels[src] == labels[dst]
    assert inside.all() if homophily == 1 or num_classes == 1 else not inside.any()


@pytest.mark.parametrize("homophily", [0.3, 0.7, 0.9])
def test_homophily_is_what_was_asked(homophily):
    generator = make_generator(50_000, 16, homophily)
    labels = draw_labels(generator, 50_000)
    src, dst = draw_edges(generator, 600_000)
    assert np.mean(labels[src] == labels[dst]) == pytest.approx(homophily, abs=0.01)


@pytest.mark.parametrize("end", [0, 1])
def test_degrees_follow_the_power_law(end):
    num_nodes, num_classes, num_edges = 100_003, 4, 3_000_000
    degrees = np.bincount(draw_edges(make_generator(num_nodes, num_classes), num_edges)[end], minlength=num_nodes)
    # The expected degree of the node of rank r in its class, from the distribution function of (r + 1)^-0.75.
    size = num_nodes // num_classes
    bounds = (np.arange(size + 1) + 1.0) ** 0.25
    expected = num_edges / num_classes * np.diff(bounds) / (bounds[-1] - 1)
    expected = np.sort(np.tile(expected, num_classes))[::-1]
    degrees = np.sort(degrees)[::-1]
    for top in (4, 40, 400, 4000, 40000):
        # Sorting what was drawn biases the top upwards a little.
        assert degrees[:top].sum() == pytest.approx(expected[:top].sum(), rel=0.04), top
    ranks = np.arange(100, 10_000)
    slope = np.polyfit(np.log(ranks), np.log(degrees[ranks]), 1)[0]
    assert slope == pytest.approx(-0.75, abs=0.03)


def test_ids_say_nothing_about_class_or_degree():
    num_nodes, num_classes = 100_000, 16
    generator = make_generator(num_nodes, num_classes)
    labels, nodes = draw_labels(generator, num_nodes), draw_nodes(generator, num_nodes)
    degrees = np.bincount(draw_edges(generator, 1_000_000)[1], minlength=num_nodes)
    limit = 5 / np.sqrt(num_nodes)
    for sequence in (labels, labels[nodes], degrees, degrees[nodes], nodes):
        assert abs(scipy.stats.spearmanr(np.arange(num_nodes), sequence).statistic) < limit
    for stride in (1, 2, 3, 64, 1024):
        for sequence in (labels, labels[nodes]):
            same = np.mean(sequence[stride:] == sequence[:-stride])
            assert same == pytest.approx(1 / num_classes, abs=5 * np.sqrt(1 / num_classes / num_nodes))
    for blocks in (labels.reshape(100, -1), labels[nodes].reshape(100, -1)):
        counts = np.stack([np.bincount(block, minlength=num_classes) for block in blocks])
        assert scipy.stats.chi2_contingency(counts).pvalue > 1e-4


def test_every_item_is_a_function_of_seed_and_number():
    generator = make_generator(width=5)
    for draw in (draw_edges, draw_labels, draw_nodes, lambda g, n, k=0: draw_features(g, n, k, width=5)):
        whole, part = np.asarray(draw(generator, 900)), np.asarray(draw(generator, 100, 333))
        axis = 1 if draw is draw_edges else 0
        np.testing.assert_array_equal(part, np.take(whole, range(333, 433), axis=axis))
        np.testing.assert_array_equal(whole, np.asarray(draw(make_generator(width=5), 900)))
        assert (whole != np.asarray(draw(make_generator(width=5, seed=2), 900))).any()
    np.testing.assert_array_equal(draw_edges(generator, 99), draw_edges(generator, 99, dtype=np.int64))


def test_edges_beyond_two_to_the_31_nodes():
    num_nodes = 2**33 + 5
    src, dst = draw_edges(make_generator(num_nodes, 3), 100_000, first=2**40, dtype=np.int64)
    for ends in (src, dst):
        assert ends.min() >= 0
        assert num_nodes * 0.999 < ends.max() < num_nodes
        assert np.mean(ends) == pytest.approx(num_nodes / 2, rel=0.02)


def test_features_are_a_centroid_plus_independent_noise():
    num_nodes, num_classes, width, signal = 40_000, 4, 32, 3.0
    generator = make_generator(num_nodes, num_classes, width=width, signal=signal)
    x, y = draw_features(generator, num_nodes, width=width), draw_labels(generator, num_nodes)
    centroids = np.stack([x[y == c].mean(0) for c in range(num_classes)])
    assert np.linalg.norm(centroids, axis=1) == pytest.approx(signal, rel=0.35)
    distances = np.linalg.norm(centroids[:, None] - centroids[None], axis=2)[~np.eye(num_classes, dtype=bool)]
    assert distances == pytest.approx(signal * np.sqrt(2), rel=0.35)
    noise = x - centroids[y]
    assert noise.std(0) == pytest.approx(1, rel=0.02)
    assert scipy.stats.skew(noise.ravel()) == pytest.approx(0, abs=0.01)
    assert scipy.stats.kurtosis(noise.ravel()) == pytest.approx(-6 / 5 / 4, abs=0.02)  # Irwin-Hall of 4
    assert np.abs(np.corrcoef(noise.T) - np.eye(width)).max() < 0.03
    assert np.abs(np.corrcoef(noise[:1000])[np.triu_indices(1000, 1)]).mean() < 0.16  # sqrt(2 / pi / width) = 0.141


def test_narrow_features_are_the_float32_ones_rounded():
    generator, count, width = make_generator(width=96, num_nodes=20_000), 20_000, 96
    x = draw_features(generator, count, width=width)
    assert (np.abs(x) < 2.0**-14).sum() > 10  # subnormal as float16
    np.testing.assert_array_equal(draw_features(generator, count, name="float16", width=width), x.astype(np.float16))
    bfloat16 = torch.from_numpy(x).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(draw_features(generator, count, name="bfloat16", width=width), bfloat16)
    int8 = np.clip(np.rint(x * 32), -127, 127).astype(np.int8)
    np.testing.assert_array_equal(draw_features(generator, count, name="int8", width=width), int8)


def test_native_arguments_are_checked():
    generator = make_generator()
    with pytest.raises(ValueError, match="two nodes per class"):
        make_generator(7, 4)
    with pytest.raises(ValueError, match="differ in length"):
        generator.edges(0, np.empty(3, np.int32), np.empty(4, np.int32))
    with pytest.raises(ValueError, match="another length"):
        generator.features(0, FeatureType.float32, np.empty((2, 11), np.uint8))
    with pytest.raises(TypeError):
        generator.edges(0, np.empty(3, np.int32), np.empty(3, np.int64))
    with pytest.raises(TypeError):
        generator.labels(0, np.empty(3, np.int32))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_the_graph_directory_holds_what_was_drawn(tmp_path, dtype):
    report = generate(tmp_path / "graph", **SMALL, feature_dtype=dtype, seed=5)
    graph = Graph.open(tmp_path / "graph")
    verify_artifact(tmp_path / "graph")
    num_nodes, width = SMALL["num_nodes"], SMALL["num_features"]
    signal = SIGNAL_RATIO * np.sqrt(2 * np.log(5))
    generator = make_generator(num_nodes, 5, 0.7, width, signal, 5)

    src, dst = draw_edges(generator, num_nodes * 6)
    columns = scipy.sparse.csr_matrix((np.ones(len(src)), (dst, src)), (num_nodes, num_nodes))
    columns.sum_duplicates()
    np.testing.assert_array_equal(graph.indptr, columns.indptr)
    np.testing.assert_array_equal(graph.indices, in_order(columns.indptr, columns.indices))
    np.testing.assert_array_equal(graph.features, draw_features(generator, num_nodes, name=dtype, width=width))
    np.testing.assert_array_equal(graph.labels, draw_labels(generator, num_nodes))
    assert {split: len(nodes) for split, nodes in graph.splits.items()} == {
        "train": 900,
        "valid": 300,
        "test": 600,
    }
    assert len(np.unique(np.concatenate(list(graph.splits.values())))) == 1800

    assert graph.config == GraphConfig.of_one_type(num_nodes, columns.nnz, 5, RowFormat(dtype, width))
    assert graph.manifest.config["seed"] == 5
    assert graph.feature_file.row_bytes == graph.features[0].nbytes
    assert report.details["num_edges"] == graph.num_edges
    assert report.written_bytes == sum(f.stat().st_size for f in (tmp_path / "graph").glob("*.npy"))


def test_neither_threads_nor_memory_change_a_byte(tmp_path):
    """Many threads and little memory make small chunks: here everything in one, or features in 12 and 58 of them."""
    arguments, digests = SMALL | {"num_features": 64}, set()
    for threads, memory in [(1, "1GiB"), (50, "13MiB"), (250, "13MiB")]:
        generate(tmp_path / "graph", **arguments | {"threads": threads, "memory": memory}, overwrite=True)
        digests.add(verify_artifact(tmp_path / "graph").digest)
    assert len(digests) == 1
    generate(tmp_path / "graph", **arguments, seed=1, overwrite=True)
    assert Graph.open(tmp_path / "graph").manifest.digest not in digests


def test_memory_stays_within_the_budget(tmp_path):
    budget = 16 << 20
    arguments = SMALL | {"num_nodes": 200_000, "avg_degree": 8, "num_features": 64, "memory": budget}
    tracemalloc.start()
    try:
        generate(tmp_path / "graph", **arguments)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert Graph.open(tmp_path / "graph").manifest.total_bytes > 3 * budget
    assert peak < budget


def test_a_split_of_no_nodes_is_left_out(tmp_path):
    generate(tmp_path / "graph", **SMALL | {"train_fraction": 1, "valid_fraction": 0, "test_fraction": 0})
    splits = Graph.open(tmp_path / "graph").splits
    assert list(splits) == ["train"]
    np.testing.assert_array_equal(np.sort(splits["train"]), np.arange(SMALL["num_nodes"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 9}, "2 nodes per class"),
        ({"num_classes": 0}, "at least 1 class"),
        ({"avg_degree": 0}, "avg_degree"),
        ({"avg_degree": float("nan")}, "avg_degree"),
        ({"avg_degree": 301}, "at most 300.1"),
        ({"num_features": 0}, "num_features"),
        ({"feature_dtype": "float64"}, "float32, float16, bfloat16, int8"),
        ({"homophily": 1.5}, "homophily"),
        ({"homophily": -0.1}, "homophily"),
        ({"seed": -1}, "seed"),
        ({"threads": 0}, "threads"),
        ({"train_fraction": 0}, "train_fraction"),
        ({"train_fraction": 0.8}, "sum is at most 1"),
        ({"valid_fraction": -0.1}, "from 0 to 1"),
        ({"test_fraction": 0.0001}, "test_fraction"),
    ],
)
def test_arguments_that_cannot_work(tmp_path, change, message):
    with pytest.raises(ConfigError, match=message):
        generate(tmp_path / "graph", **SMALL | change)
    assert list(tmp_path.iterdir()) == []


def test_the_output_is_not_replaced_unasked(tmp_path):
    generate(tmp_path / "graph", **SMALL)
    with pytest.raises(OutputExistsError, match="overwrite=True"):
        generate(tmp_path / "graph", **SMALL)


def test_a_full_disk_is_refused_first(tmp_path):
    with faults.pretending("disk.free", 1000), pytest.raises(DiskFullError, match="are missing"):
        generate(tmp_path / "graph", **SMALL)
    assert list(tmp_path.iterdir()) == []


class InterruptingReporter:
    def __init__(self, stage):
        self.interrupted_stage = stage

    @contextmanager
    def stage(self, description, total, unit):
        def advance(_):
            if description == self.interrupted_stage:
                raise KeyboardInterrupt

        yield advance


@pytest.mark.parametrize("stage", ["count edges", "scatter edges", "sort edges", "write features"])
def test_an_interrupt_leaves_nothing(tmp_path, stage):
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "graph", **SMALL, reporter=InterruptingReporter(stage))
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


@pytest.mark.slow
def test_neighbours_tell_much_more_than_features_alone(tmp_path):
    from sklearn.linear_model import LogisticRegression

    arguments = SMALL | {"num_nodes": 30_000, "avg_degree": 12, "num_classes": 16, "num_features": 64}
    generate(tmp_path / "graph", **arguments)
    graph = Graph.open(tmp_path / "graph")
    adjacency = scipy.sparse.csr_matrix((np.ones(graph.num_edges, np.float32), graph.indices, graph.indptr))
    mean = scipy.sparse.diags(1 / np.maximum(np.diff(graph.indptr), 1)) @ adjacency
    one_hop = mean @ graph.features
    two_hop = mean @ one_hop
    train, test = graph.splits["train"], graph.splits["test"]

    def accuracy(x):
        model = LogisticRegression(max_iter=200).fit(x[train], graph.labels[train])
        return model.score(x[test], graph.labels[test])

    alone, together = accuracy(graph.features), accuracy(np.hstack([graph.features, one_hop, two_hop]))
    assert 0.3 < alone < 0.45
    assert 0.65 < together < 0.85


class Killed(BaseException):
    """Nobody handles it."""


LARGER = SMALL | {"num_nodes": 30_000, "avg_degree": 2, "num_features": 512, "memory": "auto"}


@pytest.mark.parametrize("damaged", [False, True])
def test_a_killed_generation_goes_on(tmp_path, damaged):
    """A kill costs some rows; a graph as small as this has units only if it is told so. Damage is made again."""
    passes = []

    def kill(after):
        def at_each():
            passes.append(point)
            if len(passes) > after:
                raise Killed

        return at_each

    point = "artifact.write"
    with faults.pretending("unit.bytes", 1 << 10):
        with faults.armed(point, kill(1 << 30)):
            generate(tmp_path / "whole", **LARGER)
        expected, whole = verify_artifact(tmp_path / "whole").digest, len(passes)
        assert whole > 12
        edges = whole - 12
        for after in (1, edges + 5, whole - 2):
            passes.clear()
            with pytest.raises(Killed), faults.armed(point, kill(after)):
                generate(tmp_path / "out", **LARGER)
            if damaged:
                for path in (tmp_path / ".out.partial").glob("*.npy"):
                    os.truncate(path, path.stat().st_size // 2)
            with faults.armed(point, kill(1 << 30)):
                generate(tmp_path / "out", **LARGER)
            assert verify_artifact(tmp_path / "out").digest == expected
            again = len(passes) - whole
            assert again <= (after + 1 if damaged or after == 1 else 2), (after, again, whole)
            shutil.rmtree(tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
