"""Scores of the tasks on real typed graphs: from disk, in memory, and without a model; a table of several seeds.

    python datasets/genes.py data/genes --typed
    python datasets/genes.py data/genes-vectors --typed --papers-and-terms vectors
    python datasets/genes.py data/genes-constant --typed --papers-and-terms constant
    python datasets/degrees.py data/genes data/genes-degrees
    python datasets/debian_typed.py data/debian
    python datasets/degrees.py data/debian data/debian-degrees
    python datasets/flights.py data/flights
    python tools/typed_accuracy.py data --results results.jsonl
    python tools/typed_accuracy.py data --results results.jsonl --tasks topic,flights --seeds 0

From disk: `prepare`, then `train`. In memory: `train` on `in_memory_sources`, which draw online. Both are evaluated on
the test split after the last epoch. Without a model: of classes, the largest one; of numbers, the mean and the median
of those to train on; of links, negatives ranked by how many links to train on a destination has, and by its time. Of
delays, also what planes were late before, and, knowing the answer in part, the mean of all planes of the same week.

RESULTS has a line for each run that is done. A run that it has is not repeated, so what was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskgnn
from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import parse_edge_type
from diskgnn.specs.targets import LinkTarget, NodeTarget

PLACES = ("disk", "memory")


@dataclass(frozen=True)
class Experiment:
    """One task, trained one way."""

    title: str
    graph: str  # folder of the data
    target: str  # type of nodes, or source:name:destination
    score: str  # of the test split
    epochs: int = 3
    prepared: int | None = None  # of these epochs; None: all
    sampling: Mapping[str, Any] = field(default_factory=dict)
    link: Mapping[str, Any] = field(default_factory=dict)  # of LinkTarget
    training: Mapping[str, Any] = field(default_factory=dict)

    def spec(self, graph: Graph) -> dict[str, Any]:
        """Arguments of `prepare` and `in_memory_sources`."""
        return {
            "fanouts": [5, 5],
            "batch_size": 1024,
            "temporal": "ignore",
            **self.sampling,
            "target": self._target(graph),
        }

    def _target(self, graph: Graph) -> NodeTarget | LinkTarget:
        if ":" not in self.target:
            return NodeTarget(self.target)
        edge_type, random = parse_edge_type(self.target), np.random.default_rng(0)
        splits = graph.edges[edge_type].splits
        seeds = {split: random.permutation(splits[split])[:size] for split, size in LINKS.items()}
        return LinkTarget(edge_type, **{"eval_negatives": 20, "seeds": seeds, **self.link})


SHRINKING = 20  # weeks of the mean delay that a plane's own are added to
LINKS = {"train": 40_000, "valid": 2000, "test": 2000}  # drawn from the splits
MENTIONS, DEPENDS = "gene:mentioned_in:paper", "package:depends:package"
DISTMULT = {"decoder": "distmult"}
FLIGHTS = {"fanouts": [1, 5], "temporal": "last"}
EXPERIMENTS = {
    "gene-type": Experiment("type of a gene, R-GCN", "genes", "gene", "accuracy"),
    "gene-type-rgat": Experiment("the same, R-GAT", "genes", "gene", "accuracy", training={"model": "rgat"}),
    "gene-type-hgt": Experiment("the same, HGT", "genes", "gene", "accuracy", training={"model": "hgt"}),
    "gene-type-reused": Experiment("the same, R-GCN, 6 epochs of which 2 are prepared", "genes", "gene", "accuracy",
                                   6, 2),
    "gene-type-vectors": Experiment("the same, R-GCN, papers and terms have a trained vector each", "genes-vectors",
                                    "gene", "accuracy"),
    "gene-type-constant": Experiment("the same, R-GCN, all papers are alike, and all terms", "genes-constant", "gene",
                                     "accuracy"),
    "terms": Experiment("terms of a gene", "genes", "gene:annotated_with:term", "mrr", training=DISTMULT),
    "terms-degrees": Experiment("the same, degrees are features, no dropout", "genes-degrees",
                                "gene:annotated_with:term", "mrr", training=DISTMULT | {"dropout": 0.0}),
    "terms-popular": Experiment("the same, negatives by popularity", "genes-degrees", "gene:annotated_with:term", "mrr",
                                link={"negatives_by": "popularity"}, training=DISTMULT | {"dropout": 0.0}),
    "papers": Experiment("papers that mention a gene", "genes", MENTIONS, "mrr", training=DISTMULT),
    "papers-timed": Experiment("the same, nothing later than the paper is drawn", "genes", MENTIONS, "mrr",
                               sampling={"temporal": "uniform", "strict_time": True}, training=DISTMULT),
    "topic": Experiment("topic of a package", "debian", "package", "accuracy"),
    "dependencies": Experiment("what a package depends on", "debian", DEPENDS, "mrr", training=DISTMULT),
    "dependencies-degrees": Experiment("the same, degrees are features, no dropout", "debian-degrees", DEPENDS, "mrr",
                                       training=DISTMULT | {"dropout": 0.0}),
    "dependencies-popular": Experiment("the same, negatives by popularity", "debian-degrees", DEPENDS, "mrr",
                                       link={"negatives_by": "popularity"}, training=DISTMULT | {"dropout": 0.0}),
    "flights": Experiment("delay of a plane's next week", "flights", "plane_week", "mae", sampling=FLIGHTS,
                          training={"loss": "l1"}),
    "flights-squared": Experiment("the same, squared loss", "flights", "plane_week", "r2", sampling=FLIGHTS,
                                  training={"loss": "mse"}),
}  # fmt: skip


def scores_from(where: str, graph: Graph, experiment: Experiment, seed: int, folder: Path) -> dict[str, float]:
    """Train, and evaluate after the last epoch."""
    spec, epochs = experiment.spec(graph), experiment.epochs
    training = {"hidden": 64, "epochs": epochs, "evaluate_every": epochs, **experiment.training, "seed": seed}
    if where == "memory":
        sources = in_memory_sources(graph, **spec, seed=seed)
        try:
            return diskgnn.train(**sources, **training).scores()
        finally:
            for source in sources.values():
                source.close()
    packed = folder / "packed"
    diskgnn.prepare(graph, packed, **spec, epochs=experiment.prepared or epochs, seed=seed, cpu_cache="10%",
                    static_cache=0)  # fmt: skip
    try:
        return diskgnn.train(packed, **training).scores()
    finally:
        shutil.rmtree(packed)


def without_model(graph: Graph, spec: SamplingSpec) -> dict[str, float]:
    """Scores on the test split of what looks at no neighbourhood."""
    if isinstance(spec.target, LinkTarget):
        return _link_scores(graph, spec)
    nodes = graph.nodes[str(spec.target.node_type)]
    assert nodes.config.target is not None
    train, test = (nodes.labels_of(np.sort(nodes.splits[split])) for split in ("train", "test"))
    if nodes.config.target.kind == "class":
        return {"test_accuracy of the largest class": float(np.mean(test == np.bincount(train).argmax()))}
    spread = float(np.var(test))
    guesses: dict[str, Any] = {"mean": train.mean(0), "median": np.median(train, 0)}
    if nodes.name == "plane_week":
        guesses |= _delays_before(graph, nodes)
    return {
        f"test_{score} of the {name}": value
        for name, guess in guesses.items()
        for score, value in (("mae", float(np.abs(test - guess).mean())),
                             ("r2", 1 - float(((test - guess) ** 2).mean()) / spread))
    }  # fmt: skip


def _delays_before(graph: Graph, nodes: NodeSet) -> dict[str, npt.NDArray[np.float64]]:
    """Guesses for the weeks of the test split."""
    train, test = (np.sort(nodes.splits[split]) for split in ("train", "test"))
    every = np.arange(nodes.num_nodes)
    delay, week = nodes.labels_of(every).reshape(-1), nodes.times_of(every) // (7 * 24)
    plane = np.asarray(graph.edges["plane", "has", "plane_week"].indices)  # one of each week
    means = np.bincount(week, delay) / np.maximum(np.bincount(week), 1)
    count, total = (np.bincount(plane[train], weights, plane.max() + 1) for weights in (None, delay[train]))
    shrunk = (total + SHRINKING * delay[train].mean()) / (count + SHRINKING)
    return {"plane's mean": shrunk[plane[test]], "week before": means[week[test] - 1], "same week": means[week[test]]}


def _link_scores(graph: Graph, spec: SamplingSpec) -> dict[str, float]:
    """MRR among the fixed negatives of the test split."""
    plan, target = SamplingPlan(graph, spec), spec.target
    assert isinstance(target, LinkTarget)
    nodes = graph.nodes[target.edge_type[2]]
    links = np.bincount(plan.seeds("train", 0)[:, 1], minlength=nodes.num_nodes)
    every = np.bincount(graph.edges[target.edge_type].splits["train"][:, 1], minlength=nodes.num_nodes)
    rankings: dict[str, npt.NDArray[Any]] = {"popularity": links, "popularity in all links to train on": every}
    if nodes.times is not None:
        rankings["time"] = np.asarray(nodes.times)
    ranks: dict[str, list[npt.NDArray[np.float64]]] = {ranking: [] for ranking in rankings}
    for minibatch in plan.minibatches("test", 0):
        assert minibatch.pairs is not None
        ids = minibatch.seeds_by_type()[nodes.number][minibatch.pairs.dst]
        edges = int(minibatch.pairs.label.sum())
        for ranking, values in rankings.items():
            edge, negative = values[ids[:edges], None], values[ids[edges:]].reshape(edges, -1)
            ranks[ranking].append(1 + ((negative > edge).sum(1) + (negative >= edge).sum(1)) / 2)
    return {f"test_mrr of {ranking}": float((1 / np.concatenate(found)).mean()) for ranking, found in ranks.items()}


def main() -> None:
    """Train what has no result yet; print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the graphs")
    parser.add_argument("--results", type=Path, required=True, help="JSON lines, read first and added to")
    parser.add_argument("--tasks", default="", help=f"some of {', '.join(EXPERIMENTS)}; all of them")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--places", default=",".join(PLACES))
    parser.add_argument("--scratch", type=Path, help="where packed directories go, and are deleted")
    options = parser.parse_args()
    names = options.tasks.split(",") if options.tasks else list(EXPERIMENTS)
    if unknown := {*names} - {*EXPERIMENTS}:
        parser.error(f"--tasks: expected some of {', '.join(EXPERIMENTS)}, found {', '.join(sorted(unknown))}")
    seeds, places = [int(each) for each in options.seeds.split(",")], options.places.split(",")
    runs = [(name, seed, where) for name in names for seed in seeds for where in places]
    for name, seed, where in [(name, 0, "nowhere") for name in names] + runs:
        if (name, seed, where) in _results(options.results):
            continue
        graph, experiment = Graph.open(options.data / EXPERIMENTS[name].graph), EXPERIMENTS[name]
        if where == "nowhere":
            found = without_model(graph, SamplingSpec(**experiment.spec(graph), seed=seed))
        else:
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                found = scores_from(where, graph, experiment, seed, Path(folder))
        scores = {score: value for score, value in found.items() if score.startswith("test")}
        record = {"task": name, "seed": seed, "where": where, "scores": scores}
        print(json.dumps(record), flush=True)
        with options.results.open("a") as file:
            file.write(json.dumps(record) + "\n")
    print(table(_results(options.results), names, seeds))


def table(results: Mapping[tuple[str, int, str], Mapping[str, float]], names: list[str], seeds: list[int]) -> str:
    """As Markdown."""
    lines = ["| task | score on the test split | from disk | in memory | without a model |", "|---|---|---|---|---|"]
    for name in names:
        score = EXPERIMENTS[name].score
        disk, memory = (
            ", ".join(f"{each[f'test_{score}']:.4f}" for seed in seeds if (each := results.get((name, seed, where))))
            for where in PLACES
        )
        guesses = results[name, 0, "nowhere"]
        shown = ", ".join(f"{each.partition(' of ')[2]}: {value:.4f}" for each, value in guesses.items()
                          if each.startswith(f"test_{score} "))  # fmt: skip
        beside = "the same" if disk and disk == memory else memory
        lines.append(f"| {EXPERIMENTS[name].title} | {score} | {disk} | {beside} | {shown} |")
    return "\n".join(lines)


def _results(file: Path) -> dict[tuple[str, int, str], dict[str, float]]:
    """By task, seed and where it was trained."""
    lines = file.read_text().splitlines() if file.exists() else []
    return {(each["task"], each["seed"], each["where"]): each["scores"] for each in map(json.loads, lines)}


if __name__ == "__main__":
    main()
