"""Packed directories of typed graphs: what the loader yields is what the graph has, and reads what the plan says."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_directories import flip
from typed_samples import CITES, WRITES, typed_graph, write_samples

from diskgnn.batches.minibatch import MiniBatch, TypedMiniBatch
from diskgnn.errors import ArtifactError
from diskgnn.files import faults
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import find_damage, verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.loading.loader import Loader
from diskgnn.packing.pack import pack, pack_request
from diskgnn.packing.pack_request import PackRequest
from diskgnn.packing.tiers import TierRows
from diskgnn.system.resources import Resources

pytestmark = pytest.mark.usefixtures("arrow_on_one_thread", "no_thread_is_left")

REV_WRITES = ("paper", "rev_writes", "author")
ROW_SETS = ["paper", "field", WRITES, REV_WRITES]


def needed_rows(minibatch, graph, row_set):
    """The numbers of the rows of a row set that a minibatch needs."""
    if isinstance(row_set, str):
        return set(minibatch.input_nodes[graph.nodes[row_set].number].tolist())
    number = graph.edges[row_set].number
    return {position for blocks in minibatch.blocks for position in blocks[number].positions.tolist()}


def belady_reads(batches, capacity):
    """(rows that MIN with bypass reads in each of eight cycles, whether the last two are the same): by trying."""
    resident, before, reads = set(), set(), []
    for _ in range(8):
        before = resident
        reads.append(0)
        for number, batch in enumerate(batches):
            reads[-1] += len(batch - resident)
            order = [*range(number + 1, len(batches)), *range(number + 1)]
            waits = {row: next(i for i, n in enumerate(order) if row in batches[n]) for row in resident | batch}
            resident = set(sorted(waits, key=lambda row: (waits[row], row))[:capacity])
    return reads, resident == before


def assert_reads_the_fewest(batches, slots, found):
    """`found` rows are read in each cycle: as many as MIN does, where that comes to rest.

    Where MIN keeps rotating, no schedule that repeats each cycle reaches it. Two bounds hold nevertheless. No schedule
    reads fewer than MIN in several cycles, and a row for each slot lets this one begin with an empty cache. And rows
    that MIN keeps in its eighth cycle for that or the next one, but for those that it began with, can be kept in each
    cycle: these are read as well, one for each slot at most.
    """
    reads, settles = belady_reads(batches, slots)
    if settles:
        assert found == reads[-1]
    else:
        assert sum(reads) <= len(reads) * found + slots
        assert found <= reads[-1] + slots


def assert_is(batch, minibatch, graph, *, keep_ids):
    """A minibatch that was loaded is the one that was sampled, with the graph's rows."""
    assert isinstance(batch, TypedMiniBatch)
    assert batch.seeds.tolist() == minibatch.seeds.tolist()
    names = list(graph.nodes)
    assert [[counts[name] for name in names] for counts in batch.node_counts] == minibatch.node_counts.tolist()
    kept = names if keep_ids else ["author"]
    assert list(batch.input_nodes) == kept
    for name in kept:
        assert batch.input_nodes[name].tolist() == minibatch.input_nodes[names.index(name)].tolist()
    assert list(batch.x) == ["paper", "field"]
    for name, x in batch.x.items():
        np.testing.assert_array_equal(x, graph.nodes[name].features[minibatch.input_nodes[names.index(name)]])
    for layer, blocks in zip(batch.blocks, minibatch.blocks, strict=True):
        assert list(layer) == list(graph.edges)
        for (edge_type, block), sampled in zip(layer.items(), blocks, strict=True):
            edges = graph.edges[edge_type]
            assert (block.indptr.tolist(), block.indices.tolist()) == (
                sampled.indptr.tolist(),
                sampled.indices.tolist(),
            )
            assert (block.edge_x is not None) == (edge_type in (WRITES, REV_WRITES))
            if block.edge_x is not None:
                np.testing.assert_array_equal(block.edge_x, edges.features[sampled.positions])
            if keep_ids:
                ids = sampled.positions if edges.edge_ids is None else edges.edge_ids[sampled.positions]
                assert block.edge_ids.tolist() == ids.tolist()
    if minibatch.trees is None:
        assert batch.trees is None
    else:
        assert [batch.trees[name].tolist() for name in names] == [tree.tolist() for tree in minibatch.trees]


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 10**6), trees=st.booleans(), keep_ids=st.booleans(), layers=st.integers(1, 2),
    task=st.sampled_from(["class", "multilabel", "regression"]),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.4, 1.0]), min_size=8, max_size=8),
)  # fmt: skip
@example(  # MIN rotates: it reads 86 rows in a cycle, and no schedule that repeats does
    seed=53563, trees=False, keep_ids=False, layers=2, task="class", shares=[0.0, 0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.4]
)  # fmt: skip
def test_rows_are_the_graphs_and_reads_are_the_plans(tmp_path_factory, seed, trees, keep_ids, task, shares, layers):
    """Over three cycles, and from a place in the midst of one."""
    folder = tmp_path_factory.mktemp("typed")
    graph = typed_graph(folder / "graph", seed, task=task)
    sampled = write_samples(graph, folder / "samples", seed, trees=trees, layers=layers, edge_ids=keep_ids)
    sizes = [
        (graph.nodes[name] if isinstance(name, str) else graph.edges[name]).feature_file.num_rows for name in ROW_SETS
    ]
    tiers = [TierRows(int(size * static * 0.3), int(size * cpu), int(size * cpu / 2), int(size * cpu / 2))
             for size, static, cpu in zip(sizes, shares, shares[4:], strict=False)]  # fmt: skip
    samples = Samples.open(folder / "samples")
    request = PackRequest(graph, samples, tiers, keep_input_nodes=keep_ids)
    with faults.pretending("window.bytes", 200):
        pack_request(request, folder / "packed", Resources.of("1MiB", 1))
    verify_artifact(folder / "packed")
    packed = Packed.open(folder / "packed")
    assert [row_set.type for row_set in packed.config.row_sets] == ROW_SETS
    for split, minibatches in sampled.items():
        size = packed.sequence(split)
        with Loader(packed, split) as loader:
            for epoch in (0, 1, 2, 3, 1):
                start = epoch % size.epochs * len(loader)
                for batch, minibatch in zip(loader.epoch(epoch), minibatches[start:], strict=False):
                    assert_is(batch, minibatch, graph, keep_ids=keep_ids)
                    labels = graph.nodes["paper"].labels[minibatch.seeds]
                    assert batch.y.tolist() == labels.tolist()
            assert loader.schema.is_typed
        for number, row_set in enumerate(ROW_SETS):
            found = size.row_sets[number]
            counts = {}
            for minibatch in sampled["train"]:
                for row in needed_rows(minibatch, graph, row_set):
                    counts[row] = counts.get(row, 0) + 1
            static = set(sorted(counts, key=lambda row: (-counts[row], row))[: tiers[number].static])
            batches = [needed_rows(minibatch, graph, row_set) for minibatch in minibatches]
            assert found.rows.requested == sum(map(len, batches))
            assert_reads_the_fewest([batch - static for batch in batches], found.cpu_rows, found.rows.disk)
            assert found.max_inputs == max(map(len, batches))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """(graph, minibatches, packed directory) of a typed graph with every tier."""
    folder = tmp_path_factory.mktemp("prepared")
    graph = typed_graph(folder / "graph", 3)
    sampled = write_samples(graph, folder / "samples", 3, edge_ids=True)
    report = pack(graph, folder / "samples", folder / "packed", cpu_cache="20%", static_cache="5%",
                  keep_input_nodes=True)  # fmt: skip
    return graph, sampled, folder / "packed", report


def test_budgets_are_divided_and_kept(prepared):
    graph, _, path, report = prepared
    config, files = Packed.open(path).config, []
    for name in ROW_SETS:
        files.append((graph.nodes[name] if isinstance(name, str) else graph.edges[name]).feature_file)
    all_bytes = sum(file.num_bytes for file in files)
    for split, share in (("train", 0.2), ("valid", 0.05)):
        found = config.splits[split].row_sets
        assert sum(rows.cpu_rows * file.row_bytes for rows, file in zip(found, files, strict=True)) <= share * all_bytes
        disk_bytes = sum(rows.rows.disk * file.row_bytes for rows, file in zip(found, files, strict=True))
        assert report.details[f"{split}_disk_row_bytes"] == disk_bytes
        assert disk_bytes <= report.details[f"{split}_disk_row_bytes_divided_evenly"]
        assert report.details[f"{split}_cpu_rows_of_author.writes.paper"] == found[2].cpu_rows
    static_bytes = sum(row_set.num_static * row_set.rows.row_bytes for row_set in config.row_sets)
    assert 0 < static_bytes <= 0.05 * all_bytes


def test_where_it_stood_is_where_it_goes_on(prepared):
    graph, sampled, path, _ = prepared
    with Loader(path) as loader:
        batches = loader.epoch(1)
        next(batches)
        state = loader.state_dict()
    with Loader(path, engine="threads", device_cache="50%") as loader:
        loader.load_state_dict(state)
        rest = list(loader.epoch(1))
    assert len(rest) == 2
    for batch, minibatch in zip(rest, sampled["train"][4:], strict=True):
        assert_is(batch, minibatch, graph, keep_ids=True)


def test_pairs_arrive_with_their_labels(tmp_path):
    graph = typed_graph(tmp_path / "graph", 5)
    sampled = write_samples(graph, tmp_path / "samples", 5, link=True)["train"]
    pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0)
    with Loader(tmp_path / "packed") as loader:
        assert (loader.schema.target, loader.schema.target_kind) == (CITES, "link")
        for batch, minibatch in zip(loader.epoch(0), sampled, strict=False):
            assert_is(batch, minibatch, graph, keep_ids=False)
            assert (batch.pairs.src.tolist(), batch.pairs.dst.tolist()) == (
                minibatch.pairs.src.tolist(), minibatch.pairs.dst.tolist())  # fmt: skip
            assert batch.pairs.src.dtype == torch.int64
            assert batch.y.tolist() == batch.pairs.label.tolist() == minibatch.pairs.label.tolist()


def test_damage_in_the_rows_of_any_type_is_found(prepared, tmp_path):
    _, _, path, _ = prepared
    copy = shutil.copytree(path, tmp_path / "packed")
    index = Packed.open(copy).index("train")
    for number in range(len(ROW_SETS)):
        extent = int(np.argmax(index.rows["num_rows"][:, number] > 0))
        place = int(index.extents["offset"][extent] + index.rows["rows_offset"][extent, number])
        flip(copy / "train.bin", place)
        _, (damage,) = find_damage(copy)
        assert (damage.file, damage.extents) == ("train.bin", (extent,))
        with Loader(copy) as loader, pytest.raises(ArtifactError, match=f"extent {extent} .*rows"):
            list(loader.epoch(0))
        flip(copy / "train.bin", place)


def test_a_graph_without_features_has_no_row_sets(tmp_path):
    """Only ids and structure: what trainable embeddings need."""
    rng = np.random.default_rng(0)
    nodes = {"labels": rng.integers(0, 3, 40), "train": np.arange(20), "valid": np.arange(20, 30)}
    convert(tmp_path / "graph", schema={"nodes": {"paper": nodes, "author": {"num_nodes": 9}},
            "edges": {"author:writes:paper": {"edges": rng.integers(0, 9, (60, 2))}}}, memory="1MiB")  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    sampled = write_samples(graph, tmp_path / "samples")
    report = pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache="10%")
    assert report.details["train_requested_rows"] == 0
    assert verify_artifact(tmp_path / "packed").files["train-rows.npy"].shape == (6, 0)
    with Loader(tmp_path / "packed") as loader:
        for epoch in range(3):
            for batch, minibatch in zip(loader.epoch(epoch), sampled["train"][epoch % 2 * 3 :], strict=False):
                assert dict(batch.x) == {}
                assert batch.input_nodes["author"].tolist() == minibatch.input_nodes[1].tolist()
                assert batch.blocks[0][WRITES].indices.tolist() == minibatch.blocks[0][0].indices.tolist()
        assert loader.sequence.largest_minibatch().seeds.numel()


@pytest.mark.parametrize("with_features", [False, True])
def test_one_type_may_have_edge_features_and_no_others(tmp_path, with_features):
    rng = np.random.default_rng(1)
    nodes = {"labels": rng.integers(0, 3, 40), "train": np.arange(20), "valid": np.arange(20, 30)}
    nodes |= {"features": rng.random((40, 5), np.float32)} if with_features else {}
    cites = {"edges": rng.integers(0, 40, (90, 2)), "features": rng.random((90, 3), np.float32)}
    convert(tmp_path / "graph", schema={"nodes": {"paper": nodes}, "edges": {"paper:cites:paper": cites}},
            memory="1MiB")  # fmt: skip
    graph = Graph.open(tmp_path / "graph")
    sampled = write_samples(graph, tmp_path / "samples")["train"]
    pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache="20%")
    with Loader(tmp_path / "packed") as loader:
        for batch, minibatch in zip(loader.epoch(0), sampled, strict=False):
            (nodes,) = minibatch.input_nodes
            assert isinstance(batch, MiniBatch)
            assert batch.x.shape == (len(nodes), 5 * with_features)
            if with_features:
                np.testing.assert_array_equal(batch.x, graph.features[nodes])
            else:
                assert batch.input_nodes.tolist() == nodes.tolist()
            for block, (drawn,) in zip(batch.blocks, minibatch.blocks, strict=True):
                np.testing.assert_array_equal(block.edge_x, graph.edges[CITES].features[drawn.positions])
