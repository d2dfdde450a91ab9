"""The packed directory, opened: all that training reads. `packing` writes it, `loading` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats import artifacts, extents
from diskgnn.formats.extents import ExtentIndex
from diskgnn.formats.manifest import Manifest, open_pinned
from diskgnn.formats.packed_config import PackedConfig, PackedSplit
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_view import RecordView, view_of
from diskgnn.stores.locations import AnyPath, Location, StoredPath, located


@dataclass(frozen=True)
class Packed:
    """An opened packed directory."""

    manifest: Manifest

    @staticmethod
    def open(path: AnyPath | Packed, *, stream: bool = False) -> Packed:
        """Open a packed directory; one that is open is returned as it is.

        Its files stay open until it is dropped. So they are read to the end, although the directory is replaced. With
        `stream`, it may lie on a store: extents are read there, and what memory holds is copied first.

        Raises:
            ArtifactError: see `open_pinned`, or its config is not one.
            ConfigError: it lies on a store, and `stream` is not set.
            StoreError: the store failed.
        """
        if isinstance(path, Packed):
            return path
        packed = Packed(open_pinned(path if stream else _fetched(path), artifacts.PACKED))
        assert packed.config
        return packed

    @cached_property
    def config(self) -> PackedConfig:
        """Returns what it was made from, and how."""
        return self.manifest.parsed(PackedConfig.parse)

    @cached_property
    def quantisations(self) -> tuple[Quantisation | None, ...]:
        """Returns [K] what the codes in rows mean; None where there are none.

        Raises:
            ArtifactError: one is damaged.
        """
        return tuple(
            Quantisation.read(self.manifest, row_set.rows, artifacts.packed_codes_file(row_set.name))
            for row_set in self.config.row_sets
        )

    @cached_property
    def views(self) -> tuple[RecordView | None, ...]:
        """Returns [K] what records show; None of other rows.

        Raises:
            ArtifactError: what their codes mean is damaged.
        """
        return tuple(
            view_of(row_set.rows, row_set.columns, quantisation)
            for row_set, quantisation in zip(self.config.row_sets, self.quantisations, strict=True)
        )

    @property
    def path(self) -> Path:
        """Returns the directory.

        Raises:
            ConfigError: it lies on a store.
        """
        return self.manifest.folder

    @property
    def location(self) -> Location:
        """Returns the directory, or its URL: for messages."""
        return self.manifest.path

    @property
    def digest(self) -> str:
        """Names it by its content."""
        return self.manifest.digest

    def sequence(self, split: str) -> PackedSplit:
        """Returns the sequence of `split`.

        Raises:
            ArtifactError: there is none.
        """
        if split not in self.config.splits:
            raise ArtifactError(
                f"{self.location} has no {split!r} sequence, only {', '.join(self.config.splits)}: "
                "prepare it with that split"
            )
        return self.config.splits[split]

    def index(self, split: str) -> ExtentIndex:
        """Returns where the T extents of `split` are, compared with its checksum: a wrong one would give wrong rows.

        Raises:
            ArtifactError: it is damaged.
        """
        size, row_sets = self.sequence(split), self.config.row_sets
        found, rows = (self.manifest.checked_array(name(split)) for name in (artifacts.index_file, artifacts.rows_file))
        shapes = (size.num_batches,), (size.num_batches, len(row_sets))
        if (found.dtype, rows.dtype) != (extents.EXTENT_DTYPE, extents.ROWS_DTYPE) or (
            (found.shape, rows.shape) != shapes
        ):
            raise ArtifactError(f"{self.location}: the index of {split!r} is not one; prepare it again")
        index = ExtentIndex(found, rows, self.config.stored_row_bytes)
        most = index.max_inputs, index.max_header_bytes
        expected = tuple(each.max_inputs for each in size.row_sets), size.max_header_bytes
        if most != expected:
            raise ArtifactError(
                f"{self.location}: the index of {split!r} has at most (inputs, header bytes) {most}, "
                f"expected {expected}; prepare it again"
            )
        return index

    def static_nodes(self, row_set: str) -> npt.NDArray[np.int64]:
        """Returns [S] the nodes whose rows the static ones of a row set are: of a directory for one of several ranks;
        none of others.

        Raises:
            ArtifactError: they are damaged.
        """
        name = artifacts.static_nodes_file(row_set)
        found = self.manifest.checked_array(name) if name in self.manifest.files else np.empty(0, np.int64)
        (config,) = (each for each in self.config.row_sets if each.name == row_set)
        if found.dtype != np.int64 or found.ndim != 1 or ((found < 0) | (found >= config.num_rows)).any():
            raise ArtifactError(f"{self.location}: {name} names no rows of {row_set}; prepare it again")
        return found

    def file(self, name: str) -> Path:
        """Returns where file `name` lies, or its copy: see `Manifest.local`."""
        return self.manifest.local(name)

    def extents(self, split: str) -> Location:
        """Returns where the extents of `split` lie, on this machine or on a store."""
        return self.manifest.file(artifacts.extents_file(split))


def _fetched(path: AnyPath) -> Path:
    found = located(path)
    if isinstance(found, StoredPath):
        raise ConfigError(
            f"{found} lies on a store: copy it here with `diskgnn fetch {found} DIRECTORY`, or pass stream=True "
            f"to read it from there in every epoch"
        )
    return found
