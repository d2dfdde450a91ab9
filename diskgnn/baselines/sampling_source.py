"""Sampling while training: the pipeline that all baselines with our sampler share, whatever serves their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn._native import NeighborSampler
from diskgnn.baselines.epoch_source import EpochSource, SourceOptions
from diskgnn.baselines.feature_rows import FeatureRows, TypedRows, sampled_pairs, typed_minibatch
from diskgnn.batches.batch_source import LoadStats
from diskgnn.batches.blocks import Block
from diskgnn.batches.minibatch import AnyMiniBatch, MiniBatch
from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.formats.row_format import FeatureFile
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.graph.graph import Graph
from diskgnn.ordered import in_order, submitted
from diskgnn.paths import PathLike
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.planned_minibatch import PlannedMinibatch, Sampler
from diskgnn.sampling.sample_units import damage_named
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class SampledBlocks:
    """One minibatch without its features."""

    seeds: npt.NDArray[np.int64]  # [B]
    nodes: npt.NDArray[Any]  # [U] int32 or int64, the seeds first
    blocks: tuple[Block, ...]  # outermost first

    def minibatch(self, x: Tensor, y: Tensor, epoch: int, number: int) -> MiniBatch:
        """Returns the minibatch, now that its features are there."""
        return MiniBatch(
            x=x,
            y=y,
            blocks=self.blocks,
            seeds=torch.from_numpy(self.seeds),
            epoch=epoch,
            batch_index=number,
            input_nodes=torch.from_numpy(self.nodes.astype(np.int64, copy=False)),
        )


class SamplingSourceOptions(SourceOptions, total=False):
    """Keyword arguments of `SamplingSource` but `rows`, as the sources that derive from it take them."""

    topology: str
    prefetch: int | None
    share: SamplingSource | None


class SamplingSource(EpochSource):
    """A `BatchSource` that samples in background threads and gets its rows from `FeatureRows`.

    It draws exactly what `diskgnn.sample` prepares from the same seed, fanouts and batch size, whatever `threads` is:
    comparisons with training from disk see the same minibatches. Sampling runs ahead of gathering, and gathering
    ahead of the user. Rows whose cost depends on their order are gathered by one thread, minibatch after minibatch, so
    that hits and misses are the same in every run.

    Args beside those of `EpochSource`:
        rows: opens what serves a feature file; it is closed with the source.
        topology: 'memory' loads indptr and indices, 'mmap' maps them (`Graph.topology_at_random`).
        prefetch: minibatches gathered ahead of the user, each holding its x; by default 1 if they are gathered in
            order, otherwise one per thread.
        share: another source of this class over the same graph, whose topology and rows to use, with what they hold
            in memory; it is the one to close last.

    Raises beside what `EpochSource` does:
        ConfigError: `share` of another graph or class.
    """

    takes_samplers = True

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        rows: Callable[[FeatureFile], FeatureRows],
        topology: str = "memory",
        prefetch: int | None = None,
        share: SamplingSource | None = None,
        **sampling: Unpack[SourceOptions],
    ) -> None:
        super().__init__(graph, split, **sampling)
        if prefetch is not None:
            whole_number("prefetch", prefetch)
        self._check_shared(share)
        self._owns_rows = share is None
        if share is None or self.spec.sampler is not None:
            self._sampler: Sampler = load_sampler(self._plan, topology)
        else:
            self._sampler = share._sampler
        opening = (lambda file: rows(file.whole)) if self.reads_whole_rows else rows
        self._rows: TypedRows = TypedRows(self._graph, opening) if share is None else share._rows
        self._prefetch = prefetch or (1 if self._rows.ordered else self._threads)

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[AnyMiniBatch, LoadStats], None, None]:
        samples = (partial(self._sample, minibatch) for minibatch in self._planned(epoch)[start:])
        if not self._rows.ordered:
            with self._pools(sample=self._threads) as (pool,):
                calls = (partial(self._make, sample, epoch, number) for number, sample in enumerate(samples, start))
                yield from in_order(pool, calls, self._prefetch)
            return
        with self._pools(sample=self._threads, gather=1) as (sampler, gatherer):
            sampled = enumerate(submitted(sampler, samples, ahead=self._threads), start)
            calls = (partial(self._make, future.result, epoch, number) for number, future in sampled)
            yield from in_order(gatherer, calls, self._prefetch)

    def _sample(self, minibatch: PlannedMinibatch) -> SampledMinibatch:
        faults.point("baseline.sample")
        with self._traced("sample", minibatch.number), damage_named(self._graph):
            return minibatch.draw(self._sampler)

    def _make(self, sample: Callable[[], SampledMinibatch], epoch: int, number: int) -> tuple[AnyMiniBatch, LoadStats]:
        sampled = sample()
        faults.point("baseline.gather")
        with self._traced("gather", number):
            rows = self._rows.gather(sampled)
        pairs = sampled_pairs(sampled)
        y = self._labels(sampled.seeds, sampled.places) if pairs is None else pairs.y(self.schema.target_kind)
        batch = typed_minibatch(
            sampled, self._graph, rows, y, self.schema.target, (epoch, number), self._plan.layout.times
        )
        return (batch if self._graph.is_typed else batch.of_one_type()), rows.cost

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free what the source holds. Idempotent."""
        super().close()
        if self._owns_rows:
            self._rows.close()


def draw(sampler: NeighborSampler, minibatch: PlannedMinibatch) -> SampledBlocks:
    """Returns the neighbourhood of `minibatch`."""
    sampled = minibatch.draw(sampler)
    nodes = sampled.only_nodes
    return SampledBlocks(minibatch.seeds.copy(), nodes, as_blocks(len(nodes), sampled.only_blocks))


def as_blocks(
    num_inputs: int, arrays: Sequence[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]]
) -> tuple[Block, ...]:
    """Returns blocks, outermost first, of (indptr, indices) each; the outermost has `num_inputs` sources."""
    num_src, blocks = num_inputs, []
    for indptr, indices in arrays:
        blocks.append(Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src))
        num_src = len(indptr) - 1
    return tuple(blocks)


def load_sampler(plan: SamplingPlan, topology: str) -> Sampler:
    """Returns what draws the minibatches of `plan`, with the topology loaded into memory or mapped.

    Raises:
        ConfigError: `topology` is neither 'memory' nor 'mmap'.
    """
    if topology == "mmap" and plan.spec.sampler is None:
        return plan.parts.mapped()
    if topology not in ("memory", "mmap"):
        raise ConfigError(f"topology: expected 'memory' or 'mmap', found {topology!r}")
    return plan.load_sampler()
