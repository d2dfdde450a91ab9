"""A graph directory over the arrays of another, whose train split is all that a comparison trains on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs import SPLITS, NodeTarget, SamplingSpec
from diskgnn.storage import artifacts
from diskgnn.storage.writer import ArtifactWriter


def make_training_graph(graph: Graph, out: Path, sampling: SamplingSpec, max_batches: int | None) -> Graph:
    """Write `out`: the arrays of `graph` by reference, and of its train split what fills `max_batches` minibatches.

    So every loader sees an ordinary graph, prepares no more than is trained on, and needs to know of no limit. The
    seeds kept are a random part of the split, the same in every run. There are no other splits: evaluation is
    no loader's job here.

    Raises:
        InputError: `graph` has no training nodes.
    """
    plan = SamplingPlan(graph, replace(sampling, seed=0, splits=("train",)))
    nodes = graph.nodes[target_type(plan)]
    train = nodes.splits["train"]
    if max_batches is not None:
        train = np.concatenate([minibatch.seeds for minibatch in plan.minibatches("train", 0)[:max_batches]])
    manifest = graph.manifest
    with ArtifactWriter(out, artifacts.GRAPH, config=manifest.config) as writer:
        splits = {artifacts.node_file(split, nodes.name) for split in SPLITS}
        for name in sorted(manifest.files.keys() - splits):
            writer.add_external(name, manifest.file(name), crc32c=manifest.files[name].crc32c)
        writer.save_array(artifacts.node_file("train", nodes.name), np.array(train, np.int64))
        writer.publish()
    return Graph.open(out)


def target_type(plan: SamplingPlan) -> str:
    """The type of the nodes that are the seeds."""
    target = plan.config().spec.target
    assert isinstance(target, NodeTarget)
    assert target.node_type is not None
    return target.node_type
