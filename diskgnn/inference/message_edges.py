"""Which edges of the graph neighbourhoods of pairs are drawn from, when a model is asked about these."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import ExcludedEdges
from diskgnn.errors import DataWarning, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import HELD_OUT_SPLITS, find_held_out, held_out_bytes, reverse_type_in, told
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import EdgeType, edge_type_name, parse_edge_type
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources

AS_GIVEN = "train"  # the split that pairs are prepared as, not shuffled; as test's, they would always be held out


@dataclass(frozen=True)
class MessageEdges:
    """Holds what `predict` was asked for, `message_edges` and `hold_out_pairs`, and what training knew."""

    message_edges: str
    hold_out_pairs: bool
    reverse_edge_type: EdgeType | None = None  # of the pairs; None: as `LinkTarget` finds it

    def target(self, graph: Graph, edge_type: EdgeType, pairs: npt.NDArray[np.int64]) -> LinkTarget:
        """Returns seeds that are the `pairs` [n, 2], with what must not be drawn as the seed edges of valid.

        Raises:
            ConfigError: `message_edges` is none.
        """
        of_type = LinkTarget(edge_type, 0, 0, "none", self.reverse_edge_type)
        # Who asks twice is answered twice: `SplitArrays` are not warned of.
        seeds = SplitArrays.of("pairs", {AS_GIVEN: pairs}, (2,))
        asked = replace(of_type, seeds=seeds, message_edges=self.message_edges)
        splits = graph.edges[edge_type].splits if self.message_edges == "train" and edge_type in graph.edges else {}
        held_out = [splits[split] for split in HELD_OUT_SPLITS if split in splits]
        if self.hold_out_pairs:
            held_out.append(pairs)
        else:
            _warn_of_known(graph, of_type, pairs, np.concatenate([pairs[:0], *held_out]))
        if not held_out:
            return asked
        both = {AS_GIVEN: pairs, "valid": np.concatenate(held_out)}
        return replace(of_type, seeds=SplitArrays.of("pairs", both, (2,)))


def trained_reverse_type(sampling: Mapping[str, Any] | None, graph: Graph, edge_type: EdgeType) -> EdgeType | None:
    """Returns the type of the reverse edges that a training on links of this type was told of, if the graph has it.

    Args:
        sampling: how its minibatches were drawn, see `trained_sampling`; None: nobody knows.
        graph: whose edges neighbourhoods are drawn from.
        edge_type: of the pairs that the model is asked about.
    """
    target = {} if sampling is None else sampling["target"]
    reverse = target.get("reverse_edge_type")
    if reverse is None or target["edge_type"] != edge_type_name(edge_type):
        return None
    found = parse_edge_type(reverse)
    return found if found in graph.edges else None


def warn_of_held_out(
    graph: Graph, sampling: Mapping[str, Any] | None, edge_types: Collection[EdgeType], resources: Resources
) -> None:
    """Warns if vectors of nodes are made with edges that training left out, as evaluation asks for them.

    Args:
        graph: whose edges they are made with.
        sampling: how the model's minibatches were drawn, see `trained_sampling`; None: nobody knows.
        edge_types: that vectors are made with.
        resources: memory for looking at the edges, whose reporter is told of them; with less, how many seed edges are
            among them is not said.

    Raises:
        ArtifactError: the topology is damaged.
    """
    target = {} if sampling is None else sampling["target"]
    if "edge_type" not in target or target["message_edges"] != "train":
        return
    edge_type = parse_edge_type(target["edge_type"])
    if edge_type not in graph.edges:
        return
    splits = {split: found for split, found in graph.edges[edge_type].splits.items() if split in HELD_OUT_SPLITS}
    reverse = trained_reverse_type(sampling, graph, edge_type) or reverse_type_in(graph, edge_type)
    directions = [(edge_type, False), *([] if reverse is None else [(reverse, True)])]
    directions = [each for each in directions if each[0] in edge_types]
    if not splits or not directions:
        return
    num_pairs = sum(map(len, splits.values()))
    done = (
        "vectors are made with them, though training left them out. To score such edges, give them to `predict` as "
        "pairs; vectors that were made with them have seen the answers"
    )
    if held_out_bytes(num_pairs, directions) > resources.memory_bytes:
        said = f"some of the {num_pairs:,} seed edges of valid and test may be edges of the graph: {done}"
    else:
        held_out = find_held_out(graph, splits, directions, resources.reporter, keeps=True)
        if held_out.eval_edges is None or not any(held_out.eval_edges.edges.values()):
            return
        said = told(held_out, done)
    warnings.warn(f"{edge_type_name(edge_type)}: {said}", DataWarning, stacklevel=callers_level())


def _warn_of_known(
    graph: Graph, of_type: LinkTarget, pairs: npt.NDArray[np.int64], held_out: npt.NDArray[np.int64]
) -> None:
    """Warn of pairs that are edges of the graph and are drawn."""
    is_held = ExcludedEdges(*np.ascontiguousarray(held_out.T)).contains(*np.ascontiguousarray(pairs.T)).view(np.bool_)
    if is_held.all():
        return
    seeds = {AS_GIVEN: pairs[:1], "test": pairs[~is_held]}
    target = replace(of_type, seeds=seeds, message_edges="all")
    counts = SamplingPlan(graph, SamplingSpec([-1], target=target, temporal="ignore")).held_out.eval_edges
    assert counts is not None
    if num_known := counts.seed_edges["test"][1]:
        warnings.warn(
            f"pairs: {num_known} of {len(pairs)} are edges of the graph that neighbourhoods have, so the model sees "
            "what it is asked; to score them as evaluation scores held-out edges, pass hold_out_pairs=True",
            DataWarning,
            stacklevel=callers_level(),
        )
