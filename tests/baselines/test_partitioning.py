"""A graph in partitions: what is on disk."""

import numpy as np
import pytest
from graphs import make_graph
from partitioned import adjacency, partition_of

from diskgnn.baselines.partitioning import write_partitions
from diskgnn.baselines.partitions import Partitions
from diskgnn.errors import ArtifactError, ConfigError, InputError, OutputExistsError
from diskgnn.formats.verification import verify_artifact


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return make_graph(tmp_path_factory.mktemp("partition") / "graph", num_nodes=203)


@pytest.mark.parametrize(("dtype", "width", "memory"), [("float32", 7, "1GiB"), ("bfloat16", 3, 2000), ("int8", 1, 64)])
def test_the_files_hold_what_the_format_says(tmp_path, dtype, width, memory):
    graph = make_graph(tmp_path / "graph", dtype=dtype, width=width, num_nodes=101)
    write_partitions(graph, tmp_path / "partitions", num_partitions=5, memory=memory, threads=2)
    manifest = verify_artifact(tmp_path / "partitions")
    found = Partitions.open(tmp_path / "partitions", graph)
    np.testing.assert_array_equal(np.sort(found.nodes), np.arange(graph.num_nodes))
    assert set(np.diff(found.starts)) <= {20, 21}
    features = manifest.file("features.bin").read_bytes()
    edges = np.fromfile(manifest.file("edges.bin"), np.int32).reshape(-1, 2)
    assert len(edges) == graph.num_edges
    members = [found.nodes[found.starts[q] : found.starts[q + 1]] for q in range(5)]
    graph_edges = adjacency(graph)
    for q, nodes in enumerate(members):
        assert (np.diff(nodes) > 0).all()
        begin = q * found.partition_bytes
        assert begin % 4096 == 0
        stored = features[begin : begin + len(nodes) * graph.feature_file.row_bytes]
        assert stored == graph.features[nodes].tobytes()
        assert not any(features[begin + len(stored) : begin + found.partition_bytes])
        for r, sources in enumerate(members):
            bucket = edges[found.buckets[q, r] : found.buckets[q, r + 1]]
            expected = graph_edges[nodes][:, sources]
            np.testing.assert_array_equal(bucket[np.lexsort(bucket.T[::-1])], np.argwhere(expected.toarray()))
            assert (np.diff(bucket[:, 0]) >= 0).all()
    train = np.array([members[q][position] for q, position in found.train])
    np.testing.assert_array_equal(train, graph.splits["train"])


def test_the_same_bytes_whatever_the_memory(graph, tmp_path):
    for name, memory in (("one", "1GiB"), ("two", 5000)):
        write_partitions(graph, tmp_path / name, num_partitions=4, memory=memory)
    one, two = ({f.name: f.read_bytes() for f in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_train_nodes_first(graph, tmp_path):
    write_partitions(graph, tmp_path / "first", num_partitions=8, seed=1, train_first=True)
    partition = partition_of(graph, tmp_path / "first")[graph.splits["train"]]
    assert partition.max() == 2  # 57 of 203 nodes, 25 or 26 a partition


def test_arguments_are_checked(graph, tmp_path):
    for number in (0, 257, 204):
        with pytest.raises(ConfigError, match="num_partitions"):
            write_partitions(graph, tmp_path / "out", num_partitions=number)
    write_partitions(graph, tmp_path / "random", num_partitions=8)
    with pytest.raises(OutputExistsError):
        write_partitions(graph, tmp_path / "random", num_partitions=8)
    with pytest.raises(InputError, match="train"):
        write_partitions(make_graph(tmp_path / "other", splits={"valid": 9}), tmp_path / "out", num_partitions=2)
    with pytest.raises(ArtifactError, match="another graph"):
        Partitions.open(tmp_path / "random", make_graph(tmp_path / "third", seed=4))
    assert not (tmp_path / "out").exists()


def test_damage_is_an_error(graph, tmp_path):
    write_partitions(graph, tmp_path / "partitions", num_partitions=4)
    np.save(tmp_path / "partitions" / "buckets.npy", np.zeros((4, 5), np.int64))
    with pytest.raises(ArtifactError, match=r"buckets\.npy"):
        Partitions.open(tmp_path / "partitions", graph)
