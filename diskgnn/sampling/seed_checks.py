"""Refusing seeds that a graph does not have, or that make no sense, before anything is sampled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, InputError, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.specs.null_times import is_missing
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import edge_type_name
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.specs.time_windows import OF_DATES

_LOOKED_AT = 1 << 20  # seeds of a split, whose own times are read all over a file


def require_splits(graph: Graph, spec: SamplingSpec, found: tuple[str, ...], what: str, *, given: bool = False) -> None:
    """Raises ConfigError or InputError if none of the splits asked for was `found`."""
    if not found:
        asked = ", ".join(spec.splits) or "none"
        if given:
            raise ConfigError(f"seeds: expected some for the splits asked for ({asked}), found none")
        others = ", ".join(_with_seeds(graph, spec))
        raise InputError(
            f"{graph.manifest.path} has no {what} in the splits asked for ({asked}): nothing to sample"
            + (
                f"; give `target` one of {others}"
                if others
                else "; make the graph with some (of nodes: `diskgnn convert --train`), or give seeds "
                "(`diskgnn prepare --target-seeds`)"
            )
        )


def check_times(graph: Graph, spec: SamplingSpec, target: NodeTarget | LinkTarget) -> None:
    """Raises ConfigError for times that draws would not go by, or cannot compare with those of the graph."""
    if target.times is not None and spec.temporal is None:
        raise ConfigError(
            "times: draws do not go by them; pass temporal='uniform' or 'last' with them, or leave them out (a column "
            "called time in a table of seeds is taken without being named); temporal='ignore' does not look at them"
        )
    if isinstance(target.times, SplitArrays) and target.times.were_dates:
        unit = graph.config.time_unit
        if unit not in (None, "s"):
            raise ConfigError(
                f"times: expected whole numbers, as the times of {graph.manifest.path} are in {unit}; found "
                "datetime64, which is seconds since 1970"
                + (f": give times.astype('datetime64[{unit}]').astype('int64')" if unit in OF_DATES else "")
            )


def require_known(times: npt.NDArray[np.int64], split: str, called: Callable[[int], str]) -> None:
    """Raises ConfigError if a seed has no time, so that nobody knows what it may see.

    Args:
        times: [n] of the seeds of the split, as the graph has them.
        split: train, valid or test.
        called: what seed number i is called in messages.
    """
    missing = np.flatnonzero(is_missing(times))
    if len(missing):
        raise ConfigError(
            f"temporal: expected a time for each seed of {split}, found none for {len(missing)} of {len(times)}, the "
            f"first of which is {called(int(missing[0]))}; give `seeds` with their times, or leave those out"
        )


def warn_of_early_seeds(graph: Graph, target: NodeTarget | LinkTarget, splits: Sequence[str]) -> None:
    """Warns of seeds that are asked about before they are there, by the own times of their nodes: what is known of such
    a row is of later, and what a model says of it answers a question that nobody could ask.

    Args:
        graph: whose nodes they are.
        target: with seeds and their times; others have those of their nodes.
        splits: whose seeds are looked at, about `_LOOKED_AT` of each.
    """
    if target.seeds is None or target.times is None:
        return
    ends = target.edge_type[::2] if isinstance(target, LinkTarget) else [target.node_type]
    for place, nodes in enumerate(graph.nodes[str(each)] for each in ends):
        early, looked_at, first = 0, 0, None
        if (appeared := nodes.times) is None:
            continue
        for split in splits:
            step = 1 + len(target.seeds[split]) // _LOOKED_AT
            seeds, times = (np.asarray(each[split])[::step] for each in (target.seeds, target.times))
            seeds = seeds[:, place] if seeds.ndim == 2 else seeds
            own = appeared[seeds]
            is_early = (own > times) & ~is_missing(own)
            early, looked_at = early + int(is_early.sum()), looked_at + len(seeds)
            first = int(seeds[is_early.argmax()]) if first is None and is_early.any() else first
        if first is not None:
            warnings.warn(
                f"{early:,} of {looked_at:,} seeds are nodes of type {nodes.name} that come after the moment they are "
                f"asked about, by their own times in {graph.manifest.path} (the first is {nodes.called(first)}): they "
                "are asked all the same, by columns of a row that is not there yet. Tasks of RelBench have no such "
                "rows: leave them out, by naming the others",
                DataWarning,
                stacklevel=callers_level(),
            )


def check_nodes(graph: Graph, split: str, ids: npt.NDArray[Any], nodes: NodeSet, *, given: bool = False) -> None:
    """Raises ConfigError for ids that were `given` and are none of the graph's; ArtifactError if they are its own."""
    if len(ids) and (ids.min() < 0 or ids.max() >= nodes.num_nodes):
        if given:
            raise ConfigError(
                f"seeds[{split!r}]: expected ids of the {nodes.num_nodes} nodes of type {nodes.name!r}, found "
                f"{ids.min()} to {ids.max()}"
            )
        raise ArtifactError(f"{graph.manifest.path}: {split} has nodes that are not in the graph; make it again")


def _with_seeds(graph: Graph, spec: SamplingSpec) -> list[str]:
    """Returns the types of nodes and edges that have seeds."""
    nodes = [name for name, each in graph.nodes.items() if _has_some(each.splits, spec)]
    edges = [edge_type_name(name) for name, each in graph.edges.items() if _has_some(each.splits, spec)]
    return nodes + edges


def _has_some(splits: Mapping[str, npt.NDArray[np.int64]], spec: SamplingSpec) -> bool:
    return any(len(splits.get(split, ())) for split in spec.splits)
