"""PyG's sampler interface over a graph directory: what to start from is PyG's own code, what is drawn is diskgnn's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.sampler import BaseSampler, NodeSamplerInput
from torch_geometric.sampler.base import SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample

from diskgnn.draws import batch_key
from diskgnn.formats.sampled_minibatch import PairSample
from diskgnn.graph.graph import Graph
from diskgnn.pyg.drawn import Drawn
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.seeds import SeedBatch, Seeds
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import ONE_NODE_TYPE
from diskgnn.specs.targets import LinkTarget

ANY_TIME = np.iinfo(np.int64).max  # later than everything: disjoint draws without times
_RANDOM = threading.Lock()  # torch has one state of the generator that PyG's negative sampling uses

SamplerInput = Any  # NodeSamplerInput | EdgeSamplerInput
Output = Any  # SamplerOutput | HeteroSamplerOutput
Ends = dict[str, Tensor]  # by node type


class StartedNodes(NodeSamplerInput):  # type: ignore[misc]
    """PyG's seed nodes, with since when each of them may draw: it stays with its seed as `time` does. PyG's `input_id`
    is no place among the seeds: of a mask it is the node, and users may give their own."""

    def __init__(self, given: NodeSamplerInput, start: Tensor) -> None:
        super().__init__(given.input_id, given.node, given.time, given.input_type)
        self.start = start.cpu()  # [n]: nothing up to this is drawn where edge types have a window

    def __getitem__(self, index: Any) -> StartedNodes:
        index = torch.as_tensor(index)
        return StartedNodes(super().__getitem__(index), self.start[index])


def _starts_of(inputs: SamplerInput) -> npt.NDArray[np.int64] | None:
    """Returns [B] since when each of these inputs may draw; None if only windows say."""
    return inputs.start.numpy().astype(np.int64) if isinstance(inputs, StartedNodes) else None


@dataclass(frozen=True)
class Rules:
    """Says how minibatches start and what PyG makes of them."""

    is_typed: bool
    num_nodes: Mapping[str, int]
    subgraph_type: SubgraphType
    disjoint: bool  # each seed has nodes of its own
    node_times: Mapping[str, Tensor] | None  # [N] of the node types that have some; None: times do not matter
    neg_sampling: Any = None  # PyG's NegativeSampling

    def sampled(self, inputs: SamplerInput, draw: Callable[[Ends, Ends | None], Output]) -> Output:
        """Returns what PyG's sampler returns for `inputs`, with `draw` in place of its own draws."""

        def by_type(seed: Tensor | Ends, time: Tensor | Ends | None = None) -> Output:
            if isinstance(seed, dict):
                return draw(seed, time)  # type: ignore[arg-type]
            return draw({ONE_NODE_TYPE: seed}, None if time is None else {ONE_NODE_TYPE: time})  # type: ignore[dict-item]

        if isinstance(inputs, NodeSamplerInput):
            out = node_sample(inputs, by_type)
        else:
            sizes = dict(self.num_nodes) if self.is_typed else self.num_nodes[ONE_NODE_TYPE]
            times: Any = self.node_times
            if times is not None and not self.is_typed:
                times = times.get(ONE_NODE_TYPE)
            out = edge_sample(inputs, by_type, sizes, self.disjoint, times, self.neg_sampling)
        return out.to_bidirectional() if self.subgraph_type == SubgraphType.bidirectional else out

    @property
    def pairs_anew(self) -> bool:
        """Returns True if the negatives of a minibatch that comes again get other partners.

        Where each seed has nodes of its own, they were drawn until the time of their pair: it stays.
        """
        return self.neg_sampling is not None and not self.disjoint

    def paired_anew(self, out: Output, num_positives: int, key: int) -> Output:
        """Joins the ends of the negatives in `out` anew, in place.

        PyG draws both ends of a negative independently of each other, and of the positives. So each new pair of these
        same ends is distributed as one that PyG draws.
        """
        random = torch.Generator().manual_seed(key)
        found = list(out.metadata)  # PyG: the ends of binary negatives are columns of [1], [3] are those of triplets
        if self.neg_sampling.is_binary():
            sources, destinations = found[1]
            drawn = destinations[num_positives:]
            drawn = drawn[torch.randperm(len(drawn), generator=random)]
            found[1] = torch.stack([sources, torch.cat([destinations[:num_positives], drawn])])
        else:
            found[3] = found[3].flatten()[torch.randperm(found[3].numel(), generator=random)].view_as(found[3])
        out.metadata = tuple(found)
        return out

    def times_of(self, seeds: Ends, given: Ends | None) -> dict[str, npt.NDArray[np.int64]] | None:
        """Returns [B] until when each seed may draw; None if times do not matter."""
        if not self.disjoint:
            return None
        found = {}
        for name, ids in seeds.items():
            own = None if self.node_times is None else self.node_times.get(name)
            if given is not None:
                found[name] = given[name].numpy().astype(np.int64)
            elif own is not None:
                found[name] = own[ids].numpy().astype(np.int64)
            else:
                found[name] = np.full(len(ids), ANY_TIME)
        return found


class _Captured(Exception):  # noqa: N818  (not an error: it ends PyG's function once seeds are known)
    pass


class InputSeeds(Seeds):
    """Seeds of what a PyG loader was given: PyG's own code says what a minibatch starts from.

    As with PyG, no edge is avoided, and the data's edges are what is drawn.
    """

    def __init__(self, graph: Graph, spec: SamplingSpec, rules: Rules, input_data: SamplerInput, count: int) -> None:
        self._graph, self._rules, self._inputs, self._count = graph, rules, input_data, count
        self.target, self.splits, self._seed = spec.target, ("train",), spec.seed

    def count(self, split: str) -> int:
        """Returns how many seed nodes or seed edges there are."""
        return self._count

    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """Returns [n] these nodes, or [n, 2] these pairs."""
        found = self._inputs
        ids: npt.NDArray[np.int64] = (
            found.node if isinstance(found, NodeSamplerInput) else torch.stack([found.row, found.col], 1)
        ).numpy()
        return ids

    def inputs(self, positions: npt.NDArray[np.int64]) -> SamplerInput:
        """Returns those at `positions`, as PyG's samplers take them."""
        return self._inputs[torch.from_numpy(np.ascontiguousarray(positions))]

    @contextmanager
    def randomness(self, epoch: int, positions: npt.NDArray[np.int64]) -> Any:
        """Negatives are the same whenever PyG draws those of this minibatch, by torch's global generator: nothing else
        touches that, as threads which prepare minibatches would come between the draws of the loop that trains."""
        if self._rules.neg_sampling is None:
            yield
            return
        with _RANDOM, torch.random.fork_rng(devices=[]):
            torch.manual_seed(batch_key(self._seed, f"pyg/{positions[0]}", epoch) >> 1)
            yield

    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """See `sampling.seeds.Seeds`."""
        inputs = self.inputs(positions)
        found: list[tuple[Ends, Ends | None]] = []

        def capture(seeds: Ends, times: Ends | None) -> Output:
            found.append((seeds, times))
            raise _Captured

        try:
            with self.randomness(epoch, positions):
                self._rules.sampled(inputs, capture)
        except _Captured:
            pass
        ((seeds, given),) = found
        return seed_batch(
            self._graph, self._rules, seeds, given, _starts_of(inputs), is_link=isinstance(self.target, LinkTarget)
        )  # fmt: skip


def seed_batch(
    graph: Graph,
    rules: Rules,
    seeds: Ends,
    given: Ends | None,
    starts: npt.NDArray[np.int64] | None = None,
    *,
    is_link: bool,
) -> SeedBatch:
    """Returns seeds by type as diskgnn's samplers take them; `starts` are of seeds of one type. Pairs are PyG's to
    know: there are none."""
    times = rules.times_of(seeds, given)
    names = [name for name in graph.nodes if name in seeds]
    counts = tuple(len(seeds[name]) if name in seeds else 0 for name in graph.nodes)
    no_pairs = PairSample(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))
    return SeedBatch(
        np.concatenate([seeds[name].numpy().astype(np.int64) for name in names]), counts,
        None if times is None else np.concatenate([times[name] for name in names]),
        pairs=no_pairs if is_link else None, starts=starts,
    )  # fmt: skip


class DiskSampler(BaseSampler):  # type: ignore[misc]
    """Draws minibatches when they are asked for one by one, `loader(index)`; those of epochs are drawn in advance."""

    def __init__(self, seed: int) -> None:
        self._seed, self._drawn = seed, 0
        self._plan: SamplingPlan | None = None

    def use(self, plan: SamplingPlan, rules: Rules, framed: Collection[str]) -> None:
        """Draw as `plan` says, with frames of the node types `framed`."""
        self._plan, self._rules, self._sampler, self._framed = plan, rules, plan.parts.mapped(), framed

    def sample(self, inputs: SamplerInput) -> Output:
        """Returns a neighbourhood drawn now, other ones at each call."""
        return self._rules.sampled(inputs, partial(self._draw, starts=_starts_of(inputs)))

    def sample_from_nodes(self, index: SamplerInput, **_: Any) -> Output:
        """See `BaseSampler`."""
        return self.sample(index)

    def sample_from_edges(self, index: SamplerInput, **_: Any) -> Output:
        """See `BaseSampler`."""
        return self.sample(index)

    @property
    def edge_permutation(self) -> None:
        """Edges carry the numbers that they have in the data."""
        return

    def _draw(self, seeds: Ends, given: Ends | None, starts: npt.NDArray[np.int64] | None) -> Output:
        assert self._plan is not None
        plan = self._plan
        is_link = isinstance(plan.spec.target, LinkTarget)
        batch = seed_batch(plan.graph, self._rules, seeds, given, starts, is_link=is_link)
        self._drawn += 1
        planned = plan.minibatch_of(
            batch, "train", batch_key(self._seed, "pyg/asked", self._drawn), 0, "inputs asked for"
        )
        drawn = Drawn.of_sample(plan.graph, planned.draw(self._sampler), self._framed)
        return drawn.output(is_typed=self._rules.is_typed)
