"""The data set of genes, papers and terms, on a database small enough to check by hand."""

import sqlite3
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "datasets"))

import genes

from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert

GENES = {
    "genes (_id, gene_id)": [(1, "10"), (2, "20"), (5, "30"), (6, "40")],
    "genetype (_id, gene_type)": [(1, "ncRNA"), (2, "ncRNA"), (5, "protein-coding"), (6, "other")],
    "pubmed (_id, pubmed_id)": [(1, "7000001"), (1, "7000001"), (2, "7000001"), (2, "123"), (5, "7999999")],
    "go_bp (_id, go_id, evidence)": [(5, "GO:2", "IEA"), (5, "GO:2", "IDA")],
    "go_mf (_id, go_id, evidence)": [(1, "GO:1", "IEA")],
    "go_cc (_id, go_id, evidence)": [],
    "chromosomes (_id, chromosome)": [(1, "19"), (2, "X"), (2, "Y")],
    "cytogenetic_locations (_id, cytogenetic_location)": [(1, "19q13.43"), (1, "19q13.2")],
    "kegg (_id, path_id)": [(1, "04610")],
}


def gene_database(folder):
    database = folder / "genes.sqlite"
    with sqlite3.connect(database) as tables:
        for table, rows in GENES.items():
            tables.execute(f"CREATE TABLE {table}")
            tables.executemany(
                f"INSERT INTO {table.split()[0]} VALUES ({','.join('?' * table.count(',') + '?')})", rows
            )
    return database


def test_genes_by_hand(tmp_path):
    database = gene_database(tmp_path)
    arrays = genes.load(database, min_class_members=1)
    # Genes are nodes 0 to 3, papers 123, 7000001 and 7999999 are 4 to 6, terms GO:1 and GO:2 are 7 and 8.
    edges = {tuple(edge) for edge in arrays["edges"].T.tolist()}
    assert edges == {(0, 5), (1, 5), (1, 4), (2, 6), (2, 8), (0, 7)}
    assert arrays["edges"].shape == (2, 6)
    assert arrays["labels"].tolist() == [0, 0, 1, -1, -1, -1, -1, -1, -1]
    assert set(np.concatenate([arrays["train"], arrays["valid"], arrays["test"]]).tolist()) == {0, 1, 2}
    x = arrays["features"]
    words = ("chromosome/19", "band/19q13", "kegg/04610")
    np.testing.assert_allclose(x[0], sum(map(genes.signs, words)) / np.sqrt(3), rtol=1e-6)
    np.testing.assert_array_equal(x[2], genes.signs("chromosome/none"))
    np.testing.assert_array_equal(x[5], x[6])  # both of the eighth million
    np.testing.assert_array_equal(x[4], genes.signs("papers/0"))
    np.testing.assert_array_equal(x[7:], [genes.signs("go_mf"), genes.signs("go_bp")])
    assert set(np.unique(genes.signs("a")).tolist()) == {-1, 1}
    assert genes.load(database)["labels"].max() == -1  # no type has a hundred genes


def test_genes_with_types_by_hand(tmp_path):
    """The same database: edges by type, papers' ids as times, and links divided by them."""
    database = gene_database(tmp_path)
    description = genes.load_typed(database, min_class_members=1)
    convert(tmp_path / "graph", schema=description)
    graph = Graph.open(tmp_path / "graph")
    assert {name: nodes.num_nodes for name, nodes in graph.nodes.items()} == {
        "gene": 4, "paper": 3, "term": 2, "pathway": 1}  # fmt: skip
    assert graph.nodes["paper"].times.tolist() == [123, 7000001, 7999999]
    mentions = graph.edges["gene", "mentioned_in", "paper"]
    ends = np.repeat(np.arange(3), np.diff(mentions.indptr))
    edges = zip(mentions.indices.tolist(), ends.tolist(), mentions.times.tolist(), strict=True)
    assert sorted(edges) == [(0, 1, 7000001), (1, 0, 123), (1, 1, 7000001), (2, 2, 7999999)]
    links = {split: {tuple(pair) for pair in pairs.tolist()} for split, pairs in mentions.splits.items()}
    assert links == {"train": {(1, 0)}, "test": {(0, 1), (1, 1), (2, 2)}}  # both quantiles of three are the second
    annotated = description["edges"]["gene:annotated_with:term"]
    parts = [annotated[split] for split in ("train", "valid", "test") if split in annotated]
    seeds = [tuple(pair) for pair in np.concatenate(parts, axis=1).T.tolist()]
    assert sorted(seeds) == [(0, 0), (2, 1)]  # GO:1 and GO:2, each in one split
    assert "features" not in annotated
    with_evidence = genes.load_typed(database, min_class_members=1, evidence=True)["edges"]["gene:annotated_with:term"]
    rests_on = {(0, 0): [0, 1], (2, 1): [1, 1]}  # IDA, IEA
    assert with_evidence["features"].tolist() == [rests_on[pair] for pair in map(tuple, annotated["edges"].T.tolist())]
    members = graph.edges["gene", "part_of", "pathway"]
    assert (members.indices.tolist(), members.indptr.tolist()) == ([0], [0, 1])
