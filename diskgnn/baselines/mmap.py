"""Memory-mapped features, sampled while training: the page cache decides what stays in memory."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from diskgnn._native import gather_rows
from diskgnn.baselines.row_buffers import RowBuffers
from diskgnn.baselines.sampling_source import SamplingSource, SamplingSourceOptions
from diskgnn.batches.batch_source import LoadStats
from diskgnn.errors import ConfigError
from diskgnn.formats.row_format import FeatureFile
from diskgnn.graph.graph import Graph
from diskgnn.paths import PathLike
from diskgnn.system.disk_rates import device_bytes
from diskgnn.units import whole_number

if TYPE_CHECKING:
    from typing_extensions import Unpack

TOUCHING_THREADS = 128  # what the authors' program of PyG+ takes by default; each waits for one page
_ADVICE = {"random": mmap.MADV_RANDOM, "normal": mmap.MADV_NORMAL}


class MappedRows:
    """Feature rows in a memory map, copied out by several threads."""

    ordered = True  # one minibatch after the other: its threads share the disk among themselves

    def __init__(self, file: FeatureFile, reads: ProcessReads, *, advice: str, gather_threads: int) -> None:
        """See `MMap`."""
        if gather_threads is not None:
            whole_number("gather_threads", gather_threads)
        self._row_bytes, self._threads, self._buffers = file.row_bytes, gather_threads, RowBuffers(file.rows)
        self._bytes = map_features(file, advice).view(np.uint8).reshape(-1)
        self._reads = reads

    def gather(self, nodes: npt.NDArray[Any]) -> tuple[Tensor, LoadStats]:
        """Returns x [U, D] of `nodes`, and what the kernel read meanwhile."""
        x, x_bytes = self._buffers.take(len(nodes))
        gather_rows(self._bytes, self._row_bytes, nodes, x_bytes, self._threads)
        return x, LoadStats(disk_rows=len(nodes), read_bytes=self._reads.since_last())

    def close(self) -> None:
        """Free what no minibatch uses. The map goes with the last source that uses it."""
        self._buffers.clear()


class MMap(SamplingSource):
    """A `BatchSource` with features in a memory map, as DGL and PyG train from disk when given one.

    The originals: with `gather_threads=1`, DGL's and PyG's loaders over `numpy.memmap` features; with more, PyG+ (the
    baseline of the Ginex paper, Park et al., VLDB 2022), in which several workers touch the map at once.
    Kept: the page cache is the only cache of features, and its size is what memory leaves.
    Different: sampling is our native sampler's, the copy is native, without Python's lock, and topology is in memory
    unless `topology='mmap'`.

    Around a page that is touched, the kernel reads `read_ahead_kb` under advice 'normal' (8 MiB on some machines:
    hundreds of times what is needed), and that page alone under 'random'. The kernel does not say which rows it had in
    memory, so all rows count as disk_rows. read_bytes is what it says that this process has read meanwhile, in
    whatever thread; read_requests is 0, for not known.

    Args beside those of `SamplingSource`:
        advice: 'random' (MADV_RANDOM) or 'normal' (MADV_NORMAL: read ahead).
        gather_threads: threads that touch the map at the same time.

    Example:
        >>> source = MMap("graph", fanouts=[10, 10], batch_size=1024, advice="random", gather_threads=128)
    """

    name = "mmap"
    takes_without = reads_whole_rows = True

    def __init__(
        self,
        graph: PathLike | Graph,
        split: str = "train",
        *,
        advice: str = "random",
        gather_threads: int = TOUCHING_THREADS,
        **sampling: Unpack[SamplingSourceOptions],
    ) -> None:
        reads = ProcessReads()
        super().__init__(
            graph,
            split,
            rows=lambda file: MappedRows(file, reads, advice=advice, gather_threads=gather_threads),
            **sampling,
        )


class ProcessReads:
    """Counts what this process has read from disk, as the kernel says."""

    def __init__(self) -> None:
        self._until = bytes_read_by_process()

    def since_last(self) -> int:
        """Returns the bytes since it was asked the last time."""
        before, self._until = self._until, bytes_read_by_process()
        return self._until - before


def map_features(file: FeatureFile, advice: str) -> npt.NDArray[Any]:
    """Returns [N, stored_columns] the features, in a read-only memory map of its own, so that `advice` concerns nobody
    else.

    Raises:
        ConfigError: `advice` is neither 'random' nor 'normal'.
    """
    if advice not in _ADVICE:
        raise ConfigError(f"advice: expected one of {', '.join(_ADVICE)}, found {advice!r}")
    with file.local_path.open("rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(_ADVICE[advice])
    shape = file.num_rows, file.rows.stored_columns
    return np.frombuffer(mapped, file.rows.storage, shape[0] * shape[1], file.data_offset_bytes).reshape(shape)


def bytes_read_by_process(process: int | str = "self") -> int:
    """Returns the first of `device_bytes`, 0 where the kernel does not count them."""
    return next(iter(device_bytes(process)), 0)
