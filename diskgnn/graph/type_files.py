"""The common part of node types and edge types: files in a graph directory, with feature rows in some of them."""

from __future__ import annotations

import mmap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import CHECKSUM_CHUNK_BYTES, npy_dtype
from diskgnn.formats.column_records import Columns
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.quantisation import Quantisation
from diskgnn.formats.record_projection import Projection
from diskgnn.formats.record_view import view_of
from diskgnn.formats.row_format import FeatureFile, RowFormat

AGAIN = "make it with `diskgnn convert` again"
Expected = Sequence[tuple[str, tuple[int, ...]]]  # (dtype, shape) of which one is to be found


@dataclass(frozen=True)
class RowFiles:
    """The files of the feature rows of one type."""

    features: str
    checksums: str
    codes: str | None  # what the codes in quantised rows mean; None: rows of this kind are never quantised
    num_rows: int
    rows: RowFormat | None  # None: there are none
    columns: Columns | None = None  # that they were made from
    projection: Projection | None = None  # of rows that have more columns in the file

    def check(self, manifest: Manifest, what: str) -> None:
        """Checks that features and checksums fit each other and the number of rows, where each row is for one of
        `what`.

        Raises:
            ArtifactError: they do not.
        """
        if self.rows is None:
            return
        features, checksums = manifest.files.get(self.features), manifest.files.get(self.checksums)
        expected = npy_dtype(self.rows.file_dtype), (self.num_rows, *self.rows.file_row_shape)
        valid = features is not None and (features.dtype, features.shape) == expected
        if features is not None and valid:
            num_chunks = -(-features.bytes // CHECKSUM_CHUNK_BYTES)
            valid = checksums is not None and (checksums.dtype, checksums.shape) == ("<u4", (num_chunks,))
        if not valid:
            raise ArtifactError(f"{manifest.path} has no row of features for each of {what} ({self.features}); {AGAIN}")


@dataclass(frozen=True)
class TypeData(ABC):
    """The data of one node type or edge type of a graph."""

    manifest: Manifest = field(repr=False)
    number: int  # of the type: its position among the graph's

    @property
    @abstractmethod
    def row_files(self) -> RowFiles:
        """Returns the files of feature rows."""

    @abstractmethod
    def file(self, kind: str) -> str:
        """Returns the name of the file of this kind."""

    @cached_property
    def feature_file(self) -> FeatureFile | None:
        """Returns the file of feature rows, with their format; None if there are none.

        Raises:
            ArtifactError: the description of quantised rows' codes is damaged.
        """
        files, manifest, projection = self.row_files, self.manifest, self.row_files.projection
        if files.rows is None:
            return None
        quantisation = None
        if files.codes is not None:
            stored = files.rows if projection is None else projection.stored
            quantisation = Quantisation.read(manifest, stored, files.codes)
        if quantisation is not None and projection is not None:
            quantisation = projection.kept_codes(quantisation)
        offset = manifest.data_offset_bytes(files.features)
        return FeatureFile(
            manifest.file(files.features), offset, files.num_rows, files.rows, quantisation,
            view_of(files.rows, files.columns, quantisation), projection,
        )  # fmt: skip

    @cached_property
    def feature_checksums(self) -> npt.NDArray[np.uint32]:
        """Returns the CRC-32C of each CHECKSUM_CHUNK_BYTES of the feature file, its header included.

        Raises:
            ArtifactError: they are damaged themselves, or there are no features.
        """
        return self.manifest.checked_array(self.row_files.checksums)

    @cached_property
    def features(self) -> npt.NDArray[Any]:
        """Returns [rows, D] memory map of the features as stored: bfloat16 as uint16, int4 as uint8 [rows, ceil(D /
        2)], records as a structured array [rows], with all of their columns.

        Raises:
            ArtifactError: there are none.
        """
        return self.manifest.array(self.row_files.features)

    def _mapped(self, kind: str, *, has: bool) -> npt.NDArray[Any] | None:
        """Returns the memory map of a file; None unless the type `has` one."""
        return self.manifest.array(self.file(kind)) if has else None


def expect(manifest: Manifest, name: str, expected: Expected, what: str) -> None:
    """Refuses a graph unless it has `what` in its file, in one of the expected forms.

    Raises:
        ArtifactError: it has no such file, or one of another dtype or shape.
    """
    entry = manifest.files.get(name)
    if entry is None or (entry.dtype, entry.shape) not in expected:
        raise ArtifactError(f"{manifest.path} has no {what} ({name}); {AGAIN}")


def read_at_random(mapped: npt.NDArray[Any]) -> None:
    """Makes a memory map read no more than what is touched: read-ahead would read megabytes for each value."""
    memory = getattr(mapped, "_mmap", None)  # NumPy's own; an empty array has none
    if memory is not None:
        memory.madvise(mmap.MADV_RANDOM)
