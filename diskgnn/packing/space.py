"""Bounds and forecasts of the disk space that packing takes.

Forecasts of rows give an estimate. A few minibatches, or just the sizes of inputs, give bounds by which a disk is
refused or found large enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.formats.minibatch_columns import ADDRESS_BYTES, ADMISSION_BYTES
from diskgnn.formats.samples import Samples
from diskgnn.packing.probes import SEED_BYTES, Probe
from diskgnn.packing.stored_ints import INT_BYTES
from diskgnn.packing.tiers import TierRows
from diskgnn.sampling.fanout_sizes import POSITION_BYTES, UNBOUNDED, most_counts
from diskgnn.sampling.plan import SamplingPlan

# A few minibatches stand for all: what they say is trusted to this part when a disk is refused.
_CERTAIN_PART = 0.9
_INDEX_BYTES = 128  # of an extent in the indices
_TREE_NODE_BYTES = 12  # of a node of a tree: which tree it is of, and where in the minibatch its row is


@dataclass(frozen=True)
class RowForecast:
    """Predicted rows of one sequence, over all its minibatches."""

    requested: int
    disk: int
    disk_error: float  # of `disk`, as a share: about one standard deviation; 0 where all accesses were counted
    cpu: int  # slots that have a use

    @property
    def admitted(self) -> int:
        """Returns the rows from disk that get a slot, if all accesses are equally likely to be followed by one from
        a slot."""
        return (self.requested - self.disk) * self.disk // max(1, self.requested)


def least_disk_share(share: float) -> float:
    """Returns what Belady's schedule still reads if a cache of the hottest rows reads `share` of the accesses.

    MIN keeps a row until its next use if that is near: with independent accesses, uses of a row are exponentially far
    apart, and keeping those nearer than t fills 1 - (1 + t)e^-t of the cache that all rows would take, and leaves e^-t
    to the disk. That is for rows equally hot, where the schedule gains the most.
    """
    low, high = 0.0, 50.0  # of t
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + middle) * math.exp(-middle) > share else (low, middle)
    return math.exp(-low) if low else 1.0


@dataclass(frozen=True)
class CertainBytes:
    """Bytes that `prepare` certainly puts on the disk. A disk without room for them is refused."""

    packed: int
    samples: int


def certain_bytes(probes: Mapping[str, Probe], tiers: TierRows, row_bytes: int, keep_input_nodes: bool) -> CertainBytes:
    """Returns the least that the packed directory and the samples take, from one probe of each split."""
    first = next(iter(probes.values()), None)
    packed: float = 0 if first is None else min(tiers.static, first.distinct_rows()) * row_bytes
    samples = 0.0
    for split, probe in probes.items():
        kept_rows = min(tiers.cpu(split), probe.num_nodes - tiers.static)
        header_bytes = probe.structure_bytes + probe.rows * (ADDRESS_BYTES + keep_input_nodes * probe.node_bytes)
        packed += min(kept_rows, max(0, probe.distinct_rows() - tiers.static)) * row_bytes
        # Within a period of coordinated draws, minibatches may need the same rows: one of them reads them.
        least_share = least_disk_share(probe.disk_share(tiers.static + kept_rows)) / probe.draw_period
        packed += _CERTAIN_PART * probe.num_batches * (header_bytes + least_share * probe.rows * row_bytes)
        samples += probe.num_batches * (probe.structure_bytes + probe.rows * probe.node_bytes)
    return CertainBytes(int(packed), int(_CERTAIN_PART * samples))


def extents_bytes(rows: Sequence[RowForecast], row_bytes: Sequence[int], num_batches: int, header_bytes: float) -> int:
    """Returns the bytes of a sequence's extents, which training reads in a cycle.

    Args:
        rows: [K] forecast of each row set.
        row_bytes: [K] bytes of a row.
        num_batches: minibatches of the sequence.
        header_bytes: bytes of all headers together without addresses and admissions, see `MinibatchLayout.num_bytes`.
    """
    places = sum(ADDRESS_BYTES * each.requested + ADMISSION_BYTES * each.admitted for each in rows)
    from_disk = sum(each.disk * width for each, width in zip(rows, row_bytes, strict=True))
    return int(header_bytes + places + from_disk + num_batches * DIRECT_ALIGNMENT / 2)


def packed_bytes(rows: Sequence[RowForecast], row_bytes: Sequence[int], num_batches: int, sequence_bytes: int) -> int:
    """Returns the bytes of a sequence's files: extents, their index, the rows that slots start with, and the next
    cycle's slots.
    """
    return (
        sequence_bytes
        + num_batches * _INDEX_BYTES
        + sum(each.cpu * (width + 4) for each, width in zip(rows, row_bytes, strict=True))
    )


def scratch_bytes(rows: Sequence[RowForecast], id_bytes: Sequence[int], samples_bytes: float) -> int:
    """Returns the bytes of a sequence's samples and of the scratch files of placing; `id_bytes` [K] are those of a
    row's id.
    """
    return int(
        samples_bytes + sum(each.requested * (2 * width + 4) for each, width in zip(rows, id_bytes, strict=True))
    )


def most_disk_bytes(plan: SamplingPlan, tiers: TierRows, keep_input_nodes: bool) -> int:
    """Returns an upper bound for packed directory and samples, from the fanouts: as if no two edges had the same
    source.

    If each seed has a tree of its own, nodes and edges appear in as many trees as draw them, so the size of the graph
    is no bound. If all neighbours are drawn then, there is no bound at all: returns `UNBOUNDED`.
    """
    graph, trees = plan.graph, plan.layout.trees
    row_bytes, node_bytes = graph.feature_file.row_bytes, graph.id_dtype.itemsize
    total = tiers.static * row_bytes
    for split, size in plan.sizes.items():
        most = most_counts(plan, split, certain=True)
        if most.nodes >= UNBOUNDED:
            return UNBOUNDED
        structure_bytes = SEED_BYTES * most.seeds + most.block_bytes + trees * _TREE_NODE_BYTES * most.nodes
        structure_bytes += plan.spec.edge_ids * POSITION_BYTES * sum(most.edges.values())
        structure_bytes += bool(plan.layout.times) * INT_BYTES * (most.seeds + most.nodes)
        samples_bytes = structure_bytes + most.nodes * node_bytes + DIRECT_ALIGNMENT
        extent_bytes = structure_bytes + most.nodes * (_header_row_bytes(node_bytes, keep_input_nodes) + row_bytes)
        total += tiers.cpu(split) * row_bytes + size.num_batches * (samples_bytes + extent_bytes + 2 * DIRECT_ALIGNMENT)
    return total


def most_packed_bytes(samples: Samples, tiers: TierRows, node_bytes: int, row_bytes: int) -> int:
    """Returns an upper bound for the packed directory: as if the samples consisted of input nodes alone."""
    samples_bytes, sizes = samples.manifest.total_bytes, samples.config.splits
    num_batches = sum(size.num_batches for size in sizes.values())
    rows = min(samples_bytes // node_bytes, num_batches * sum(samples.config.num_nodes.values()))
    times_bytes = INT_BYTES * bool(samples.config.layout.times)
    extents_bytes = 2 * samples_bytes + rows * (_header_row_bytes(node_bytes, True) + times_bytes + row_bytes)
    kept_rows = tiers.static + sum(tiers.cpu(split) for split in sizes)
    return extents_bytes + num_batches * 3 * DIRECT_ALIGNMENT + kept_rows * row_bytes


def _header_row_bytes(node_bytes: int, keep_input_nodes: bool) -> int:
    """Returns the most that an input row takes in an extent's header: its address, its admission and its node."""
    return ADDRESS_BYTES + ADMISSION_BYTES + keep_input_nodes * node_bytes
