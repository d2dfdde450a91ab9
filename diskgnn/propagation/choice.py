"""Compares what sampling and propagating would take, from the estimates of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diskgnn.preparing.estimate import Estimate
from diskgnn.propagation.propagate import PropagationEstimate

# Of one core, for an edge, a panel and an operator: `tools/bench --stages generate propagate` with 4 M nodes takes half
# of it on two cores, with panels of 26 columns.
_EDGE_SECONDS = 43e-9


@dataclass(frozen=True)
class Way:
    """A way to train, and what it takes about. The model's own time comes on top."""

    name: str
    once_seconds: float  # to prepare, or to propagate
    epoch_seconds: float  # to load an epoch
    once_bytes: int  # that are there in the end
    epoch_bytes: int  # that an epoch reads


def ways(sampled: Estimate, fanouts: Sequence[int], propagated: PropagationEstimate, threads: int) -> list[Way]:
    """Returns sampling with `fanouts`, then propagating as many hops.

    Args:
        sampled: of `prepare`.
        fanouts: of these minibatches.
        propagated: of `propagate`.
        threads: that propagating computes with.
    """
    operators = ", ".join(propagated.operators)
    given, rate = sampled.settings[0], sampled.disk_bytes_per_second
    moved_seconds = (propagated.read_bytes + propagated.written_bytes) / rate
    return [
        Way(
            f"sample {','.join(map(str, fanouts))}",
            sampled.sample_seconds + sampled.place_seconds + sampled.pack_seconds,
            sampled.epoch_seconds, given.packed_bytes, given.read_bytes,
        ),
        Way(
            f"{propagated.hops} hops of {operators}",
            max(moved_seconds, propagated.summed_edges * _EDGE_SECONDS / threads),
            propagated.epoch_bytes / rate, propagated.output_bytes, propagated.epoch_bytes,
        ),
    ]  # fmt: skip
