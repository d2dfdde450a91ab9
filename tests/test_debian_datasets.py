"""The data sets of Debian, on package indices small enough to check by hand, and the snapshot that is committed."""

from __future__ import annotations

import gzip
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from neighbor_order import in_order

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

import debian_files
import debian_packages
import debian_typed
from debian_indices import Indices

import diskgnn
from diskgnn.graph.graph import Graph

PACKAGES = """\
Package: zoo
Maintainer: Zoe <zoe@example.org>
Section: contrib/science
Depends: nothing-that-exists
Enhances: editor

Package: editor
Maintainer: Ann <ann@example.org>
Section: science
Pre-Depends: libtext1 (>= 1.0~beta)
Depends: libtext1 (>= 1.0), mail-agent | zoo [amd64], libtext1:any (<< 9) <!nodoc>
Suggests: editor,
 mailer-a
Description: small editor
Description-md5: 0e

Package: libtext1
Maintainer: Ann <ann@example.org>
Source: text (1.0-3)
Section: libs
Description: short only
Description-md5: 0f

Package: libtext-dev
Source: text
Section: libdevel
Depends: libtext1 (= 1.0)

Package: mailer-a
Section: mail
Provides: mail-agent

Package: mailer-b
Section: mail
Provides: mail-agent (= 2), other
"""
TRANSLATION = """\
Package: editor
Description-md5: 0e
Description-en: small editor
 Edits plain TEXT, in Haskell.
 .
 The editor2 writes texts quickly.

Package: editor
Description-md5: 99
Description-en: of another version
"""
NAMES = ["editor", "libtext-dev", "libtext1", "mailer-a", "mailer-b", "zoo"]
EDITOR, LIBTEXT_DEV, LIBTEXT1, MAILER_A, MAILER_B, ZOO = range(6)
CONTENTS_ALL = """\
etc/editor.conf                     science/editor
usr/lib/a file.so                   libs/libtext1,mail/mailer-a
usr/share/common                    mail/mailer-a
usr/share/unknown                   games/not-in-packages
"""
CONTENTS_AMD64 = """\
toplevel                            science/zoo
usr/lib/libx2.so                    libdevel/libtext-dev
usr/share/common                    mail/mailer-b,contrib/mail/mailer-a
"""


@pytest.fixture
def indices(tmp_path: Path) -> Indices:
    packages, translation = tmp_path / "Packages.xz", tmp_path / "Translation"
    contents = tmp_path / "Contents-all.gz", tmp_path / "Contents-amd64"
    packages.write_bytes(lzma.compress(PACKAGES.encode()))
    translation.write_text(TRANSLATION)
    contents[0].write_bytes(gzip.compress(CONTENTS_ALL.encode()))
    contents[1].write_text(CONTENTS_AMD64)
    return Indices(packages, translation, contents)


def test_packages_are_sorted_and_take_the_description_that_their_checksum_names(indices: Indices) -> None:
    packages = debian_packages.read_packages(indices)
    assert [package["Package"] for package in packages] == NAMES
    assert packages[EDITOR]["Description"].startswith("small editor Edits plain TEXT")
    assert packages[LIBTEXT1]["Description"] == "short only"
    assert packages[EDITOR]["Suggests"] == "editor, mailer-a"
    assert [debian_packages.source_name(package) for package in packages[1:3]] == ["text", "text"]
    assert debian_packages.section(packages[ZOO]) == "science"


def test_types(indices: Indices, tmp_path: Path) -> None:
    """Sources are editor, mailer-a, mailer-b, text, zoo; sections that are no topics libdevel and libs."""
    described = debian_typed.load(indices, width=2, min_members=1)
    nodes, edges = described["nodes"], described["edges"]
    assert nodes["package"]["features"].shape == (6, 2)
    assert nodes["package"]["labels"].tolist() == [1, -1, -1, 0, 0, 1]
    assert {name: kind["num_nodes"] for name, kind in nodes.items() if "num_nodes" in kind} == {
        "source": 5, "maintainer": 2, "section": 2,
    }  # fmt: skip
    pairs = {name.split(":")[1]: each["edges"].T.tolist() for name, each in edges.items()}
    assert pairs["built_from"] == [[0, 0], [1, 3], [2, 3], [3, 1], [4, 2], [5, 4]]
    assert pairs["kept_by"] == [[0, 0], [3, 0], [4, 1]]
    assert pairs["in"] == [[LIBTEXT_DEV, 0], [LIBTEXT1, 1]]
    assert pairs["suggests"] == [[EDITOR, MAILER_A], [ZOO, EDITOR]]
    assert pairs["has"] == [[LIBTEXT1, 0], [MAILER_A, 0], [MAILER_A, 1], [MAILER_B, 1]]  # 'a file.so' and 'common'
    needs = edges["package:depends:package"]
    seeds = np.concatenate([needs[split].T for split in ("train", "valid", "test") if split in needs])
    assert sorted(seeds.tolist()) == [
        [EDITOR, LIBTEXT1], [EDITOR, MAILER_A], [EDITOR, MAILER_B], [EDITOR, ZOO], [LIBTEXT_DEV, LIBTEXT1],
    ]  # fmt: skip
    assert pairs["depends"] == needs["train"].T.tolist()
    diskgnn.convert(tmp_path / "graph", schema=described)
    assert len(Graph.open(tmp_path / "graph").edges) == 12


def test_names_of_a_relation() -> None:
    relation = "a (>= 1:2~b) | b:any, c [amd64 !i386] <!nocheck>, d+e-1.0:native"
    assert list(debian_packages.relation_names(relation)) == ["a", "b", "c", "d+e-1.0"]
    assert list(debian_packages.relation_names("")) == []


def test_edges(indices: Indices) -> None:
    packages = debian_packages.read_packages(indices)
    mentions = debian_packages.dependency_edges(packages)
    assert sorted(mentions) == [
        (EDITOR, EDITOR),
        (EDITOR, LIBTEXT1),
        (EDITOR, LIBTEXT1),
        (EDITOR, LIBTEXT1),
        (EDITOR, MAILER_A),
        (EDITOR, MAILER_A),  # once by its name, once as a provider of mail-agent
        (EDITOR, MAILER_B),
        (EDITOR, ZOO),
        (LIBTEXT_DEV, LIBTEXT1),
        (ZOO, EDITOR),
    ]
    siblings = debian_packages.sibling_edges(packages)
    assert siblings == [(LIBTEXT_DEV, LIBTEXT1)]
    edges = debian_packages.undirected(mentions + siblings, len(packages))
    assert edges.dtype == np.int32
    assert edges.T.tolist() == [
        [EDITOR, LIBTEXT1],
        [EDITOR, MAILER_A],
        [EDITOR, MAILER_B],
        [EDITOR, ZOO],
        [LIBTEXT_DEV, LIBTEXT1],
    ]


def test_a_virtual_package_with_many_providers_joins_nobody() -> None:
    limit = debian_packages.MAX_PROVIDERS
    providers = [{"Package": f"p{i}", "Provides": "virtual"} for i in range(limit)]
    user = {"Package": "user", "Depends": "virtual"}
    assert debian_packages.dependency_edges([user, *providers]) == [(0, i + 1) for i in range(limit)]
    assert debian_packages.dependency_edges([user, *providers, {"Package": "q", "Provides": "virtual"}]) == []


def test_many_siblings_form_a_ring() -> None:
    limit = debian_packages.MAX_CLIQUE
    family = [{"Package": f"p{i}", "Source": "s"} for i in range(limit + 1)]
    assert len(debian_packages.sibling_edges(family[:-1])) == limit * (limit - 1) // 2
    ring = debian_packages.undirected(debian_packages.sibling_edges(family), len(family))
    assert ring.shape == (2, limit + 1)
    assert np.bincount(ring.ravel()).tolist() == [2] * (limit + 1)


def test_labels_are_topics_from_the_largest() -> None:
    sections = ["mail", "libs", "science", "libs", "libs", "science", "mail", "web", "admin", "science"]
    labels = debian_packages.topic_labels(sections, min_members=2)
    assert labels.tolist() == [1, -1, 0, -1, -1, 0, 1, -1, -1, 0]


def test_siblings_share_a_split_whatever_else_there_is() -> None:
    sources = [f"source-{i % 5000}" for i in range(20000)]
    split = debian_packages.split_by_source(sources)
    assert (split.reshape(4, 5000) == split[:5000]).all()
    assert np.bincount(split[:5000]) / 5000 == pytest.approx([0.6, 0.2, 0.2], abs=0.03)
    some = np.random.default_rng(0).permutation(20000)[:1000]
    assert (debian_packages.split_by_source([sources[i] for i in some]) == split[some]).all()


def test_words_leave_out_the_name_and_what_names_a_section(indices: Indices) -> None:
    packages = debian_packages.read_packages(indices)
    words = debian_packages.description_words(packages[EDITOR], frozenset(["mail"]))
    assert words == ["small", "edits", "plain", "text", "the", "writes", "texts", "quickly"]
    named = {
        "Package": "libfoo++-dev",
        "Source": "barsource",
        "Description": "Foo, foo2 or libfoo++ of BarSource with science",
    }
    assert debian_packages.description_words(named, frozenset(["science"])) == ["with"]


def test_text_features_tell_texts_apart() -> None:
    topics = [["fish", "sea", "boat", "salt"], ["star", "moon", "sky", "orbit"]]
    generator = np.random.default_rng(0)
    texts = [list(generator.choice(topics[i % 2], 3)) for i in range(40)] + [[]]
    features = debian_packages.text_features(texts, 2)
    assert features.shape == (41, 2)
    assert features.dtype == np.float32
    assert (features[40] == 0).all()
    unit = features[:40] / np.linalg.norm(features[:40], axis=1, keepdims=True)
    similar = unit @ unit.T
    same = np.add.outer(np.arange(40), np.arange(40)) % 2 == 0
    assert similar[same].min() > 0.9
    assert np.abs(similar[~same]).max() < 0.1


def test_rebuilding_gives_the_same_bytes_and_only_numbers(indices: Indices, tmp_path: Path) -> None:
    snapshots = tmp_path / "a.npz", tmp_path / "b.npz"
    for snapshot in snapshots:
        debian_packages.write_snapshot(snapshot, indices, width=2)
    assert snapshots[0].read_bytes() == snapshots[1].read_bytes()
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == ["a.npz", "b.npz"]
    graph = debian_packages.load(snapshots[0])
    assert {name: array.dtype.kind for name, array in graph.items()} == {
        "features": "f", "edges": "i", "labels": "i", "train": "i", "valid": "i", "test": "i",
    }  # fmt: skip
    assert graph["features"].shape == (6, 2)
    assert graph["edges"].shape == (2, 5)
    assert (graph["labels"] == -1).all()  # no section has 100 members here


def test_snapshot_holds_a_sound_graph() -> None:
    assert debian_packages.SNAPSHOT.stat().st_size <= 10_000_000
    with np.load(debian_packages.SNAPSHOT, allow_pickle=False) as stored:
        assert {stored[name].dtype.kind for name in stored.files} <= {"i", "f"}
    graph = debian_packages.load()
    num_nodes = 63_436
    assert graph["features"].shape == (num_nodes, 128)
    assert graph["features"].dtype == np.float32
    src, dst = graph["edges"].astype(np.int64)
    assert graph["edges"].dtype == np.int32
    assert src.min() >= 0
    assert dst.max() < num_nodes
    assert (src < dst).all()
    assert (np.diff(src * num_nodes + dst) > 0).all()
    labels = graph["labels"]
    assert labels.dtype == np.int64
    assert np.bincount(labels[labels >= 0]).min() >= debian_packages.MIN_CLASS_MEMBERS
    assert labels.max() + 1 == 40
    splits = np.concatenate([graph[name] for name in ("train", "valid", "test")])
    assert (np.sort(splits) == np.flatnonzero(labels >= 0)).all()
    known = (labels[src] >= 0) & (labels[dst] >= 0)
    assert np.mean(labels[src] == labels[dst], where=known) == pytest.approx(0.755, abs=0.01)


def test_debian_packages_as_a_graph_directory(tmp_path: Path) -> None:
    debian_packages.main([str(tmp_path / "graph")])
    graph, arrays = Graph.open(tmp_path / "graph"), debian_packages.load()
    src, dst = arrays["edges"]
    ends = np.concatenate([src, dst]), np.concatenate([dst, src])
    expected = sp.csc_matrix((np.ones(len(ends[0])), ends), shape=(graph.num_nodes, graph.num_nodes))
    assert (graph.indptr == expected.indptr).all()
    assert (graph.indices == in_order(expected.indptr, expected.indices)).all()
    assert (graph.features == arrays["features"]).all()
    assert (graph.labels == arrays["labels"]).all()
    assert (graph.splits["test"] == arrays["test"]).all()


@pytest.mark.slow
def test_the_graph_tells_more_than_the_text() -> None:
    """Test accuracy without learning, from text alone, from the graph alone, and from both, each between bounds.

    The upper bound on text alone guards against names in the features: with names an MLP reaches 0.82.
    """
    from sklearn.neural_network import MLPClassifier

    graph = debian_packages.load()
    x, labels, train, test = (graph[name] for name in ("features", "labels", "train", "test"))
    num_nodes, num_classes = len(labels), int(labels.max()) + 1
    ends = np.concatenate([graph["edges"], graph["edges"][::-1]], axis=1)
    adjacency = sp.csr_matrix((np.ones(ends.shape[1], np.float32), tuple(ends)), shape=(num_nodes, num_nodes))
    mean = sp.diags(1 / np.maximum(adjacency.sum(axis=1).A1, 1)).astype(np.float32) @ adjacency

    def accuracy(predicted: np.ndarray) -> float:
        return float(np.mean(predicted == labels[test]))

    def mlp(inputs: np.ndarray) -> float:
        model = MLPClassifier(256, alpha=1e-3, batch_size=512, learning_rate_init=2e-3, max_iter=8, random_state=0)
        return accuracy(model.fit(inputs[train], labels[train]).predict(inputs[test]))

    largest = np.bincount(labels[train]).argmax()
    known = np.zeros((num_nodes, num_classes), np.float32)
    known[train, labels[train]] = 1
    votes = adjacency @ known
    votes += 0.3 * (adjacency @ (votes / np.maximum(votes.sum(axis=1, keepdims=True), 1)))
    voted = np.where(votes.any(axis=1), votes.argmax(axis=1), largest)
    hops = np.concatenate([x, mean @ x, mean @ (mean @ x)], axis=1)
    with pytest.warns(UserWarning, match="Maximum iterations"):  # eight epochs are enough to tell
        measured = {
            "majority": accuracy(np.full(len(test), largest)),
            "text": mlp(x),
            "vote": accuracy(voted[test]),
            "both": mlp(hops),
        }
    print(measured)
    assert 0.07 < measured["majority"] < 0.15, measured
    assert 0.45 < measured["text"] < 0.60, measured
    assert 0.65 < measured["vote"] < 0.75, measured
    assert measured["both"] > measured["vote"] > measured["text"] + 0.1, measured


def test_files_graph(indices: Indices) -> None:
    arrays, names = debian_files.build(debian_packages.read_packages(indices), indices.contents)
    # Directories in the order in which they are first needed, then files in the order of their paths.
    root, etc, usr, lib, share = range(6, 11)
    conf, toplevel, a_file, libx, common = range(11, 16)
    expected = {
        (conf, EDITOR), (conf, etc), (toplevel, ZOO), (toplevel, root), (a_file, LIBTEXT1), (a_file, MAILER_A),
        (a_file, lib), (libx, LIBTEXT_DEV), (libx, lib), (common, MAILER_A), (common, MAILER_B), (common, share),
        (etc, root), (usr, root), (lib, usr), (share, usr),
    }  # fmt: skip
    assert arrays["edges"].dtype == np.int32
    assert arrays["edges"].shape == (2, len(expected))
    assert set(map(tuple, arrays["edges"].T.tolist())) == expected
    assert arrays["labels"].tolist() == [-1] * 16
    texts = [
        bytes(names.text[a:b]) for a, b in zip(names.offsets[:-1], names.offsets[1:], strict=True)
    ]  # editor.conf is named like the package editor
    assert texts == [b""] * 7 + [
        b"etc",
        b"usr",
        b"lib",
        b"share",
        b"",
        b"toplevel",
        b"a file.so",
        b"libx2.so",
        b"common",
    ]


def test_files_graph_has_the_splits_of_packages(indices: Indices) -> None:
    packages = debian_packages.read_packages(indices)
    arrays, _ = debian_files.build(packages, indices.contents, min_members=2)
    assert arrays["labels"].tolist() == [1, -1, -1, 0, 0, 1] + [-1] * 10  # mail, science
    split = debian_packages.split_by_source(NAMES)
    for code, name in enumerate(("train", "valid", "test")):
        assert arrays[name].tolist() == [i for i in (EDITOR, MAILER_A, MAILER_B, ZOO) if split[i] == code]


def _names(texts: list[bytes]) -> debian_files.Names:
    offsets = np.cumsum([0, *map(len, texts)])
    return debian_files.Names(np.frombuffer(b"".join(texts), np.uint8), offsets)


def _plain_features(text: bytes, width: int) -> np.ndarray:
    row = np.zeros(width)
    folded = bytes(48 if 48 <= c <= 57 else c for c in text.lower())
    for i in range(len(folded)):
        code = int.from_bytes(folded[i : i + 3], "little")
        mixed = ((code ^ (code >> 11)) * 0x9E3779B1) % 2**32
        mixed ^= mixed >> 15
        row[(mixed >> 1) % width] += -1 if mixed & 1 else 1
    return row / max(np.sqrt((row**2).sum()), 1)


@pytest.mark.parametrize("width", [1, 7, 512])
@pytest.mark.parametrize("chunk_values", [1, 1024, 1 << 21])
def test_trigram_features(width: int, chunk_values: int) -> None:
    texts = [b"", b"a", b"Makefile.AM", b"ab", "größe".encode(), b"", b"x86_64-linux-gnu", b"zzzzzzzzzzzz", b""]
    chunks = list(debian_files.trigram_features(_names(texts), width, chunk_values))
    assert max(map(len, chunks)) <= max(1, chunk_values // width)
    expected = np.array([_plain_features(text, width) for text in texts])
    np.testing.assert_allclose(np.concatenate(chunks), expected, atol=1e-6)


def test_trigram_features_fold_capitals_and_digits() -> None:
    same, other = _names([b"README-1", b"readme-7"]), _names([b"readme-1", b"redame-1"])
    a, b = next(debian_files.trigram_features(same, 64))
    assert (a == b).all()
    a, b = next(debian_files.trigram_features(other, 64))
    assert (a != b).any()


@pytest.mark.parametrize("dtype", debian_files.DTYPES)
def test_debian_files_as_a_graph_directory(dtype: str, indices: Indices, tmp_path: Path) -> None:
    out = tmp_path / "graph"
    debian_files.write_graph(out, indices, 5, dtype, min_members=2)
    graph = Graph.open(out)
    _, names = debian_files.build(debian_packages.read_packages(indices), indices.contents)
    expected = np.concatenate(list(debian_files.trigram_features(names, 5))).astype(dtype)
    assert graph.feature_file.path == tmp_path / "graph-features.npy"
    assert graph.feature_file.rows.dtype == dtype
    assert (graph.features == expected).all()
    assert (graph.features[:6] == 0).all()  # packages: their names would give labels away
    assert graph.num_edges == 2 * 16
    with pytest.raises(SystemExit):
        debian_files.main([str(out)])  # refuses to replace what is there
    assert Graph.open(out).manifest.digest == graph.manifest.digest


def test_two_files_of_one_path_are_one_node(indices: Indices) -> None:
    lines = dict(debian_files.merged(indices.contents))
    assert lines[b"usr/share/common"] == [b"mailer-a", b"mailer-b"]
    assert len(lines) == 6
