"""Seeds that are given in place of a graph's own splits, at times that are given, too."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from sampling_oracle import assert_is, sample_by_hand
from typed_graphs import WRITES, citations

from diskgnn import Loader, prepare
from diskgnn.errors import ArtifactError, ConfigError, OutputExistsError
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import verify_artifact
from diskgnn.preparing.repair import repair
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.system.resources import Resources
from diskgnn.training.train import train

PAPERS = np.array([7, 3, 3, 69, 0, 12, 5])
AUTHORS = torch.tensor([39, 4, 8, 15, 16, 23])
PAIRS = [[3, 9], [3, 9], [0, 69], [21, 1]]
COMMON = {"fanouts": [3, 2], "batch_size": 4, "seed": 5}
TIMELESS = COMMON | {"temporal": "ignore"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return citations(tmp_path_factory.mktemp("given") / "graph")


def seeds_of(samples, split):
    return np.concatenate([minibatch.seeds for minibatch in samples.read(split)]).tolist()


def test_papers_have_their_labels_and_authors_none(graph, tmp_path):
    given = {"train": PAPERS, "test": range(50, 60)}
    prepare(graph, tmp_path / "papers", target=NodeTarget("paper", given), cpu_cache="10%", shuffle=False, **TIMELESS)
    with Loader(tmp_path / "papers") as loader, Loader(tmp_path / "papers", "test") as test:
        batches = list(loader)
        assert torch.cat([batch.seeds for batch in batches]).tolist() == [7, 3, 69, 0, 12, 5]  # each once, in order
        assert torch.cat([batch.seeds for batch in test]).tolist() == list(range(50, 60))
        for batch in batches:
            assert batch.y.tolist() == graph.nodes["paper"].labels[batch.seeds.numpy()].tolist()
    prepare(graph, tmp_path / "authors", target=NodeTarget("author", {"test": AUTHORS}), cpu_cache="10%", **TIMELESS)
    with Loader(tmp_path / "authors", "test") as loader:
        batches = list(loader)
        assert torch.cat([batch.seeds for batch in batches]).tolist() == AUTHORS.tolist()
        assert all(batch.y is None and batch.to_pyg()["author"].batch_size == len(batch.seeds) for batch in batches)
    prepare(graph, tmp_path / "train", target=NodeTarget("author", {"train": AUTHORS}), cpu_cache="10%", **TIMELESS)
    with pytest.raises(ConfigError, match="author nodes have no labels"):
        train(tmp_path / "train", epochs=1)


def test_a_node_is_asked_at_several_times(graph):
    times = np.array([0, 4, 19, 7, 7, 2, 1])
    target = NodeTarget("paper", {"valid": PAPERS}, {"valid": times})
    plan = SamplingPlan(graph, SamplingSpec(target=target, temporal="uniform", strict_time=True, **COMMON))
    planned = plan.minibatches("valid", 0)
    assert np.concatenate([each.seeds for each in planned]).tolist() == PAPERS.tolist()
    assert np.concatenate([each.times for each in planned]).tolist() == (times - 1).tolist()
    sampler = plan.parts.load()
    for each in planned:
        assert_is(each.draw(sampler), sample_by_hand(graph, each, {}), each)


def test_times_of_seeds_are_dates_and_numbers_before_1970_too():
    dates = np.array(["1950-05-13", "1969-12-31T23:59:59.9", "2024-02-29"], "datetime64[ms]")
    target = NodeTarget("paper", {"train": [3, 4, 5]}, {"train": dates})
    assert target.times["train"].tolist() == [-619747200, -1, 1709164800]  # `date -u -d 1950-05-13 +%s`
    assert target == NodeTarget("paper", {"train": [3, 4, 5]}, {"train": [-619747200, -1, 1709164800]})


def test_pairs_that_are_no_edges_of_the_graph_at_times_of_their_own(graph, tmp_path):
    times = np.array([3, 9, 5, 5])
    target = LinkTarget(WRITES, negatives=1, exclude="none", seeds={"train": PAIRS}, times={"train": times})
    sample(graph, tmp_path / "samples", target=target, temporal="last", shuffle=False, **COMMON)
    (minibatch,) = Samples.open(tmp_path / "samples").read("train")
    plan = SamplingPlan(graph, SamplingSpec(target=target, temporal="last", shuffle=False, **COMMON))
    (planned,) = plan.minibatches("train", 0)
    papers, authors = np.split(minibatch.seeds, [planned.seed_counts[0]])
    found = np.stack([authors[minibatch.pairs.src], papers[minibatch.pairs.dst]], 1)
    assert found[:4].tolist() == PAIRS
    assert planned.times[planned.seed_counts[0] :].tolist() == (times - 1).tolist()  # of links, only what is before


def test_samples_are_known_by_their_seeds(graph, tmp_path):
    def prepare_with(out, seeds):
        prepare(graph, tmp_path / out, target=NodeTarget("paper", {"test": seeds}), cpu_cache="10%",
                samples=tmp_path / "samples", **TIMELESS)  # fmt: skip

    prepare_with("one", [1, 2, 3])
    prepare_with("again", torch.tensor([1, 2, 3], dtype=torch.int32))
    assert Packed.open(tmp_path / "one").digest == Packed.open(tmp_path / "again").digest
    with pytest.raises(OutputExistsError, match="of other settings"):
        prepare_with("two", [1, 2, 4])


def test_damage_is_repaired_with_the_seeds_that_are_kept(graph, tmp_path):
    target = NodeTarget("paper", {"train": PAPERS}, {"train": np.arange(7) + 9})
    sample(graph, tmp_path / "samples", target=target, temporal="uniform", **COMMON)
    prepare(graph, tmp_path / "packed", target=target, temporal="uniform", cpu_cache="10%", **COMMON)
    resources = Resources(1 << 30, threads=1)
    for folder, name in (("samples", "train-0000-00000.arrow"), ("packed", "train.bin")):
        path = tmp_path / folder / name
        content = path.read_bytes()
        path.write_bytes(content[:300] + bytes([content[300] ^ 1]) + content[301:])
        assert [damage.file for damage in repair(tmp_path / folder, graph=graph, resources=resources)] == [name]
        assert path.read_bytes() == content
        verify_artifact(tmp_path / folder)
    np.save(tmp_path / "samples" / "seeds-train.npy", np.arange(7))
    shutil.rmtree(tmp_path / "packed")
    with pytest.raises(ArtifactError, match=r"seeds-train\.npy"):
        prepare(graph, tmp_path / "packed", target=target, temporal="uniform", cpu_cache="10%",
                samples=tmp_path / "samples", **COMMON)  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NodeTarget("paper", {"train": [70]}), r"expected ids of the 70 nodes of type 'paper', found 70 to 70"),
        (lambda: NodeTarget("paper", {"train": [-1, 2]}), "expected numbers of 0 or more, found -1 to 2"),
        (lambda: NodeTarget("paper", {"train": []}), "expected at least one, found none; leave the split out"),
        (lambda: NodeTarget("paper", {}), "expected ids for some of train, valid, test, found none"),
        (lambda: NodeTarget("paper", {"dev": [1]}), "found 'dev'"),
        (lambda: NodeTarget("paper", [1, 2]), "expected a mapping such as"),
        (lambda: NodeTarget("paper", {"train": [1.5]}), r"expected whole numbers \[n\], found float64 \[1\]"),
        (lambda: NodeTarget("paper", {"train": [[1, 2]]}), r"expected whole numbers \[n\], found int64 \[1, 2\]"),
        (lambda: NodeTarget("paper", {"train": np.ones(70, bool)}), "found a mask; pass numpy.flatnonzero"),
        (lambda: NodeTarget("paper", {"train": [1, 2]}, {"train": [1]}), "expected one for each seed"),
        (lambda: NodeTarget("paper", {"train": [1]}, {"train": [1]}), "pass temporal='uniform' or 'last' with them"),
        (lambda: NodeTarget("paper", {"train": [1, 2]}, {"train": np.array(["2020", "NaT"], "datetime64[D]")}),
         r"times\['train'\]: expected a time for each, found none at 1"),
        (lambda: NodeTarget("paper", {"train": [1, 2]}, {"train": [0.5, 1]}), "expected whole numbers or datetime64"),
        (lambda: NodeTarget("paper", times={"train": [1]}), "expected the seeds that they are of"),
        (lambda: LinkTarget(WRITES, seeds={"train": [1, 2]}), r"expected whole numbers \[n, 2\], found int64 \[2\]"),
        (lambda: LinkTarget(WRITES, seeds={"train": [[9, 3], [40, 3]]}), "the 40 nodes of type 'author'"),
    ],
)  # fmt: skip
def test_what_is_no_seed_is_refused(graph, tmp_path, make, message):
    with pytest.raises(ConfigError, match=message):
        prepare(graph, tmp_path / "out", target=make(), cpu_cache="10%", **COMMON)
    assert not (tmp_path / "out").exists()
