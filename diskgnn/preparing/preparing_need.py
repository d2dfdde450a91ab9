"""Computes what memory preparing takes, so that too little is refused before anything is sampled."""

from __future__ import annotations

from diskgnn.formats.samples import Samples
from diskgnn.packing.packing_need import minibatch_bytes_of, packing_need
from diskgnn.sampling.fanout_sizes import most_minibatch_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sampling_need import sampling_need, sampling_needs
from diskgnn.system.resources import Need, Resources


def require_memory(plan: SamplingPlan, resources: Resources, *others: Need, samples: Samples | None = None) -> None:
    """Refuses a budget that sampling, packing, or one of the `others` would refuse.

    Args:
        plan: what is sampled and packed.
        resources: the budget.
        others: what else it is for.
        samples: those of the plan, if they are there: then nothing is sampled.

    Raises:
        ConfigError: names the smallest that works.
    """
    minibatch_bytes = most_minibatch_bytes(plan) if samples is None else minibatch_bytes_of(samples)
    sampling = [] if samples is not None else [sampling_need(plan, resources)]
    resources.require_each(*sampling, _packing_need(plan, minibatch_bytes), *others)


def least_memory_bytes(plan: SamplingPlan, resources: Resources) -> int:
    """Returns the smallest budget that `require_memory` accepts for `plan`, of a process as `resources` has it."""
    sampling = min(map(resources.least_budget, sampling_needs(plan)))
    return max(sampling, resources.least_budget(_packing_need(plan, most_minibatch_bytes(plan))))


def _packing_need(plan: SamplingPlan, minibatch_bytes: int) -> Need:
    config = plan.config()
    return packing_need(plan.graph, config, config.spec.target, minibatch_bytes)
