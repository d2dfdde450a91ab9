"""Files of rows in a packed directory, checked against what its config says of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.files.checked_files import npy_data_offset
from diskgnn.files.file_reading import read_array
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.packed import Packed
from diskgnn.formats.row_format import FeatureFile, RowFormat


@dataclass(frozen=True)
class CheckedRowFile:
    """Reads a file of rows, and computes their checksum on the way: it starts with `header_crc32c`."""

    file: FeatureFile
    header_crc32c: int  # of what comes before row 0
    manifest: Manifest
    name: str

    def check(self, crc32c: int) -> None:
        """Compare the checksum of all rows, started with `header_crc32c`, with that of what was written.

        Raises:
            ArtifactError: they differ; names the file.
        """
        self.manifest.check(self.name, crc32c)


def open_row_file(packed: Packed, name: str, rows: RowFormat, num_rows: int) -> CheckedRowFile:
    """Opens the .npy file `name` of `packed`, `num_rows` rows of format `rows`: memory is taken and addressed by these.

    Raises:
        ArtifactError: it has another shape or dtype.
    """
    entry = packed.manifest.files.get(name)
    found = None if entry is None else (entry.dtype, entry.shape)
    if found != (rows.storage.str, (num_rows, rows.stored_columns)):
        raise does_not_fit(packed)
    path = packed.file(name)
    offset_bytes = npy_data_offset(path)
    if offset_bytes >= DIRECT_ALIGNMENT:  # readers count on the first page having the first row
        raise does_not_fit(packed)
    header_crc32c = crc32c(read_array(path, np.uint8, offset_bytes, 0))
    return CheckedRowFile(FeatureFile(path, offset_bytes, num_rows, rows), header_crc32c, packed.manifest, name)


def does_not_fit(packed: Packed) -> ArtifactError:
    """Returns the error for files that the config of `packed` does not speak of."""
    return ArtifactError(f"{packed.location}: its files do not have the rows that it speaks of; prepare it again")
