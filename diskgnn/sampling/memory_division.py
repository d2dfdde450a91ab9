"""What sampling needs of memory, whatever the graph's topology takes: known before anything is drawn."""

from __future__ import annotations

from diskgnn._native import TopologySweep
from diskgnn.files import faults
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sweeping import MIN_READER_BYTES
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources, SmallBudgetError

# A minibatch on its way: what is drawn, the table that relabels it, the result, and its message while it is written.
_COPIES = 4
_SEED_BYTES = 32  # while the seeds of an epoch are shuffled
_DEGREES = 4  # of how many times the mean a node is taken to be, where all of its neighbours are drawn


def fits(plan: SamplingPlan, memory_bytes: int) -> bool:
    """Whether the topology is loaded for sampling; otherwise it is swept."""
    needed_bytes = faults.reading("memory.overhead", _seeds_bytes(plan) + _COPIES * most_minibatch_bytes(plan))
    return plan.sampler_bytes + needed_bytes <= memory_bytes


def for_sampling(plan: SamplingPlan, resources: Resources) -> Resources:
    """What sampling may spend, with as many threads as have room.

    Raises:
        ConfigError: one minibatch alone does not fit; names the smallest budget that works.
    """
    seeds_bytes, drawing_bytes = _seeds_bytes(plan), _COPIES * most_minibatch_bytes(plan)

    def load() -> Resources:
        least_bytes = seeds_bytes + plan.sampler_bytes
        return resources.within("to sample", least_bytes=least_bytes, thread_bytes=drawing_bytes)

    def sweep() -> Resources:
        thread_bytes = TopologySweep.READERS_PER_THREAD * MIN_READER_BYTES
        # An eighth is for reading, whatever is drawn.
        least_bytes = plan.parts.node_bytes + drawing_bytes * 8 // 7
        return resources.within("to sample", seeds_bytes, least_bytes=least_bytes, thread_bytes=thread_bytes)

    first, second = (load, sweep) if fits(plan, resources.memory_bytes) else (sweep, load)
    try:
        return first()
    except SmallBudgetError as refused:
        try:  # a topology that is smaller than the buffers of a sweep, or that has room with fewer threads
            return second()
        except SmallBudgetError as other:
            raise min(refused, other, key=lambda error: error.least_bytes) from None


def _seeds_bytes(plan: SamplingPlan) -> int:
    """With what their negatives are not, and which edges are held out."""
    num_seeds = max(plan.batch_seeds(split) * size.batches_per_epoch for split, size in plan.sizes.items())
    return _SEED_BYTES * num_seeds + plan.negatives_bytes + plan.held_out_bytes


def most_minibatch_bytes(plan: SamplingPlan) -> int:
    """Of the arrays of the largest minibatch, by the fanouts: as if no two edges had one source.

    Where all neighbours are drawn, nodes are taken to have four times as many as they have on average.
    """
    return max(_most(plan, split)[0] for split in plan.splits)


def most_minibatch_nodes(plan: SamplingPlan) -> int:
    """Input nodes of the largest minibatch, of all types, as `most_minibatch_bytes` counts them."""
    return max(_most(plan, split)[1] for split in plan.splits)


def _most(plan: SamplingPlan, split: str) -> tuple[int, int]:
    """(bytes, input nodes)."""
    graph, layout, target = plan.graph, plan.config().layout, plan.config().spec.target
    edge_types, num_seeds = tuple(graph.edges), plan.most_seeds(split)
    ends = (target.edge_type[0], target.edge_type[2]) if isinstance(target, LinkTarget) else (str(target.node_type),)
    id_bytes = 8 if plan.parts.is_wide else 4
    rows = dict.fromkeys(graph.nodes, 0) | dict.fromkeys(ends, num_seeds)
    total_bytes = 32 * num_seeds
    for fanouts in plan.spec.fanouts_by_type(split, edge_types):
        found = dict(rows)
        for edge_type, fanout in zip(edge_types, fanouts, strict=True):
            edges, num_destinations = graph.edges[edge_type], rows[edge_type[2]]
            mean = edges.num_edges / max(1, graph.nodes[edge_type[2]].num_nodes)
            drawn = int(num_destinations * (_DEGREES * mean if fanout < 0 else fanout))
            drawn = drawn if layout.trees else min(drawn, edges.num_edges)
            found[edge_type[0]] += drawn
            total_bytes += 4 * (drawn + num_destinations + 1) + 8 * drawn * (edge_type in layout.positions)
        rows = {
            name: count if layout.trees else min(count, graph.nodes[name].num_nodes) for name, count in found.items()
        }
    num_nodes = sum(rows.values())
    return total_bytes + num_nodes * (id_bytes + 4 * layout.trees), num_nodes
