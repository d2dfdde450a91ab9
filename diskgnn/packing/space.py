"""What packing will take: for estimates from forecasts of rows, and from a few minibatches to refuse a small disk."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.packing.probes import Probe
from diskgnn.packing.row_forecast import RowForecast
from diskgnn.packing.tiers import TierRows
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.storage.samples import Samples

# A few minibatches stand for all: what they say is trusted to this part when a disk is refused.
_CERTAIN_PART = 0.9
_INDEX_BYTES = 128  # of an extent in the indices
UNBOUNDED = 1 << 62  # bytes: no disk has them
_TREE_NODE_BYTES = 12  # of a node of a tree: which tree it is of, and where in the minibatch its row is
_POSITION_BYTES = 8  # of an edge, at most: its position in samples, its id in headers


def least_disk_share(share: float) -> float:
    """What Belady's schedule still reads where a cache of the hottest rows reads `share` of the accesses.

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
    """What `prepare` surely puts on the disk: one without room for that is refused."""

    packed: int
    samples: int


def certain_bytes(probes: Mapping[str, Probe], tiers: TierRows, row_bytes: int, keep_input_nodes: bool) -> CertainBytes:
    """The least that packed directory and samples take, from one probe of each split."""
    first = next(iter(probes.values()), None)
    packed: float = 0 if first is None else min(tiers.static, first.distinct_rows()) * row_bytes
    samples = 0.0
    for split, probe in probes.items():
        kept_rows = min(tiers.cpu(split), probe.num_nodes - tiers.static)
        header_bytes = probe.structure_bytes + probe.rows * (4 + keep_input_nodes * probe.node_bytes)
        packed += min(kept_rows, max(0, probe.distinct_rows() - tiers.static)) * row_bytes
        # Within a period of coordinated draws, minibatches may need the same rows: one of them reads them.
        least_share = least_disk_share(probe.disk_share(tiers.static + kept_rows)) / probe.draw_period
        packed += _CERTAIN_PART * probe.num_batches * (header_bytes + least_share * probe.rows * row_bytes)
        samples += probe.num_batches * (probe.structure_bytes + probe.rows * probe.node_bytes)
    return CertainBytes(int(packed), int(_CERTAIN_PART * samples))


def extents_bytes(rows: Sequence[RowForecast], row_bytes: Sequence[int], num_batches: int, header_bytes: float) -> int:
    """Bytes of a sequence's extents, which training reads in a cycle.

    Args:
        rows: [K] of each row set.
        row_bytes: [K] of a row.
        num_batches: of the sequence.
        header_bytes: of all headers together but addresses and admissions, see `MinibatchLayout.num_bytes`.
    """
    places = sum(4 * each.requested + 8 * each.admitted for each in rows)
    from_disk = sum(each.disk * width for each, width in zip(rows, row_bytes, strict=True))
    return int(header_bytes + places + from_disk + num_batches * DIRECT_ALIGNMENT / 2)


def packed_bytes(rows: Sequence[RowForecast], row_bytes: Sequence[int], num_batches: int, sequence_bytes: int) -> int:
    """Bytes of a sequence's files: extents, their index, the rows that slots start with, where these go in the end."""
    return (
        sequence_bytes
        + num_batches * _INDEX_BYTES
        + sum(each.cpu * (width + 4) for each, width in zip(rows, row_bytes, strict=True))
    )


def scratch_bytes(rows: Sequence[RowForecast], id_bytes: Sequence[int], samples_bytes: float) -> int:
    """Bytes of a sequence's samples, and of what is written while its rows are placed; `id_bytes` [K] of a row's."""
    return int(
        samples_bytes + sum(each.requested * (2 * width + 4) for each, width in zip(rows, id_bytes, strict=True))
    )


def most_disk_bytes(plan: SamplingPlan, tiers: TierRows, keep_input_nodes: bool) -> int:
    """No less than the packed directory and the samples take, from the fanouts: as if no two edges had one source.

    Where each seed has a tree of its own, nodes and edges are in as many of these as draw them, so the size of the
    graph is no bound, and where all neighbours are drawn nothing is: `UNBOUNDED`.
    """
    graph, trees = plan.graph, plan.layout.trees
    row_bytes, node_bytes = graph.feature_file.row_bytes, graph.id_dtype.itemsize
    total = tiers.static * row_bytes
    for split, size in plan.sizes.items():
        rows = num_seeds = plan.most_seeds(split)
        structure_bytes = 16 * num_seeds
        for (fanout,) in plan.spec.fanouts_by_type(split, tuple(graph.edges)):
            if trees and fanout < 0:
                return UNBOUNDED
            edges = graph.num_edges if fanout < 0 else rows * fanout
            edges = edges if trees else min(edges, graph.num_edges)
            structure_bytes += 4 * (edges + rows + 1) + plan.spec.edge_ids * _POSITION_BYTES * edges
            rows = rows + edges if trees else min(rows + edges, graph.num_nodes)
        structure_bytes += trees * _TREE_NODE_BYTES * rows
        samples_bytes = structure_bytes + rows * node_bytes + DIRECT_ALIGNMENT
        extent_bytes = structure_bytes + rows * (_header_row_bytes(node_bytes, keep_input_nodes) + row_bytes)
        total += tiers.cpu(split) * row_bytes + size.num_batches * (samples_bytes + extent_bytes + 2 * DIRECT_ALIGNMENT)
    return total


def most_packed_bytes(samples: Samples, tiers: TierRows, node_bytes: int, row_bytes: int) -> int:
    """No less than the packed directory takes, from the size of the samples: as if all of it were input nodes."""
    samples_bytes, sizes = samples.manifest.total_bytes, samples.config.splits
    num_batches = sum(size.num_batches for size in sizes.values())
    rows = min(samples_bytes // node_bytes, num_batches * sum(samples.config.num_nodes.values()))
    extents_bytes = 2 * samples_bytes + rows * (_header_row_bytes(node_bytes, True) + row_bytes)
    kept_rows = tiers.static + sum(tiers.cpu(split) for split in sizes)
    return extents_bytes + num_batches * 3 * DIRECT_ALIGNMENT + kept_rows * row_bytes


def _header_row_bytes(node_bytes: int, keep_input_nodes: bool) -> int:
    """Of an extent's header, at most, per input row: its address, its admission, its node."""
    return 4 + 8 + keep_input_nodes * node_bytes
