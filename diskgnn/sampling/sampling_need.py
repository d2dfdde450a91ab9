"""Computes what memory sampling takes. It is known before anything is drawn."""

from __future__ import annotations

from diskgnn._native import TopologySweep
from diskgnn.files import faults
from diskgnn.sampling.fanout_sizes import most_minibatch_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sweeping import MIN_READER_BYTES
from diskgnn.system.resources import Need, Resources

# A minibatch on its way: what is drawn, the table that relabels it, the result, and its message while it is written.
_COPIES = 4
_SEED_BYTES = 32  # while the seeds of an epoch are shuffled


def loads_topology(plan: SamplingPlan, resources: Resources) -> bool:
    """Returns True if the topology is loaded for sampling; otherwise it is swept."""
    needed_bytes = faults.reading("memory.overhead", _seeds_bytes(plan) + _COPIES * most_minibatch_bytes(plan))
    return plan.sampler_bytes + needed_bytes <= resources.memory_bytes


def sampling_needs(plan: SamplingPlan) -> tuple[Need, Need]:
    """Returns what sampling takes if the topology is loaded, and if it is swept; `Resources` decide which it is."""
    seeds_bytes, drawing_bytes = _seeds_bytes(plan), _COPIES * most_minibatch_bytes(plan)
    load = Need("to sample", least_bytes=seeds_bytes + plan.sampler_bytes, unit_bytes=drawing_bytes)
    sweep = Need(
        "to sample",
        shared_bytes=seeds_bytes,
        least_bytes=plan.parts.node_bytes + drawing_bytes * 8 // 7,  # an eighth is for reading, whatever is drawn
        unit_bytes=TopologySweep.READERS_PER_THREAD * MIN_READER_BYTES,
    )
    return load, sweep


def sampling_need(plan: SamplingPlan, resources: Resources) -> Need:
    """Returns what sampling takes in the way that suits `resources`; in the cheaper one if they suffice for neither."""
    load, sweep = sampling_needs(plan)
    first, second = (load, sweep) if loads_topology(plan, resources) else (sweep, load)
    # A topology may be smaller than the buffers of a sweep, or have room with fewer threads.
    suiting = [need for need in (first, second) if resources.has_room(need)]
    return suiting[0] if suiting else min(first, second, key=resources.least_budget)


def _seeds_bytes(plan: SamplingPlan) -> int:
    # With what their negatives are not, and which edges are held out.
    num_seeds = max(plan.batch_seeds(split) * size.batches_per_epoch for split, size in plan.sizes.items())
    return _SEED_BYTES * num_seeds + plan.negatives_bytes + plan.held_out_bytes
