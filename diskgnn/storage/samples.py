"""The samples directory: the neighbourhoods of all minibatches, some consecutive ones in each Arrow file (a shard)."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ArtifactError, ReadError
from diskgnn.ordered import in_order
from diskgnn.storage import artifacts
from diskgnn.storage.checked_files import checksum_file
from diskgnn.storage.file_reading import ReadableFile
from diskgnn.storage.manifest import Manifest, open_pinned
from diskgnn.storage.object_stores import AnyPath
from diskgnn.storage.samples_config import SamplesConfig, position_dtype


@dataclass(frozen=True)
class SampledBlock:
    """The sampled edges of one type in one layer, grouped by destination. Local numbers are positions among the input
    nodes of the source type.
    """

    indptr: npt.NDArray[np.int32]  # [num_dst + 1]: destination i's are indices[indptr[i]:indptr[i + 1]]
    indices: npt.NDArray[np.int32]  # [E] local numbers of the sources
    positions: npt.NDArray[Any] | None = None  # [E] int32 or int64: where each edge lies in the CSC, if wanted


@dataclass(frozen=True)
class PairSample:
    """The pairs that a minibatch of link prediction scores: positions among the seeds of their types.

    The B positive ones come first, in the order of the batch; then the K negative ones of the first, of the second, and
    so on: negative k of positive i is at B + K * i + k, and has the same source.
    """

    src: npt.NDArray[np.int32]  # [P]
    dst: npt.NDArray[np.int32]  # [P]
    label: npt.NDArray[np.float32]  # [P] 1 for an edge, 0 for a negative; or the label that was given


@dataclass(frozen=True)
class SampledMinibatch:
    """One row of samples/. T node types, L layers; a graph of one type is the case of T = 1."""

    seeds: npt.NDArray[np.int64]  # [B] the ids of all seeds, by node type in order
    input_nodes: tuple[npt.NDArray[Any], ...]  # of each node type [U_t] int32 or int64 ids, the seeds first
    node_counts: npt.NDArray[np.int32]  # [L + 1, T] row l: the sources of blocks[l]; row l + 1: its destinations
    blocks: tuple[tuple[SampledBlock, ...], ...]  # [L] outermost first, each with one block per edge type
    trees: tuple[npt.NDArray[np.int32], ...] | None = None  # [U_t] the seed whose tree a node is in; ids may repeat
    pairs: PairSample | None = None  # of link prediction
    places: npt.NDArray[np.int64] | None = None  # [B] where seeds stand among the given ones, if these have labels

    @property
    def only_nodes(self) -> npt.NDArray[Any]:
        """The input nodes, of a graph of one node type."""
        (nodes,) = self.input_nodes
        return nodes

    @property
    def only_blocks(self) -> tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...]:
        """(indptr, indices) of each layer, outermost first, of a graph of one edge type."""
        return tuple((block.indptr, block.indices) for (block,) in self.blocks)

    @property
    def num_edges(self) -> int:
        """Sampled edges of all layers and types."""
        return sum(len(block.indices) for layer in self.blocks for block in layer)

    def columns(self) -> list[npt.NDArray[Any]]:
        """In the order of `samples_schema`."""
        columns: list[npt.NDArray[Any]] = [self.seeds, self.node_counts.ravel(), *self.input_nodes, *(self.trees or ())]
        if self.pairs is not None:
            columns += [self.pairs.src, self.pairs.dst, self.pairs.label]
        if self.places is not None:
            columns.append(self.places)
        for block in itertools.chain(*self.blocks):
            columns += [block.indptr, block.indices]
            if block.positions is not None:
                columns.append(block.positions)
        return columns


def samples_schema(config: SamplesConfig, id_type: pa.DataType) -> pa.Schema:
    """Columns of a shard: one row per minibatch. `id_type` is that of the input nodes."""
    node_types, layout = range(len(config.num_nodes)), config.layout
    fields = [("seeds", pa.int64()), ("node_counts", pa.int32())]
    fields += [(f"input_nodes_{t}", id_type) for t in node_types]
    if layout.trees:
        fields += [(f"trees_{t}", pa.int32()) for t in node_types]
    if layout.pairs:
        fields += [("pair_src", pa.int32()), ("pair_dst", pa.int32()), ("pair_label", pa.float32())]
    if layout.places:
        fields.append(("places", pa.int64()))
    for layer in range(config.spec.num_layers):
        for number, (edge_type, num_edges) in enumerate(config.num_edges.items()):
            fields += [(f"indptr_{layer}_{number}", pa.int32()), (f"indices_{layer}_{number}", pa.int32())]
            if edge_type in layout.positions:
                position_type = pa.from_numpy_dtype(position_dtype(num_edges))
                fields.append((f"positions_{layer}_{number}", position_type))
    return pa.schema([(name, pa.list_(value)) for name, value in fields])


def one_row(schema: pa.Schema, columns: Sequence[npt.NDArray[Any]]) -> pa.RecordBatch:
    """A record batch of one row of lists, sharing the arrays' memory."""
    arrays = [
        pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values, field.type.value_type))
        for field, values in zip(schema, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


@dataclass(frozen=True)
class Samples:
    """An opened samples directory."""

    manifest: Manifest

    @staticmethod
    def open(path: AnyPath) -> Samples:
        """Open a samples directory. Its files stay open until it is dropped, but for those beyond `MOST_PINNED`.

        Raises:
            ArtifactError: see `open_pinned`, or its config is not one.
        """
        samples = Samples(open_pinned(path, artifacts.SAMPLES))
        assert samples.config
        return samples

    @cached_property
    def config(self) -> SamplesConfig:
        """What it was sampled with."""
        return self.manifest.parsed(SamplesConfig.parse)

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits that were sampled."""
        return tuple(self.config.splits)

    def read(self, split: str, *, first: int = 0) -> Generator[SampledMinibatch, None, None]:
        """The minibatches of the sequence of `split` from number `first` on, each shard compared with its checksum
        before it is used.

        Raises:
            ArtifactError: a shard is damaged.
            ReadError: the disk failed.
        """
        size, schema = self.config.splits[split], None
        first_epoch, first = divmod(first, max(1, size.batches_per_epoch))
        with ThreadPoolExecutor(1) as checking:
            for epoch in range(first_epoch, size.epochs):
                names, numbers = self._shards_from(split, epoch, first)
                checks = (partial(self._checked_shard, name) for name in names)
                with closing(in_order(checking, checks, ahead=1)) as paths:  # the next shard is compared meanwhile
                    for name, path in zip(names, paths, strict=True):
                        with self._damage_named(name), ReadableFile(path) as file, pa.ipc.open_file(file) as reader:
                            schema = schema or self._checked_schema(reader.schema)
                            if reader.schema != schema:
                                raise pa.ArrowInvalid("it has other columns than the first shard")
                            unwanted = max(0, first - numbers)
                            numbers += reader.num_record_batches
                            for number in range(unwanted, reader.num_record_batches):
                                yield _minibatch(reader.get_batch(number), self.config)
                if numbers != size.batches_per_epoch:
                    raise ArtifactError(
                        f"{self.manifest.path} has {numbers} minibatches in epoch {epoch} of {split!r}, expected "
                        f"{size.batches_per_epoch}; sample again"
                    )
                first = 0

    def _shards_from(self, split: str, epoch: int, first: int) -> tuple[list[str], int]:
        """The shards of an epoch with the minibatch `first` and those after it; how many are before these shards."""
        named = (artifacts.shard_file(split, epoch, shard) for shard in itertools.count())
        names = list(itertools.takewhile(self.manifest.files.__contains__, named))
        numbers = 0
        while names and numbers < first:
            path = self.manifest.local(names[0])
            with self._damage_named(names[0]), ReadableFile(path) as file, pa.ipc.open_file(file) as reader:
                count = reader.num_record_batches
            if numbers + count > first:
                break
            numbers += count
            names = names[1:]
        return names, numbers

    def _checked_shard(self, name: str) -> Path:
        """Where it lies, once it is compared with its checksum."""
        path = self.manifest.local(name)  # shards are read several times
        with self._damage_named(name):
            self.manifest.check(name, checksum_file(path, keep_cached=True))
        return path

    @contextmanager
    def _damage_named(self, name: str) -> Iterator[None]:
        try:
            yield
        except ReadError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last of names of columns
            raise ArtifactError(
                f"{self.manifest.file(name)} is damaged ({error}); check with `diskgnn verify`, sample again"
            ) from error

    def _checked_schema(self, found: pa.Schema) -> pa.Schema:
        expected = [samples_schema(self.config, ids) for ids in (pa.int32(), pa.int64())]
        if found not in expected:
            raise pa.ArrowInvalid(f"its columns are {found.names}, expected {expected[0].names}")
        return found


def _minibatch(batch: pa.RecordBatch, config: SamplesConfig) -> SampledMinibatch:
    """Raises pa.ArrowInvalid for what does not fit together; blocks are looked through when they are used."""
    batch.validate()
    num_types, num_layers, layout = len(config.num_nodes), config.spec.num_layers, config.layout
    columns = iter([column.values.to_numpy() for column in batch.columns])
    seeds, counts = next(columns), next(columns)
    if len(counts) != (num_layers + 1) * num_types:
        raise pa.ArrowInvalid("a minibatch counts nodes of other types or layers")
    minibatch = SampledMinibatch(
        seeds,
        tuple(itertools.islice(columns, num_types)),
        counts.reshape(num_layers + 1, num_types),
        trees=tuple(itertools.islice(columns, num_types)) if layout.trees else None,
        pairs=PairSample(next(columns), next(columns), next(columns)) if layout.pairs else None,
        places=next(columns) if layout.places else None,
        blocks=tuple(
            tuple(
                SampledBlock(next(columns), next(columns), next(columns) if edge_type in layout.positions else None)
                for edge_type in config.edge_types
            )
            for _ in range(num_layers)
        ),
    )
    _check_minibatch(minibatch, config)
    return minibatch


def _check_minibatch(minibatch: SampledMinibatch, config: SamplesConfig) -> None:
    counts = minibatch.node_counts
    if (counts < 0).any() or (counts[1:] > counts[:-1]).any() or counts[-1].sum() != len(minibatch.seeds):
        raise pa.ArrowInvalid("a minibatch's counts of nodes do not fit each other")
    if len(minibatch.seeds) == 0 or [len(nodes) for nodes in minibatch.input_nodes] != counts[0].tolist():
        raise pa.ArrowInvalid("a minibatch has no seeds, or other nodes than it counts")
    for nodes, num_nodes in zip(minibatch.input_nodes, config.num_nodes.values(), strict=True):
        if len(nodes) and not 0 <= nodes.min() <= nodes.max() < num_nodes:
            raise pa.ArrowInvalid("a minibatch has nodes that are none of the graph's")
    for trees, nodes in zip(minibatch.trees or (), minibatch.input_nodes, strict=False):
        if len(trees) != len(nodes) or (len(trees) and not 0 <= trees.min() <= trees.max() < len(minibatch.seeds)):
            raise pa.ArrowInvalid("a minibatch has nodes in no seed's tree")
    destinations = [config.ends(edge_type)[1] for edge_type in config.edge_types]
    for row, layer in zip(counts[1:], minibatch.blocks, strict=True):
        for destination, block in zip(destinations, layer, strict=True):
            if len(block.indptr) != row[destination] + 1 or block.indptr[-1] != len(block.indices):
                raise pa.ArrowInvalid("a minibatch has a block of another size than it counts")
            if block.positions is not None and len(block.positions) != len(block.indices):
                raise pa.ArrowInvalid("a minibatch has edges without a position")
    if (places := minibatch.places) is not None and (len(places) != len(minibatch.seeds) or places.min() < 0):
        raise pa.ArrowInvalid("a minibatch has seeds that are none of those given")
    if (pairs := minibatch.pairs) is not None:
        for side in (pairs.src, pairs.dst):
            if len(side) != len(pairs.label) or (len(side) and side.min() < 0):
                raise pa.ArrowInvalid("a minibatch has pairs that are none of its seeds")
