"""The dependency graph of Debian's packages: a real, labelled graph of 63 k nodes that fits in a repository.

    python datasets/debian_packages.py OUT               write the graph directory OUT from the snapshot
    python datasets/debian_packages.py OUT --rebuild     make the snapshot anew from the package indices first

Nodes are binary packages. An edge joins two packages if one depends on, recommends, suggests or enhances the other
(alternatives and providers of virtual packages count too), or if both are built from one source package. The task
is to tell a package's topic: its archive section, unless that names a format (libs, doc, …) rather than a topic.
Features are TF-IDF weights of the words of the description, reduced by truncated SVD; the package's own name and
words that spell out a section are removed first, since with them the text alone gives the answer away. Splits are
drawn by source package: siblings, whose descriptions are nearly equal, always share a split.

The snapshot holds numbers only. The indices' texts have no single licence, so none of them is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import debian_indices
import numpy as np
import numpy.typing as npt

SNAPSHOT = Path(__file__).with_suffix(".npz")

RELATIONS = ("Pre-Depends", "Depends", "Recommends", "Suggests", "Enhances")
FIELDS = {"Package", "Source", "Maintainer", "Section", "Provides", "Description", "Description-md5", *RELATIONS}
MAX_PROVIDERS = 20  # a virtual package with more says little about whoever needs it
MAX_CLIQUE = 20  # packages of one source are joined pairwise up to here, in a ring beyond
MIN_CLASS_MEMBERS = 100
FORMAT_SECTIONS = frozenset(
    "libs libdevel doc oldlibs debug localization metapackages tasks misc introspection unknown".split()  # noqa: SIM905
)
TRAIN_FRACTION, VALID_FRACTION = 0.6, 0.2
FEATURE_WIDTH = 128
FEATURE_STEP = np.float32(0.2)  # of a standard deviation: int8 holds every value, and accuracy stays what it was
HASHED_WORDS = 1 << 16
# Words that spell out a section: with them a bag of words needs no graph.
GIVEAWAYS = frozenset(
    """perl python python2 python3 haskell ruby rust golang go java javascript js node nodejs npm php php5 php8 r
    gnu cran bioconductor ocaml lisp elisp emacs lua mono cli gnome kde xfce gtk qt gnustep library libraries
    shared runtime development headers header files documentation docs doc static package packages dummy
    transitional metapackage debug symbols module modules binding bindings font fonts game games kernel math sound
    web mail video database editor science crate crates ghc cabal hackage cpan gem rubygems pear pecl plugin
    extension tex latex""".split()  # noqa: SIM905
)

Package = dict[str, str]
Arrays = dict[str, npt.NDArray[Any]]


def load(snapshot: Path = SNAPSHOT) -> Arrays:
    """The graph of the committed snapshot, as arrays for `diskgnn.convert(..., reverse=True)`.

    Returns:
        features float32 [N, 128]; edges int32 [2, E], each undirected edge once, smaller id first, sorted;
        labels int64 [N], -1 where a package has no topic; train, valid, test int64, ascending.
    """
    with np.load(snapshot, allow_pickle=False) as stored:
        features = stored["features"].T * stored["feature_step"]
        labels = stored["labels"].astype(np.int64)
        splits = {name: np.flatnonzero(stored["split"] == code) for code, name in enumerate(("train", "valid", "test"))}
        return {"features": np.ascontiguousarray(features), "edges": stored["edges"], "labels": labels, **splits}


def read_packages(indices: debian_indices.Indices) -> list[Package]:
    """The paragraphs of the Packages index, sorted by name; Description is the long one where there is one."""
    packages = {p["Package"]: p for p in debian_indices.paragraphs(indices.packages, FIELDS)}
    if indices.translation is not None:
        wanted = {"Description-md5", "Description-en"}
        long = {
            p["Description-md5"]: p.get("Description-en")
            for p in debian_indices.paragraphs(indices.translation, wanted)
        }
        for package in packages.values():
            package["Description"] = long.get(package.get("Description-md5", "")) or package.get("Description", "")
    return [packages[name] for name in sorted(packages)]


def source_name(package: Package) -> str:
    """The source package that a package is built from: 'Source: name (version)', or its own name."""
    return package.get("Source", package["Package"]).split(" ")[0]


def section(package: Package) -> str:
    """The archive section without its area: 'science' of 'contrib/science'."""
    return package.get("Section", "unknown").rpartition("/")[2]


def relation_names(relation: str) -> Iterator[str]:
    """The names in 'a (>= 1) | b:any, c [amd64]', alternatives included: a, b, c."""
    for clause in re.split(r"[,|]", relation):
        name = re.sub(r"\(.*?\)|\[.*?\]|<.*?>|:\w+", "", clause).strip()
        if name:
            yield name


def dependency_edges(packages: Sequence[Package], relations: Sequence[str] = RELATIONS) -> list[tuple[int, int]]:
    """(package, what it names), one for each mention; a virtual package stands for its providers."""
    ids = {package["Package"]: i for i, package in enumerate(packages)}
    providers: dict[str, list[int]] = defaultdict(list)
    for i, package in enumerate(packages):
        for name in relation_names(package.get("Provides", "")):
            providers[name].append(i)

    def resolve(name: str) -> Sequence[int]:
        if name in ids:
            return (ids[name],)
        found = providers.get(name, ())
        return found if len(found) <= MAX_PROVIDERS else ()

    return [
        (i, target)
        for i, package in enumerate(packages)
        for field in relations
        for name in relation_names(package.get(field, ""))
        for target in resolve(name)
    ]


def sibling_edges(packages: Sequence[Package]) -> list[tuple[int, int]]:
    """Pairs built from one source package: all of them, or a ring of more than MAX_CLIQUE siblings."""
    families: dict[str, list[int]] = defaultdict(list)
    for i, package in enumerate(packages):
        families[source_name(package)].append(i)
    pairs: list[tuple[int, int]] = []
    for family in families.values():
        if len(family) <= MAX_CLIQUE:
            pairs += [(a, b) for a in family for b in family if a < b]
        else:
            pairs += zip(family, family[1:] + family[:1], strict=True)
    return pairs


def undirected(pairs: Sequence[tuple[int, int]], num_nodes: int) -> npt.NDArray[np.int32]:
    """[2, E]: each unordered pair of distinct nodes once, smaller id first, sorted."""
    ends = np.sort(np.array(pairs, np.int64).reshape(-1, 2), axis=1)
    keys = np.unique(ends[:, 0] * num_nodes + ends[:, 1])
    edges = np.stack([keys // num_nodes, keys % num_nodes]).astype(np.int32)
    return edges[:, edges[0] != edges[1]]


def topic_labels(sections: Sequence[str], min_members: int = MIN_CLASS_MEMBERS) -> npt.NDArray[np.int64]:
    """[N]: topic sections of at least `min_members` packages, numbered from the largest; -1 for the others."""
    counts = Counter(sections)
    topics = [name for name, n in counts.items() if n >= min_members and name not in FORMAT_SECTIONS]
    topics.sort(key=lambda name: (-counts[name], name))
    ids = {name: i for i, name in enumerate(topics)}
    return np.array([ids.get(name, -1) for name in sections], np.int64)


def split_by_source(sources: Sequence[str]) -> npt.NDArray[np.int8]:
    """[N]: 0 train, 1 valid, 2 test. A function of the source's name alone, so siblings always share it."""

    def split(source: str) -> int:
        fraction = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=6).digest(), "big") / 2**48
        return int(fraction >= TRAIN_FRACTION) + int(fraction >= TRAIN_FRACTION + VALID_FRACTION)

    return np.array([split(source) for source in sources], np.int8)


def description_words(package: Package, sections: frozenset[str]) -> list[str]:
    """The words of a description, less the package's and its source's name and words that name a section."""
    own = {_stem(part) for name in (package["Package"], source_name(package)) for part in re.split(r"[-.+]", name)}
    words = re.findall(r"[a-z][a-z0-9+]{2,}", package.get("Description", "").lower())
    return [word for word in words if not (word in sections or word in GIVEAWAYS or _stem(word) in own)]


def _stem(word: str) -> str:
    """'foo' of libfoo, foo2, libfoo++: names of one thing that differ only by how it is packaged."""
    return word.removeprefix("lib").rstrip("0123456789+")


def text_features(texts: Sequence[list[str]], width: int) -> npt.NDArray[np.float32]:
    """[N, width]: truncated SVD of the texts' TF-IDF weights, over hashed words."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
    from threadpoolctl import threadpool_limits

    hashing = HashingVectorizer(n_features=HASHED_WORDS, alternate_sign=False, norm=None, analyzer=lambda words: words)
    weights = TfidfTransformer(sublinear_tf=True).fit_transform(hashing.transform(texts))
    with threadpool_limits(1):  # sums in one order: the same bytes whatever the number of cores
        reduced = TruncatedSVD(width, random_state=0, n_iter=3).fit_transform(weights)
    return (reduced / reduced.std()).astype(np.float32)  # type: ignore[no-any-return]


def build(packages: Sequence[Package], width: int = FEATURE_WIDTH) -> Arrays:
    """The snapshot's arrays: edges int32 [2, E]; labels, split int8 [N], -1 for none; features int8 [width, N].

    Features are stored column by column, which compresses better, in units of `feature_step`.
    """
    sections = [section(package) for package in packages]
    labels = topic_labels(sections)
    split = split_by_source([source_name(package) for package in packages])
    names = frozenset(sections)
    features = text_features([description_words(package, names) for package in packages], width)
    return {
        "edges": undirected(dependency_edges(packages) + sibling_edges(packages), len(packages)),
        "labels": labels.astype(np.int8),
        "split": np.where(labels >= 0, split, -1).astype(np.int8),
        "features": np.clip(np.rint(features.T / FEATURE_STEP), -127, 127).astype(np.int8),
        "feature_step": FEATURE_STEP,
    }


def write_snapshot(snapshot: Path, indices: debian_indices.Indices, width: int = FEATURE_WIDTH) -> None:
    """Replace the snapshot; the same indices give the same bytes."""
    partial = snapshot.with_suffix(".partial.npz")
    np.savez_compressed(partial, **build(read_packages(indices), width))  # type: ignore[arg-type]
    partial.replace(snapshot)


def main(command_line: Sequence[str] | None = None) -> None:
    """Write the graph directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("--rebuild", action="store_true", help="make the snapshot anew first (needs a Debian machine)")
    parser.add_argument("--quantise", help="store the features in fewer bits: int8, int4, float16 or bfloat16")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    arguments = parser.parse_args(command_line)
    if arguments.rebuild:
        with tempfile.TemporaryDirectory() as folder:
            write_snapshot(SNAPSHOT, debian_indices.fetch(Path(folder)))

    import diskgnn

    diskgnn.convert(arguments.out, **load(), reverse=True, quantise=arguments.quantise, overwrite=arguments.overwrite)


if __name__ == "__main__":
    main()
