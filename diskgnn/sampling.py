"""The offline sampler: graph/ -> samples/, the neighbourhoods of all minibatches of all prepared epochs.

Every random draw is a pure function of (seed, split, epoch, minibatch, layer, node), so the bytes do not depend on
the number of threads, and a killed run goes on with the shards that are missing.
"""

from __future__ import annotations

import hashlib
import operator
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, tee
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn import _native, artifacts
from diskgnn.artifacts import ArtifactWriter, ChecksummedFile, Manifest, PathLike
from diskgnn.checked_files import sync
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.graph import Graph
from diskgnn.memory import memory_budget, thread_count
from diskgnn.progress import SILENT, Reporter, StageReport
from diskgnn.sweeping import PlannedMinibatch, SampledArrays, SweepingSampler

MINIBATCHES_PER_SHARD = 32
MAX_SHARDS_PER_EPOCH = 4096
MAX_FANOUT = (1 << 31) - 1


@dataclass(frozen=True)
class SampledMinibatch:
    """One row of samples/: local node numbers are positions in `input_nodes`."""

    seeds: npt.NDArray[np.int64]  # [B]
    input_nodes: npt.NDArray[Any]  # [U] int32 or int64, the seeds first
    blocks: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...]  # (indptr, indices), outermost first


def batch_key(seed: int, split: str, epoch: int) -> int:
    """The 64-bit key from which all draws of one epoch of one split derive."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{split}/{epoch}".encode(), digest_size=8).digest(), "little")


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """[count] a shuffled order of 0 to count - 1, the same on every machine and with every NumPy.

    Sorts by SplitMix64 of the position.
    """
    state = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")


def epoch_seeds(
    nodes: npt.NDArray[np.int64], *, split: str, epoch: int, seed: int, batch_size: int
) -> list[npt.NDArray[np.int64]]:
    """The seeds of each minibatch of one epoch: shuffled for 'train', in the given order otherwise.

    Repeated nodes are dropped; the last minibatch may be smaller.
    """
    _, first = np.unique(nodes, return_index=True)
    nodes = np.asarray(nodes)[np.sort(first)].astype(np.int64)
    if split == "train":
        nodes = nodes[permutation(len(nodes), batch_key(seed, f"{split}/shuffle", epoch))]
    return [nodes[start : start + batch_size] for start in range(0, len(nodes), batch_size)]


def samples_schema(num_layers: int, node_type: pa.DataType) -> pa.Schema:
    """Columns of a shard: one row per minibatch."""
    fields = [("seeds", pa.list_(pa.int64())), ("input_nodes", pa.list_(node_type))]
    for layer in range(num_layers):
        fields += [(f"indptr_{layer}", pa.list_(pa.int32())), (f"indices_{layer}", pa.list_(pa.int32()))]
    return pa.schema(fields)


def one_row(schema: pa.Schema, columns: Sequence[npt.NDArray[Any]]) -> pa.RecordBatch:
    """A record batch of one row of lists, sharing the arrays' memory."""
    arrays = [
        pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values, field.type.value_type))
        for field, values in zip(schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def sample(
    graph: PathLike | Graph,
    out: PathLike,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    epochs: int = 1,
    first_epoch: int = 0,
    eval_fanouts: Sequence[int] | None = None,
    splits: Sequence[str] = artifacts.SPLITS,
    seed: int = 0,
    memory: int | str = "auto",
    threads: int | None = None,
    overwrite: bool = False,
    reporter: Reporter = SILENT,
) -> StageReport:
    """Sample `epochs` epochs of the train split, and one of each other split, into the samples directory `out`.

    Args:
        graph: graph directory, or an opened one.
        out: the samples directory to write. A killed run with the same arguments goes on where it stopped.
        fanouts: neighbours drawn per layer, from the seeds outwards; -1 takes all.
        batch_size: seeds per minibatch; the last one of an epoch may have fewer.
        first_epoch: the train epochs sampled are `first_epoch` and those that follow.
        eval_fanouts: fanouts for the other splits; the same as `fanouts` by default.
        splits: which splits to sample; those that the graph lacks are left out.
        seed: same seed, same bytes.
        memory: budget in bytes or as '2GiB'; topology is loaded when it fits, and
            otherwise read front to back, again and again, for as many minibatches at a time as fit.
        threads: sampling threads; all cores by default.
        overwrite: replace an existing `out`.

    Raises:
        ConfigError: fanouts, batch_size, epochs, first_epoch or threads that make no sense.
        InputError: the graph has no training nodes.
        ArtifactError, OutputExistsError, DiskFullError: see `diskgnn.artifacts`.
    """
    started = time.perf_counter()
    graph = graph if isinstance(graph, Graph) else Graph.open(graph)
    config = samples_config(
        graph,
        fanouts=fanouts,
        batch_size=batch_size,
        epochs=epochs,
        eval_fanouts=eval_fanouts,
        splits=splits,
        seed=seed,
        first_epoch=first_epoch,
    )
    threads = thread_count(threads)
    writer = ArtifactWriter(out, artifacts.SAMPLES, config=config, source=graph.manifest, overwrite=overwrite,
                            resumable=True)  # fmt: skip
    with writer:
        tasks = [(split, epoch) for split in config["splits"] for epoch in range(config["splits"][split]["epochs"])]
        edges, read_bytes = _sample_epochs(writer, graph, tasks, config, memory_budget(memory), threads, reporter)
        manifest = writer.publish()
    batches = sum(s["epochs"] * s["batches_per_epoch"] for s in config["splits"].values())
    return StageReport(
        "sample",
        time.perf_counter() - started,
        read_bytes,
        manifest.total_bytes,
        {"minibatches": batches, "edges": edges, "epochs": epochs},
    )


def samples_config(
    graph: Graph,
    *,
    fanouts: Sequence[int],
    batch_size: int,
    epochs: int,
    eval_fanouts: Sequence[int] | None,
    splits: Sequence[str],
    seed: int,
    first_epoch: int = 0,
) -> dict[str, Any]:
    """The config of a samples directory: all that its content depends on, beside the graph.

    Raises:
        ConfigError, InputError: see `sample`.
    """
    fanouts = _checked_fanouts("fanouts", fanouts)
    eval_fanouts = fanouts if eval_fanouts is None else _checked_fanouts("eval_fanouts", eval_fanouts)
    batch_size, epochs = _whole_number("batch_size", batch_size), _whole_number("epochs", epochs)
    first_epoch = _whole_number("first_epoch", first_epoch, least=0)
    if len(eval_fanouts) != len(fanouts):
        raise ConfigError(
            f"eval_fanouts has {len(eval_fanouts)} layers, fanouts has {len(fanouts)}: one model needs both"
        )
    if unknown := set(splits) - set(artifacts.SPLITS):
        raise ConfigError(f"splits: expected some of {', '.join(artifacts.SPLITS)}, found {sorted(unknown)}")
    splits = [split for split in artifacts.SPLITS if split in splits and len(graph.splits.get(split, ()))]
    if not splits:
        raise InputError(f"{graph.manifest.path} has no nodes in the splits asked for: nothing to sample")
    for split in splits:
        nodes = graph.splits[split]
        if nodes.min() < 0 or nodes.max() >= graph.num_nodes:
            raise ArtifactError(f"{graph.manifest.path}: {split} has nodes that are not in the graph; make it again")

    return {
        "fanouts": list(fanouts),
        "eval_fanouts": list(eval_fanouts),
        "batch_size": batch_size,
        "seed": operator.index(seed),
        "first_epoch": first_epoch,
        "num_nodes": graph.num_nodes,
        "splits": {
            split: {
                "epochs": epochs if split == "train" else 1,
                "batches_per_epoch": -(-len(np.unique(graph.splits[split])) // batch_size),
            }
            for split in splits
        },
    }


def _whole_number(name: str, value: SupportsIndex, least: int = 1) -> int:
    """`value` as an int: NumPy's numbers are welcome, but no JSON."""
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{name}: expected a whole number, found {value!r}") from error
    if number < least:
        raise ConfigError(f"{name}: expected at least {least}, found {number}")
    return number


def _checked_fanouts(name: str, fanouts: Sequence[int]) -> tuple[int, ...]:
    try:
        numbers = tuple(operator.index(fanout) for fanout in fanouts)
    except TypeError:
        numbers = ()
    if not numbers or any(number < -1 or number == 0 or number > MAX_FANOUT for number in numbers):
        raise ConfigError(
            f"{name}: expected one whole number per layer, each at least 1 or -1 for all, found {fanouts!r}"
        )
    return numbers


def _sample_epochs(
    writer: ArtifactWriter,
    graph: Graph,
    tasks: Sequence[tuple[str, int]],
    config: dict[str, Any],
    memory_bytes: int,
    threads: int,
    reporter: Reporter,
) -> tuple[int, int]:
    """Write the shards that are missing; (edges sampled, bytes of topology read)."""
    total = sum(config["splits"][split]["batches_per_epoch"] for split, _ in tasks)
    with reporter.stage("sample", total, "minibatches") as advance:
        shards = _missing_shards(writer, graph, tasks, config, advance)
        schema = samples_schema(len(config["fanouts"]), pa.from_numpy_dtype(graph.indices.dtype))
        with damage_named(graph):
            if fits(graph, memory_bytes):
                edges = _sample_in_memory(writer, graph, shards, schema, threads, advance)
                return edges, graph.topology_bytes
            return _sample_by_sweeping(writer, graph, shards, schema, memory_bytes, threads, advance)


def fits(graph: Graph, memory_bytes: int) -> bool:
    """Whether the topology is loaded for sampling; otherwise it is swept."""
    return graph.topology_bytes <= memory_bytes


def sample_a_few(
    graph: Graph, minibatches: Sequence[PlannedMinibatch], memory_bytes: int, threads: int
) -> Iterator[SampledArrays]:
    """(input nodes, blocks outermost first) of each minibatch, as `sample` makes them; all have as many layers."""
    if not fits(graph, memory_bytes):
        return _sweep_a_few(graph, minibatches, memory_bytes, threads)
    topology = _native.NeighborSampler(*graph.topology())
    return (topology.sample(each.seeds, each.fanouts, each.key, each.number) for each in minibatches)


def _sweep_a_few(
    graph: Graph, minibatches: Sequence[PlannedMinibatch], memory_bytes: int, threads: int
) -> Iterator[SampledArrays]:
    with SweepingSampler(graph, memory_bytes=memory_bytes, threads=threads) as sampler:
        yield from sampler.sample(minibatches)


@contextmanager
def damage_named(graph: Graph) -> Iterator[None]:
    """Raise what the native samplers find wrong with the graph as an ArtifactError."""
    try:
        yield
    except IndexError as error:  # the native samplers'
        raise ArtifactError(
            f"{graph.manifest.path} is damaged ({error}); check with `diskgnn verify`, make it again"
        ) from error


@dataclass(frozen=True)
class _Shard:
    name: str
    minibatches: tuple[PlannedMinibatch, ...]


def _missing_shards(
    writer: ArtifactWriter,
    graph: Graph,
    tasks: Sequence[tuple[str, int]],
    config: dict[str, Any],
    advance: Callable[[int], None],
) -> Iterator[_Shard]:
    """What to sample, in order. Shards of a run that was killed are added to the artifact as they are."""
    for split, epoch in tasks:
        sampled_epoch = epoch + (config["first_epoch"] if split == "train" else 0)
        seeds = epoch_seeds(graph.splits[split], split=split, epoch=sampled_epoch, seed=config["seed"],
                            batch_size=config["batch_size"])  # fmt: skip
        fanouts = np.array(config["fanouts" if split == "train" else "eval_fanouts"], np.int32)
        key, per_shard = batch_key(config["seed"], split, sampled_epoch), shard_minibatches(len(seeds))
        for first in range(0, len(seeds), per_shard):
            name = artifacts.shard_file(split, epoch, first // per_shard)
            numbers = range(first, min(first + per_shard, len(seeds)))
            if writer.path(name).is_file():  # complete: it got its name when it was closed
                writer.add(name)
                advance(len(numbers))
            else:
                yield _Shard(name, tuple(PlannedMinibatch(seeds[number], fanouts, key, number) for number in numbers))


def _write_shard(
    writer: ArtifactWriter,
    shard: _Shard,
    schema: pa.Schema,
    sampled: Iterator[SampledArrays],
    advance: Callable[[int], None],
) -> int:
    """Write the minibatches of `shard`, the next ones of `sampled`; the number of their edges."""
    edges = 0
    temporary = writer.path(shard.name + ".tmp")
    with ChecksummedFile(temporary) as sink, pa.ipc.new_file(sink, schema) as file:
        for minibatch in shard.minibatches:
            input_nodes, blocks = next(sampled)
            file.write_batch(one_row(schema, [minibatch.seeds, input_nodes, *chain.from_iterable(blocks)]))
            edges += sum(len(indices) for _, indices in blocks)
            advance(1)
    sync(temporary)  # its name says that it is complete, also after a power cut
    temporary.rename(writer.path(shard.name))
    writer.add(shard.name, crc32c=sink.crc32c)
    return edges


def _sample_in_memory(
    writer: ArtifactWriter,
    graph: Graph,
    shards: Iterator[_Shard],
    schema: pa.Schema,
    threads: int,
    advance: Callable[[int], None],
) -> int:
    """Shards in parallel, from topology that is loaded whole; edges sampled."""
    sampler = _native.NeighborSampler(*graph.topology())
    stopping, lock = threading.Event(), threading.Lock()

    def sampled(shard: _Shard) -> Iterator[SampledArrays]:
        for minibatch in shard.minibatches:
            if stopping.is_set():
                raise CancelledError
            yield sampler.sample(minibatch.seeds, minibatch.fanouts, minibatch.key, minibatch.number)

    def write_shards() -> int:
        edges = 0
        try:
            while True:
                with lock:
                    shard = next(shards, None)
                if shard is None:
                    return edges
                edges += _write_shard(writer, shard, schema, sampled(shard), advance)
        except CancelledError:
            return edges
        except BaseException:
            stopping.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            futures = [pool.submit(write_shards) for _ in range(threads)]
            while wait(futures, timeout=0.1).not_done:
                pass  # a signal that another thread got is handled when this one wakes
            return sum(future.result() for future in futures)
        except BaseException:
            stopping.set()
            raise


def _sample_by_sweeping(
    writer: ArtifactWriter,
    graph: Graph,
    shards: Iterator[_Shard],
    schema: pa.Schema,
    memory_bytes: int,
    threads: int,
    advance: Callable[[int], None],
) -> tuple[int, int]:
    """One shard after the other, from sweeps over topology that stays on disk; (edges sampled, bytes read)."""
    edges = 0
    planned, to_write = tee(shards)
    with SweepingSampler(graph, memory_bytes=memory_bytes, threads=threads) as sampler:
        sampled = sampler.sample(minibatch for shard in planned for minibatch in shard.minibatches)
        for shard in to_write:
            edges += _write_shard(writer, shard, schema, sampled, advance)
        return edges, sampler.read_bytes


def shard_minibatches(num_batches: int) -> int:
    """Minibatches per shard of an epoch of `num_batches`."""
    return max(MINIBATCHES_PER_SHARD, -(-num_batches // MAX_SHARDS_PER_EPOCH))


@dataclass(frozen=True)
class Samples:
    """An opened samples directory."""

    manifest: Manifest

    @staticmethod
    def open(path: PathLike) -> Samples:
        """Open a samples directory.

        Raises:
            ArtifactError: see `artifacts.open_artifact`.
        """
        return Samples(artifacts.open_artifact(path, artifacts.SAMPLES))

    @property
    def splits(self) -> list[str]:
        """Splits that were sampled."""
        return list(self.manifest.config["splits"])

    def epochs(self, split: str) -> int:
        """Prepared epochs of `split`."""
        return int(self.manifest.config["splits"][split]["epochs"])

    def batches_per_epoch(self, split: str) -> int:
        """Minibatches in one epoch of `split`."""
        return int(self.manifest.config["splits"][split]["batches_per_epoch"])

    def read(self, split: str) -> Iterator[SampledMinibatch]:
        """The minibatches of the sequence of `split`, each shard compared with its checksum before it is used.

        Raises:
            ArtifactError: a shard is damaged.
        """
        manifest, per_epoch = self.manifest, self.batches_per_epoch(split)
        per_shard = shard_minibatches(per_epoch)
        schema: pa.Schema = None
        for epoch in range(self.epochs(split)):
            numbers = 0
            for shard in range(-(-per_epoch // per_shard)):
                name = artifacts.shard_file(split, epoch, shard)
                try:
                    with pa.memory_map(str(manifest.file(name))) as source:
                        data = source.read_buffer()
                        if _native.crc32c(memoryview(data).cast("B")) != manifest.files[name].crc32c:
                            raise pa.ArrowInvalid("it does not have the checksum that was written")
                        with pa.ipc.open_file(data) as reader:
                            schema = schema or self._checked_schema(reader.schema)
                            if reader.schema != schema:
                                raise pa.ArrowInvalid("it has other columns than the first shard")
                            numbers += reader.num_record_batches
                            for number in range(reader.num_record_batches):
                                yield self._minibatch(reader.get_batch(number))
                except (pa.ArrowException, OSError) as error:
                    path = manifest.file(name)
                    raise ArtifactError(
                        f"{path} is damaged ({error}); check with `diskgnn verify`, sample again"
                    ) from error
            if numbers != per_epoch:
                raise ArtifactError(
                    f"{manifest.path} has {numbers} minibatches in epoch {epoch} of {split!r}, expected {per_epoch}; "
                    "sample again"
                )

    def _checked_schema(self, found: pa.Schema) -> pa.Schema:
        expected = [samples_schema(len(self.manifest.config["fanouts"]), ids) for ids in (pa.int32(), pa.int64())]
        if found not in expected:
            raise pa.ArrowInvalid(f"its columns are {found.names}, expected {expected[0].names}")
        return found

    def _minibatch(self, batch: pa.RecordBatch) -> SampledMinibatch:
        batch.validate()
        columns = [column.values.to_numpy() for column in batch.columns]
        input_nodes, num_nodes = columns[1], self.manifest.config["num_nodes"]
        if not (0 < len(columns[0]) <= len(input_nodes) and 0 <= input_nodes.min() <= input_nodes.max() < num_nodes):
            raise pa.ArrowInvalid("a minibatch has no seeds, or nodes that are none of the graph's")
        return SampledMinibatch(columns[0], input_nodes, tuple(zip(columns[2::2], columns[3::2], strict=True)))
