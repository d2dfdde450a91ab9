"""Probes: a few minibatches that stand for all, enough to refuse a disk that is certainly too small."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.formats.samples import Samples
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample_a_few
from diskgnn.sampling.sample_units import damage_named
from diskgnn.system.resources import Resources

PROBE_MINIBATCHES = 8
SEED_BYTES = 16  # its number and its label


@dataclass(frozen=True)
class Probe:
    """A few minibatches of one split."""

    minibatches: tuple[npt.NDArray[Any], ...]  # input nodes of each
    num_batches: int  # of the whole sequence
    num_nodes: int  # N of the graph
    draw_period: int  # see `SamplingSpec`
    structure_bytes: float  # of seeds, labels and blocks, mean per minibatch

    @property
    def rows(self) -> float:
        """Returns the input nodes of a minibatch, on average."""
        return sum(map(len, self.minibatches)) / len(self.minibatches)

    @property
    def node_bytes(self) -> int:
        """Returns the bytes of one node id."""
        return self.minibatches[0].itemsize

    def distinct_rows(self) -> int:
        """Returns how many different nodes these minibatches need. The whole sequence needs at least as many."""
        nodes = np.sort(np.concatenate(self.minibatches))  # np.unique hashes, which takes ten times as long here
        return 1 + int(np.count_nonzero(np.diff(nodes)))

    def disk_share(self, kept_rows: int) -> float:
        """Returns the share of accesses that a cache of the `kept_rows` hottest rows does not serve.

        Half of the minibatches say which rows are hot, the other half is measured. If the cache holds more than the
        rows seen, the excess is spread evenly over the rows not seen. Their number is Chao's estimate (Scand. J.
        Statist. 1984) from the rows seen once and twice.
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
    """Counts the `nodes` that are in `ascending`. np.isin hashes, which takes eighty times as long here."""
    if len(ascending) == 0:
        return 0
    nodes = np.sort(nodes)  # neighbours in `nodes` are then searched in the same pages
    places = np.minimum(np.searchsorted(ascending, nodes), len(ascending) - 1)
    return int(np.count_nonzero(ascending[places] == nodes))


def probe_by_sampling(plan: SamplingPlan, resources: Resources) -> dict[str, Probe]:
    """Samples some minibatches of the first prepared epoch of each split, evenly spread.

    Topology is loaded or swept, as it is for `sample`: reading at random from a cold disk takes far longer.

    Raises:
        ArtifactError: the graph is damaged.
    """
    planned = []
    splits = [split for split in plan.splits if plan.sizes[split].num_batches]  # a rank may have none of a small one
    for split in splits:
        minibatches = plan.minibatches(split, plan.prepared_epochs(split)[0])
        spread = np.unique(np.linspace(0, len(minibatches) - 1, PROBE_MINIBATCHES).astype(int))
        planned += [(split, minibatches[number]) for number in spread]
    nodes: dict[str, list[npt.NDArray[Any]]] = {split: [] for split in splits}
    structure_bytes = dict.fromkeys(splits, 0)
    with (
        damage_named(plan.graph),
        resources.reporter.stage("sample a few", len(planned), "minibatches") as advance,
    ):
        sampled = sample_a_few(plan, [minibatch for _, minibatch in planned], resources)
        for (split, _), minibatch in zip(planned, sampled, strict=True):
            nodes[split].append(minibatch.only_nodes)
            structure_bytes[split] += structure_bytes_of(minibatch)
            advance(1)
    config = plan.config()
    return {split: _probe(nodes[split], structure_bytes[split], config, split) for split in splits}


def probe_samples(samples: Samples, split: str) -> Probe:
    """Reads the first minibatches of `split` in a samples directory.

    Raises:
        ArtifactError: a shard is damaged.
    """
    nodes, structure_bytes = [], 0
    for minibatch in islice(samples.read(split), PROBE_MINIBATCHES):
        nodes.append(np.array(minibatch.only_nodes))
        structure_bytes += structure_bytes_of(minibatch)
    return _probe(nodes, structure_bytes, samples.config, split)


def structure_bytes_of(minibatch: SampledMinibatch) -> int:
    """Returns the bytes of a minibatch's seeds, labels and blocks."""
    offsets = sum(len(block.indptr) for layer in minibatch.blocks for block in layer)
    return SEED_BYTES * len(minibatch.seeds) + 4 * (minibatch.num_edges + offsets)


def _probe(nodes: list[npt.NDArray[Any]], structure_bytes: int, config: SamplesConfig, split: str) -> Probe:
    num_batches = config.splits[split].num_batches
    (num_nodes,) = config.num_nodes.values()
    return Probe(tuple(nodes), num_batches, num_nodes, config.spec.draw_period, structure_bytes / len(nodes))
