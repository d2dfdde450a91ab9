"""What a loader was asked for, checked; and what was prepared for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler.base import NumNeighbors, SubgraphType

from diskgnn.errors import ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.graph.time_units import warn_of_units
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.pyg.disk_frames import tables_of
from diskgnn.pyg.epoch_batches import PackedBatches, WindowedBatches
from diskgnn.pyg.loader_data import Source, without_frames, without_rows
from diskgnn.pyg.prepared_cache import Cache, rows_in_memory
from diskgnn.pyg.sampler import InputSeeds, Rules
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.timed_types import reached_with_times
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, TableColumn, edge_type_name, require_edge_type
from diskgnn.specs.split_arrays import SplitArrays
from diskgnn.specs.targets import LinkTarget, NodeTarget, Target
from diskgnn.specs.time_windows import MAX_WINDOW, Windows, checked_windows
from diskgnn.units import whole_number
from diskgnn.work.cache_folder import Use

# What PyG's and torch's loaders take that changes nothing here, because minibatches are there already: no worker
# processes draw them, and nothing is sorted in memory.
IGNORED = ("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "pin_memory_device", "timeout",
           "worker_init_fn", "multiprocessing_context", "generator", "filter_per_worker", "is_sorted")  # fmt: skip
_SHUFFLED_EPOCHS = 4
_TIME, _WEIGHTS = "time", ("weight", "edge_weight")  # what PyG's data calls those that a graph directory has


def check_lengths(num_seeds: int, **given: Tensor | None) -> None:
    """Refuse what was `given` of the seeds, by the names of the arguments, if there is not one of each.

    Raises:
        ConfigError: there are more or fewer.
    """
    for name, values in given.items():
        if values is not None and len(values) != num_seeds:
            raise ConfigError(f"{name}: expected {num_seeds}, one for each to start from, found {len(values)}")


@dataclass(frozen=True)
class Preparation:
    """Says what a loader reads, once it is there."""

    batches: PackedBatches | WindowedBatches
    plan: SamplingPlan
    seeds: InputSeeds
    rules: Rules
    bare: Any  # the data as PyG slices it
    counted: frozenset[str]  # the node types whose number the data states
    frames: Mapping[str, tuple[TableColumn, ...]]  # the columns of the node types that have tf on the disk
    uses: tuple[Use, ...]  # keep what is read from being removed

    @property
    def packed(self) -> Packed:
        """Returns the packed directory that is read.

        Raises:
            ConfigError: there is none, with prepared_epochs=0.
        """
        if isinstance(self.batches, WindowedBatches):
            raise ConfigError("prepared_epochs: expected 1 or more for a packed directory, found 0")
        return self.batches.packed


@dataclass
class LoaderRequest:
    """The arguments of a loader beside what it starts from."""

    num_neighbors: Any
    time_attr: str | None
    weight_attr: str | None
    subgraph_type: SubgraphType
    disjoint: bool
    temporal_strategy: str
    time_window: Windows | None
    starts: Tensor | None  # [n] of the inputs: nothing up to this is drawn where edge types have a window
    cache: Cache
    cpu_cache: int | str | None
    epochs: int  # that are prepared; 0: none, all are drawn anew
    device: str | torch.device
    seed: int
    shuffle: bool
    batch_size: int
    is_link: bool
    graph: Graph | None = None  # where the data is a path

    @staticmethod
    def of(
        num_neighbors: Any, time_attr: str | None, weight_attr: str | None, subgraph_type: Any, *, replace: bool,
        disjoint: bool, temporal_strategy: str, time_window: Any, neighbor_sampler: Any, directed: bool,
        seed_time: Tensor | None, seed_start: Tensor | None = None,
        cache: Any, cache_limit: int | str | None, cpu_cache: int | str | None, prepared_epochs: int | None,
        memory: int | str, threads: int | None,
        device: str | torch.device, seed: int, progress: bool, arguments: Mapping[str, Any], is_link: bool = False,
    ) -> LoaderRequest:  # fmt: skip
        """Check what can be checked before the data is looked at.

        Raises:
            ConfigError: what cannot be prepared, with the way round it.
        """
        kind = SubgraphType(subgraph_type) if directed else SubgraphType.induced
        refused = {
            "replace": (replace, "neighbours are drawn without replacement; leave it out, or use PyG's own loader"),
            "subgraph_type": (
                kind == SubgraphType.induced,
                "the edges among all nodes of a minibatch are not prepared, 'directional' and 'bidirectional' are; "
                "leave it out, with as many hops as the model has layers",
            ),
            "neighbor_sampler": (neighbor_sampler is not None, "diskgnn draws by itself: pass num_neighbors instead"),
            **{
                name: (arguments.get(name) is not None, "the order of seeds is prepared: pass batch_size and shuffle")
                for name in ("sampler", "batch_sampler")
            },
        }
        for name, (is_refused, reason) in refused.items():
            if is_refused:
                raise ConfigError(f"{name}: {reason}")
        if seed_time is not None and time_attr is None:
            name = "edge_label_time" if is_link else "input_time"
            raise ConfigError(f"{name}: expected time_attr, too: it says which times the seeds are compared with")
        if is_link and time_attr is not None and seed_time is None:
            raise ConfigError("time_attr: expected edge_label_time, too: until when each pair may draw")
        if time_window is not None and time_attr is None:
            raise ConfigError("time_window: expected time_attr, too: it says which times the window is of")
        if seed_start is not None and time_attr is None:
            raise ConfigError(
                "input_start_time: expected time_attr, too: it says which times the starts are compared with"
            )
        shuffle, batch_size = bool(arguments.get("shuffle")), arguments.get("batch_size", 1)
        if batch_size is None:
            raise ConfigError("batch_size: expected a number, found None; minibatches are prepared whole")
        return LoaderRequest(
            num_neighbors if isinstance(num_neighbors, NumNeighbors) else NumNeighbors(num_neighbors),
            time_attr, weight_attr, kind, disjoint or time_attr is not None, temporal_strategy,
            checked_windows("time_window", time_window), seed_start,
            Cache.of(cache, cache_limit, memory, threads, progress), cpu_cache,
            (_SHUFFLED_EPOCHS if shuffle else 1) if prepared_epochs is None
            else whole_number("prepared_epochs", prepared_epochs, 0),
            device, seed, shuffle, batch_size, is_link,
        )  # fmt: skip

    def check_types(self, data: Any) -> None:
        """Refuse numbers of neighbours of edge types that the data does not have, or not of all that it has.

        Raises:
            ConfigError: names these types.
        """
        given = self.num_neighbors.values
        if not isinstance(given, dict):
            return
        if isinstance(data, Data):
            raise ConfigError("num_neighbors: expected one list, as the data has one type of edges, found a mapping")
        if not isinstance(data, HeteroData):
            return
        named = [each.to_tuple() for each in given]
        for each in named:
            require_edge_type("num_neighbors", each, data.edge_types)
        missing = [each for each in data.edge_types if each not in named]
        if missing and self.num_neighbors.default is None:
            zeros = [0] * self.num_neighbors.num_hops
            raise ConfigError(
                f"num_neighbors: expected a list for each edge type, found none for "
                f"{', '.join(map(edge_type_name, missing))}; {zeros} draws none of a type"
            )

    def check_seeds(self, nodes: Tensor, name: str) -> None:
        """Refuse nodes that would be seeds twice in a minibatch.

        Raises:
            ConfigError: there are some.
        """
        repeated = len(nodes) - len(np.unique(nodes.numpy()))
        if not self.disjoint and repeated:
            raise ConfigError(
                f"{name}: expected each node once, found {repeated} repeated ones; pass "
                "disjoint=True, so that each has nodes of its own, or leave them out"
            )

    def say_negatives(self) -> None:
        """Tell how often negatives are drawn, if that is less often than by PyG's loader."""
        again = "come again as they are" if self.disjoint else "are joined anew, the same nodes"
        if not self.epochs:
            return
        self.cache.say(
            f"negatives are drawn for {self.epochs} epochs; after these they {again}. PyG draws other nodes in each "
            "epoch: prepared_epochs= of all that you train does, too"
        )

    def prepare(self, loader: Any) -> Preparation:
        """Returns the graph and the packed directory of `loader`, made or found."""
        graph = self.graph
        source, uses = None, list[Use]()
        if graph is not None:
            self._require_times_and_weights(graph)
        else:
            source = Source.of(loader.data, self.time_attr, self.weight_attr)
            graph, held = self.cache.graph(source)
            uses.append(held)
        times = self._times(graph) if source is None else source.node_times()
        rules = Rules(
            loader.input_data.input_type is not None,
            {name: nodes.num_nodes for name, nodes in graph.nodes.items()},
            self.subgraph_type, self.disjoint, times, getattr(loader, "neg_sampling", None),
        )  # fmt: skip
        self._check_range(loader.input_data, graph)
        spec = self._spec(graph, loader.input_data)
        seeds = loader._seeds(graph, spec, rules)
        plan = SamplingPlan(graph, spec, seeds)
        seed_times = loader.input_data.time
        if seed_times is not None:  # RelBench's `to_unix_time`, for one, makes no seconds of datetime64[us]
            reached = reached_with_times(graph, plan.target, plan.fanouts.values())
            warn_of_units(graph, reached, [seed_times.numpy()])
        cpu_cache = rows_in_memory(graph, self.cpu_cache)
        batches: PackedBatches | WindowedBatches
        if self.epochs:
            packed, held = self.cache.packed(plan, {"inputs": loader._identity()}, cpu_cache)
            uses.append(held)
            batches = PackedBatches(packed, self.device)
        else:
            batches = self.cache.windows(plan, cpu_cache, self.device)
        if source is not None:
            bare, frames = without_rows(loader.data), source.frames()
            counted = frozenset(name for name, each in source.stored.nodes.items() if "num_nodes" in each.attributes)
        elif frames := dict(tables_of(loader.data)):
            bare = without_frames(loader.data)
            counted = frozenset(name for name, store in loader.data.node_items() if "num_nodes" in store)
        else:
            bare, counted = loader.data, frozenset(graph.nodes)
        return Preparation(batches, plan, seeds, rules, bare, counted, frames, tuple(uses))

    def _check_range(self, inputs: Any, graph: Graph) -> None:
        if self.is_link:
            source, _, destination = inputs.input_type or ONE_EDGE_TYPE
            name, ends = "edge_label_index", [(source, inputs.row), (destination, inputs.col)]
        else:
            name, ends = "input_nodes", [(inputs.input_type or ONE_NODE_TYPE, inputs.node)]
        for node_type, ids in ends:
            num_nodes = graph.nodes[node_type].num_nodes
            if len(ids) and (ids.min() < 0 or ids.max() >= num_nodes):
                raise ConfigError(
                    f"{name}: expected ids of the {num_nodes} nodes of type {node_type!r}, found {ids.min()} to "
                    f"{ids.max()}"
                )

    def _require_times_and_weights(self, graph: Graph) -> None:
        """Refuse names of other times or weights than those that `graph` has: draws would go by these.

        Raises:
            ConfigError: there are some.
        """
        types: list[NodeSet | EdgeSet] = [*graph.nodes.values(), *graph.edges.values()]
        for argument, name, names, is_there in (
            ("time_attr", self.time_attr, (_TIME,), any(each.config.has_times for each in types)),
            ("weight_attr", self.weight_attr, _WEIGHTS, any(each.config.has_weights for each in graph.edges.values())),
        ):
            if name is not None and (name not in names or not is_there):
                has = f"has them as {' or '.join(map(repr, names))}" if is_there else "has none"
                raise ConfigError(
                    f"{argument}: draws go by the {'times' if names[0] == _TIME else 'weights'} that "
                    f"{graph.manifest.path} has, found {name!r}, and it {has}; make the graph of what is meant"
                )

    def _times(self, graph: Graph) -> dict[str, Tensor] | None:
        if self.time_attr is None:
            return None
        return {
            name: torch.from_numpy(nodes.times.copy()) for name, nodes in graph.nodes.items() if nodes.times is not None
        }

    def _spec(self, graph: Graph, inputs: Any) -> SamplingSpec:
        # As in PyG, nobody is told of seeds that stand twice: `SplitArrays` are not warned of.
        if self.is_link:
            pairs = torch.stack([inputs.row, inputs.col], 1)
            seeds = SplitArrays.of("edge_label_index", {"train": pairs}, (2,))
            target: Target = LinkTarget(
                inputs.input_type or ONE_EDGE_TYPE, 0, 0, "none", seeds=seeds, message_edges="all"
            )
        else:
            times = None if inputs.time is None else {"train": inputs.time}
            seeds = SplitArrays.of("input_nodes", {"train": inputs.node})
            target = NodeTarget(inputs.input_type or ONE_NODE_TYPE, seeds, times)
        return SamplingSpec(
            self._fanouts(graph, is_typed=inputs.input_type is not None), self.batch_size, max(1, self.epochs),
            seed=self.seed, splits=("train",), target=target,
            temporal=self.temporal_strategy if self.disjoint else "ignore", temporal_window=self._windows(graph),
            strict_time=False,
            weighted=self.weight_attr is not None, edge_ids=True, expand_once=True, shuffle=self.shuffle,
            without=graph.left_out,
        )  # fmt: skip

    def _windows(self, graph: Graph) -> Windows | None:
        """Returns the windows, if they can be compared with the times of the graph; with starts and without windows,
        one that leaves all to the starts."""
        window = self.time_window
        if window is None and self.starts is not None:
            return f"{MAX_WINDOW}{graph.config.time_unit or ''}"
        if graph.config.time_unit is None:
            given = [*window.values()] if isinstance(window, Mapping) else [window]
            if named := [each for each in given if isinstance(each, str) and not each.isdecimal()]:
                raise ConfigError(
                    f"time_window: found {named[0]!r}, and nobody said what the numbers in {self.time_attr!r} count: "
                    "pass a whole number as they are, such as 30 * 86400 of seconds"
                )
        return window

    def _fanouts(self, graph: Graph, *, is_typed: bool) -> Fanouts:
        if not is_typed:
            return dict.fromkeys(graph.edges, self.num_neighbors.get_values())
        found = self.num_neighbors.get_mapped_values(list(graph.edges))
        if isinstance(found, list):
            return dict.fromkeys(graph.edges, found)
        return {edge_type: found["__".join(edge_type)] for edge_type in graph.edges}
