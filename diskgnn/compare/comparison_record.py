"""What a comparison measured: plain frozen records that the table, the JSON file and the HTML report are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diskgnn.compare.metric import ACCURACY, Metric
from diskgnn.errors import ConfigError
from diskgnn.loading.tracing import TraceEvent


@dataclass(frozen=True)
class EpochPoint:
    """Says where one loader's training stood after one epoch."""

    epoch: int  # counted from 0
    seconds: float  # wall clock since the loader began: preparation and training, without evaluation
    loss: float
    valid_score: float | None  # the run's `metric`, like the next
    test_score: float | None
    scores: Mapping[str, float] = field(default_factory=dict)  # all of the task's: 'valid_accuracy', 'test_roc_auc'

    @property
    def score(self) -> float | None:
        """Returns the score of the test split, or of the validation split where there is no other."""
        return self.valid_score if self.test_score is None else self.test_score

    def other_scores(self, metric: Metric) -> dict[str, float]:
        """Returns those of the same split that are not `metric`, by the task's names for them."""
        split = "valid_" if self.test_score is None else "test_"
        found = {name.removeprefix(split): score for name, score in self.scores.items() if name.startswith(split)}
        return {name: score for name, score in found.items() if name != metric.name}


@dataclass(frozen=True)
class EpochCost:
    """Says what the minibatches of one epoch cost; `minibatches` of them were run (`max_batches` may leave some
    out)."""

    minibatches: int
    seconds: float  # the median where it was measured several times; the rest is of that one
    wait_seconds: float  # the consumer waited
    requested_rows: int
    device_rows: int  # of the requested, served by each tier
    pinned_rows: int
    cpu_rows: int
    disk_rows: int
    read_bytes: int  # from the disk, as the loader counts; with what it prepares meanwhile
    # As the kernel counts for the process (/proc/self/io): page cache misses included, those on program code, too.
    device_read_bytes: int | None
    read_requests: int | None  # sent to the disk; None where the kernel decides (page cache)
    filled_rows: int = 0  # read to fill a cache or a buffer before a minibatch needs them, beyond `disk_rows`
    device_write_bytes: int | None = None  # as the kernel counts: what is prepared or saved meanwhile
    repeats_seconds: tuple[float, ...] = ()  # of each time that it was measured; a long epoch is measured once


@dataclass(frozen=True)
class LoaderResult:
    """One loader's run, or why there is none."""

    name: str  # as shown: 'cached reads, SIEVE'
    loader: str  # key in `compare.variants.LOADERS`: 'cached-reads'
    variant: str  # what distinguishes it from others of the same loader, '' where nothing does
    status: str  # 'ok', 'unavailable' (a library is missing), 'failed', 'out of memory'
    message: str = ""  # why not ok
    seed: int = 0  # with several seeds, one record each; only the first has `loading` and `trace`
    prepare_seconds: float = 0.0
    prepared_bytes: int = 0  # of disk, that preparing left beyond the graph itself
    peak_disk_bytes: int = 0  # the most beyond the graph while preparing, loading or training, looked at now and then
    # Epoch 0 without a model: nobody computes. Caches are empty when it starts. `disk_rows + filled_rows` of it is what
    # may be compared with `belady_rows`.
    loading: EpochCost | None = None
    # The model's forward, backward and step for every minibatch: the mean of all epochs trained in one run.
    training: EpochCost | None = None
    row_bytes: int = 0  # as it reads them: with columns that are left out, if it reads rows whole
    # The fewest rows that any cache of the same size reads in the minibatches of epoch 0, empty when it starts. With
    # several types: with the cache divided among them as diskgnn divides it. None where it keeps none, or keeps rows
    # whole of which others have less.
    belady_rows: int | None = None
    belady_row_bytes: int = 0  # of these rows; where types have other widths, that is not a multiple of `row_bytes`
    bound: str = ""  # what limits this loader at best: 'sequential reads', 'random reads', 'memory'
    bound_seconds: float = 0.0  # an epoch at that limit, with the disk's rates of the same run
    peak_process_bytes: int = 0
    peak_cgroup_bytes: int | None = None  # None without a cgroup
    epochs: tuple[EpochPoint, ...] = ()
    trace: tuple[TraceEvent, ...] = ()  # of a few minibatches of the training epoch
    open_seconds: float = 0.0  # to open the train source: in-memory loads everything here; part of EpochPoint.seconds
    prepare_peak_bytes: int = 0  # of the process that prepared; the peaks above are of loading and training
    prepare_peak_cgroup_bytes: int | None = None
    capped: bool = True  # False: without the memory cap that the others ran under
    metric: Metric = ACCURACY  # what the scores of `epochs` are


@dataclass(frozen=True)
class SweepPoint:
    """Rows read in one epoch by one loader at one cache size."""

    name: str
    cache: str  # '10%'
    cache_rows: int
    requested_rows: int
    rows_read: int  # with those that fill the cache at the start
    belady_rows: int  # the fewest, from an empty cache


@dataclass(frozen=True)
class Comparison:
    """All of it."""

    command: str  # to run it again
    started: str  # ISO 8601, with time zone
    diskgnn_version: str
    machine: Mapping[str, Any]  # cores, memory_bytes, cpu, gpu, kernel, python, torch, disk
    # name, num_nodes, num_edges, num_features, feature_dtype, feature_bytes, topology_bytes, num_classes
    graph: Mapping[str, Any]
    # memory_bytes, fanouts, batch_size, epochs, max_batches, model, hidden, cpu_cache, cpu_cache_bytes, seeds, device
    settings: Mapping[str, Any]
    memory_capped: bool  # whether a cgroup capped memory, page cache included
    cache_dropped: bool  # whether the page cache was dropped before each loader
    sequential_bytes_per_second: float  # raw O_DIRECT reads of the graph's disk, in the same run
    random_reads_per_second: float  # 4 KiB
    results: tuple[LoaderResult, ...] = ()
    sweep: tuple[SweepPoint, ...] = ()
    warnings: tuple[str, ...] = ()
    memory_bytes_per_second: float = 0.0  # a copy by all cores, in the same run


def disk_bytes(cost: EpochCost) -> int:
    """Returns the bytes read from the disk: the loader's count, or the kernel's where that is more.

    The kernel knows of page cache misses, on memory-mapped topology, too; on some file systems it counts nothing.
    """
    return max(cost.read_bytes, cost.device_read_bytes or 0)


def epoch_cost(record: Mapping[str, Any]) -> EpochCost:
    """Returns the `EpochCost` of these fields, as JSON has them: lists for tuples."""
    return EpochCost(**{**record, "repeats_seconds": tuple(record.get("repeats_seconds", ()))})


def from_json(document: Mapping[str, Any]) -> Comparison:
    """Returns the `Comparison` whose fields `document` holds: what json.loads makes of a file that `compare --out`
    wrote.

    Raises:
        ConfigError: it holds something else.
    """

    def cost(record: Mapping[str, Any] | None) -> EpochCost | None:
        return None if record is None else epoch_cost(record)

    def result(record: Mapping[str, Any]) -> LoaderResult:
        nested: dict[str, Any] = {name: cost(record[name]) for name in ("loading", "training")}
        nested["epochs"] = tuple(EpochPoint(**point) for point in record["epochs"])
        nested["metric"] = Metric(**record["metric"])
        nested["trace"] = tuple(TraceEvent(**event) for event in record["trace"])
        return LoaderResult(**{**record, **nested})

    try:
        nested = {
            "results": tuple(result(record) for record in document["results"]),
            "sweep": tuple(SweepPoint(**point) for point in document["sweep"]),
            "warnings": tuple(document["warnings"]),
        }
        return Comparison(**{**document, **nested})
    except (TypeError, KeyError) as error:
        raise ConfigError(f"expected what `diskgnn compare --out` writes, found something else ({error!r})") from error
