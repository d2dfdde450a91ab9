"""Options of graphs with several types: fanouts of edge types, targets, times; what is not for such graphs says so."""

import json
import re
import shlex

import numpy as np
import pytest
from commands import run
from typed_graphs import CITES, WRITES, citations

from diskgnn.cli.rendering import Output
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.loading.loader import Loader
from diskgnn.specs.targets import LinkTarget, NodeTarget

RING = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])


@pytest.fixture
def typed(tmp_path):
    citations(tmp_path / "typed")
    return tmp_path / "typed"


def test_options_reach_the_library(typed, tmp_path):
    flags = ["--fanouts", "author:writes:paper=3,2", "--fanouts", "paper:cites:paper=1,0", "--batch-size", 8]
    more = ["--eval-fanouts", "4,4", "--target", "paper", "--temporal", "last", "--strict-time", "--edge-ids"]
    run("sample", typed, tmp_path / "nodes", *flags, *more)
    spec = Samples.open(tmp_path / "nodes").config.spec
    assert spec.fanouts == {WRITES: (3, 2), CITES: (1, 0)}
    assert (spec.eval_fanouts, spec.target, spec.weighted) == ((4, 4), NodeTarget("paper"), False)
    assert (spec.temporal, spec.strict_time, spec.edge_ids) == ("last", True, True)
    run("prepare", typed, tmp_path / "packed", *flags, *more, "--cpu-cache", 0)
    with Loader(tmp_path / "packed", "train") as loader:
        assert all(block.edge_ids is not None for batch in loader for each in batch.blocks for block in each.values())
    run("sample", typed, tmp_path / "links", "--fanouts", "2", "--weighted", "--target", "author:writes:paper",
        "--negatives", 2, "--eval-negatives", 5, "--exclude", "self", "--temporal", "ignore")  # fmt: skip
    spec = Samples.open(tmp_path / "links").config.spec
    reverse = ("paper", "rev_writes", "author")
    assert (spec.target, spec.weighted) == (LinkTarget(WRITES, 2, 5, "self", reverse), True)
    assert (spec.temporal, spec.is_temporal) == ("ignore", False)


def test_links_are_prepared_trained_and_evaluated(typed, tmp_path):
    run("prepare", typed, tmp_path / "packed", "--fanouts", "2,2", "--cpu-cache", "10%", "--batch-size", 16,
        "--target", "author:writes:paper", "--eval-negatives", 5, "--temporal", "ignore")  # fmt: skip
    run("train", tmp_path / "packed", "--task", "link", "--epochs", 1, "--hidden", 8, "--checkpoint", tmp_path / "run")
    flags = ["--checkpoint", tmp_path / "run", "--split", "valid"]
    said = run("evaluate", tmp_path / "packed", *flags).stderr
    assert "--out vectors.npy   # for all nodes" in said  # of which a model for links has no classes
    found = json.loads(run("evaluate", tmp_path / "packed", *flags, "--json").stdout)
    assert 0 < found["mrr"] <= 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--fanouts", "3,3", "--fanouts", "author:writes:paper=1,1"], "--fanouts: expected one list for all edge"),
        (["--fanouts", "3", "--fanouts", "2"], "--fanouts: expected each edge type once"),
        (["--fanouts", "a:b:c=1,1"], "--fanouts: the graph has no edge type a:b:c, only"),
        (["--fanouts", "author:writes:paper=x"], "expected whole numbers separated by commas"),
        (["--fanouts", "3", "--negatives", "2"], "--negatives: only for links; pass --target SOURCE:NAME:DESTINATION"),
        (["--fanouts", "a:b=1"], "--fanouts: expected 'source:name:destination', found 'a:b'"),
        (["--fanouts", "3", "--target", "venu"], "--target: the graph has no node type 'venu', only paper"),
        (["--fanouts", "3", "--target", "a:b"], "--target: expected 'source:name:destination', found 'a:b'"),
        (["--fanouts", "3", "--target", "a:b:c"], "--target: the graph has no edge type a:b:c, only"),
        (["--fanouts", "3", "--target", "author"], "give --target one of paper, author:writes:paper"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_left(typed, tmp_path, flags, message):
    code = 3 if "author" in flags else 2
    refused = run("prepare", typed, tmp_path / "packed", *flags, "--cpu-cache", "10%", exit_code=code)
    assert message in " ".join(refused.stderr.split())
    assert sorted(path.name for path in tmp_path.iterdir() if "lock" not in path.name) == ["typed"]


def test_names_with_colons_are_printed_as_they_are(capsys):
    Output(as_json=False).error("no edge type a:b:c")
    assert "a:b:c" in capsys.readouterr().err


def test_what_convert_proposes_for_links_works(tmp_path):
    """There is no type of nodes with a train split, so `prepare` has to be told what the seeds are."""
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2, 3], [1, 2, 3, 0]]))
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    (tmp_path / "graph.yaml").write_text(
        "nodes:\n  node: {features: x.npy}\nedges:\n  node:to:node: {edges: edges.npy, train: [[0, 2], [2, 0]]}\n"
    )
    made = " ".join(run("convert", tmp_path / "graph", "--schema", tmp_path).stderr.split())
    command = re.search(r"next: diskgnn (.*) # predicts", made)[1]
    run(*[each for each in shlex.split(command) if each != "--estimate"])
    target = Packed.open(tmp_path / "graph-packed").config.samples.spec.target
    assert isinstance(target, LinkTarget)
    assert target.edge_type == ("node", "to", "node")
