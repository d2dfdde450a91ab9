"""Everything in memory and sampled while training, like PyG's and DGL's loaders: the upper bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
from torch import Tensor

from diskgnn._native import gather_rows
from diskgnn.baselines.epoch_source import RowCounts
from diskgnn.baselines.online import OnlineSource
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.graph.graph import Graph
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.system.memory import cgroup_limit_bytes
from diskgnn.units import format_size


class MemoryRows:
    """All feature rows in memory."""

    ordered = False

    def __init__(self, graph: Graph) -> None:
        _refuse_what_cannot_fit(graph)
        self._row_bytes, self._buffers = graph.feature_file.row_bytes, RowBuffers(graph)
        self.features = graph.manifest.array(artifacts.FEATURES, mmap=False)  # [N, D]
        self._bytes = self.features.view(np.uint8).reshape(-1)

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, RowCounts]:
        """x [U, D] of `nodes`."""
        x, x_bytes = self._buffers.take(len(nodes))
        # On this thread alone; torch's index_select would start a team of threads from each of ours.
        gather_rows(self._bytes, self._row_bytes, nodes, x_bytes, 1)
        return x, RowCounts(cpu_rows=len(nodes))

    def close(self) -> None:
        """Free what no minibatch uses. The features go with the last source that uses them."""
        self._buffers.clear()


def _refuse_what_cannot_fit(graph: Graph) -> None:
    """Rather than have the kernel reclaim every other page first, for minutes, and then kill the process."""
    needed_bytes = graph.feature_file.num_bytes + graph.topology_bytes
    limit_bytes = min(cgroup_limit_bytes() or math.inf, psutil.virtual_memory().total)
    if needed_bytes > limit_bytes:
        raise MemoryError(
            f"features and topology take {format_size(needed_bytes)}, but this process may use no more than "
            f"{format_size(limit_bytes)}: train from disk (diskgnn prepare, diskgnn train)"
        )


class InMemory(OnlineSource):
    """A `BatchSource` with topology and features in memory that samples online, in background threads.

    It draws exactly what `diskgnn.sample` prepares from the same seed, fanouts and batch size, whatever `threads`
    is: comparisons with training from disk see the same minibatches. One epoch can be iterated at a time: asking
    for another ends the one before.

    Args:
        graph: graph directory, or an opened one.
        split: whose nodes are the seeds; 'train' is shuffled every epoch, others come in the given order.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        seed: same seed, same minibatches.
        threads: background threads; by default half of the cores, the other half being the model's.
        sample_epochs: how many epochs of 'train' are sampled before they repeat, as prepared ones do; None samples
            every epoch afresh. Other splits are sampled once, so that evaluations can be compared.
        share: another InMemory over the same graph, whose arrays to use instead of loading them once more.

    Raises:
        ConfigError: an argument that makes no sense, or `share` of another graph.
        InputError: the graph has no nodes in `split`.
        ArtifactError: see `artifacts.open_artifact`.
        MemoryError: features and topology take more than the machine's memory, or the cgroup's.

    Example:
        >>> train = InMemory("graph", "train", fanouts=[10, 10], batch_size=1024)
        >>> valid = InMemory("graph", "valid", fanouts=[10, 10], batch_size=1024, share=train)
        >>> diskgnn.train(train, valid_source=valid)
    """

    name = "in-memory"

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        fanouts: Sequence[int],
        batch_size: int,
        seed: int = 0,
        threads: int | None = None,
        sample_epochs: int | None = None,
        share: InMemory | None = None,
    ) -> None:
        super().__init__(graph, split, rows=MemoryRows, share=share, fanouts=fanouts, batch_size=batch_size, seed=seed,
                         threads=threads, sample_epochs=sample_epochs)  # fmt: skip


def in_memory_sources(
    graph: PathLike | Graph,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    eval_fanouts: Sequence[int] | None = None,
    seed: int = 0,
) -> dict[str, InMemory]:
    """Sources of all splits that the graph has, over the same arrays, as `diskgnn.train` takes them.

    Args are those of `diskgnn.prepare`, and so are the minibatches.

    Example:
        >>> diskgnn.train(**in_memory_sources("graph", fanouts=[10, 10], batch_size=1024), epochs=10)
    """
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    sources: dict[str, InMemory] = {}
    for split in artifacts.SPLITS:
        if len(graph.splits.get(split, ())):
            sources[f"{split}_source"] = InMemory(
                graph,
                split,
                fanouts=fanouts if split == "train" or eval_fanouts is None else eval_fanouts,
                batch_size=batch_size,
                seed=seed,
                share=sources.get("train_source"),
            )
    return sources
