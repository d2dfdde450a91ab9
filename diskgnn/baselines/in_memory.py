"""Everything in memory and sampled while training, like PyG's and DGL's loaders: the upper bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from diskgnn._native import gather_rows
from diskgnn.baselines.epoch_source import SourceOptions
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.sampling_source import SamplingSource
from diskgnn.batches.batch_source import LoadStats
from diskgnn.files import faults
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.feature_files import feature_files
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.sampling import DrawingOptions, SamplingSpec
from diskgnn.system.memory import limit_bytes
from diskgnn.units import format_size

if TYPE_CHECKING:
    from typing_extensions import Unpack


class MemoryRows:
    """All feature rows in memory."""

    ordered = False

    def __init__(self, file: FeatureFile) -> None:
        """See `InMemory`."""
        faults.point("baseline.load")
        self._row_bytes, self._buffers = file.row_bytes, RowBuffers(file.rows)
        stored_bytes = file.num_rows * file.file_row_bytes
        self._bytes = file.kept(np.fromfile(file.local_path, np.uint8, stored_bytes, offset=file.data_offset_bytes))

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, LoadStats]:
        """Returns x [U, D] of `nodes`."""
        x, x_bytes = self._buffers.take(len(nodes))
        # On this thread alone; torch's index_select would start a team of threads from each of ours.
        gather_rows(self._bytes, self._row_bytes, nodes, x_bytes, 1)
        return x, LoadStats(cpu_rows=len(nodes))

    def close(self) -> None:
        """Free what no minibatch uses. The features go with the last source that uses them."""
        self._buffers.clear()


def _refuse_what_cannot_fit(graph: Graph) -> None:
    """Refuses it now, as the kernel would first reclaim every other page, for minutes, and then kill the process."""
    needed_bytes = sum(file.num_bytes for file in feature_files(graph).values()) + graph.topology_bytes
    if needed_bytes > (most_bytes := limit_bytes()):
        raise MemoryError(
            f"features and topology take {format_size(needed_bytes)}, but this process may use no more than "
            f"{format_size(most_bytes)}: train from disk (diskgnn prepare, diskgnn train)"
        )


class InMemory(SamplingSource):
    """A `BatchSource` with topology and features in memory that samples while training, in background threads.

    It draws exactly what `diskgnn.sample` prepares from the same seed, fanouts and batch size, whatever `threads`
    is: comparisons with training from disk see the same minibatches.

    Args beside those of `EpochSource` (fanouts, batch_size, seed, threads, sample_epochs):
        share: another InMemory over the same graph, whose arrays to use instead of loading them once more.

    Raises beside what `EpochSource` does:
        ConfigError: `share` of another graph.
        MemoryError: features and topology take more than the machine's memory, or the cgroup's.

    Example:
        >>> train = InMemory("graph", "train", fanouts=[10, 10], batch_size=1024)
        >>> valid = InMemory("graph", "valid", fanouts=[10, 10], batch_size=1024, share=train)
        >>> diskgnn.train(train, valid_source=valid)
    """

    name = "in-memory"
    takes_without = True

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        share: InMemory | None = None,
        **sampling: Unpack[SourceOptions],
    ) -> None:
        graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        if share is None:
            _refuse_what_cannot_fit(graph)
        super().__init__(graph, split, rows=MemoryRows, share=share, **sampling)


def in_memory_sources(
    graph: PathLike | Graph, *, eval_fanouts: Fanouts | None = None, **sampling: Unpack[DrawingOptions]
) -> dict[str, InMemory]:
    """Makes sources of all splits that the graph has, over the same arrays, as `diskgnn.train` takes them.

    Args are those of `diskgnn.prepare`, and so are the minibatches.

    Example:
        >>> diskgnn.train(**in_memory_sources("graph", fanouts=[10, 10], batch_size=1024), epochs=10)
    """
    spec = SamplingSpec.of(**sampling, eval_fanouts=eval_fanouts)
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    sources: dict[str, InMemory] = {}
    for split in SamplingPlan(graph, spec).splits:
        options: DrawingOptions = {**sampling, "fanouts": spec.split_fanouts(split)}
        sources[f"{split}_source"] = InMemory(graph, split, share=sources.get("train_source"), **options)
    return sources
