"""Comparing all bytes of an artifact with their checksums: every file that is damaged, and every extent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from diskgnn._native import DIRECT_ALIGNMENT
from diskgnn.errors import ArtifactError, ReadError
from diskgnn.files.checked_files import checksum_file, checksum_of
from diskgnn.files.file_reading import Opened, fill, forget, reading, size_of
from diskgnn.formats import artifacts
from diskgnn.formats.extents import Part
from diskgnn.formats.manifest import Manifest, check_file, made_again, read_manifest
from diskgnn.formats.packed import Packed
from diskgnn.progress.reporter import SILENT, Reporter
from diskgnn.stores.locations import AnyPath, Location


@dataclass(frozen=True)
class Damage:
    """One file of an artifact that is not what was written."""

    file: str  # its name in the artifact
    problem: str
    extents: tuple[int, ...] = ()  # of an extents file: which are damaged, if only they are


class UnreadableError(ReadError):
    """The disk failed below files of an artifact, so nobody knows whether they are whole.

    `damages` are those of the files that were read.
    """

    def __init__(self, failures: Sequence[ReadError], damages: Sequence[Damage] = ()) -> None:
        also = "".join(f"; {damage.problem}" for damage in damages)
        super().__init__(failures[0].errno, "; ".join(str(failure.args[1]) for failure in failures))
        self.failures, self.damages, self._also = tuple(failures), tuple(damages), also

    def __reduce__(self) -> tuple[type[UnreadableError], tuple[object, ...]]:
        return UnreadableError, (self.failures, self.damages)

    def __str__(self) -> str:
        return (
            f"{self.args[1]}: the disk failed, the data may be whole, so nothing is repaired; see what the kernel says "
            f"of it (dmesg), then run this again{self._also}"
        )


class DamagedError(ArtifactError):
    """An artifact has damaged files: `damages`."""

    def __init__(self, manifest: Manifest, damages: list[Damage]) -> None:
        problems = "; ".join(damage.problem for damage in damages)
        super().__init__(f"{len(damages)} of {len(manifest.files)} files of {manifest.path} are damaged: {problems}")
        self.damages = damages


def verify_input(manifest: Manifest, name: str, advance: Callable[[int], None] = lambda _: None) -> None:
    """Verifies as `verify_file` does a file that is read again from this machine: of a store, its copy is made.

    Raises:
        ArtifactError, DiskFullError, StoreError: see `Manifest.local`.
    """
    if manifest.copies is None:
        verify_file(manifest, name, advance)
    else:
        manifest.local(name, advance)


def verify_file(manifest: Manifest, name: str, advance: Callable[[int], None] = lambda _: None) -> None:
    """Compare one file of an artifact with its checksum.

    Raises:
        ArtifactError: its content is not what was written.
    """
    manifest.check(name, checksum_file(manifest.file(name), advance))


def verify_artifact(path: AnyPath, *, reporter: Reporter = SILENT) -> Manifest:
    """Compare every file of an artifact with its checksum.

    Raises:
        ArtifactError: there is none, or its manifest is damaged.
        DamagedError: files are not what was written; names all of them.
        UnreadableError: see `find_damage`.
    """
    manifest, damages = find_damage(path, reporter=reporter)
    if damages:
        raise DamagedError(manifest, damages)
    return manifest


def find_damage(path: AnyPath, *, reporter: Reporter = SILENT) -> tuple[Manifest, list[Damage]]:
    """Returns the manifest of an artifact, and every file of it that is not what was written.

    Raises:
        ArtifactError: there is none, or its manifest is damaged.
        UnreadableError: the disk failed below some files; all others were compared nevertheless.
    """
    manifest = read_manifest(path)
    damages, failures = list[Damage](), dict[str, ReadError]()
    with reporter.stage(f"verify {path}", manifest.total_bytes, "B") as advance:
        for name in manifest.files:
            try:
                check_file(manifest, name)
                verify_file(manifest, name, advance)
            except ArtifactError as error:
                damages.append(Damage(name, str(error)))
            except ReadError as error:
                failures[name] = error
    if manifest.format == artifacts.PACKED:
        bad = {damage.file for damage in damages}
        damages = [_with_extents(Packed(manifest), damage, bad | failures.keys()) for damage in damages]
    if failures:
        raise UnreadableError(list(failures.values()), damages)
    return manifest, damages


def _with_extents(packed: Packed, damage: Damage, bad: set[str]) -> Damage:
    """Returns `damage`, and which extents it is in: as far as the index, which says where they are, is whole."""
    splits = {artifacts.extents_file(split): split for split in packed.config.splits}
    split = splits.get(damage.file, "")
    if not split or bad & {artifacts.index_file(split), artifacts.rows_file(split)}:
        return damage
    path = packed.manifest.file(damage.file)
    try:
        with reading(path) as file:
            num_bytes = size_of(file)
        if num_bytes != packed.manifest.files[damage.file].bytes:
            return damage
        numbers = tuple(damaged_extents(packed, split))
    except (ArtifactError, OSError, OverflowError):  # it cannot be read, or its index was forged
        return damage
    which = ", ".join(map(str, numbers))
    problem = f"{path} is damaged in {len(numbers)} of its extents: {which}; {made_again(packed.manifest)}"
    return Damage(damage.file, problem, numbers)


def damaged_extents(packed: Packed, split: str, numbers: Sequence[int] | None = None) -> Iterator[int]:
    """Yields the extents of `split`, or those of them that `numbers` names, that are not what was written.

    Raises:
        ArtifactError: the index is damaged.
        ReadError: the disk failed.
        OSError: the file cannot be opened.
    """
    index, path = packed.index(split), packed.manifest.file(artifacts.extents_file(split))
    if numbers is None:
        numbers = range(len(index))
    else:
        index = index[numbers]
    with reading(path, front_to_back=True) as file:
        sizes = index.extent_bytes.tolist()
        for number, num_bytes, parts in zip(numbers, sizes, index.parts.by_extent(), strict=True):
            is_whole = all(_is_whole(file, path, part) for part in parts)
            forget(file, parts[0].offset, num_bytes)
            if not is_whole:
                yield number


def _is_whole(file: Opened, path: Location, part: Part) -> bool:
    """Returns True if a part of an extent has its checksum, and all that is behind it is zero."""
    if checksum_of(file, path, part.offset, part.num_bytes) != part.crc32c:
        return False
    # No padding is longer, whatever an index says that somebody forged.
    return 0 <= part.padding_bytes < DIRECT_ALIGNMENT and not any(
        fill(file, part.offset + part.num_bytes, bytearray(part.padding_bytes), path)
    )
