"""What preparing needs of memory, refused before anything is sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from diskgnn.formats.samples import Samples
from diskgnn.packing.memory_division import for_packing, minibatch_bytes_of
from diskgnn.sampling.memory_division import for_sampling, most_minibatch_bytes
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.system.resources import Resources, SmallBudgetError, require_all

_MOST_BYTES = 1 << 62  # more than any machine has


def require_memory(
    plan: SamplingPlan,
    resources: Resources,
    *others: Callable[[], object],
    samples: Samples | None = None,
) -> None:
    """Refuse a budget that sampling, packing, or one of the `others` would refuse.

    Args:
        plan: what is sampled and packed.
        resources: the budget.
        others: what else it is for; each raises a SmallBudgetError if it needs more.
        samples: those of the plan, if they are there: then nothing is sampled.

    Raises:
        ConfigError: names the smallest that works.
    """
    config = plan.config()
    minibatch_bytes = most_minibatch_bytes(plan) if samples is None else minibatch_bytes_of(samples)
    packing = partial(for_packing, plan.graph, config, config.spec.target, minibatch_bytes, resources)
    sampling = [] if samples is not None else [lambda: for_sampling(plan, resources)]
    require_all(*sampling, packing, *others)


def least_memory_bytes(plan: SamplingPlan, resources: Resources) -> int:
    """The smallest budget of memory with which `require_memory` accepts `plan`, of a process as `resources` has it."""
    try:
        require_memory(plan, replace(resources, memory_bytes=-_MOST_BYTES))
    except SmallBudgetError as error:
        return error.least_bytes
    raise AssertionError("accepted a budget of less than nothing")
