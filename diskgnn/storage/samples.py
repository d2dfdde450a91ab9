"""The samples directory: the neighbourhoods of all minibatches, some consecutive ones in each Arrow file (a shard)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn._native import crc32c
from diskgnn.errors import ArtifactError
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts
from diskgnn.storage.manifest import Manifest, open_artifact, typed


@dataclass(frozen=True)
class SampledMinibatch:
    """One row of samples/: local node numbers are positions in `input_nodes`."""

    seeds: npt.NDArray[np.int64]  # [B]
    input_nodes: npt.NDArray[Any]  # [U] int32 or int64, the seeds first
    blocks: tuple[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]], ...]  # (indptr, indices), outermost first


@dataclass(frozen=True)
class SequenceSize:
    """How many minibatches one split's sequence has."""

    epochs: int  # prepared ones
    batches_per_epoch: int

    @property
    def num_batches(self) -> int:
        """T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch


@dataclass(frozen=True)
class SamplesConfig:
    """All that the content of a samples directory depends on, beside the graph."""

    fanouts: tuple[int, ...]
    eval_fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    first_epoch: int
    draws: str  # see `specs.DRAWS`
    draw_period: int
    num_nodes: int  # N of the graph
    splits: Mapping[str, SequenceSize]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            "fanouts": list(self.fanouts),
            "eval_fanouts": list(self.eval_fanouts),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "first_epoch": self.first_epoch,
            "draws": self.draws,
            "draw_period": self.draw_period,
            "num_nodes": self.num_nodes,
            "splits": {
                split: {"epochs": size.epochs, "batches_per_epoch": size.batches_per_epoch}
                for split, size in self.splits.items()
            },
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> SamplesConfig:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        return SamplesConfig(
            fanouts=tuple(typed(fanout, int) for fanout in typed(config["fanouts"], list)),
            eval_fanouts=tuple(typed(fanout, int) for fanout in typed(config["eval_fanouts"], list)),
            batch_size=typed(config["batch_size"], int),
            seed=typed(config["seed"], int),
            first_epoch=typed(config["first_epoch"], int),
            draws=typed(config["draws"], str),
            draw_period=typed(config["draw_period"], int),
            num_nodes=typed(config["num_nodes"], int),
            splits={
                split: SequenceSize(typed(size["epochs"], int), typed(size["batches_per_epoch"], int))
                for split, size in typed(config["splits"], dict).items()
            },
        )


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


@dataclass(frozen=True)
class Samples:
    """An opened samples directory."""

    manifest: Manifest

    @staticmethod
    def open(path: PathLike) -> Samples:
        """Open a samples directory.

        Raises:
            ArtifactError: see `open_artifact`, or its config is not one.
        """
        samples = Samples(open_artifact(path, artifacts.SAMPLES))
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

    def read(self, split: str) -> Iterator[SampledMinibatch]:
        """The minibatches of the sequence of `split`, each shard compared with its checksum before it is used.

        Raises:
            ArtifactError: a shard is damaged.
        """
        manifest, size = self.manifest, self.config.splits[split]
        schema: pa.Schema = None
        for epoch in range(size.epochs):
            numbers = 0
            names = (artifacts.shard_file(split, epoch, shard) for shard in itertools.count())
            for name in itertools.takewhile(manifest.files.__contains__, names):
                try:
                    with pa.memory_map(str(manifest.file(name))) as source:
                        data = source.read_buffer()
                        if crc32c(memoryview(data).cast("B")) != manifest.files[name].crc32c:
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
            if numbers != size.batches_per_epoch:
                raise ArtifactError(
                    f"{manifest.path} has {numbers} minibatches in epoch {epoch} of {split!r}, expected "
                    f"{size.batches_per_epoch}; sample again"
                )

    def _checked_schema(self, found: pa.Schema) -> pa.Schema:
        expected = [samples_schema(len(self.config.fanouts), ids) for ids in (pa.int32(), pa.int64())]
        if found not in expected:
            raise pa.ArrowInvalid(f"its columns are {found.names}, expected {expected[0].names}")
        return found

    def _minibatch(self, batch: pa.RecordBatch) -> SampledMinibatch:
        batch.validate()
        columns = [column.values.to_numpy() for column in batch.columns]
        input_nodes, num_nodes = columns[1], self.config.num_nodes
        if not (0 < len(columns[0]) <= len(input_nodes) and 0 <= input_nodes.min() <= input_nodes.max() < num_nodes):
            raise pa.ArrowInvalid("a minibatch has no seeds, or nodes that are none of the graph's")
        return SampledMinibatch(columns[0], input_nodes, tuple(zip(columns[2::2], columns[3::2], strict=True)))
