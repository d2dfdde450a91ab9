"""What packing will take, predicted from a few minibatches: for estimates, and to refuse a disk that is too small."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key
from diskgnn.graph.graph import Graph
from diskgnn.progress import Reporter
from diskgnn.sampling.plan import PlannedMinibatch
from diskgnn.sampling.sample import damage_named, epoch_seeds, fits, sample_a_few
from diskgnn.storage.row_reading import ALIGNMENT
from diskgnn.storage.samples import Samples

PROBE_MINIBATCHES = 8
# A few minibatches stand for all: what they say is trusted to this part when a disk is refused.
_CERTAIN_PART = 0.9


@dataclass(frozen=True)
class Probe:
    """A few minibatches of one split."""

    minibatches: tuple[npt.NDArray[Any], ...]  # input nodes of each
    num_batches: int  # of the whole sequence
    num_nodes: int  # N of the graph
    edges: float  # mean per minibatch
    structure_bytes: float  # of seeds, labels and blocks, mean per minibatch
    seconds: float  # to sample one, all threads busy; 0 when they were read

    @property
    def rows(self) -> float:
        """Input nodes, mean per minibatch."""
        return sum(map(len, self.minibatches)) / len(self.minibatches)

    @property
    def max_rows(self) -> int:
        """Input nodes of the largest minibatch."""
        return max(map(len, self.minibatches))

    @property
    def node_bytes(self) -> int:
        """Bytes of one node id."""
        return self.minibatches[0].itemsize

    def distinct_rows(self) -> int:
        """Nodes that these minibatches need: at most as many as the sequence does."""
        nodes = np.sort(np.concatenate(self.minibatches))  # np.unique hashes, which takes ten times as long here
        return 1 + int(np.count_nonzero(np.diff(nodes)))

    def disk_share(self, kept_rows: int) -> float:
        """Share of accesses that a cache of the `kept_rows` hottest rows does not serve.

        Half of the minibatches say which rows are hot, the other half measures. What the cache holds beyond the rows
        seen is spread over those not seen, as many as there are by Chao's estimate (Scand. J. Statist. 1984) from the
        rows seen once and twice.
        """
        chosen, measured = self.minibatches[::2], self.minibatches[1::2] or self.minibatches
        nodes, counts = np.unique(np.concatenate(chosen), return_counts=True)
        hot = nodes
        if kept_rows < len(nodes):
            hot = np.sort(nodes[np.lexsort((nodes, -counts))[:kept_rows]])
        once, twice = int(np.count_nonzero(counts == 1)), int(np.count_nonzero(counts == 2))
        there_are = min(
            self.num_nodes, int(self.num_batches * self.rows), len(nodes) + once * (once - 1) // (2 * twice + 2)
        )
        held = min(1.0, (kept_rows - len(hot)) / max(1, there_are - len(nodes)))
        missed = sum(len(batch) - _num_among(batch, hot) for batch in measured) / sum(map(len, measured))
        return missed * (1 - held)


def _num_among(nodes: npt.NDArray[Any], ascending: npt.NDArray[Any]) -> int:
    """How many of `nodes` are in `ascending`: np.isin hashes, which takes eighty times as long here."""
    if len(ascending) == 0:
        return 0
    nodes = np.sort(nodes)  # neighbours in `nodes` are then searched in the same pages
    places = np.minimum(np.searchsorted(ascending, nodes), len(ascending) - 1)
    return int(np.count_nonzero(ascending[places] == nodes))


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
class DiskNeed:
    """Bytes that `prepare` will put on the disk."""

    packed: int  # at most, in general
    samples: int
    placing: int  # scratch while placing, removed before rows are packed
    certain_packed: int  # surely needed: what a disk without it is refused for
    certain_samples: int


def disk_need(
    probes: Mapping[str, Probe], row_bytes: int, num_static: int, cpu_rows: Mapping[str, int], keep_input_nodes: bool
) -> DiskNeed:
    """The bytes of the packed directory and of the samples, from one probe of each split."""
    first = next(iter(probes.values()))
    packed: float = num_static * row_bytes
    certain: float = min(num_static, first.distinct_rows()) * row_bytes
    samples = placing = 0.0
    for split, probe in probes.items():
        kept_rows = min(cpu_rows[split], probe.num_nodes - num_static)
        share = probe.disk_share(num_static + kept_rows)
        rows_bytes = probe.num_batches * probe.rows * row_bytes
        header_bytes = probe.structure_bytes + probe.rows * (4 + keep_input_nodes * probe.node_bytes)
        admissions_bytes = 8 * share * probe.rows if kept_rows else 0
        packed += kept_rows * row_bytes + share * rows_bytes
        packed += probe.num_batches * (header_bytes + admissions_bytes + ALIGNMENT / 2)
        certain += min(kept_rows, max(0, probe.distinct_rows() - num_static)) * row_bytes
        certain += _CERTAIN_PART * (probe.num_batches * header_bytes + least_disk_share(share) * rows_bytes)
        samples += probe.num_batches * (probe.structure_bytes + probe.rows * probe.node_bytes)
        placing += probe.num_batches * probe.rows * (2 * probe.node_bytes + 4)
    return DiskNeed(int(packed), int(samples), int(placing), int(certain), int(_CERTAIN_PART * samples))


def most_disk_bytes(
    graph: Graph, config: dict[str, Any], num_static: int, cpu_rows: Mapping[str, int], keep_input_nodes: bool
) -> int:
    """No less than the packed directory and the samples take, from the fanouts: as if no two edges had one source."""
    row_bytes, node_bytes = graph.feature_file.row_bytes, graph.indices.itemsize
    total = num_static * row_bytes
    for split, plan in config["splits"].items():
        rows = num_seeds = min(config["batch_size"], len(graph.splits[split]))
        structure_bytes = 16 * num_seeds
        for fanout in config["fanouts" if split == "train" else "eval_fanouts"]:
            edges = graph.num_edges if fanout < 0 else min(rows * fanout, graph.num_edges)
            structure_bytes += 4 * (edges + rows + 1)
            rows = min(rows + edges, graph.num_nodes)
        samples_bytes = structure_bytes + rows * node_bytes + ALIGNMENT
        extent_bytes = structure_bytes + rows * (_header_row_bytes(node_bytes, keep_input_nodes) + row_bytes)
        num_batches = plan["epochs"] * plan["batches_per_epoch"]
        total += cpu_rows[split] * row_bytes + num_batches * (samples_bytes + extent_bytes + 2 * ALIGNMENT)
    return total


def most_packed_bytes(
    samples: Samples, node_bytes: int, row_bytes: int, num_static: int, cpu_rows: Mapping[str, int]
) -> int:
    """No less than the packed directory takes, from the size of the samples: as if all of it were input nodes."""
    samples_bytes, num_nodes = samples.manifest.total_bytes, int(samples.manifest.config["num_nodes"])
    num_batches = sum(samples.epochs(split) * samples.batches_per_epoch(split) for split in samples.splits)
    rows = min(samples_bytes // node_bytes, num_batches * num_nodes)
    extents_bytes = 2 * samples_bytes + rows * (_header_row_bytes(node_bytes, True) + row_bytes)
    return extents_bytes + num_batches * 3 * ALIGNMENT + (num_static + sum(cpu_rows.values())) * row_bytes


def _header_row_bytes(node_bytes: int, keep_input_nodes: bool) -> int:
    """Of an extent's header, at most, per input row: its address, its admission, its node."""
    return 4 + 8 + keep_input_nodes * node_bytes


def probe_by_sampling(
    graph: Graph, config: dict[str, Any], memory_bytes: int, threads: int, reporter: Reporter
) -> dict[str, Probe]:
    """Sample some minibatches of the first epoch of each split, evenly spread; `config` is that of the samples.

    Topology is loaded or swept, as it is for `sample`: reading at random from a cold disk takes far longer.

    Raises:
        ArtifactError: the graph is damaged.
    """
    planned: list[tuple[str, PlannedMinibatch]] = []
    for split in config["splits"]:
        seeds = epoch_seeds(
            graph.splits[split], split=split, epoch=0, seed=config["seed"], batch_size=config["batch_size"]
        )
        fanouts = np.array(config["fanouts" if split == "train" else "eval_fanouts"], np.int32)
        key = batch_key(config["seed"], split, 0)
        for number in np.unique(np.linspace(0, len(seeds) - 1, PROBE_MINIBATCHES).astype(int)):
            planned.append((split, PlannedMinibatch(seeds[number], fanouts, key, int(number))))
    nodes: dict[str, list[npt.NDArray[Any]]] = {split: [] for split in config["splits"]}
    structures: dict[str, list[tuple[int, int]]] = {split: [] for split in config["splits"]}
    with damage_named(graph), reporter.stage("sample a few", len(planned), "minibatches") as advance:
        sampled = sample_a_few(graph, [minibatch for _, minibatch in planned], memory_bytes, threads)
        started = time.perf_counter()
        for (split, minibatch), (input_nodes, blocks) in zip(planned, sampled, strict=True):
            nodes[split].append(input_nodes)
            structures[split].append(_structure(len(minibatch.seeds), blocks))
            advance(1)
        seconds = (time.perf_counter() - started) / len(planned)
    if fits(graph, memory_bytes):
        seconds /= threads  # these took turns
    probes = {}
    for split, plan in config["splits"].items():
        num_batches = plan["epochs"] * plan["batches_per_epoch"]
        probes[split] = _probe(nodes[split], structures[split], num_batches, graph.num_nodes, seconds)
    return probes


def probe_samples(samples: Samples, split: str, num_nodes: int) -> Probe:
    """The first minibatches of `split` in a samples directory."""
    nodes, structures = [], []
    for minibatch in islice(samples.read(split), PROBE_MINIBATCHES):
        nodes.append(np.array(minibatch.input_nodes))
        structures.append(_structure(len(minibatch.seeds), minibatch.blocks))
    num_batches = samples.epochs(split) * samples.batches_per_epoch(split)
    return _probe(nodes, structures, num_batches, num_nodes, 0.0)


def _structure(num_seeds: int, blocks: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> tuple[int, int]:
    """(edges, bytes of seeds, labels and blocks) of one minibatch."""
    edges = sum(len(indices) for _, indices in blocks)
    return edges, 16 * num_seeds + 4 * (edges + sum(len(indptr) for indptr, _ in blocks))


def _probe(
    nodes: list[npt.NDArray[Any]], structures: list[tuple[int, int]], num_batches: int, num_nodes: int, seconds: float
) -> Probe:
    edges, structure_bytes = (sum(column) / len(structures) for column in zip(*structures, strict=True))
    return Probe(tuple(nodes), num_batches, num_nodes, edges, structure_bytes, seconds)
