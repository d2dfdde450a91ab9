"""What may happen to files of a work folder between two runs, and which files lie there, by their names."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

# Locks are spared: nobody reads what they hold. Neither is scratch read that goes at the end of its block.
_SPARED = re.compile(r"(^|.*/)[^/]*(\.lock|\.scratch/.*)")
Harm = Callable[[Path, float], None]
_SPOILT_PARTS, _HEADER_BYTES = 40, 128
# The first that fits.
KINDS = {
    "journal": re.compile(r"journal\.jsonl"),
    "layout": re.compile(
        r".+\.(artifact|buckets|ranges|values)\.(even|odd)\.npz"
    ),  # decided once, for all that follows
    "record": re.compile(r".+\.(even|odd)\.npz"),
    "shuffle": re.compile(r"edges-.+\.(edges|records)|ids\..+|hops\.(edges|stripes|kept)"),
    "unit": re.compile(r".+\.arrow|\d+-.+-\d{5}|.+\.part"),
    "extents": re.compile(r".+\.bin"),
    "places": re.compile(r".+\.nodes"),
    "static": re.compile(r"static-.+\.npy"),  # rows that come in any order
    "initial": re.compile(r".+-initial-.+\.npy"),  # rows in runs, whole pages at a time
    "array": re.compile(r".+\.npy"),
    "table": re.compile(r".+\.parquet"),
    "manifest": re.compile(r"manifest\.json"),
}


def kind_of(path: Path) -> str | None:
    """Returns the kind of a file in a work folder; None if the next run does not read it."""
    return next((kind for kind, names in KINDS.items() if names.fullmatch(path.name)), None)


def left_in(folder: Path) -> list[Path]:
    """Returns the files in the work folders, which are hidden, of what is made in `folder`."""
    hidden = (path for path in folder.iterdir() if path.name.startswith(".") and path.is_dir())
    files = (Path(at, name) for each in hidden for at, _, names in os.walk(each) for name in names)
    return sorted(path for path in files if not _SPARED.fullmatch(str(path.relative_to(folder))))


def flip(path: Path, place: float) -> None:
    """Changes a bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[int(place * (len(data) - 1))] ^= 1 << int(1000 * place) % 8
        path.write_bytes(data)


def flip_first(path: Path, place: float) -> None:
    """Changes a bit of the first bytes, which are a header."""
    data = bytearray(path.read_bytes())
    if data:
        data[int(place * (min(len(data), _HEADER_BYTES) - 1))] ^= 1 << int(1000 * place) % 8
        path.write_bytes(data)


def spoil(path: Path, place: float) -> None:
    """Changes a bit in each of some parts of the same length, but the first, which has a header that would tell."""
    data = bytearray(path.read_bytes())
    length = max(1, len(data) // _SPOILT_PARTS)
    for begin in range(length, len(data) - length + 1, length):
        data[begin + int(place * (length - 1))] ^= 1 << int(1000 * place) % 8
    path.write_bytes(data)


def tear(path: Path, place: float) -> None:
    """Takes some of the last bytes away, as a kill while they were appended."""
    os.truncate(path, max(0, path.stat().st_size - 2 - int(8 * place)))


def filling(places: Iterable[int]) -> Harm:
    """Returns what sets bits at some places of a file."""

    def fill(path: Path, place: float) -> None:
        data = bytearray(path.read_bytes())
        for each in places:
            if each < len(data):
                data[each] ^= 1 << int(1000 * place) % 8
        path.write_bytes(data)

    return fill


def cut(path: Path, place: float) -> None:
    """Takes the end away."""
    os.truncate(path, int(place * path.stat().st_size))


def lengthen(path: Path, place: float) -> None:
    """Appends something."""
    with path.open("ab") as file:
        file.write(bytes([int(255 * place)]) * int(1 + 5000 * place))


def remove(path: Path, place: float) -> None:
    """Takes all of it away."""
    path.unlink()


def replace(path: Path, place: float) -> None:
    """Puts another whole file in its place, if there is one, else a directory."""
    others = sorted(other for other in path.parent.iterdir() if other.is_file() and other != path)
    path.unlink()
    if others:
        shutil.copyfile(others[int(place * len(others))], path)
    else:
        path.mkdir()


HARMS: tuple[Harm, ...] = (flip, spoil, flip_first, cut, tear, lengthen, remove, replace)


def harm_some(
    files: Iterable[Path], harms: Iterable[Harm], random: np.random.Generator, part: tuple[int, int] = (0, 1)
) -> str:
    """Damages each file, at a place of its own in part i of n; says how."""
    told = list[str]()
    for path, harm in zip(files, harms, strict=True):
        place = float(random.random() + part[0]) / part[1]
        told.append(f"{harm.__name__} {path.name} of {path.stat().st_size} bytes at {place:.3f}")
        harm(path, place)
    return " and ".join(told)
