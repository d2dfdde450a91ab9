"""The packed directory, opened: all that training reads. `packing` writes it, `loading` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ArtifactError
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts, extents
from diskgnn.storage.manifest import Manifest, open_artifact, typed, verify_file
from diskgnn.storage.quantisation import Quantisation
from diskgnn.storage.row_format import RowFormat


@dataclass(frozen=True)
class TierRowCounts:
    """Input rows of one cycle of a sequence, by the tier that serves them."""

    requested: int
    static: int
    cpu: int
    disk: int


@dataclass(frozen=True)
class PackedSplit:
    """The sequence of one split."""

    epochs: int  # prepared ones
    batches_per_epoch: int
    cpu_rows: int  # C, slots of its cpu tier
    initial_rows: int  # of these, filled when the sequence starts
    rows: TierRowCounts
    max_inputs: int  # of any minibatch
    max_header_bytes: int

    @property
    def num_batches(self) -> int:
        """T, minibatches in the sequence."""
        return self.epochs * self.batches_per_epoch

    @staticmethod
    def parse(config: Mapping[str, Any]) -> PackedSplit:
        """Raises ValueError or KeyError for what the packer would not have written."""
        rows = typed(config["rows"], dict)
        return PackedSplit(
            typed(config["epochs"], int), typed(config["batches_per_epoch"], int), typed(config["cpu_rows"], int),
            typed(config["initial_rows"], int),
            TierRowCounts(*(typed(rows[tier], int) for tier in ("requested", "static", "cpu", "disk"))),
            typed(config["max_inputs"], int), typed(config["max_header_bytes"], int),
        )  # fmt: skip


@dataclass(frozen=True)
class PackedConfig:
    """What a packed directory was made from, and how."""

    fanouts: tuple[int, ...]
    eval_fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    num_nodes: int  # N of the graph
    num_classes: int
    rows: RowFormat
    first_epoch: int
    draws: str  # see `specs.DRAWS`
    draw_period: int
    keep_input_nodes: bool
    node_dtype: str  # int32 or int64
    graph: str  # its digest
    num_static: int  # S
    splits: Mapping[str, PackedSplit]

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return {
            "fanouts": list(self.fanouts),
            "eval_fanouts": list(self.eval_fanouts),
            "batch_size": self.batch_size,
            "seed": self.seed,
            "num_nodes": self.num_nodes,
            "num_classes": self.num_classes,
            **self.rows.to_json(),
            "first_epoch": self.first_epoch,
            "draws": self.draws,
            "draw_period": self.draw_period,
            "row_bytes": self.rows.row_bytes,
            "keep_input_nodes": self.keep_input_nodes,
            "node_dtype": self.node_dtype,
            "graph": self.graph,
            "num_static": self.num_static,
            "splits": {split: asdict(sequence) for split, sequence in self.splits.items()},
        }

    @staticmethod
    def parse(config: Mapping[str, Any]) -> PackedConfig:
        """Raises ValueError or KeyError for what `to_json` would not have written."""
        rows = RowFormat.parse(config)
        if typed(config["row_bytes"], int) != rows.row_bytes:
            raise ValueError(f"row_bytes is {config['row_bytes']}, expected {rows.row_bytes}")
        return PackedConfig(
            fanouts=tuple(typed(fanout, int) for fanout in typed(config["fanouts"], list)),
            eval_fanouts=tuple(typed(fanout, int) for fanout in typed(config["eval_fanouts"], list)),
            batch_size=typed(config["batch_size"], int),
            seed=typed(config["seed"], int),
            num_nodes=typed(config["num_nodes"], int),
            num_classes=typed(config["num_classes"], int),
            rows=rows,
            first_epoch=typed(config["first_epoch"], int),
            draws=typed(config["draws"], str),
            draw_period=typed(config["draw_period"], int),
            keep_input_nodes=typed(config["keep_input_nodes"], bool),
            node_dtype=np.dtype(typed(config["node_dtype"], str)).name,
            graph=typed(config["graph"], str),
            num_static=typed(config["num_static"], int),
            splits={split: PackedSplit.parse(size) for split, size in typed(config["splits"], dict).items()},
        )


@dataclass(frozen=True)
class Packed:
    """An opened packed directory."""

    manifest: Manifest

    @staticmethod
    def open(path: PathLike) -> Packed:
        """Open a packed directory.

        Raises:
            ArtifactError: see `open_artifact`, or its config is not one.
        """
        packed = Packed(open_artifact(path, artifacts.PACKED))
        assert packed.config
        return packed

    @cached_property
    def config(self) -> PackedConfig:
        """What it was made from, and how."""
        return self.manifest.parsed(PackedConfig.parse)

    @cached_property
    def quantisation(self) -> Quantisation | None:
        """What the codes of quantised rows mean; None where rows are what x is.

        Raises:
            ArtifactError: it is damaged.
        """
        return Quantisation.read(self.manifest, self.config.rows.dtype, self.config.rows.num_features)

    @property
    def path(self) -> Path:
        """The directory."""
        return self.manifest.path

    @property
    def digest(self) -> str:
        """Names it by its content."""
        return self.manifest.digest

    def sequence(self, split: str) -> PackedSplit:
        """The sequence of `split`.

        Raises:
            ArtifactError: there is none.
        """
        if split not in self.config.splits:
            raise ArtifactError(
                f"{self.path} has no {split!r} sequence, only {', '.join(self.config.splits)}: "
                "prepare it with that split"
            )
        return self.config.splits[split]

    def index(self, split: str) -> npt.NDArray[Any]:
        """[T] `extents.INDEX_DTYPE`, compared with its checksum: a wrong one would give wrong rows.

        Raises:
            ArtifactError: it is damaged.
        """
        verify_file(self.manifest, artifacts.index_file(split))
        index = self.manifest.array(artifacts.index_file(split), mmap=False)
        if index.dtype != extents.INDEX_DTYPE or len(index) != self.sequence(split).num_batches:
            raise ArtifactError(f"{self.path}: the index of {split!r} is not one; prepare it again")
        return index

    def header_schema(self) -> pa.Schema:
        """Columns of the extents' headers."""
        node_type = pa.from_numpy_dtype(self.config.node_dtype) if self.config.keep_input_nodes else None
        return extents.header_schema(len(self.config.fanouts), node_type)

    def file(self, name: str) -> Path:
        """Where file `name` lies: see `Manifest.file`."""
        return self.manifest.file(name)
