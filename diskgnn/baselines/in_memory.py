"""Everything in memory and sampled while training, like PyG's and DGL's loaders: the upper bound."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diskgnn import _native, artifacts
from diskgnn.artifacts import PathLike
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.graph import Graph
from diskgnn.memory import available_cores
from diskgnn.minibatch import Block, MiniBatch
from diskgnn.sampling import batch_key, epoch_seeds


class InMemory:
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

    Example:
        >>> train = InMemory("graph", "train", fanouts=[10, 10], batch_size=1024)
        >>> valid = InMemory("graph", "valid", fanouts=[10, 10], batch_size=1024, share=train)
        >>> diskgnn.train(train, valid_source=valid)
    """

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
        self._graph = graph = graph if isinstance(graph, Graph) else Graph.open(graph)
        if not fanouts or any(fanout < -1 or fanout == 0 for fanout in fanouts):
            raise ConfigError(
                f"fanouts: expected one number per layer, each at least 1 or -1 for all, found {list(fanouts)}"
            )
        for name, value in (("batch_size", batch_size), ("threads", threads), ("sample_epochs", sample_epochs)):
            if value is not None and value < 1:
                raise ConfigError(f"{name}: expected at least 1, found {value}")
        if split not in artifacts.SPLITS:
            raise ConfigError(f"split: expected one of {', '.join(artifacts.SPLITS)}, found {split!r}")
        if len(graph.splits.get(split, ())) == 0:
            raise InputError(f"{graph.manifest.path} has no {split} nodes: nothing to iterate over")
        if share is not None and share._graph.manifest.digest != graph.manifest.digest:
            raise ConfigError(
                f"share: expected a source over {graph.manifest.path}, found one over another graph, "
                f"{share._graph.manifest.path}"
            )
        self.split, self._fanouts, self._batch_size, self._seed = split, tuple(fanouts), batch_size, seed
        self._sample_epochs = sample_epochs if split == "train" else 1
        self._threads = threads or max(1, available_cores() // 2)
        if share is None:
            self._sampler = _native.NeighborSampler(np.array(graph.indptr), np.array(graph.indices))
            self._features = graph.manifest.array(artifacts.FEATURES, mmap=False)
        else:
            self._sampler, self._features = share._sampler, share._features
        self._num_batches = -(-len(np.unique(graph.splits[split])) // batch_size)
        self._requested_rows, self._wait_seconds = 0, 0.0
        self._position = (0, 0)  # epoch, and how many of its minibatches the user has received
        self._resume: tuple[int, int] | None = None
        # Weak, so that dropping the iterator (leaving a for loop early) joins its threads there and then.
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
    def feature_width(self) -> int:
        """D, columns of x."""
        return int(self._features.shape[1])

    @property
    def num_layers(self) -> int:
        """Blocks in each minibatch."""
        return len(self._fanouts)

    def epoch(self, epoch: int) -> Generator[MiniBatch, None, None]:
        """The minibatches of epoch `epoch`, from where `load_state_dict` left off if it named this epoch."""
        if self._closed:
            raise ConfigError("this InMemory source is closed; make a new one")
        self._end_epoch()
        resume, self._resume = self._resume, None
        self._position = resume if resume is not None and resume[0] == epoch else (epoch, 0)
        batches = self._iterate(*self._position)
        self._live = weakref.ref(batches)
        return batches

    def _iterate(self, epoch: int, start: int) -> Generator[MiniBatch, None, None]:
        sampled = epoch if self._sample_epochs is None else epoch % self._sample_epochs
        key = batch_key(self._seed, self.split, sampled)
        seeds = epoch_seeds(self._graph.splits[self.split], split=self.split, epoch=sampled, seed=self._seed,
                            batch_size=self._batch_size)  # fmt: skip
        in_flight: deque[Future[MiniBatch]] = deque()
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="diskgnn-in-memory")
        try:
            submitted = start
            for index in range(start, len(seeds)):
                while submitted < len(seeds) and len(in_flight) <= self._threads:
                    in_flight.append(pool.submit(self._minibatch, epoch, submitted, seeds[submitted], key))
                    submitted += 1
                began = time.perf_counter()
                batch = in_flight.popleft().result()
                self._wait_seconds += time.perf_counter() - began
                self._requested_rows += batch.x.shape[0]
                self._position = (epoch, index + 1)
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)

    def _minibatch(self, epoch: int, index: int, seeds: Any, key: int) -> MiniBatch:
        nodes, sampled = self._sampler.sample(seeds, np.array(self._fanouts, np.int32), key, index)
        num_src, blocks = len(nodes), []
        for indptr, indices in sampled:
            blocks.append(Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src))
            num_src = len(indptr) - 1
        return MiniBatch(
            x=self._gather(nodes),
            y=torch.from_numpy(self._graph.labels[seeds].astype(np.int64)),
            blocks=tuple(blocks),
            seeds=torch.from_numpy(seeds),
            epoch=epoch,
            index=index,
            input_nodes=torch.from_numpy(nodes.astype(np.int64, copy=False)),
        )

    def _gather(self, nodes: npt.NDArray[Any]) -> Tensor:
        # NumPy's take stays on this thread; torch's index_select would start a team of threads from each of ours.
        rows = np.take(self._features, nodes, axis=0)
        if self._graph.feature_file.dtype == "bfloat16":
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows)

    def stats(self) -> Mapping[str, int | float]:
        """Counters since the source was made: all rows are served by the cpu tier, no byte is read from disk."""
        return {
            "requested_rows": self._requested_rows,
            "read_bytes": 0,
            "wait_seconds": self._wait_seconds,
            "device_rows": 0,
            "pinned_rows": 0,
            "cpu_rows": self._requested_rows,
            "disk_rows": 0,
        }

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
        """Join the threads of an epoch that was left early. Idempotent."""
        self._closed = True
        self._end_epoch()

    def _end_epoch(self) -> None:
        if self._live is not None and (batches := self._live()) is not None:
            batches.close()

    def __enter__(self) -> InMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
