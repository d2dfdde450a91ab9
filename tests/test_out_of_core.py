"""The rows that tools/out_of_core.py counts, on a graph small enough to count them again here."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.specs.targets import LinkTarget

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

from out_of_core import rows_read


def test_rows_are_counted_by_type(tmp_path):
    write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    links = LinkTarget(WRITES, eval_negatives=3)
    sizes = {"fanouts": [2, 2], "batch_size": 8, "cpu_cache": "20%", "static_cache": 0}
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", target=links, samples=tmp_path / "samples", **sizes)
    found = rows_read(tmp_path / "graph", tmp_path / "packed", tmp_path / "samples", tmp_path)
    paper, author, cites = [], [], []
    for minibatch in Samples.open(tmp_path / "samples").read("train"):
        paper.append(set(minibatch.input_nodes[0].tolist()))
        author.append(set(minibatch.input_nodes[1].tolist()))
        cites.append({place for layer in minibatch.blocks for place in layer[0].positions.tolist()})
    assert found["needed"] == sum(len(rows) for kind in (paper, author, cites) for rows in kind)
    assert found["different"] == sum(len(set.union(*kind)) for kind in (paper, author, cites))
    rows = Packed.open(tmp_path / "packed").config.splits["train"].rows
    assert (found["needed"], found["planned in a cycle"]) == (rows.requested, rows.disk)
    assert found["different"] <= found["fewest"] <= min(found["static"], found["planned"])
