"""Ranks that train together: their minibatches are those of one rank, dealt out one by one."""

import pickle
import shutil
from itertools import chain, zip_longest

import numpy as np
import pytest
from graphs import bits_of, make_graph
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

from diskgnn import ArtifactError, ConfigError, Loader, OutputExistsError, prepare
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.preparing.repair import repair
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import SPLITS
from diskgnn.specs.shard import Shard
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.system.resources import Resources

SETTINGS = {"fanouts": [3, 2], "batch_size": 8, "epochs": 2, "seed": 5, "cpu_cache": "10%", "keep_input_nodes": True}
WAYS = {
    "independent": {},
    "coordinated": {"draws": "coordinated", "draw_period": 4},
    "grouped": {"group_seeds": 3},
    "in order": {"shuffle": False, "static_cache": "5%"},
}
TYPED_WAYS = {
    "nodes": {"target": NodeTarget("paper")},
    "links": {"target": LinkTarget(WRITES, negatives=2, eval_negatives=3)},
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """57 train seeds, so 8 minibatches of which the last has 1; 21 of valid, so 3."""
    return make_graph(tmp_path_factory.mktemp("ranks") / "graph").manifest.path


@pytest.fixture(scope="module")
def typed_graph(tmp_path_factory):
    return write_typed_graph(tmp_path_factory.mktemp("ranks") / "typed", TypedGraph()).manifest.path


def content(batch):
    """All that makes a minibatch but its number, comparable with ==."""
    if hasattr(batch, "x") and not isinstance(batch.x, dict):
        return batch.seeds.tolist(), bits_of(batch), batch.y.tolist(), batch.input_nodes.tolist(), [
            (block.indptr.tolist(), block.indices.tolist()) for block in batch.blocks
        ]  # fmt: skip
    return repr(batch.seeds), repr(batch.x), repr(batch.y), repr(batch.pairs), repr(batch.blocks)


def epochs_of(packed, split):
    with Loader(packed, split) as loader:
        return [[content(batch) for batch in loader.epoch(epoch)] for epoch in range(2)]


def dealt(ranks):
    """The minibatches of ranks in the order of steps: that of rank 0, of rank 1, ..., then the next one of rank 0."""
    return [batch for batch in chain(*zip_longest(*ranks)) if batch is not None]


@pytest.mark.filterwarnings("ignore:ranks. an epoch has 8 minibatches, so 3 of 11")
@pytest.mark.parametrize(("way", "world_size"), [("independent", 2), ("independent", 11), *((way, 3) for way in WAYS)])
def test_the_minibatches_of_all_ranks_are_those_of_one(graph, tmp_path, way, world_size):
    settings = SETTINGS | WAYS[way]
    prepare(graph, tmp_path / "one", **settings)
    prepare(graph, tmp_path / "ranks", **settings, ranks=world_size)
    folders = [tmp_path / "ranks" / f"rank-{rank}-of-{world_size}" for rank in range(world_size)]
    assert sorted((tmp_path / "ranks").iterdir()) == sorted(folders)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "one", tmp_path / "ranks"]
    for folder in folders:
        verify_artifact(folder)
    for split in ("train", "valid"):
        of_one, of_ranks = epochs_of(tmp_path / "one", split), [epochs_of(folder, split) for folder in folders]
        for epoch, expected in enumerate(of_one):
            assert dealt([each[epoch] for each in of_ranks]) == expected


@pytest.mark.parametrize("way", TYPED_WAYS)
def test_typed_graphs_and_links_are_dealt_out_alike(typed_graph, tmp_path, way):
    settings = SETTINGS | TYPED_WAYS[way] | {"batch_size": 5}
    prepare(typed_graph, tmp_path / "one", **settings)
    prepare(typed_graph, tmp_path / "ranks", **settings, ranks=2)
    for split in SPLITS:
        of_one = epochs_of(tmp_path / "one", split)
        of_ranks = [epochs_of(tmp_path / "ranks" / f"rank-{rank}-of-2", split) for rank in range(2)]
        for epoch, expected in enumerate(of_one):
            assert len(expected) > 1
            assert dealt([each[epoch] for each in of_ranks]) == expected


def test_a_plan_of_a_rank_is_a_value_for_other_processes(graph):
    spec = SamplingSpec([3, 2], 8, 2, seed=5, target=NodeTarget(seeds={"train": np.arange(40)}))
    plan = pickle.loads(pickle.dumps(SamplingPlan(Graph.open(graph), spec).shard(1, 3)))
    assert plan.spec.shard == Shard(1, 3)
    expected = SamplingPlan(Graph.open(graph), spec).minibatches("train", 1)
    for number, planned in zip(range(1, 5, 3), plan.minibatches("train", 1), strict=True):
        assert planned.number == number
        np.testing.assert_array_equal(planned.seeds, expected[number].seeds)
    with pytest.raises(ConfigError, match="of all ranks"):
        plan.shard(0, 2)


def test_a_pickled_plan_of_a_graph_that_was_replaced_is_refused(tmp_path):
    graph = make_graph(tmp_path / "graph")
    pickled = pickle.dumps(SamplingPlan(graph, SamplingSpec([2], 8)))
    graph.manifest.path.rename(tmp_path / "aside")
    make_graph(tmp_path / "graph", seed=1)
    with pytest.raises(ArtifactError, match="another graph"):
        pickle.loads(pickled)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0), ("0", 1), (0.5, 1)])
def test_a_rank_that_is_none_is_refused(rank, world_size):
    with pytest.raises(ConfigError, match=r"rank:|world_size:"):
        Shard(rank, world_size)


def static_sets(folders):
    """By row set, the static nodes and rows that the directories of ranks say, the same in all of them."""
    found = [{path.name: path.read_bytes() for path in folder.glob("static*")} for folder in folders]
    assert all(each == found[0] for each in found)
    return {name: np.load(folders[0] / name) for name in found[0]}


@pytest.mark.parametrize("world_size", [2, 3])
def test_all_ranks_have_the_rows_static_that_they_need_most_often_together(graph, tmp_path, world_size):
    prepare(graph, tmp_path / "ranks", **SETTINGS | {"static_cache": "5%"}, ranks=world_size)
    folders = [tmp_path / "ranks" / f"rank-{rank}-of-{world_size}" for rank in range(world_size)]
    accesses = []
    for folder in folders:
        with Loader(folder) as loader:
            accesses += [batch.input_nodes.numpy() for epoch in range(2) for batch in loader.epoch(epoch)]
    nodes, counts = np.unique(np.concatenate(accesses), return_counts=True)
    found, features = static_sets(folders), Graph.open(graph).feature_file
    num_static = int(0.05 * features.num_rows)
    expected = nodes[np.lexsort((nodes, -counts))][:num_static]
    np.testing.assert_array_equal(found["static_nodes-node.npy"], expected)
    rows = np.fromfile(features.path, features.rows.storage, offset=features.data_offset_bytes)
    np.testing.assert_array_equal(
        found["static-node.npy"].view(np.uint8), rows.reshape(-1, features.rows.stored_columns)[expected].view(np.uint8)
    )


def test_static_rows_of_several_types_are_divided_by_all_ranks_together(typed_graph, tmp_path):
    """The budget goes to what all ranks access most often: a single rank would have chosen others."""
    settings = SETTINGS | TYPED_WAYS["nodes"] | {"batch_size": 5, "static_cache": "20%"}
    prepare(typed_graph, tmp_path / "one", **settings)
    prepare(typed_graph, tmp_path / "ranks", **settings, ranks=2)
    found = static_sets([tmp_path / "ranks" / f"rank-{rank}-of-2" for rank in range(2)])
    of_one = {path.name: np.load(path) for path in (tmp_path / "one").glob("static*")}
    assert len(of_one) > 1
    for name, rows in of_one.items():
        np.testing.assert_array_equal(found[name].view(np.uint8), rows.view(np.uint8))


@pytest.mark.parametrize("damaged", ["static_nodes-node.npy", "static-node.npy", "train-index.npy"])
def test_a_rank_is_repaired_with_the_static_rows_of_all(graph, tmp_path, damaged):
    prepare(graph, tmp_path / "ranks", **SETTINGS | {"static_cache": "5%"}, ranks=2)
    path = tmp_path / "ranks" / "rank-1-of-2" / damaged
    written = path.read_bytes()
    path.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    repair(path.parent, graph=graph, resources=Resources.of("1GiB", 1))
    assert path.read_bytes() == written
    verify_artifact(path.parent)


def test_what_no_rank_says_any_more_cannot_be_repaired(graph, tmp_path):
    prepare(graph, tmp_path / "ranks", **SETTINGS | {"static_cache": "5%"}, ranks=2)
    (tmp_path / "ranks" / "rank-1-of-2").rename(tmp_path / "alone")
    path = tmp_path / "alone" / "static_nodes-node.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ArtifactError, match=r"no other rank's directory is beside it: copy one to .*rank-0-of-2"):
        repair(tmp_path / "alone", graph=graph, resources=Resources.of("1GiB", 1))


@pytest.mark.parametrize("static_cache", [0, "5%"])
@pytest.mark.filterwarnings("ignore:what was sampled")
def test_a_run_that_was_stopped_goes_on_with_the_ranks_that_are_missing(graph, tmp_path, static_cache):
    settings = SETTINGS | {"static_cache": static_cache}
    prepare(graph, tmp_path / "whole", **settings, ranks=3)
    out = tmp_path / "ranks"
    with faults.armed("prepare.packed", KeyboardInterrupt(), after=1), pytest.raises(KeyboardInterrupt):
        prepare(graph, out, **settings, ranks=3)
    before = (out / "rank-0-of-3").stat().st_ino
    with pytest.raises(OutputExistsError, match="rank-0-of-3 of another way of sampling"):
        prepare(graph, out, **settings | {"seed": 6}, ranks=3)
    prepare(graph, out, **settings, ranks=3)
    assert (out / "rank-0-of-3").stat().st_ino == before
    for rank in range(3):
        name = f"rank-{rank}-of-3"
        assert open_artifact(out / name).digest == open_artifact(tmp_path / "whole" / name).digest
    assert sorted(path.name for path in out.iterdir()) == [f"rank-{rank}-of-3" for rank in range(3)]
    with pytest.raises(OutputExistsError, match="all of 3 ranks already"):
        prepare(graph, out, **settings, ranks=3)
    prepare(graph, out, **settings | {"seed": 6}, ranks=3, overwrite=True)
    assert open_artifact(out / "rank-0-of-3").digest != open_artifact(tmp_path / "whole" / "rank-0-of-3").digest


@pytest.mark.parametrize("way", [{}, {"static_cache": "5%"}, {"static_cache": "100%"}, {"cpu_cache": "100%"}])
def test_a_rank_that_was_deleted_is_made_alone_and_is_what_it_was(graph, typed_graph, tmp_path, way):
    for source, name in ((graph, "ranks"), (typed_graph, "typed")):
        settings = SETTINGS | (TYPED_WAYS["nodes"] if name == "typed" else {}) | way
        prepare(source, tmp_path / name, **settings, ranks=3)
        deleted = tmp_path / name / "rank-1-of-3"
        before = {file.name: file.read_bytes() for file in deleted.iterdir()}
        kept = [(tmp_path / name / f"rank-{rank}-of-3").stat().st_ino for rank in (0, 2)]
        shutil.rmtree(deleted)
        reports = prepare(source, tmp_path / name, **settings, ranks=3)
        assert [report.stage for report in reports] == ["sample", "pack"]
        assert {file.name: file.read_bytes() for file in deleted.iterdir()} == before
        assert [(tmp_path / name / f"rank-{rank}-of-3").stat().st_ino for rank in (0, 2)] == kept


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"cpu_cache": "11%"}, "`cpu_cache`"),
        ({"eval_cpu_cache": "10%"}, "`eval_cpu_cache`"),
        ({"static_cache": "6%"}, "`static_cache`"),
        ({"fanouts": [3, 3]}, "way of sampling"),
        ({"keep_input_nodes": False}, "`keep_input_nodes`"),
    ],
)
def test_a_rank_is_not_made_to_stand_beside_those_of_other_settings(graph, tmp_path, other, what):
    settings = SETTINGS | {"static_cache": "5%"}
    prepare(graph, tmp_path / "ranks", **settings, ranks=2)
    shutil.rmtree(tmp_path / "ranks" / "rank-1-of-2")
    with pytest.raises(OutputExistsError, match=f"holds rank-0-of-2 of another {what}; pass overwrite"):
        prepare(graph, tmp_path / "ranks", **settings | other, ranks=2)
    assert [entry.name for entry in (tmp_path / "ranks").iterdir()] == ["rank-0-of-2"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_something_else_is_never_replaced_by_ranks(graph, tmp_path, overwrite):
    prepare(graph, tmp_path / "one", **SETTINGS)
    with pytest.raises(OutputExistsError, match="a packed directory for one rank"):
        prepare(graph, tmp_path / "one", **SETTINGS, ranks=2, overwrite=overwrite)
    prepare(graph, tmp_path / "ranks", **SETTINGS, ranks=2)
    with pytest.raises(OutputExistsError, match="rank-0-of-2"):
        prepare(graph, tmp_path / "ranks", **SETTINGS, ranks=3, overwrite=overwrite)
    with pytest.raises(OutputExistsError, match="is no artifact"):
        prepare(graph, tmp_path / "ranks", **SETTINGS, overwrite=overwrite)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputExistsError, match="holds a file"):
        prepare(graph, tmp_path / "file", **SETTINGS, ranks=2, overwrite=overwrite)
    assert (tmp_path / "file").read_text() == "mine"


def test_samples_of_ranks_are_kept_apart(graph, tmp_path):
    prepare(graph, tmp_path / "ranks", **SETTINGS, ranks=2, samples=tmp_path / "samples")
    for rank in range(2):
        samples = open_artifact(tmp_path / "samples" / f"rank-{rank}-of-2")
        assert samples.config["shard"] == {"rank": rank, "world_size": 2}


@pytest.mark.filterwarnings("ignore:what was sampled")
def test_a_stopped_overwrite_does_not_pass_for_what_it_should_have_made(graph, tmp_path):
    out, other = tmp_path / "ranks", SETTINGS | {"seed": 6}
    prepare(graph, tmp_path / "whole", **other, ranks=2)
    prepare(graph, out, **SETTINGS, ranks=2)
    with faults.armed("prepare.packed", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        prepare(graph, out, **other, ranks=2, overwrite=True)
    with pytest.raises(OutputExistsError, match="holds rank-1-of-2 of another way of sampling"):
        prepare(graph, out, **other, ranks=2)
    before = (out / "rank-0-of-2").stat().st_ino
    prepare(graph, out, **other, ranks=2, overwrite=True)
    assert (out / "rank-0-of-2").stat().st_ino == before  # the run that was stopped had made it
    for name in ("rank-0-of-2", "rank-1-of-2"):
        assert open_artifact(out / name).digest == open_artifact(tmp_path / "whole" / name).digest
    prepare(graph, out, **other, ranks=2, overwrite=True)  # of what is complete, all is made again
    assert (out / "rank-0-of-2").stat().st_ino != before
