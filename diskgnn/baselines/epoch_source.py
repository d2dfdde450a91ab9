"""What every baseline shares: its arguments, where iteration stands, what has been counted, and how it ends."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn.errors import ArtifactError, ConfigError, InputError, at_least_one
from diskgnn.graph.graph import Graph
from diskgnn.minibatch import MiniBatch
from diskgnn.sampling.sample import epoch_seeds
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.system.memory import available_cores
from diskgnn.tracing import TraceEvent

Source = TypeVar("Source", bound="EpochSource")


@dataclass(frozen=True)
class RowCounts:
    """Where one minibatch's rows came from, and what that cost the disk."""

    device_rows: int = 0
    pinned_rows: int = 0
    cpu_rows: int = 0
    disk_rows: int = 0
    read_bytes: int = 0
    read_requests: int = 0


class EpochSource:
    """A `BatchSource` whose epochs are generators. Subclasses give `name` and `_minibatches`.

    One epoch can be iterated at a time: asking for another ends the one before, and so does dropping its iterator
    (leaving a for loop early), which joins the threads there and then. What is counted, and where iteration stands,
    is what the user has received, not what was prefetched.

    Args:
        graph: graph directory, or an opened one.
        split: whose nodes are the seeds; 'train' is shuffled every epoch, others come in the given order.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        seed: same seed, same minibatches.
        threads: background threads; by default half of the cores, the other half being the model's.
        sample_epochs: how many epochs of 'train' are sampled before they repeat, as prepared ones do; None samples
            every epoch afresh. Other splits are sampled once, so that evaluations can be compared.

    Raises:
        ConfigError: an argument that makes no sense.
        InputError: the graph has no nodes in `split`.
        ArtifactError: see `artifacts.open_artifact`.
    """

    name = "?"  # as in diskgnn.compare; threads are named after it

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
    ) -> None:
        self._graph = graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        if not fanouts or any(fanout < -1 or fanout == 0 for fanout in fanouts):
            raise ConfigError(
                f"fanouts: expected one number per layer, each at least 1 or -1 for all, found {list(fanouts)}"
            )
        at_least_one("batch_size", batch_size)
        at_least_one("threads", threads)
        at_least_one("sample_epochs", sample_epochs)
        if split not in artifacts.SPLITS:
            raise ConfigError(f"split: expected one of {', '.join(artifacts.SPLITS)}, found {split!r}")
        if len(graph.splits.get(split, ())) == 0:
            raise InputError(f"{graph.manifest.path} has no {split} nodes: nothing to iterate over")
        self.split, self._fanouts, self._batch_size, self._seed = split, tuple(fanouts), batch_size, seed
        self._sample_epochs = sample_epochs if split == "train" else 1
        self._threads = threads or max(1, available_cores() // 2)
        self._num_batches = -(-len(np.unique(graph.splits[split])) // batch_size)
        self._requested_rows, self._wait_seconds = 0, 0.0
        self._counts = dict.fromkeys(asdict(RowCounts()), 0)
        self._trace: list[TraceEvent] | None = None
        self._position = (0, 0)  # epoch, and how many of its minibatches the user has received
        self._resume: tuple[int, int] | None = None
        # Weak, so that dropping the iterator joins its threads there and then.
        self._live: weakref.ref[Generator[MiniBatch, None, None]] | None = None
        self._closed = False

    @property
    def num_batches(self) -> int:
        """Minibatches in one epoch."""
        return self._num_batches

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes)."""
        return self._graph.num_classes

    @property
    def num_features(self) -> int:
        """D, columns of x."""
        return self._graph.feature_file.width

    @property
    def num_layers(self) -> int:
        """Blocks in each minibatch."""
        return len(self._fanouts)

    def epoch(self, epoch: int) -> Generator[MiniBatch, None, None]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch."""
        if self._closed:
            raise ConfigError(f"this {type(self).__name__} source is closed; make a new one")
        self._end_epoch()
        resume, self._resume = self._resume, None
        self._position = resume if resume is not None and resume[0] == epoch else (epoch, 0)
        batches = self._deliver(*self._position)
        self._live = weakref.ref(batches)
        return batches

    def _deliver(self, epoch: int, start: int) -> Generator[MiniBatch, None, None]:
        minibatches = self._minibatches(epoch, start)
        try:
            while True:
                began = time.perf_counter()
                found = next(minibatches, None)
                self._wait_seconds += time.perf_counter() - began
                if found is None:
                    return
                batch, counts = found
                del found
                self._requested_rows += batch.x.shape[0]
                for name, value in asdict(counts).items():
                    self._counts[name] += value
                self._position = (epoch, batch.batch_index + 1)
                yield batch
                del batch  # the user has it; it need not stay in memory while the next one is waited for
        finally:
            minibatches.close()

    def _minibatches(self, epoch: int, start: int) -> Generator[tuple[MiniBatch, RowCounts], None, None]:
        """The minibatches of `epoch` from number `start` on; closing the generator joins its threads."""
        raise NotImplementedError

    def _sampled_epoch(self, epoch: int) -> int:
        """The epoch whose draws epoch `epoch` uses."""
        return epoch if self._sample_epochs is None else epoch % self._sample_epochs

    def _seeds(self, sampled_epoch: int) -> list[npt.NDArray[np.int64]]:
        return epoch_seeds(self._graph.splits[self.split], split=self.split, epoch=sampled_epoch, seed=self._seed,
                           batch_size=self._batch_size)  # fmt: skip

    def _labels(self, seeds: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(self._graph.labels[seeds].astype(np.int64))

    def _check_shared(self, share: EpochSource | None) -> None:
        """Refuse to share what another kind of source, or one over another graph, holds."""
        if share is None:
            return
        if type(share) is not type(self):
            raise ConfigError(f"share: expected another {type(self).__name__}, found a {type(share).__name__}")
        if share._graph.manifest.digest != self._graph.manifest.digest:
            raise ConfigError(
                f"share: expected a source over {self._graph.manifest.path}, found one over another graph, "
                f"{share._graph.manifest.path}"
            )

    def stats(self) -> Mapping[str, int | float]:
        """Counters since the source was made, of the minibatches received: requested_rows, of these device_rows,
        pinned_rows, cpu_rows, disk_rows; read_bytes and read_requests of the disk; wait_seconds of the user."""
        return {"requested_rows": self._requested_rows, "wait_seconds": self._wait_seconds, **self._counts}

    def start_tracing(self) -> None:
        """Keep events from now on: see `diskgnn.tracing`."""
        self._trace = []

    def take_trace(self) -> list[TraceEvent]:
        """The events since the last call; none when tracing was not started."""
        if self._trace is None:
            return []
        events, self._trace = self._trace, []
        return events

    @contextmanager
    def _traced(self, stage: str, index: int) -> Iterator[None]:
        """Around what this thread does for minibatch `index`."""
        began = time.perf_counter_ns()
        yield
        if self._trace is not None:
            track = threading.current_thread().name.removeprefix(f"diskgnn-{self.name}-")
            self._trace.append(TraceEvent(track, stage, index, began, time.perf_counter_ns()))

    def _thread_name(self, stage: str) -> str:
        return f"diskgnn-{self.name}-{stage}"

    @contextmanager
    def _pools(self, stopping: threading.Event | None = None, /, **threads: int) -> Iterator[list[ThreadPoolExecutor]]:
        """A pool of so many threads for each stage. In the end, what has not begun never will, and all are joined.

        `stopping` is set before, for what is under way and takes long.
        """
        pools = [ThreadPoolExecutor(n, thread_name_prefix=self._thread_name(stage)) for stage, n in threads.items()]
        try:
            yield pools
        finally:
            if stopping is not None:
                stopping.set()
            for pool in reversed(pools):  # later stages first: what waits for an earlier one is not to begin
                pool.shutdown(wait=False, cancel_futures=True)
            for pool in pools:
                pool.shutdown()

    def state_dict(self) -> dict[str, Any]:
        """Where iteration stands, counting the minibatches that the user's loop has received."""
        epoch, consumed = self._position
        return {"epoch": epoch, "consumed": consumed, "sampled": self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state`: the next call of `epoch(state['epoch'])` skips what had been consumed.

        Raises:
            ArtifactError: the state belongs to minibatches that this source would not draw.
        """
        if state.get("sampled") != self._identity():
            raise ArtifactError(
                f"expected the state of a source that samples {self._identity()}, found {state.get('sampled')}; "
                f"go on with the graph and the arguments that the state was saved with"
            )
        self._position = self._resume = (int(state["epoch"]), int(state["consumed"]))

    def _identity(self) -> dict[str, Any]:
        return {
            "graph": self._graph.manifest.digest,
            "split": self.split,
            "fanouts": list(self._fanouts),
            "batch_size": self._batch_size,
            "seed": self._seed,
            "sample_epochs": self._sample_epochs,
        }

    def close(self) -> None:
        """Join the threads of an epoch that was left early, free what the source holds. Idempotent."""
        self._closed = True
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._live is not None and (batches := self._live()) is not None:
            batches.close()

    def __enter__(self: Source) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def as_rows(rows: npt.NDArray[Any], graph: Graph) -> Tensor:
    """Rows [n, D] as stored, as a tensor of the graph's feature dtype over the same memory."""
    if graph.feature_file.dtype == "bfloat16":
        return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(rows)
