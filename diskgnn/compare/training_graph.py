"""A graph directory over the arrays of another, whose train split is all that a comparison trains on."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from diskgnn.graph.graph import Graph
from diskgnn.sampling.sample import epoch_seeds
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter


def make_training_graph(graph: Graph, out: Path, *, batch_size: int, max_batches: int | None) -> Graph:
    """Write `out`: the arrays of `graph` by reference, and of its train split what fills `max_batches` minibatches.

    So every loader sees an ordinary graph, prepares no more than is trained on, and needs to know of no limit. The
    seeds kept are a random part of the split, the same in every run. There are no other splits: evaluation is
    no loader's job here.

    Raises:
        InputError: `graph` has no training nodes.
    """
    train = graph.splits["train"]
    if max_batches is not None:
        train = np.concatenate(epoch_seeds(train, split="train", epoch=0, seed=0, batch_size=batch_size)[:max_batches])
    manifest = graph.manifest
    with ArtifactWriter(out, artifacts.GRAPH, config=manifest.config) as writer:
        for name in (artifacts.INDPTR, artifacts.INDICES, artifacts.FEATURES, artifacts.LABELS):
            writer.add_external(name, manifest.file(name), crc32c=manifest.files[name].crc32c)
        writer.save_array(artifacts.split_file("train"), np.array(train, np.int64))
        writer.publish()
    return Graph.open(out)
