"""Files of rows in a packed directory, checked against what its config says of them."""

from __future__ import annotations

from diskgnn.errors import ArtifactError
from diskgnn.storage.checked_files import npy_data_offset
from diskgnn.storage.manifest import verify_file
from diskgnn.storage.packed import Packed
from diskgnn.storage.row_format import FeatureFile


def open_row_file(packed: Packed, name: str, num_rows: int, *, verify: bool) -> FeatureFile:
    """The .npy file `name` of `packed`, rows as `RowFormat` has them: memory is taken and addressed by these numbers.

    Raises:
        ArtifactError: it has another shape or dtype; or another checksum, if `verify`.
    """
    rows, entry = packed.config.rows, packed.manifest.files.get(name)
    found = None if entry is None else (entry.dtype, entry.shape)
    if found != (rows.storage.str, (num_rows, rows.stored_columns)):
        raise does_not_fit(packed)
    if verify:
        verify_file(packed.manifest, name)
    path = packed.file(name)
    return FeatureFile(path, npy_data_offset(path), num_rows, rows)


def does_not_fit(packed: Packed) -> ArtifactError:
    """The error for files that the config of `packed` does not speak of."""
    return ArtifactError(f"{packed.path}: its files do not have the rows that it speaks of; prepare it again")
