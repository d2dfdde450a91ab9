"""Minibatches of a typed graph, drawn with plain loops: what tests of packing and loading are given."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from diskgnn.formats import artifacts
from diskgnn.formats.minibatch_columns import MinibatchLayout
from diskgnn.formats.sampled_minibatch import PairSample, SampledBlock, SampledMinibatch
from diskgnn.formats.samples_config import SamplesConfig, SamplesLayout, SequenceSize
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.work.writer import ArtifactWriter

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
FANOUT = 3


def typed_graph(path: Path, seed: int = 0, *, task: str = "class") -> Graph:
    """Papers and fields with features, authors without; features of the edges between authors and papers."""
    rng = np.random.default_rng(seed)
    papers, authors, fields = (int(number) for number in rng.integers((40, 20, 6), (90, 40, 12)))
    labels = {
        "class": rng.integers(0, 3, papers),
        "multilabel": rng.integers(0, 2, (papers, 4)),
        "regression": rng.random((papers, 2), np.float32),
    }
    shuffled = rng.permutation(papers)
    paper = {
        "features": rng.random((papers, 7), np.float32).astype(np.float16), "labels": labels[task], "task": task,
        "train": shuffled[:24], "valid": shuffled[24:33],
    }  # fmt: skip
    writes = {
        "edges": np.stack([rng.integers(0, authors, 200), rng.integers(0, papers, 200)]), "reverse": True,
        "keep_ids": True, "features": rng.random((200, 2), np.float32),
    }  # fmt: skip
    cites = {"edges": rng.integers(0, papers, (150, 2)), "train": rng.integers(0, papers, (20, 2))}
    covers = {"edges": np.stack([rng.integers(0, fields, 80), rng.integers(0, papers, 80)])}
    schema = {
        "nodes": {
            "paper": paper,
            "author": {"num_nodes": authors},
            "field": {"features": rng.integers(-9, 9, (fields, 3)).astype(np.int8)},
        },
        "edges": {"author:writes:paper": writes, "paper:cites:paper": cites, "field:covers:paper": covers},
    }
    convert(path, schema=schema, memory="1MiB")
    return Graph.open(path)


def draw(
    graph: Graph, seeds: list[list[int]], layers: int, rng: np.random.Generator, layout: SamplesLayout
) -> SampledMinibatch:
    """At most FANOUT in-edges of each node in each layer. With trees, every edge leads to a node of its own."""
    names = list(graph.nodes)
    nodes = [list(of_type) for of_type in seeds]
    first_seeds = np.cumsum([0, *map(len, seeds)])
    trees = [list(range(first, last)) for first, last in pairwise(first_seeds.tolist())]
    counts, blocks = [[len(of_type) for of_type in nodes]], []
    for _ in range(layers):
        known = [{node: at for at, node in enumerate(of_type)} for of_type in nodes]
        layer = []
        for edges in graph.edges.values():
            source, destination = names.index(edges.type[0]), names.index(edges.type[2])
            indptr, indices, positions = [0], [], []
            for at in range(counts[0][destination]):
                first, last = edges.indptr[nodes[destination][at]], edges.indptr[nodes[destination][at] + 1]
                for position in sorted(rng.permutation(np.arange(first, last))[:FANOUT].tolist()):
                    neighbor = int(edges.indices[position])
                    if layout.trees or neighbor not in known[source]:
                        known[source][neighbor] = len(nodes[source])
                        nodes[source].append(neighbor)
                        trees[source].append(trees[destination][at])
                    indices.append(known[source][neighbor])
                    positions.append(position)
                indptr.append(len(indices))
            layer.append(
                SampledBlock(
                    np.array(indptr, np.int32), np.array(indices, np.int32),
                    np.array(positions, np.int32) if edges.type in layout.positions else None,
                )
            )  # fmt: skip
        blocks.insert(0, tuple(layer))
        counts.insert(0, [len(of_type) for of_type in nodes])
    num_pairs = len(seeds[0]) // 2
    pairs = PairSample(
        np.arange(num_pairs, dtype=np.int32), np.arange(num_pairs, dtype=np.int32) + num_pairs,
        (np.arange(num_pairs) % 2).astype(np.float32),
    )  # fmt: skip
    return SampledMinibatch(
        seeds=np.concatenate([np.array(of_type, np.int64) for of_type in seeds]),
        node_counts=np.array(counts, np.int32),
        input_nodes=tuple(np.array(of_type, np.int32) for of_type in nodes),
        trees=tuple(np.array(of_type, np.int32) for of_type in trees) if layout.trees else None,
        pairs=pairs if layout.pairs else None,
        blocks=tuple(blocks),
    )


def write_samples(
    graph: Graph,
    path: Path,
    seed: int = 0,
    *,
    trees: bool = False,
    link: bool = False,
    layers: int = 2,
    edge_ids: bool = False,
) -> dict[str, list[SampledMinibatch]]:
    """Two epochs of train and one of valid, eight seeds each, as a samples directory; the minibatches of each split."""
    rng = np.random.default_rng(seed)
    layout = SamplesLayout(trees=trees, pairs=link, positions=tuple(graph.edges))
    splits = ["train"] if link else ["train", "valid"]
    spec = SamplingSpec(
        [FANOUT] * layers,
        8,
        2,
        splits=splits,
        target=LinkTarget(CITES) if link else NodeTarget("paper"),
        edge_ids=edge_ids,
    )
    found: dict[str, list[SampledMinibatch]] = {}
    for split in splits:
        found[split] = []
        for _ in range(2 if split == "train" else 1):
            seeds = rng.permutation(graph.nodes["paper"].splits[split])
            for first in range(0, len(seeds), 8):
                papers = seeds[first : first + 8].tolist()
                found[split].append(draw(graph, [papers, *[[]] * (len(graph.nodes) - 1)], layers, rng, layout))
    sizes = {split: SequenceSize(epochs := 2 if split == "train" else 1, len(of_split) // epochs)
             for split, of_split in found.items()}  # fmt: skip
    config = SamplesConfig(
        spec, {name: nodes.num_nodes for name, nodes in graph.nodes.items()},
        {edge_type: edges.num_edges for edge_type, edges in graph.edges.items()}, sizes, layout,
    )  # fmt: skip
    layout = config.minibatch_layout(["int32"] * len(graph.nodes))
    with ArtifactWriter(path, artifacts.SAMPLES, config=config.to_json(), source=graph.manifest) as writer:
        for split, of_split in found.items():
            for epoch, minibatches in enumerate(np.array_split(np.arange(len(of_split)), sizes[split].epochs)):
                _write_shard(writer, artifacts.shard_file(split, epoch, 0), layout, (of_split[i] for i in minibatches))
        writer.publish()
    return found


def _write_shard(
    writer: ArtifactWriter, name: str, layout: MinibatchLayout, minibatches: Iterator[SampledMinibatch]
) -> None:
    with pa.ipc.new_file(str(writer.path(name)), layout.schema) as file:
        for minibatch in minibatches:
            file.write_batch(layout.encode(minibatch))
    writer.add(name)
