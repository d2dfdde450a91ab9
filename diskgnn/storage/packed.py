"""The packed directory, opened: all that training reads. `packing` writes it, `loading` reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from diskgnn.errors import ArtifactError
from diskgnn.specs import DRAWS, PathLike, checked_fanouts
from diskgnn.storage import artifacts, extents
from diskgnn.storage.manifest import Manifest, open_pinned, typed
from diskgnn.storage.quantisation import Quantisation
from diskgnn.storage.row_format import RowFormat

_MOST = (1 << 31) - 1  # of what 32 bits address: rows in memory, bytes of a header
_MOST_ROWS = (1 << 63) - 1


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
            within(config["epochs"], 1), within(config["batches_per_epoch"], 1), within(config["cpu_rows"]),
            within(config["initial_rows"]),
            TierRowCounts(*(within(rows[tier], most=_MOST_ROWS) for tier in ("requested", "static", "cpu", "disk"))),
            within(config["max_inputs"], 1), within(config["max_header_bytes"], 1),
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
    group_seeds: int
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
            "group_seeds": self.group_seeds,
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
            fanouts=checked_fanouts("fanouts", typed(config["fanouts"], list)),
            eval_fanouts=checked_fanouts("eval_fanouts", typed(config["eval_fanouts"], list)),
            batch_size=within(config["batch_size"], 1, _MOST_ROWS),
            seed=typed(config["seed"], int),
            num_nodes=within(config["num_nodes"], 1, _MOST_ROWS),
            num_classes=within(config["num_classes"], 1, _MOST_ROWS),
            rows=rows,
            first_epoch=within(config["first_epoch"], most=_MOST_ROWS),
            draws=_one_of(config["draws"], DRAWS),
            draw_period=within(config["draw_period"], 1, _MOST_ROWS),
            group_seeds=within(config["group_seeds"], 1, _MOST_ROWS),
            keep_input_nodes=typed(config["keep_input_nodes"], bool),
            node_dtype=_one_of(config["node_dtype"], ("int32", "int64")),
            graph=typed(config["graph"], str),
            num_static=within(config["num_static"]),
            splits={split: PackedSplit.parse(size) for split, size in typed(config["splits"], dict).items()},
        )


def within(value: Any, least: int = 0, most: int = _MOST) -> int:
    """`value`, if JSON gave a whole number in [least, most].

    Raises:
        ValueError: it gave something else.
    """
    if not least <= typed(value, int) <= most:
        raise ValueError(f"expected a number from {least} to {most}, found {str(value)[:80]}")
    return int(value)


def _one_of(value: Any, choices: tuple[str, ...]) -> str:
    if typed(value, str) not in choices:
        raise ValueError(f"expected one of {', '.join(choices)}, found {value[:80]!r}")
    return str(value)


@dataclass(frozen=True)
class Packed:
    """An opened packed directory."""

    manifest: Manifest

    @staticmethod
    def open(path: PathLike | Packed) -> Packed:
        """Open a packed directory; one that is open is returned as it is.

        Its files stay open until it is dropped. So they are read to the end, although the directory is replaced.

        Raises:
            ArtifactError: see `open_pinned`, or its config is not one.
        """
        if isinstance(path, Packed):
            return path
        packed = Packed(open_pinned(path, artifacts.PACKED))
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
        index, size = self.manifest.checked_array(artifacts.index_file(split)), self.sequence(split)
        if index.dtype != extents.INDEX_DTYPE or index.shape != (size.num_batches,):
            raise ArtifactError(f"{self.path}: the index of {split!r} is not one; prepare it again")
        found = int(index["num_inputs"].max()), int(index["header_bytes"].max())
        if found != (size.max_inputs, size.max_header_bytes):
            raise ArtifactError(
                f"{self.path}: the index of {split!r} has at most (inputs, header bytes) {found}, expected "
                f"{(size.max_inputs, size.max_header_bytes)}; prepare it again"
            )
        return index

    def header_schema(self) -> pa.Schema:
        """Columns of the extents' headers."""
        node_type = pa.from_numpy_dtype(self.config.node_dtype) if self.config.keep_input_nodes else None
        return extents.header_schema(len(self.config.fanouts), node_type)

    def file(self, name: str) -> Path:
        """Where file `name` lies, for messages: see `Manifest.file`."""
        return self.manifest.file(name)

    def readable(self, name: str) -> Path:
        """What to open to read file `name`, in this process: see `Manifest.readable`."""
        return self.manifest.readable(name)
