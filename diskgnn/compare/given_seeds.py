"""The seeds that a comparison trains on: those of a graph's splits, or given in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.compare.limited_graph import seeds_of_type, target_type
from diskgnn.formats.samples_config import given_arrays
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import NodeTarget, Target


def trained_seeds(graph: Graph, sampling: SamplingSpec, max_batches: int | None) -> dict[str, npt.NDArray[Any]]:
    """Returns what fills `max_batches` minibatches of the train split: `seeds`, and the `times` and `labels` given.

    They are a random part of the split, the same in every run. None is all of it.

    Raises:
        InputError: there are no training nodes.
    """
    plan = SamplingPlan(graph, replace(sampling, seed=0, splits=("train",)))
    given: Mapping[str, Mapping[str, npt.NDArray[Any]]] = given_arrays(sampling.target)
    if max_batches is None:
        given = given or {"seeds": seeds_of_type(graph, target_type(plan))}
        return {name: arrays["train"] for name, arrays in given.items()}
    order = plan.order("train", 0)[: max_batches * sampling.batch_size]
    # Without times and labels, a seed that comes twice counts once; with them, each has a place of its own.
    seeds = {"seeds": plan.seeds("train", 0)[: len(order)]}
    return seeds | {name: arrays["train"][order] for name, arrays in given.items() if name != "seeds"}


def classes_in(graph: Graph, plan: SamplingPlan, split: str) -> set[int]:
    """Returns the classes of the seeds of a split of nodes or pairs that have one each."""
    target = plan.target
    if target.labels is not None:
        labels = target.labels[split]
    else:
        assert isinstance(target, NodeTarget)
        assert target.node_type is not None
        labels = graph.nodes[target.node_type].labels_of(np.sort(plan.seeds(split, 0)))
    return set(np.unique(labels).tolist())


def training_target(target: Target, seeds: Mapping[str, npt.NDArray[Any]]) -> Target:
    """Returns `target` with these alone, where it has seeds that were given."""
    if target.seeds is None:
        return target
    arrays: dict[str, Any] = {name: SplitArrays({"train": array}) for name, array in seeds.items()}
    return replace(target, **arrays)
