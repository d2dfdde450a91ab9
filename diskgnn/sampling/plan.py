"""The one place where (split, epoch, number) becomes seeds, fanouts and key: a minibatch before it is drawn."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import NeighborSampler
from diskgnn.draws import batch_key, moving_slice_start, permutation, slice_start
from diskgnn.errors import ArtifactError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.sampling.grouping import nearness_order
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE
from diskgnn.specs import NodeTarget, SamplingSpec
from diskgnn.storage.samples import SampledBlock, SampledMinibatch
from diskgnn.storage.samples_config import SamplesConfig, SamplesLayout, SequenceSize

# (input nodes, (indptr, indices) of each block, outermost first)
DrawnArrays = tuple[npt.NDArray[Any], list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]]


@dataclass(frozen=True)
class PlannedMinibatch:
    """All that a minibatch depends on, beside the topology."""

    seeds: npt.NDArray[np.int64]  # [B]
    fanouts: npt.NDArray[np.int32]  # [layers], from the seeds outwards
    key: int  # see `draws.batch_key`
    number: int  # position in the epoch
    slice_start: int | None = None  # see `draws.slice_start`; None for independent draws

    def draw(self, sampler: NeighborSampler) -> SampledMinibatch:
        """Its neighbourhood."""
        return self.drawn(sampler.sample(self.seeds, self.fanouts, self.key, self.number, self.slice_start))

    def drawn(self, arrays: DrawnArrays) -> SampledMinibatch:
        """The minibatch that native samplers returned as `arrays`."""
        nodes, blocks = arrays
        counts = np.array([len(nodes), *(len(indptr) - 1 for indptr, _ in blocks)], np.int32)
        return SampledMinibatch(
            self.seeds,
            (nodes,),
            counts[:, None],
            tuple((SampledBlock(*block),) for block in blocks),
        )


class SamplingPlan:
    """The minibatches of a graph under a `SamplingSpec`: what the sampler, estimates and every baseline draw.

    Raises:
        InputError: the graph has no nodes in the splits asked for.
        ArtifactError: a split has nodes that are not in the graph.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec) -> None:
        self.graph, self.spec = graph, spec
        self.splits = tuple(split for split in spec.splits if len(graph.splits.get(split, ())))
        if not self.splits:
            asked = ", ".join(spec.splits) or "none"
            raise InputError(f"{graph.manifest.path} has no nodes in the splits asked for ({asked}): nothing to sample")
        for split in self.splits:
            nodes = graph.splits[split]
            if nodes.min() < 0 or nodes.max() >= graph.num_nodes:
                raise ArtifactError(
                    f"{graph.manifest.path}: {split} has nodes that are not in the graph; make it again"
                )
        self._nodes = {split: _distinct(graph.splits[split]) for split in self.splits}
        self.sizes = {
            split: SequenceSize(spec.epochs if split == "train" else 1, -(-len(nodes) // spec.batch_size))
            for split, nodes in self._nodes.items()
        }

    def redrawn(self, draws: str, draw_period: int) -> SamplingPlan:
        """The same seeds in the same minibatches, around which other neighbours are drawn; groups are found once."""
        if self.spec.group_seeds > 1 and "train" in self.splits:
            assert self._grouped_seeds is not None  # a copy has what is cached
        other = copy(self)
        other.spec = replace(self.spec, draws=draws, draw_period=draw_period)
        return other

    def config(self) -> SamplesConfig:
        """What a samples directory of this plan says of itself."""
        spec = replace(self.spec, target=NodeTarget(ONE_NODE_TYPE))
        num_nodes, num_edges = {ONE_NODE_TYPE: self.graph.num_nodes}, {ONE_EDGE_TYPE: self.graph.num_edges}
        return SamplesConfig.of(spec, num_nodes, num_edges, self.sizes, SamplesLayout())

    def prepared_epochs(self, split: str) -> range:
        """The epochs of `split` that are sampled in advance."""
        first = self.spec.first_epoch if split == "train" else 0
        return range(first, first + self.sizes[split].epochs)

    def key(self, split: str, epoch: int) -> int:
        """What names the draws of one epoch, see `draws.batch_key`."""
        return batch_key(self.spec.seed, split, epoch)

    def minibatches(self, split: str, epoch: int) -> list[PlannedMinibatch]:
        """The minibatches of one epoch, any epoch: shuffled for 'train', in the given order otherwise.

        Repeated nodes are dropped; the last minibatch may be smaller. Groups of seeds are shuffled as wholes; a group
        may lie in two minibatches.

        Raises:
            ArtifactError: see `nearness_order`.
        """
        spec, nodes = self.spec, self._nodes[split]
        if split == "train":
            nodes = self._grouped_seeds[self._shuffled_positions(epoch)]
        fanouts = np.array(spec.fanouts_of(split), np.int32)
        key = self.key(split, epoch)
        return [
            PlannedMinibatch(
                nodes[number * spec.batch_size : (number + 1) * spec.batch_size], fanouts, key, number,
                self._slice_start(split, epoch, number),
            )
            for number in range(-(-len(nodes) // spec.batch_size))
        ]  # fmt: skip

    @cached_property
    def _grouped_seeds(self) -> npt.NDArray[np.int64]:
        """Seeds of the train split, those of a group side by side."""
        seeds, size = self._nodes["train"], self.spec.group_seeds
        return seeds if size == 1 else seeds[nearness_order(self.graph, seeds, size)]

    def _shuffled_positions(self, epoch: int) -> npt.NDArray[np.int64]:
        """[n] positions in `_grouped_seeds` in the order of one epoch."""
        num_seeds = len(self._nodes["train"])
        size = min(self.spec.group_seeds, num_seeds)
        groups = permutation(-(-num_seeds // size), batch_key(self.spec.seed, "train/shuffle", epoch))
        positions = (groups[:, None] * size + np.arange(size)).ravel()
        return positions[positions < num_seeds]  # the last group may be smaller

    def _slice_start(self, split: str, epoch: int, number: int) -> int | None:
        if self.spec.draws == "independent":
            return None
        if split == "train" and self.spec.draw_period > 1:
            position = epoch * self.sizes[split].batches_per_epoch + number
            return moving_slice_start(self.spec.seed, split, position, self.spec.draw_period)
        # Scores are to be those of many draws, not of some that lie side by side.
        return slice_start(self.spec.seed, split, epoch, number)


def _distinct(nodes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """`nodes` without repetitions, in the order in which each comes first."""
    _, first = np.unique(nodes, return_index=True)
    return np.asarray(nodes)[np.sort(first)].astype(np.int64)
