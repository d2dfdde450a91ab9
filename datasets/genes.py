"""Genes, the papers about them and what they do: a real graph in which nodes share many neighbours.

    python datasets/genes.py OUT                          fetch the database, write the graph directory OUT
    python datasets/genes.py OUT --database FILE.sqlite   the same from a database that is there

The database is that of Bioconductor's annotation of the human genome, in Debian's package r-bioc-org.hs.eg.db: what
NCBI's Entrez Gene says of each gene. Nodes are genes, then papers (PubMed ids), then terms of the Gene Ontology. A gene
is joined to the papers that mention it and to the terms that it is annotated with. The task is to tell a gene's type:
protein-coding, non-coding RNA, pseudogene and so on. Only genes have labels.

Features say little by themselves, so that the graph has to: each word about a node has a random vector of +1 and -1,
and a row is the sum of its words' vectors over the square root of their number. The words of a gene are its chromosome,
cytogenetic bands and KEGG pathways; that of a paper is the million of its id, hence roughly its year; that of a term is
its ontology. Names and symbols are left out: they give the type away.
"""

from __future__ import annotations

import argparse
import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import debian_indices
import numpy as np
import numpy.typing as npt

PACKAGE = "r-bioc-org.hs.eg.db"
ONTOLOGIES = ("go_bp", "go_mf", "go_cc")
NO_TYPES = ("other", "unknown")
MIN_CLASS_MEMBERS = 100
TRAIN_FRACTION, VALID_FRACTION = 0.6, 0.2
FEATURE_WIDTH = 128
PAPERS_PER_WORD = 1_000_000

Arrays = dict[str, npt.NDArray[Any]]


def load(database: Path, *, min_class_members: int = MIN_CLASS_MEMBERS) -> Arrays:
    """The graph as arrays for `diskgnn.convert(..., reverse=True)`; types with fewer genes are no classes.

    Returns:
        features float32 [N, 128]; edges int32 [2, E], each undirected edge once, from gene to paper or term; labels
        int64 [N], -1 for no type, class 0 the largest; train, valid, test int64, ascending: genes with a type and an
        edge.

    Raises:
        sqlite3.Error: it is no such database.
    """
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as tables:
        gene_rows = tables.execute("SELECT _id, gene_id FROM genes ORDER BY _id").fetchall()
        numbers = {row: number for number, (row, _) in enumerate(gene_rows)}
        mentions = _pairs(tables, "SELECT DISTINCT _id, CAST(pubmed_id AS INTEGER) FROM pubmed")
        papers, paper_of = np.unique(mentions[1], return_inverse=True)
        annotations = sorted(
            {(row, term, ontology) for ontology in ONTOLOGIES
             for row, term in tables.execute(f"SELECT _id, go_id FROM {ontology}")}
        )  # fmt: skip
        terms = dict(sorted((term, ontology) for _, term, ontology in annotations))
        term_numbers = {term: number for number, term in enumerate(terms)}
        first_paper, first_term = len(gene_rows), len(gene_rows) + len(papers)
        genes = [numbers[row] for row in mentions[0].tolist()] + [numbers[row] for row, _, _ in annotations]
        others = [first_paper + paper_of, [first_term + term_numbers[term] for _, term, _ in annotations]]
        edges = np.array([genes, np.concatenate(others)], np.int32)
        edges = edges[:, np.lexsort(edges)]
        num_nodes = first_term + len(terms)
        labels = np.full(num_nodes, -1, np.int64)
        labels[: len(gene_rows)] = _labels(tables, numbers, min_class_members)
        features = np.zeros((num_nodes, FEATURE_WIDTH), np.float32)
        features[: len(gene_rows)] = _sums((numbers[row], word) for row, word in _gene_words(tables))
        million, million_of = np.unique(papers // PAPERS_PER_WORD, return_inverse=True)
        features[first_paper:first_term] = np.stack([signs(f"papers/{each}") for each in million])[million_of]
        features[first_term:] = np.stack([signs(ontology) for ontology in terms.values()])
    joined = np.zeros(num_nodes, bool)
    joined[edges[0]] = True
    parts = np.full(num_nodes, -1)
    parts[: len(gene_rows)] = [_part(gene_id) for _, gene_id in gene_rows]
    splits = {
        split: np.flatnonzero((parts == part) & joined & (labels >= 0))
        for part, split in enumerate(("train", "valid", "test"))
    }
    return {"features": features, "edges": edges, "labels": labels, **splits}


def _pairs(tables: sqlite3.Connection, query: str) -> npt.NDArray[np.int64]:
    """[2, n] integers."""
    return np.array(tables.execute(query).fetchall(), np.int64).reshape(-1, 2).T


def _labels(tables: sqlite3.Connection, numbers: dict[int, int], min_members: int) -> npt.NDArray[np.int64]:
    """By gene: types with enough members, the largest first."""
    types = [""] * len(numbers)
    for row, kind in tables.execute("SELECT _id, gene_type FROM genetype ORDER BY _id, gene_type"):
        types[numbers[row]] = kind
    sizes = {kind: types.count(kind) for kind in set(types) - {"", *NO_TYPES}}
    classes = sorted((kind for kind, size in sizes.items() if size >= min_members), key=lambda k: (-sizes[k], k))
    class_of = {kind: number for number, kind in enumerate(classes)}
    return np.array([class_of.get(kind, -1) for kind in types], np.int64)


def _gene_words(tables: sqlite3.Connection) -> Iterator[tuple[int, str]]:
    """(row of a gene, a word about it), each once, in order."""
    words = {(row, f"chromosome/{name}") for row, name in tables.execute("SELECT * FROM chromosomes")}
    for row, band in tables.execute("SELECT * FROM cytogenetic_locations"):
        words.add((row, f"band/{band.partition('.')[0]}"))
    words |= {(row, f"kegg/{pathway}") for row, pathway in tables.execute("SELECT * FROM kegg")}
    yield from sorted(words)
    for (row,) in tables.execute("SELECT _id FROM genes EXCEPT SELECT _id FROM chromosomes ORDER BY 1"):
        yield row, "chromosome/none"


def _sums(words: Iterator[tuple[int, str]]) -> npt.NDArray[np.float32]:
    """[genes, width] sums of the words' vectors over the square root of their number; every gene has a word."""
    genes, texts = zip(*words, strict=True)
    vocabulary, word_of = np.unique(np.array(texts), return_inverse=True)
    vectors = np.stack([signs(str(word)) for word in vocabulary])
    counts = np.bincount(genes)
    sums = np.zeros((len(counts), FEATURE_WIDTH), np.float32)
    np.add.at(sums, np.array(genes), vectors[word_of])
    return sums / np.sqrt(counts, dtype=np.float32)[:, None]


def signs(word: str) -> npt.NDArray[np.float32]:
    """[width] +1 and -1, a function of the word: the bits of a digest."""
    digest = hashlib.blake2b(word.encode(), digest_size=FEATURE_WIDTH // 8).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float32) * 2 - 1


def _part(gene_id: str) -> int:
    """0 train, 1 valid, 2 test: a function of the Entrez id, so that another release moves no gene."""
    share = int.from_bytes(hashlib.blake2b(gene_id.encode(), digest_size=8).digest(), "little") / 2**64
    return 0 if share < TRAIN_FRACTION else 1 if share < TRAIN_FRACTION + VALID_FRACTION else 2


def fetch(folder: Path) -> Path:
    """Fetch the database of this machine's Debian release into `folder`.

    Raises:
        IndicesError: see `debian_indices.fetch_package`.
    """
    (database,) = debian_indices.fetch_package(PACKAGE, folder).rglob("*.sqlite")
    return database


def main(command_line: list[str] | None = None) -> None:
    """Parse arguments, write the graph."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="graph directory to write")
    parser.add_argument("--database", type=Path, help="org.Hs.eg.sqlite; fetched by default (needs a Debian machine)")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    arguments = parser.parse_args(command_line)
    with tempfile.TemporaryDirectory() as folder:
        arrays = load(arguments.database or fetch(Path(folder)))

    import diskgnn

    diskgnn.convert(arguments.out, **arrays, reverse=True, overwrite=arguments.overwrite)


if __name__ == "__main__":
    main()
