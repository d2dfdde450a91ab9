"""Genes, the papers about them and what they do: a real graph in which nodes share many neighbours.

    python datasets/genes.py OUT                          fetch the database, write the graph directory OUT
    python datasets/genes.py OUT --database FILE.sqlite   the same from a database that is there
    python datasets/genes.py OUT --typed                  a graph with types, times and seed edges
    python datasets/genes.py OUT --typed --papers-and-terms vectors    they have none, so that vectors are trained
    python datasets/genes.py OUT --typed --evidence       annotations have features: what they rest on

The database is that of Bioconductor's annotation of the human genome, in Debian's package r-bioc-org.hs.eg.db: what
NCBI's Entrez Gene says of each gene. Nodes are genes, then papers (PubMed ids), then terms of the Gene Ontology. A gene
is joined to the papers that mention it and to the terms that it is annotated with. The task is to tell a gene's type:
protein-coding, non-coding RNA, pseudogene and so on. Only genes have labels.

Features say little by themselves, so that the graph has to: each word about a node has a random vector of +1 and -1,
and a row is the sum of its words' vectors over the square root of their number. The words of a gene are its chromosome,
cytogenetic bands and KEGG pathways; that of a paper is the million of its id, hence roughly its year; that of a term is
its ontology. Names and symbols are left out: they give the type away.

With --typed, genes, papers, terms and KEGG pathways are types of nodes, and edges of each kind a type. Two more tasks
are links. Of the annotations, four fifths are edges and seeds to train on; the others are seeds for validation and test
alone. PubMed ids ascend in time, so a paper's is its time, and the time of its edges. The links of the earliest four
fifths of the papers are seeds to train on. All links are edges; temporal sampling takes none from the future.
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


def load_typed(database: Path, *, min_class_members: int = MIN_CLASS_MEMBERS, evidence: bool = False) -> dict[str, Any]:
    """The graph with types as a description for `diskgnn.convert(..., schema=...)`; see `load`.

    With `evidence`, annotations have features: 1 for each of the Gene Ontology's kinds of evidence that says so.
    """
    arrays = load(database, min_class_members=min_class_members)
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as tables:
        rows = [row for (row,) in tables.execute("SELECT _id FROM genes ORDER BY _id")]
        papers = np.unique(_pairs(tables, "SELECT 0, CAST(pubmed_id AS INTEGER) FROM pubmed")[1])
        memberships = sorted(set(tables.execute("SELECT _id, path_id FROM kegg")))
        reasons = {row for ontology in ONTOLOGIES
                   for row in tables.execute(f"SELECT _id, go_id, evidence FROM {ontology}")}  # fmt: skip
    first_paper, first_term = len(rows), len(rows) + len(papers)
    genes, others = arrays["edges"].astype(np.int64)
    mentions = np.stack([genes, others - first_paper])[:, (others < first_term)]
    annotations = np.stack([genes, others - first_term])[:, others >= first_term]
    pathways, pathway_of = np.unique([pathway for _, pathway in memberships], return_inverse=True)
    members = np.searchsorted(rows, [row for row, _ in memberships])
    times = papers[mentions[1]]
    first_valid, first_test = np.quantile(papers, [0.8, 0.9], method="lower")
    links = {
        "train": mentions[:, times < first_valid],
        "valid": mentions[:, (times >= first_valid) & (times < first_test)],
        "test": mentions[:, times >= first_test],
    }
    part = link_parts(annotations)
    known = {"features": _evidence(annotations, reasons, rows)[part == 0]} if evidence else {}
    x = arrays["features"]
    return {
        "nodes": {
            "gene": {"features": x[:first_paper], "labels": arrays["labels"][:first_paper],
                     **{split: arrays[split] for split in ("train", "valid", "test") if len(arrays[split])}},
            "paper": {"features": x[first_paper:first_term], "times": papers},
            "term": {"features": x[first_term:]},
            "pathway": {"num_nodes": len(pathways)},
        },
        "edges": {
            "gene:mentioned_in:paper": {"edges": mentions, "times": times, "reverse": True, **_seeds(links)},
            "gene:annotated_with:term": {"edges": annotations[:, part == 0], **known, "reverse": True, **_seeds({
                split: annotations[:, part == number] for number, split in enumerate(links)})},
            "gene:part_of:pathway": {"edges": np.stack([members, pathway_of]), "reverse": True},
        },
    }  # fmt: skip


def _evidence(
    annotations: npt.NDArray[np.int64], reasons: set[tuple[int, str, str]], rows: list[int]
) -> npt.NDArray[np.float32]:
    """[E, kinds] 1 where an annotation rests on a kind of evidence, in order of the alphabet."""
    terms, term_of = np.unique([term for _, term, _ in reasons], return_inverse=True)
    kinds, kind_of = np.unique([kind for _, _, kind in reasons], return_inverse=True)
    gene_of = np.searchsorted(rows, [row for row, _, _ in reasons])
    keys = annotations[0] * len(terms) + annotations[1]
    order = np.argsort(keys)
    found = np.zeros((len(keys), len(kinds)), np.float32)
    found[order[np.searchsorted(keys[order], gene_of * len(terms) + term_of)], kind_of] = 1
    return found


def told_apart(description: dict[str, Any], by: str) -> dict[str, Any]:
    """The description with papers and terms told apart by their 'words' as it is, by nothing but trained 'vectors', or
    not at all ('constant').
    """
    if by == "words":
        return description
    nodes = dict(description["nodes"])
    for name in ("paper", "term"):
        kept = {key: value for key, value in nodes[name].items() if key != "features"}
        count = len(nodes[name]["features"])
        nodes[name] = kept | (
            {"num_nodes": count} if by == "vectors" else {"features": np.ones((count, 1), np.float32)}
        )
    return {**description, "nodes": nodes}


def _seeds(links: Arrays) -> Arrays:
    """Links [2, n] of each split that has some."""
    return {split: pairs for split, pairs in links.items() if pairs.shape[1]}


def link_parts(links: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[n] 0 train, 1 valid, 2 test of links [2, n]: a function of their two ends."""
    mixed = (links[0].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) ^ links[1].astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    tenth = (mixed >> np.uint64(33)) % np.uint64(10)
    return np.where(tenth < 8, 0, np.where(tenth < 9, 1, 2))


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
    parser.add_argument("--typed", action="store_true", help="with types of nodes and edges, times and seed edges")
    parser.add_argument("--papers-and-terms", choices=("words", "vectors", "constant"), default="words",
                        help="features of these types, with --typed: of their words, none, or a constant")  # fmt: skip
    parser.add_argument("--evidence", action="store_true", help="with --typed: annotations have features")
    parser.add_argument("--quantise", help="store the features in fewer bits: int8, int4, float16 or bfloat16")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT if it exists")
    arguments = parser.parse_args(command_line)
    if arguments.typed and arguments.quantise:
        parser.error("--quantise: expected a graph without types, found --typed; leave out one of them")
    if arguments.papers_and_terms != "words" and not arguments.typed:
        parser.error("--papers-and-terms: expected --typed with it")
    if arguments.evidence and not arguments.typed:
        parser.error("--evidence: expected --typed with it")
    with tempfile.TemporaryDirectory() as folder:
        database = arguments.database or fetch(Path(folder))
        if arguments.typed:
            typed = load_typed(database, evidence=arguments.evidence)
            description: dict[str, Any] = {"schema": told_apart(typed, arguments.papers_and_terms)}
        else:
            description = {**load(database), "reverse": True, "quantise": arguments.quantise}

    import diskgnn

    diskgnn.convert(arguments.out, **description, overwrite=arguments.overwrite)


if __name__ == "__main__":
    main()
