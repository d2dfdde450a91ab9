"""Debian's packages, directories and files as one large graph: 8 M nodes, 31 M edges, features of any width.

    python datasets/debian_files.py OUT --width 512 --dtype float32

Needs a Debian machine: the package indices are fetched with `apt-get update` into a temporary folder (60 MB). The
features, 16 GB at that width, are written once, to OUT-features.npy, and OUT refers to them there.

Nodes are packages, then directories, then files. Edges, in both directions, join a file to the packages that hold
it and to its directory, and a directory to the one above. Labels and splits are those of debian_packages, so only
packages (0.8 % of the nodes) have any. A feature row holds the counts of the node's name's character trigrams,
hashed with signs into `width` buckets and scaled to unit length; packages, and whatever is named like a package,
have zeros. Made for measuring speed and I/O; for claims about accuracy take debian_packages.
"""

from __future__ import annotations

import argparse
import heapq
import tempfile
import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import debian_indices
import numpy as np
import numpy.typing as npt
from debian_packages import (
    MIN_CLASS_MEMBERS,
    Package,
    read_packages,
    section,
    source_name,
    split_by_source,
    topic_labels,
)

DTYPES = ("float32", "float16")
CHUNK_VALUES = 1 << 21  # of the feature matrix at a time: its sums, float64, stay near the processor
HASH_MULTIPLIER = np.uint32(0x9E3779B1)  # odd, bits well mixed: Fibonacci hashing

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Names:
    """The names of all nodes, in order, in one buffer: name i is text[offsets[i]:offsets[i+1]]."""

    text: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]  # [N+1]


def build(
    packages: list[Package], contents: Iterable[Path], min_members: int = MIN_CLASS_MEMBERS
) -> tuple[Arrays, Names]:
    """The graph but for its features, from the paragraphs of packages and Contents indices sorted by path.

    Returns:
        edges int32 [2, E], each undirected edge once; labels int64 [N]; train, valid, test int64; and the names
        that make features: empty for packages and for what is named like one.
    """
    ids = {package["Package"].encode(): i for i, package in enumerate(packages)}
    not_features = ids.keys() | {source_name(package).encode() for package in packages}
    directories: dict[bytes, int] = {}
    parents, file_directory, holders, held = array("i"), array("i"), array("i"), array("i")
    directory_names, file_names = _NameList(not_features), _NameList(not_features)

    def directory_id(path: bytes) -> int:
        found = directories.get(path)
        if found is None:
            above, _, name = path.rpartition(b"/")
            parent = directory_id(above) if path else -1  # the root has no parent
            found = directories[path] = len(parents)
            parents.append(parent)
            directory_names.add(name)
        return found

    for path, owners in merged(contents):
        known = [ids[owner] for owner in owners if owner in ids]
        if known:
            above, _, name = path.rpartition(b"/")
            held.extend([len(file_directory)] * len(known))
            holders.extend(known)
            file_directory.append(directory_id(above))
            file_names.add(name)

    first_file = len(packages) + len(parents)
    file_ids = np.arange(first_file, first_file + len(file_directory), dtype=np.int32)
    parent_of = np.array(parents, np.int32)
    inner = np.flatnonzero(parent_of >= 0).astype(np.int32)
    edges = np.empty((2, len(held) + len(file_ids) + len(inner)), np.int32)
    np.concatenate([np.array(held, np.int32) + first_file, file_ids, inner + len(packages)], out=edges[0])
    targets = [np.array(file_directory, np.int32) + len(packages), parent_of[inner] + len(packages)]
    np.concatenate([np.array(holders, np.int32), *targets], out=edges[1])

    labels = np.full(first_file + len(file_ids), -1, np.int64)
    labels[: len(packages)] = topic_labels([section(package) for package in packages], min_members)
    split = split_by_source([source_name(package) for package in packages])
    split[labels[: len(packages)] < 0] = -1
    splits = {name: np.flatnonzero(split == code) for code, name in enumerate(("train", "valid", "test"))}
    lengths = np.concatenate([np.zeros(1 + len(packages)), directory_names.lengths, file_names.lengths])
    offsets = np.cumsum(lengths.astype(np.int64))
    text = np.frombuffer(directory_names.text + file_names.text, np.uint8)
    return {"edges": edges, "labels": labels, **splits}, Names(text, offsets)


class _NameList:
    """Names one after the other, empty where the name, or what stands before its first dot, is in `excluded`."""

    def __init__(self, excluded: set[bytes]) -> None:
        self.text, self.lengths, self._excluded = bytearray(), array("i"), excluded

    def add(self, name: bytes) -> None:
        if name in self._excluded or name.partition(b".")[0] in self._excluded:
            name = b""
        self.text += name
        self.lengths.append(len(name))


def merged(contents: Iterable[Path]) -> Iterator[tuple[bytes, list[bytes]]]:
    """The lines of several Contents indices; a path that is in more than one comes once, with all its packages."""
    lines = heapq.merge(*map(debian_indices.contents, contents), key=lambda line: line[0])
    for path, same in groupby(lines, key=lambda line: line[0]):
        yield path, list(dict.fromkeys(owner for _, owners in same for owner in owners))


def trigram_features(names: Names, width: int, chunk_values: int = CHUNK_VALUES) -> Iterator[npt.NDArray[np.float32]]:
    """The feature matrix [N, width], some rows at a time: signed counts of hashed trigrams, of length 1 or 0.

    Capitals count as small letters and all digits as one; the last two trigrams of a name are cut by its end.
    """
    step = max(1, chunk_values // width)
    for start in range(0, len(names.offsets) - 1, step):
        offsets = names.offsets[start : start + step + 1]
        yield _trigram_rows(names.text[offsets[0] : offsets[-1]], offsets - offsets[0], width)


def _trigram_rows(text: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.float32]:
    lengths = np.diff(offsets)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    letters = np.zeros(len(text) + 2, np.uint32)
    letters[: len(text)] = _FOLDED[text]
    left = offsets[1:][rows] - np.arange(len(text))  # letters up to the name's end, this one included
    code = letters[:-2] | np.where(left > 1, letters[1:-1] << 8, 0) | np.where(left > 2, letters[2:] << 16, 0)
    mixed = (code ^ (code >> 11)) * HASH_MULTIPLIER
    mixed ^= mixed >> 15
    sign = 1.0 - 2.0 * (mixed & 1)
    bucket = (mixed >> 1) % width
    sums = np.bincount(rows * width + bucket, sign, len(lengths) * width).reshape(len(lengths), width)
    norm = np.sqrt(np.einsum("ij,ij->i", sums, sums))
    return (sums / np.maximum(norm, 1)[:, None]).astype(np.float32)


def _folded_letters() -> npt.NDArray[np.uint32]:
    letters = np.arange(256, dtype=np.uint32)
    letters[ord("A") : ord("Z") + 1] += ord("a") - ord("A")
    letters[ord("0") : ord("9") + 1] = ord("0")
    return letters


_FOLDED = _folded_letters()


def write_features(path: Path, names: Names, width: int, dtype: str) -> None:
    """Write the features to the .npy file `path`, which appears only when it is complete."""
    from diskgnn.files.checked_files import npy_header_bytes
    from diskgnn.files.disk_space import require_free_bytes

    num_nodes = len(names.offsets) - 1
    require_free_bytes(path.parent, num_nodes * width * np.dtype(dtype).itemsize, f"features {path}")
    partial = path.with_suffix(".partial")
    try:
        with partial.open("wb") as file:
            file.write(npy_header_bytes(dtype, (num_nodes, width)))
            for rows in trigram_features(names, width):
                file.write(rows.astype(dtype, copy=False).data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_graph(
    out: Path,
    indices: debian_indices.Indices,
    width: int,
    dtype: str,
    *,
    min_members: int = MIN_CLASS_MEMBERS,
    overwrite: bool = False,
) -> None:
    """Write the graph directory `out`, and its features beside it."""
    import diskgnn

    started = time.perf_counter()
    arrays, names = build(read_packages(indices), indices.contents, min_members)
    num_nodes, num_edges = len(arrays["labels"]), arrays["edges"].shape[1]
    print(f"{num_nodes} nodes, {num_edges} undirected edges, {_since(started)}", flush=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    features = features_of(out)
    write_features(features, names, width, dtype)
    print(f"features {features}, {_since(started)}", flush=True)
    del names
    given = {name: array for name, array in arrays.items() if len(array)}  # splits may have no members
    diskgnn.convert(out, features=features, **given, reverse=True, reference_features=True, overwrite=overwrite)
    print(f"graph {out}, {_since(started)}")


def features_of(out: Path) -> Path:
    """Where the features of graph directory `out` lie."""
    return out.with_name(f"{out.name}-features.npy")


def main(command_line: Sequence[str] | None = None) -> None:
    """Fetch the indices, write the graph directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write; its features lie beside it")
    parser.add_argument("--width", type=int, default=128, help="values of a feature row (default 128)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the features (default float32)")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT and its features if they exist")
    arguments = parser.parse_args(command_line)
    for path in (arguments.out, features_of(arguments.out)):
        if path.exists() and not arguments.overwrite:
            parser.error(f"{path} exists already; pass --overwrite to replace it")
    if arguments.width < 1:
        parser.error(f"expected a width of at least 1, found {arguments.width}")
    with tempfile.TemporaryDirectory() as folder:
        indices = debian_indices.fetch(Path(folder), contents=True)
        write_graph(arguments.out, indices, arguments.width, arguments.dtype, overwrite=arguments.overwrite)


def _since(started: float) -> str:
    return f"{time.perf_counter() - started:.0f} s"


if __name__ == "__main__":
    main()
