"""A graph directory over the arrays of another, whose train split is all that a comparison trains on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats import artifacts
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.schema import SPLITS, EdgeType, edge_type_name
from diskgnn.specs.targets import LinkTarget
from diskgnn.stores.locations import local
from diskgnn.work.writer import ArtifactWriter


def make_training_graph(graph: Graph, out: Path, target: str | EdgeType, train: npt.NDArray[np.int64] | None) -> Graph:
    """Write `out`: the arrays of `graph` by reference, with `train` as the one split of a type of nodes or edges; None:
    it has no split.

    So every loader sees an ordinary graph, prepares no more than is trained on, and needs to know of no limit. There
    are no other splits: evaluation is no loader's job here.
    """
    manifest = graph.manifest
    config = _with_splits(manifest.config, target, [] if train is None else ["train"])
    with ArtifactWriter(out, artifacts.GRAPH, config=config) as writer:
        splits = {_split_file(split, target) for split in SPLITS}
        for name in sorted(manifest.files.keys() - splits):
            writer.add_external(name, local(manifest.file(name), "comparing"), crc32c=manifest.files[name].crc32c)
        if train is not None:
            writer.save_array(_split_file("train", target), np.asarray(train, np.int64))
        writer.publish()
    return Graph.open(out)


def _split_file(split: str, target: str | EdgeType) -> str:
    return artifacts.node_file(split, target) if isinstance(target, str) else artifacts.edge_file(split, target)


def _with_splits(config: Any, target: str | EdgeType, splits: list[str]) -> dict[str, Any]:
    """Returns a graph's config whose edge type `target` has no other splits; splits of nodes are files alone."""
    edge_types = [
        each | {"link_splits": splits} if not isinstance(target, str) and each["type"] == edge_type_name(target)
        else each
        for each in config["edge_types"]
    ]  # fmt: skip
    return {**config, "edge_types": edge_types}


def target_type(plan: SamplingPlan) -> str | EdgeType:
    """Returns the type of the nodes that are the seeds, or of the edges whose ends they are."""
    target = plan.target
    if isinstance(target, LinkTarget):
        return target.edge_type
    assert target.node_type is not None
    return target.node_type


def seeds_of_type(graph: Graph, target: str | EdgeType) -> dict[str, npt.NDArray[np.int64]]:
    """Returns by split node ids [n], or the ends of seed edges [n, 2]."""
    return graph.nodes[target].splits if isinstance(target, str) else graph.edges[target].splits
