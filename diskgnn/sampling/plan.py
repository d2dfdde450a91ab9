"""The one place where (split, epoch, number) becomes seeds, fanouts and key: a minibatch before it is drawn."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key, moving_slice_start, shuffled_seeds, slice_start
from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.samples_config import SamplesConfig, SamplesLayout, SequenceSize
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import HeldOut, told
from diskgnn.graph.time_units import warn_of_units
from diskgnn.progress.reporter import SILENT, Reporter, say
from diskgnn.sampling.edge_windows import edge_windows, warn_of_rows_without_times
from diskgnn.sampling.empty_windows import warn_of_empty_windows
from diskgnn.sampling.grouping import nearness_order
from diskgnn.sampling.label_warnings import warn_of_labels
from diskgnn.sampling.planned_minibatch import DrawRules, PlannedEpoch, PlannedMinibatch, Sampler
from diskgnn.sampling.seed_checks import warn_of_early_seeds
from diskgnn.sampling.seeds import SeedBatch, Seeds
from diskgnn.sampling.target_seeds import seeds_of
from diskgnn.sampling.timed_types import has_times, reached_with_times, require_temporal
from diskgnn.sampling.topology import TopologyParts
from diskgnn.sampling.user_sampling import UserDraws
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import edge_type_name
from diskgnn.specs.shard import Shard
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target
from diskgnn.specs.time_windows import named_windows


class SamplingPlan:
    """The minibatches of a graph under a `SamplingSpec`: what the sampler, estimates and every baseline draw.

    Args:
        graph: what is sampled.
        spec: how.
        seeds: in place of those that `spec.target` stands for.

    Raises:
        InputError: the graph has nothing in the splits asked for.
        ArtifactError: a split has nodes that are not in the graph.
        ConfigError: types, weights or times that the graph does not have.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, seeds: Seeds | None = None) -> None:
        self.graph = graph = graph.without(spec.without)
        self._given_seeds = seeds
        self._seeds = seeds or seeds_of(graph, spec)
        self.splits = self._seeds.splits
        edge_types = tuple(graph.edges)
        # By split, [layers, edge types].
        self.fanouts = {split: np.array(spec.fanouts_by_type(split, edge_types), np.int32) for split in self.splits}
        _require_edge_data(graph, spec)
        require_temporal(graph, spec, self.target, self.fanouts.values())
        self._windows = windows = edge_windows(graph, spec.temporal_window, self.fanouts.values())
        # The same draws are the same samples, however their windows were said.
        self.spec = replace(spec, temporal_window=named_windows(windows, graph.config.time_unit) or None)
        if spec.group_seeds > 1:
            _require_groups(spec)
        keeps_times = spec.keep_times or graph.keeps_columns
        self.layout = SamplesLayout(
            trees=spec.is_temporal,
            pairs=isinstance(spec.target, LinkTarget),
            places=isinstance(spec.target, NodeTarget) and spec.target.labels is not None,
            seed_times=keeps_times and spec.is_temporal,
            times=tuple(each for each, nodes in graph.nodes.items() if keeps_times and nodes.config.has_times),
            positions=tuple(each for each in edge_types if spec.edge_ids or graph.edges[each].config.rows is not None),
        )
        positions = tuple(each in self.layout.positions for each in edge_types) if self.layout.positions else ()
        compared = {each: length - int(bool(spec.strict_time)) for each, length in windows.items()}
        self._rules = DrawRules(
            spec.weighted, spec.temporal == "last", positions, spec.expand_once,
            tuple(map(compared.get, edge_types)) if windows else (),
            seed_time_shift=int(bool(spec.strict_time)) if self.layout.seed_times else None,
        )  # fmt: skip
        self.parts = TopologyParts(graph, weights=spec.weighted, times=spec.is_temporal)
        # Of each split, minibatches in an epoch of all ranks together.
        self._num_batches = {split: -(-self._seeds.count(split) // spec.batch_size) for split in self.splits}
        self.sizes = self._sizes()

    def _sizes(self) -> dict[str, SequenceSize]:
        return {
            split: SequenceSize(self.spec.epochs if split == "train" else 1, len(self.spec.shard.numbers(num_batches)))
            for split, num_batches in self._num_batches.items()
        }

    def load_sampler(self) -> Sampler:
        """Returns what draws its minibatches: the user's function, or a sampler with the topology in memory.

        Raises:
            ArtifactError: a file of the topology is damaged.
            ConfigError: the function cannot be imported.
        """
        if self.spec.sampler is None:
            return self.parts.load()
        return UserDraws(self.spec.sampler, self.graph, self.parts.id_dtype, self.layout.positions)

    @property
    def sampler_bytes(self) -> int:
        """Returns what `load_sampler` reads, and holds in memory."""
        return self.parts.num_bytes if self.spec.sampler is None else 0

    @property
    def negatives_bytes(self) -> int:
        """Returns what drawing pairs without an edge takes of memory, whatever the minibatch.

        Raises:
            ArtifactError: edges that they are not to be had to be counted, and the topology is damaged.
        """
        return self._seeds.negatives_bytes

    @property
    def held_out_bytes(self) -> int:
        """Returns what `held_out` takes of memory, and finding it."""
        return self._seeds.held_out_bytes

    @cached_property
    def held_out(self) -> HeldOut:
        """Returns the edges of the graph that minibatches of no split draw. The graph is read for it, once.

        Raises:
            ArtifactError: its topology is damaged.
        """
        return self._seeds.held_out(SILENT)

    def hold_out(self, reporter: Reporter) -> None:
        """Find `held_out` now, if that is still to do, and tell `reporter` what was found.

        Raises:
            ArtifactError: see `held_out`.
        """
        if "held_out" not in self.__dict__:
            self.held_out = found = self._seeds.held_out(reporter)
            say(reporter, lambda: told(found))

    def warn(self) -> None:
        """Warn of what the user would not expect: numbers of edges that nobody kept, and labels that are no task."""
        self._warn_of_places()
        self.warn_of_times()
        if self.spec.temporal == "ignore" and not has_times(self.graph):
            warnings.warn(
                f"temporal: expected times that draws could ignore, found none in {self.graph.manifest.path}; leave it "
                "out, or convert the graph again with times of its nodes or edges",
                DataWarning,
                stacklevel=callers_level(),
            )
        warn_of_labels(self.graph, self.target, {split: self._seeds.listed(split) for split in self.splits})

    def warn_of_times(self) -> None:
        """Warn if times by which is drawn look like those of different units, leave seeds nothing to draw, or
        are before the seeds themselves."""
        if self.spec.is_temporal and self.spec.sampler is None:
            target = self.target
            given = [np.asarray(target.times[split]) for split in self.splits] if target.times is not None else []
            warn_of_units(self.graph, reached_with_times(self.graph, target, self.fanouts.values()), given)
            followed = np.any([(layers != 0).any(axis=0) for layers in self.fanouts.values()], axis=0)
            types = [each for each, is_followed in zip(self.graph.edges, followed, strict=True) if is_followed]
            windows = {each: self._windows.get(each) for each in types}
            warn_of_empty_windows(self.graph, windows, given)
            warn_of_rows_without_times(self.graph, types)
            warn_of_early_seeds(self.graph, target, self.splits)
            self._warn_of_splits()

    def _warn_of_splits(self) -> None:
        """Warn of seeds to train on that are all later than those to evaluate on: most likely tables were swapped."""
        times = self.target.times or {}
        asked = [(split, np.asarray(times[split])) for split in self.splits if split in times and len(times[split])]
        for (earlier, before), (later, after) in pairwise(asked):
            if before.min() > after.max():
                warnings.warn(
                    f"seeds of {earlier} are all later than those of {later}: a model is to tell what comes after what "
                    "it was trained on; were the two swapped?",
                    DataWarning,
                    stacklevel=callers_level(),
                )

    def _warn_of_places(self) -> None:
        """Warn if `Block.edge_ids` of some edge type will not be the user's numbers of edges, which nobody kept."""
        unkept = [edges for edges in self.graph.edges.values() if edges.num_edges and not edges.config.has_ids]
        if self.spec.edge_ids and unkept:
            names = ", ".join(edge_type_name(edges.type) for edges in unkept)
            warnings.warn(
                f"edge_ids: {self.graph.manifest.path} did not keep which edge of your list each is of {names}: "
                "these edge_ids are places in the graph's own order, by destination; for rows of your list, convert it "
                "with keep_ids=True (`diskgnn convert --keep-ids`, `keep_ids: true` in a schema)",
                DataWarning,
                stacklevel=callers_level(),
            )

    def redrawn(self, draws: str, draw_period: int) -> SamplingPlan:
        """Returns the same seeds in the same minibatches, around which other neighbours are drawn; groups are found
        once."""
        return self._copy(replace(self.spec, draws=draws, draw_period=draw_period))

    def shard(self, rank: int, world_size: int) -> SamplingPlan:
        """Returns the minibatches of one rank, see `Shard`: each is byte for byte that of this plan, number and draws
        included.

        A plan is a value for other processes, too: pickled, it is the graph's path and digest, the spec, and the groups
        of seeds.

        Raises:
            ConfigError: no rank of so many, or this is the plan of a rank already.
        """
        if self.spec.shard.world_size > 1:
            raise ConfigError(f"shard: expected the plan of all ranks, found that of {self.spec.shard}")
        other = self._copy(replace(self.spec, shard=Shard(rank, world_size)))
        other.sizes = other._sizes()
        return other

    def _copy(self, spec: SamplingSpec) -> SamplingPlan:
        if self.spec.group_seeds > 1 and "train" in self.splits:
            assert self._grouped_positions is not None  # a copy has what is cached
        assert self.held_out is not None
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.spec = spec
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        grouped = self.spec.group_seeds > 1 and "train" in self.splits
        found_once: dict[str, Any] = {"_grouped_positions": self._grouped_positions} if grouped else {}
        found_once["held_out"] = self.held_out
        return SamplingPlan, (self.graph, self.spec, self._given_seeds), found_once

    def minibatch_layout(self) -> MinibatchLayout:
        """Returns the columns of the samples."""
        config = self.config()
        return config.minibatch_layout([np.dtype(self.parts.id_dtype).name] * len(config.num_nodes))

    @property
    def target(self) -> Target:
        """Returns what seeds are, which names its type where the user's leaves that out."""
        return self._seeds.target

    def config(self) -> SamplesConfig:
        """Returns what a samples directory of this plan says of itself."""
        spec = replace(self.spec, target=self.target)
        num_nodes = {name: nodes.num_nodes for name, nodes in self.graph.nodes.items()}
        num_edges = {edge_type: edges.num_edges for edge_type, edges in self.graph.edges.items()}
        return SamplesConfig(spec, num_nodes, num_edges, self.sizes, self.layout)

    def prepared_epochs(self, split: str) -> range:
        """Returns the epochs of `split` that are sampled in advance."""
        first = self.spec.first_epoch if split == "train" else 0
        return range(first, first + self.sizes[split].epochs)

    def key(self, split: str, epoch: int) -> int:
        """Returns what names the draws of one epoch, see `draws.batch_key`."""
        return batch_key(self.spec.seed, split, epoch)

    def most_seeds(self, split: str) -> int:
        """Returns how many seed nodes a minibatch has at most."""
        count, target = self.batch_seeds(split), self.spec.target
        if isinstance(target, LinkTarget):
            return count * (2 + (target.negatives if split == "train" else target.eval_negatives))
        return count

    def batch_seeds(self, split: str) -> int:
        """Returns how many seed nodes or seed edges minibatches of an epoch have, but the last."""
        return min(self.spec.batch_size, self._seeds.count(split))

    def last_size(self, split: str) -> int:
        """Returns how many seed nodes or seed edges the last minibatch of an epoch has."""
        size, last = self.spec.batch_size, self.spec.shard.numbers(self._num_batches[split])[-1]
        return min(size, self._seeds.count(split) - last * size)

    def order(self, split: str, epoch: int) -> npt.NDArray[np.int64]:
        """Returns [n] positions in the split in the order in which an epoch has its seeds, those of all ranks.

        Raises:
            ArtifactError: see `nearness_order`.
        """
        if split == "train" and self.spec.shuffle:
            return self._grouped_positions[self._shuffled_positions(epoch)]
        return np.arange(self._seeds.count(split))

    def minibatches(self, split: str, epoch: int) -> Sequence[PlannedMinibatch]:
        """Returns the minibatches of one epoch, any epoch: shuffled for 'train' unless the spec says otherwise, in the
        given order otherwise.

        Repeated nodes are dropped, repeated seed edges are not, nor nodes that are given with times; the last minibatch
        may be smaller. Groups of seeds are shuffled as wholes; a group may lie in two minibatches.

        Raises:
            ArtifactError: see `nearness_order`.
        """
        key, size, order = self.key(split, epoch), self.spec.batch_size, self.order(split, epoch)

        def plan(number: int) -> PlannedMinibatch:
            batch = self._seeds.batch(split, epoch, order[number * size : (number + 1) * size])
            name = f"minibatch {number} of epoch {epoch} of the {split} split"
            return self.minibatch_of(batch, split, key, number, name, self._slice_start(split, epoch, number))

        return PlannedEpoch(plan, self.spec.shard.numbers(self._num_batches[split]))

    def seeds(self, split: str, epoch: int) -> npt.NDArray[np.int64]:
        """Returns [n] the seed nodes or [n, 2] the seed edges of a split in the order of one epoch, those of all
        ranks."""
        return self._seeds.listed(split)[self.order(split, epoch)]

    def minibatch_of(
        self, batch: SeedBatch, split: str, key: int, number: int, name: str, slice_start: int | None = None
    ) -> PlannedMinibatch:
        """Returns the minibatch of these seeds, drawn as those of `split` are."""
        return PlannedMinibatch(
            batch.seeds, self.fanouts[split], key, number, slice_start, batch.seed_counts, batch.times,
            batch.excluded, self.held_out.edges, batch.pairs, batch.places, self._rules, name, batch.starts,
        )  # fmt: skip

    @cached_property
    def _grouped_positions(self) -> npt.NDArray[np.int64]:
        """Returns the positions in the train split, those of a group side by side."""
        seeds, size = self._seeds, self.spec.group_seeds
        if size == 1:
            return np.arange(seeds.count("train"))
        target, listed = seeds.target, seeds.listed("train")
        if isinstance(target, LinkTarget):
            ends = [(target.edge_type[0], listed[:, 0]), (target.edge_type[2], listed[:, 1])]
        else:
            ends = [(str(target.node_type), listed)]
        is_followed = (self.fanouts["train"] != 0).any(axis=0)
        followed = [each for each, follow in zip(self.graph.edges, is_followed, strict=True) if follow]
        return nearness_order(self.graph, ends, size, edge_types=followed)

    def _shuffled_positions(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns [n] positions in `_grouped_positions` in the order of one epoch."""
        spec = self.spec
        return shuffled_seeds(self._seeds.count("train"), spec.group_seeds, spec.seed, epoch)

    def _slice_start(self, split: str, epoch: int, number: int) -> int | None:
        if self.spec.draws == "independent":
            return None
        if split == "train" and self.spec.draw_period > 1:
            position = epoch * self._num_batches[split] + number
            return moving_slice_start(self.spec.seed, split, position, self.spec.draw_period)
        # Scores are to be those of many draws, not of some that lie side by side.
        return slice_start(self.spec.seed, split, epoch, number)


def _require_groups(spec: SamplingSpec) -> None:
    """Refuse groups where they would change what is learned, not only what is read."""
    if isinstance(spec.target, LinkTarget) and spec.target.is_own_negatives:
        raise ConfigError(
            "group_seeds: with negatives=0 the other edges of a minibatch are its negatives, and these are not to be "
            "near ones; sample at least 1 negative per edge, or leave group_seeds out"
        )


def _require_edge_data(graph: Graph, spec: SamplingSpec) -> None:
    if spec.weighted and not any(edges.config.has_weights for edges in graph.edges.values()):
        raise ConfigError(f"weighted: no edge type of {graph.manifest.path} has weights; convert it with weights")
