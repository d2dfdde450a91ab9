"""What `diskgnn inspect` says of a packed directory, against the graph, the arguments and the files."""

import json
import re

import numpy as np
from commands import run

import diskgnn
from diskgnn.errors import ArtifactError
from diskgnn.graph.graph import Graph
from diskgnn.units import format_size


def rows_of(said, title):
    """The rows of a table as lists of words, without its head."""
    lines = said.split(f"\n{title}\n")[1].splitlines()[1:]
    return [line.split() for line in lines[: next(i for i, line in enumerate([*lines, "end"]) if line[:1] != " ")]]


def prepared(graph, out, *options):
    run("prepare", graph, out, "--fanouts", "3,2", "--batch-size", 30, "--epochs", 2, "--cpu-cache", "10%",
        "--static-cache", "5%", *options)  # fmt: skip
    return run("inspect", out).stdout


def test_what_a_packed_directory_is_for_and_what_training_reads(packed, tmp_path):
    graph, out = tmp_path / "generated", tmp_path / "again"
    said = prepared(graph, out)
    opened = Graph.open(graph)
    assert f"the graph with the digest {opened.manifest.digest}" in said
    assert f"{opened.num_classes} classes of node nodes" in said
    assert re.search(r"batch size +30 ", said)
    assert re.search(r"fanouts +3, 2 ", said)
    for split, seeds, minibatches, epochs, *sizes in rows_of(said, "splits"):
        num_epochs, num_seeds = 2 if split == "train" else 1, len(opened.splits[split])
        assert [seeds, minibatches, epochs] == [str(num_seeds), str(-(-num_seeds // 30)), str(num_epochs)]
        files = [*out.glob(f"{split}-*"), out / f"{split}.bin"]
        expected = sum(file.stat().st_size for file in files), files[-1].stat().st_size // num_epochs
        assert " ".join(sizes) == " ".join(map(format_size, expected))
    with diskgnn.Loader(out, split="train") as loader:
        inputs = sum(len(minibatch.x) for epoch in range(2) for minibatch in loader.epoch(epoch))
    train = rows_of(said, "rows that each tier serves in an epoch")[0]
    requested, *by_tier = (int(each.replace(",", "")) for each in train[2:6])
    assert requested == inputs // 2
    assert abs(sum(by_tier) - requested) <= 2  # means of two epochs, each rounded down
    for command in re.findall(r"(diskgnn [a-z]+ .*?) *$", said.split("used by")[1], re.M):
        assert str(out) in command


def test_json_keeps_everything(packed, tmp_path):
    document = json.loads(run("inspect", packed, "--json").stdout)
    assert {"digest", "facts", "config", "files", "source_digest"} <= {*document}
    assert document["facts"]["train_requested_rows"] > 0


def test_links_are_counted_as_seed_edges(tmp_path):
    rng = np.random.default_rng(5)
    edges = rng.integers(0, 60, (2, 400))
    diskgnn.convert(tmp_path / "graph", schema={
        "nodes": {"n": {"features": np.ones((60, 2), np.float32)}},
        "edges": {"n:to:n": {"edges": edges, "train": edges[:, :70].T, "test": edges[:, 70:81].T}},
    })  # fmt: skip
    said = prepared(tmp_path / "graph", tmp_path / "out", "--target", "n:to:n", "--negatives", 2)
    assert "links: whether there are n:to:n edges" in said
    assert [row[:2] for row in rows_of(said, "splits")] == [["train", "70"], ["test", "11"]]


def test_a_damaged_header_is_no_error_here(packed):
    content = bytearray((packed / "train.bin").read_bytes())
    content[100] ^= 1
    (packed / "train.bin").write_bytes(bytes(content))
    assert "used by" in run("inspect", packed).stdout


def test_nothing_there_may_be_a_checkpoint_too(tmp_path):
    said = run("inspect", tmp_path / "nope", exit_code=ArtifactError.exit_code).stderr
    assert "nope is not there; expected a graph, samples, packed or hops directory, or a checkpoint" in said
