"""What `next:` proposes of draws from a graph that has times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from diskgnn.sampling.timed_types import timed_types
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target

if TYPE_CHECKING:
    from diskgnn.graph.graph import Graph


def about_times(graph: Graph) -> tuple[list[str], str]:
    """Returns options of `prepare`, and a sentence that explains them; both empty where no time counts.

    `uniform` is proposed rather than `last`: it differs from draws without times only in what it leaves out, PyG has it
    as its default, and it goes with weights.
    """
    targets: list[Target] = [NodeTarget(name) for name, each in graph.nodes.items() if "train" in each.splits]
    targets += [LinkTarget(edge_type) for edge_type, each in graph.edges.items() if "train" in each.splits]
    everything = np.ones((2, len(graph.edges)), np.int32)
    for target in targets:
        if found := timed_types(graph, target, [everything]):
            return _proposal(graph, target, ", ".join(found))
    return [], ""


def _proposal(graph: Graph, target: Target, found: str) -> tuple[list[str], str]:
    seeds = (target.edge_type[0], target.edge_type[2]) if isinstance(target, LinkTarget) else (target.node_type,)
    if any(graph.nodes[str(name)].config.has_times for name in seeds):
        return ["--temporal", "uniform"], (
            f"{found} have times: with --temporal uniform, a seed draws nothing later than itself; `last` draws the "
            "latest of that, `ignore` also what comes after the seed"
        )
    return ["--temporal", "ignore"], (
        f"{found} have times, and the seeds have none: so --temporal ignore draws all, whenever it was. To draw only "
        "what is earlier, give seeds with times (--target-seeds) and --temporal uniform"
    )
