"""Scores of a task from disk and in memory, several seeds, beside what needs no model.

    python tools/typed_accuracy.py GRAPH --target package --folder data/typed
    python tools/typed_accuracy.py GRAPH --target package:depends:package --links 40000,2000,2000 --folder data/typed

From disk: `prepare`, then `train`. In memory: `train` on `in_memory_sources`, which draw online. Both are evaluated on
the test split after the last epoch. Without a model: of classes, the largest one; of numbers, the mean and the median
of those to train on; of links, negatives ranked by how many links to train on a destination has, and by its time.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import diskgnn
from diskgnn.baselines.in_memory import in_memory_sources
from diskgnn.graph.graph import Graph
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.schema import parse_edge_type
from diskgnn.specs import SamplingSpec
from diskgnn.targets import LinkTarget, NodeTarget


def main() -> None:
    """Train, print."""
    options = _options()
    graph = Graph.open(options.graph)
    target = _target(graph, options)
    sampling = {
        "fanouts": [int(each) for each in options.fanouts.split(",")], "batch_size": options.batch_size,
        "target": target, "temporal": options.temporal, "strict_time": options.strict_time,
    }  # fmt: skip
    training = {"hidden": options.hidden, "epochs": options.epochs, "evaluate_every": options.epochs,
                "model": options.model, "loss": options.loss, "decoder": options.decoder}  # fmt: skip
    print(f"without a model: {_shown(without_model(graph, SamplingSpec(**sampling)))}", flush=True)
    options.folder.mkdir(parents=True)
    try:
        for seed in map(int, options.seeds.split(",")):
            packed = options.folder / f"packed-{seed}"
            prepared = options.prepared or options.epochs
            diskgnn.prepare(graph, packed, **sampling, epochs=prepared, seed=seed, cpu_cache=options.cpu_cache,
                            static_cache=0)  # fmt: skip
            found = diskgnn.train(packed, **training, seed=seed).scores()
            print(f"seed {seed}, from disk: {_shown(found)}", flush=True)
            shutil.rmtree(packed)
            if not options.disk_only:
                sources = in_memory_sources(graph, **sampling, seed=seed)
                found = diskgnn.train(**sources, **training, seed=seed).scores()
                print(f"seed {seed}, in memory: {_shown(found)}", flush=True)
                for source in sources.values():
                    source.close()
    finally:
        shutil.rmtree(options.folder)


def without_model(graph: Graph, spec: SamplingSpec) -> dict[str, float]:
    """Scores on the test split of what looks at no neighbourhood."""
    if isinstance(spec.target, LinkTarget):
        return _link_scores(graph, spec)
    nodes = graph.nodes[str(spec.target.node_type)]
    assert nodes.config.target is not None
    train, test = (nodes.labels_of(np.sort(nodes.splits[split])) for split in ("train", "test"))
    if nodes.config.target.kind == "class":
        return {"largest class": float(np.mean(test == np.bincount(train).argmax()))}
    if nodes.config.target.kind != "regression":
        return {}
    spread = float(np.var(test))
    guesses: dict[str, Any] = {"mean": train.mean(0), "median": np.median(train, 0)}
    return {
        f"{score} of {name}": value
        for name, guess in guesses.items()
        for score, value in (("mae", float(np.abs(test - guess).mean())),
                             ("r2", 1 - float(((test - guess) ** 2).mean()) / spread))
    }  # fmt: skip


def _link_scores(graph: Graph, spec: SamplingSpec) -> dict[str, float]:
    """MRR among the fixed negatives of the test split."""
    plan, target = SamplingPlan(graph, spec), spec.target
    assert isinstance(target, LinkTarget)
    name = target.edge_type[2]
    number, nodes = graph.nodes[name].number, graph.nodes[name]
    links = np.bincount(plan.seeds("train", 0)[:, 1], minlength=nodes.num_nodes)
    rankings = {"popularity": links} | ({} if nodes.times is None else {"time": np.asarray(nodes.times)})
    ranks: dict[str, list[npt.NDArray[np.float64]]] = {ranking: [] for ranking in rankings}
    for minibatch in plan.minibatches("test", 0):
        assert minibatch.pairs is not None
        ids = minibatch.seeds_by_type()[number][minibatch.pairs.dst]
        edges = int(minibatch.pairs.label.sum())
        for ranking, values in rankings.items():
            edge, negative = values[ids[:edges], None], values[ids[edges:]].reshape(edges, -1)
            ranks[ranking].append(1 + ((negative > edge).sum(1) + (negative >= edge).sum(1)) / 2)
    return {f"mrr of {ranking}": float((1 / np.concatenate(found)).mean()) for ranking, found in ranks.items()}


def _target(graph: Graph, options: argparse.Namespace) -> NodeTarget | LinkTarget:
    if ":" not in options.target:
        return NodeTarget(options.target)
    edge_type, seeds = parse_edge_type(options.target), None
    if options.links:
        sizes = dict(zip(("train", "valid", "test"), map(int, options.links.split(",")), strict=True))
        splits, random = graph.edges[edge_type].splits, np.random.default_rng(0)
        seeds = {split: random.permutation(splits[split])[:size] for split, size in sizes.items()}
    return LinkTarget(edge_type, eval_negatives=options.eval_negatives, seeds=seeds)


def _shown(scores: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {score:.4f}" for name, score in scores.items() if not name.startswith("valid"))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("--folder", type=Path, required=True, help="for packed directories; must not exist; removed")
    parser.add_argument("--target", required=True, help="a type of nodes, or of edges: source:name:destination")
    parser.add_argument("--links", help="of links, seeds of train, valid and test, drawn from the splits; all of them")
    parser.add_argument("--eval-negatives", type=int, default=20)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--fanouts", default="5,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--temporal")
    parser.add_argument("--strict-time", action="store_true")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--prepared", type=int, help="epochs that are prepared; all of them")
    parser.add_argument("--cpu-cache", default="10%")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--model")
    parser.add_argument("--loss")
    parser.add_argument("--decoder", default="distmult")
    parser.add_argument("--disk-only", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
