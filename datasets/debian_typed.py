"""Debian's packages with their sources, maintainers, sections and file names: a real graph with several types.

    python datasets/debian_typed.py OUT      fetch the indices, write the graph directory OUT (needs a Debian machine)

Nodes are binary packages; the source packages that they are built from; the maintainers of these; archive sections that
name a format (libs, doc, …); and names of files that at least two packages hold, and at most 200. Edges of type
'depends' go from a package to what it needs (Depends, Pre-Depends), of type 'suggests' to what else it names; providers
of virtual packages count, too. All edges have their reverse type.

Two tasks. A package's topic is its archive section, unless that names a format: so topics are no nodes. Splits are
drawn by source package, as in `debian_packages`. The other task is to predict what a package depends on: four fifths of
the 'depends' edges are edges and seeds to train on, the others are seeds for validation and test alone.

Features of packages are those of `debian_packages`: of the words of the description. Those of file names are signed
counts of hashed trigrams, as in `debian_files`. Sources, maintainers and sections have none: names of persons are not
kept.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import debian_files
import debian_indices
import numpy as np
import numpy.typing as npt
from debian_packages import (
    FEATURE_WIDTH,
    FORMAT_SECTIONS,
    MIN_CLASS_MEMBERS,
    RELATIONS,
    Package,
    dependency_edges,
    description_words,
    read_packages,
    section,
    source_name,
    split_by_source,
    text_features,
    topic_labels,
)
from genes import link_parts

NEEDS = ("Pre-Depends", "Depends")
MIN_HOLDERS, MAX_HOLDERS = 2, 200  # packages that hold a file of one name
NAME_WIDTH = 64
SPLITS = ("train", "valid", "test")


def load(
    indices: debian_indices.Indices, *, width: int = FEATURE_WIDTH, min_members: int = MIN_CLASS_MEMBERS
) -> dict[str, Any]:
    """The graph as a description for `diskgnn.convert(..., schema=...)`. Types of nodes are in the order of names."""
    packages = read_packages(indices)
    sections = [section(package) for package in packages]
    labels = topic_labels(sections, min_members)
    split = np.where(labels >= 0, split_by_source([source_name(package) for package in packages]), -1)
    sources, source_of = np.unique([source_name(package) for package in packages], return_inverse=True)
    formats = sorted(FORMAT_SECTIONS & {*sections})
    in_format = np.array([number for number, name in enumerate(sections) if name in FORMAT_SECTIONS], np.int64)
    maintainers = sorted({package["Maintainer"] for package in packages if "Maintainer" in package})
    keeps = _distinct(
        (source_of[number], maintainers.index(package["Maintainer"]))
        for number, package in enumerate(packages) if "Maintainer" in package
    )  # fmt: skip
    names, holds = shared_names(packages, indices.contents)
    needed, named = (
        _distinct((a, b) for a, b in dependency_edges(packages, relations) if a != b)
        for relations in (NEEDS, [each for each in RELATIONS if each not in NEEDS])
    )
    part = link_parts(needed)
    links = {name: needed[:, part == number] for number, name in enumerate(SPLITS)}
    return {
        "nodes": {
            "package": {
                "features": text_features([description_words(each, frozenset(sections)) for each in packages], width),
                "labels": labels,
                **{name: found for code, name in enumerate(SPLITS) if len(found := np.flatnonzero(split == code))},
            },
            "source": {"num_nodes": len(sources)},
            "maintainer": {"num_nodes": max(len(maintainers), 1)},
            "section": {"num_nodes": max(len(formats), 1)},
            "file_name": {"features": np.concatenate(list(debian_files.trigram_features(names, NAME_WIDTH)))},
        },
        "edges": {
            "package:depends:package": {
                "edges": links["train"], "reverse": True,
                **{name: pairs for name, pairs in links.items() if pairs.shape[1]},
            },
            "package:suggests:package": {"edges": named, "reverse": True},
            "package:built_from:source": {
                "edges": np.stack([np.arange(len(packages)), source_of.reshape(-1)]), "reverse": True,
            },
            "source:kept_by:maintainer": {"edges": keeps, "reverse": True},
            "package:in:section": {
                "edges": np.stack([in_format, [formats.index(sections[each]) for each in in_format]]).astype(np.int64),
                "reverse": True,
            },
            "package:has:file_name": {"edges": holds, "reverse": True},
        },
    }  # fmt: skip


def shared_names(
    packages: Sequence[Package], contents: Iterable[Path]
) -> tuple[debian_files.Names, npt.NDArray[np.int64]]:
    """Names of files that several packages hold, in order of the alphabet, and edges [2, E] from packages to them.

    The names of packages and sources, with and without an extension, are left out.
    """
    ids = {package["Package"].encode(): number for number, package in enumerate(packages)}
    own = ids.keys() | {source_name(package).encode() for package in packages}
    holders: dict[bytes, set[int]] = {}
    for path, owners in debian_files.merged(contents):
        name = path.rpartition(b"/")[2]
        if name in own or name.partition(b".")[0] in own:
            continue
        found = holders.setdefault(name, set())
        if len(found) <= MAX_HOLDERS:  # one more says that there are too many
            found.update(ids[owner] for owner in owners if owner in ids)
    kept = sorted(name for name, found in holders.items() if MIN_HOLDERS <= len(found) <= MAX_HOLDERS)
    edges = _distinct((holder, number) for number, name in enumerate(kept) for holder in holders[name])
    offsets = np.cumsum([0, *map(len, kept)])
    return debian_files.Names(np.frombuffer(b"".join(kept), np.uint8), offsets.astype(np.int64)), edges


def _distinct(pairs: Iterable[tuple[Any, Any]]) -> npt.NDArray[np.int64]:
    """[2, n] pairs once each, sorted."""
    return np.unique(np.array(list(pairs), np.int64).reshape(-1, 2), axis=0).T


def main(command_line: Sequence[str] | None = None) -> None:
    """Fetch the indices, write the graph directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    arguments = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory() as folder:
        description = load(debian_indices.fetch(Path(folder), contents=True))

    import diskgnn

    diskgnn.convert(arguments.out, schema=description, overwrite=arguments.overwrite)


if __name__ == "__main__":
    main()
