"""Comparing all bytes of an artifact with their checksums: every file that is damaged, and every extent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO

from diskgnn._native import DIRECT_ALIGNMENT, crc32c
from diskgnn.errors import ArtifactError
from diskgnn.progress import SILENT, Reporter
from diskgnn.specs import PathLike
from diskgnn.storage import artifacts, extents
from diskgnn.storage.manifest import Manifest, check_file, read_manifest, verify_file
from diskgnn.storage.packed import Packed

_READ_BYTES = 4 << 20


@dataclass(frozen=True)
class Damage:
    """One file of an artifact that is not what was written."""

    file: str  # its name in the artifact
    problem: str
    extents: tuple[int, ...] = ()  # of an extents file: which are damaged, if only they are


class DamagedError(ArtifactError):
    """An artifact has damaged files: `damages`."""

    def __init__(self, manifest: Manifest, damages: list[Damage]) -> None:
        problems = "; ".join(damage.problem for damage in damages)
        super().__init__(f"{len(damages)} of {len(manifest.files)} files of {manifest.path} are damaged: {problems}")
        self.damages = damages


def verify_artifact(path: PathLike, *, reporter: Reporter = SILENT) -> Manifest:
    """Compare every file of an artifact with its checksum.

    Raises:
        ArtifactError: there is none, or its manifest is damaged.
        DamagedError: files are not what was written; names all of them.
    """
    manifest, damages = find_damage(path, reporter=reporter)
    if damages:
        raise DamagedError(manifest, damages)
    return manifest


def find_damage(path: PathLike, *, reporter: Reporter = SILENT) -> tuple[Manifest, list[Damage]]:
    """The manifest of an artifact, and every file of it that is not what was written.

    Raises:
        ArtifactError: there is none, or its manifest is damaged.
    """
    manifest = read_manifest(path)
    damages = []
    with reporter.stage(f"verify {path}", manifest.total_bytes, "B") as advance:
        for name in manifest.files:
            try:
                check_file(manifest, name)
                verify_file(manifest, name, advance)
            except ArtifactError as error:
                damages.append(Damage(name, str(error)))
            except OSError as error:
                damages.append(Damage(name, f"{manifest.file(name)} cannot be read: {error.strerror or error}"))
    if manifest.format == artifacts.PACKED:
        bad = {damage.file for damage in damages}
        damages = [_with_extents(Packed(manifest), damage, bad) for damage in damages]
    return manifest, damages


def _with_extents(packed: Packed, damage: Damage, bad: set[str]) -> Damage:
    """`damage`, and which extents it is in: as far as the index, which says where they are, is whole."""
    splits = {artifacts.extents_file(split): split for split in packed.config.splits}
    split = splits.get(damage.file, "")
    if not split or artifacts.index_file(split) in bad:
        return damage
    path = packed.file(damage.file)
    try:
        if path.stat().st_size != packed.manifest.files[damage.file].bytes:
            return damage
        numbers = tuple(_damaged_extents(packed, split))
    except (ArtifactError, OSError, OverflowError):  # it cannot be read, or its index was forged
        return damage
    which = ", ".join(map(str, numbers))
    return Damage(damage.file, f"{path} is damaged in {len(numbers)} of its extents: {which}", numbers)


def _damaged_extents(packed: Packed, split: str) -> Iterator[int]:
    index, row_bytes = packed.index(split), packed.config.rows.row_bytes
    with packed.file(artifacts.extents_file(split)).open("rb", buffering=0) as file:
        for number, (record, extent_bytes) in enumerate(
            zip(index, extents.extent_bytes(index, row_bytes), strict=True)
        ):
            start, rows_offset = int(record["offset"]), int(record["rows_offset"])
            header_bytes, rows_bytes = int(record["header_bytes"]), int(record["num_rows"]) * row_bytes
            after_rows = rows_offset + rows_bytes
            if not (
                _checksum(file, start, header_bytes) == record["header_crc32c"]
                and _checksum(file, start + rows_offset, rows_bytes) == record["rows_crc32c"]
                and _is_zero(file, start + header_bytes, rows_offset - header_bytes)
                and _is_zero(file, start + after_rows, int(extent_bytes) - after_rows)
            ):
                yield number


def _checksum(file: FileIO, offset: int, num_bytes: int) -> int:
    crc = 0
    for start in range(0, num_bytes, _READ_BYTES):
        crc = crc32c(os.pread(file.fileno(), min(_READ_BYTES, num_bytes - start), offset + start), crc)
    return crc


def _is_zero(file: FileIO, offset: int, num_bytes: int) -> bool:
    # No gap is longer, whatever an index says that somebody forged.
    return 0 <= num_bytes < DIRECT_ALIGNMENT and not any(os.pread(file.fileno(), num_bytes, offset))
