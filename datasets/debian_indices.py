"""Debian's package indices, and single packages: fetched with the machine's own apt configuration, and read."""

from __future__ import annotations

import bz2
import gzip
import lzma
import platform
import subprocess
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

ARCHITECTURE = "amd64"  # whatever this machine is, so that every machine builds the same graph
COMPONENT = "main"


class IndicesError(RuntimeError):
    """The indices cannot be had here."""


@dataclass(frozen=True)
class Indices:
    """Index files of one release, plain or compressed with gzip, xz or bzip2."""

    packages: Path  # paragraphs of Package, Source, Section, Depends, …
    translation: Path | None = None  # paragraphs of Package, Description-md5, Description-en
    contents: tuple[Path, ...] = ()  # lines 'path  section/package,section/package'


def fetch(folder: Path, *, contents: bool = False) -> Indices:
    """Fetch the indices of this machine's Debian release with `apt-get update`, into `folder` alone.

    The machine's own apt lists, sources and cache stay as they are; root is not needed.

    Raises:
        IndicesError: this is no Debian machine, or apt fails; the message ends with what apt said.
    """
    release = _debian_release()
    options = _private_options(folder.absolute())
    if contents:
        target = "Acquire::IndexTargets::deb::Contents-deb::"
        options |= {
            f"{target}MetaKey": "$(COMPONENT)/Contents-$(ARCHITECTURE)",
            f"{target}ShortDescription": "Contents",
            f"{target}Description": "$(RELEASE)/$(COMPONENT) Contents-$(ARCHITECTURE)",
            f"{target}KeepCompressed": "true",
            f"{target}KeepCompressedAs": "gz xz",
        }
    _apt_get(options, "update")
    found: dict[str, list[Path]] = {}
    fields = "$(CREATED_BY)|$(ORIGIN)|$(RELEASE)|$(COMPONENT)|$(ARCHITECTURE)|$(FILENAME)"
    for line in sorted(_apt_get(options, "indextargets", "--format", fields).splitlines()):
        kind, *where, architecture, path = line.split("|", 5)
        # A Translation index serves all architectures, so apt leaves $(ARCHITECTURE) as it stands.
        if where == ["Debian", release, COMPONENT] and architecture in (ARCHITECTURE, "all", "$(ARCHITECTURE)"):
            found.setdefault(kind, []).append(Path(path))
    missing = {"Packages", "Translations", *(["Contents-deb"] if contents else [])} - found.keys()
    if missing:
        raise IndicesError(f"`apt-get update` fetched no {' and no '.join(sorted(missing))} index of {release}")
    return Indices(found["Packages"][0], found["Translations"][0], tuple(found.get("Contents-deb", ())))


def fetch_package(name: str, folder: Path) -> Path:
    """Fetch the binary package `name` of this machine's release, and unpack it into a folder; that folder.

    Nothing is installed, and nothing outside of `folder` changes; root is not needed.

    Raises:
        IndicesError: this is no Debian machine, there is no such package, or apt or dpkg-deb fails.
    """
    _debian_release()
    options = _private_options(folder.absolute())
    _apt_get(options, "update")
    _apt_get(options, "download", name, folder=folder)
    (archive,) = folder.glob(f"{name}_*.deb")
    unpacked = folder / "unpacked"
    _run(["dpkg-deb", "-x", str(archive), str(unpacked)], folder)
    return unpacked


def _private_options(folder: Path) -> dict[str, str | Path]:
    """apt's, to keep lists and cache in `folder` alone."""
    (folder / "cache").mkdir(parents=True, exist_ok=True)
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    return {
        "APT::Architecture": ARCHITECTURE,
        "APT::Sandbox::User": "",
        "Acquire::GzipIndexes": "true",  # keep them compressed, in what the standard library reads
        "Acquire::IndexTargets::deb::Packages::KeepCompressedAs": "xz gz",
        "Acquire::IndexTargets::deb::Translations::KeepCompressedAs": "xz gz",
        "Acquire::Languages": "en",
        "Dir::Cache": folder / "cache",
        "Dir::State::lists": folder / "lists",
    }


def _debian_release() -> str:
    try:
        system = platform.freedesktop_os_release()
    except OSError:
        system = {"ID": "an unknown system"}
    if system["ID"] != "debian" or "VERSION_CODENAME" not in system:
        raise IndicesError(
            f"expected to run on a Debian release, whose apt sources name the indices; found {system['ID']}"
        )
    return system["VERSION_CODENAME"]


def _apt_get(options: dict[str, str | Path], *arguments: str, folder: Path | None = None) -> str:
    settings = (part for name, value in options.items() for part in ("-o", f"{name}={value}"))
    return _run(["apt-get", *arguments, *settings], folder)


def _run(command: list[str], folder: Path | None) -> str:
    """What `command` prints, run in `folder`."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise IndicesError(f"{command[0]} is not there; this needs a Debian machine") from error
    if done.returncode != 0:
        raise IndicesError(f"`{' '.join(command[:3])}` failed: {done.stderr.strip()}")
    return done.stdout


def open_index(path: Path) -> BinaryIO:
    """An index file as a stream of its uncompressed bytes."""
    opener = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}.get(path.suffix, open)
    return opener(path, "rb")  # type: ignore[operator,no-any-return]


def paragraphs(path: Path, fields: Collection[str]) -> Iterator[dict[str, str]]:
    """The paragraphs of a Packages or Translation index, each with those of `fields` that it has.

    Lines of a field that spans several are joined by spaces.
    """
    paragraph: dict[str, str] = {}
    field = ""  # the one being read, or "" while skipping
    with open_index(path) as lines:
        for raw in lines:
            line = raw.decode().rstrip()
            if not line:
                if paragraph:
                    yield paragraph
                paragraph, field = {}, ""
            elif line[0] in " \t":
                if field:
                    paragraph[field] += " " + line.strip()
            else:
                name, _, value = line.partition(":")
                field = name if name in fields else ""
                if field:
                    paragraph[field] = value.strip()
    if paragraph:
        yield paragraph


def contents(path: Path) -> Iterator[tuple[bytes, list[bytes]]]:
    """(path of a file, names of the packages that hold it) for each line of a Contents index."""
    with open_index(path) as lines:
        for line in lines:
            file, _, owners = line.rstrip().rpartition(b" ")
            yield file.rstrip(), [owner.rpartition(b"/")[2] for owner in owners.split(b",")]
