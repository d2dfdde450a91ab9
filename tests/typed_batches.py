"""A small graph with several types, and minibatches of it drawn in plain Python: what typed models are tested with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from diskgnn.batches.batch_source import Cursor, CursorSource, LoadStats
from diskgnn.batches.blocks import Block, Pairs
from diskgnn.batches.minibatch import TypedMiniBatch
from diskgnn.specs.schema import EdgeType, SourceSchema

NODES = {"paper": 40, "author": 25, "place": 6}
WIDTHS = {"paper": 5, "author": 3, "place": None}
CITES: EdgeType = ("paper", "cites", "paper")
WRITES: EdgeType = ("author", "writes", "paper")
WRITTEN: EdgeType = ("paper", "rev_writes", "author")
AT: EdgeType = ("author", "at", "place")
HOSTS: EdgeType = ("place", "rev_at", "author")
NUM_EDGES = {CITES: 90, WRITES: 70, WRITTEN: 70, AT: 30, HOSTS: 30}
EDGE_WIDTHS = {CITES: 2, WRITES: None, WRITTEN: None, AT: None, HOSTS: None}
CLASSES = 3


def schema(target: str | EdgeType = "paper", kind: str = "class", outputs: int = CLASSES) -> SourceSchema:
    return SourceSchema(
        tuple((name, nodes, WIDTHS[name]) for name, nodes in NODES.items()),
        tuple(EDGE_WIDTHS.items()), target, kind, outputs,
    )  # fmt: skip


class TypedGraph:
    """Random edges and features; a tenth of the destinations of each edge type have no edge."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        rng = np.random.default_rng(seed)
        self.x = {
            name: torch.from_numpy(rng.normal(size=(nodes, WIDTHS[name]))).to(dtype)
            for name, nodes in NODES.items() if WIDTHS[name] is not None
        }  # fmt: skip
        self.edges = {}  # [2, E] sources and destinations, by destination
        for edge_type, number in NUM_EDGES.items():
            sources = rng.integers(NODES[edge_type[0]], size=number)
            destinations = rng.integers(NODES[edge_type[2]] // 10, NODES[edge_type[2]], size=number)
            order = np.argsort(destinations, kind="stable")
            self.edges[edge_type] = torch.from_numpy(np.stack([sources[order], destinations[order]]))
        self.edge_x = {
            edge_type: torch.from_numpy(rng.normal(size=(NUM_EDGES[edge_type], width))).to(dtype)
            for edge_type, width in EDGE_WIDTHS.items() if width is not None
        }  # fmt: skip
        self.y = torch.from_numpy(rng.integers(CLASSES, size=NODES["paper"]))

    def draw(
        self, seeds: Mapping[str, list[int]], num_layers: int, fanout: int | None = None, seed: int = 0,
        target: str | EdgeType = "paper", pairs: Pairs | None = None,
    ) -> TypedMiniBatch:  # fmt: skip
        """A minibatch: of each edge type `fanout` random edges of each node, or all."""
        rng = np.random.default_rng(seed)
        nodes = {name: list(seeds.get(name, [])) for name in NODES}
        counts, layers = [{name: len(ids) for name, ids in nodes.items()}], []
        for _ in range(num_layers):
            before = {name: list(ids) for name, ids in nodes.items()}
            drawn = {}
            for edge_type, edges in self.edges.items():
                drawn[edge_type] = [self._edges_of(edges, node, fanout, rng) for node in before[edge_type[2]]]
                for position in np.concatenate([*drawn[edge_type], np.empty(0, np.int64)]).astype(int):
                    source = int(edges[0, position])
                    if source not in nodes[edge_type[0]]:
                        nodes[edge_type[0]].append(source)
            layers.append(drawn)
            counts.append({name: len(ids) for name, ids in nodes.items()})
        blocks = [
            {edge_type: self._block(edge_type, lists, nodes[edge_type[0]], number[edge_type[0]])
             for edge_type, lists in drawn.items()}
            for drawn, number in zip(layers, counts[1:], strict=True)
        ]  # fmt: skip
        input_nodes = {name: torch.tensor(ids, dtype=torch.int64) for name, ids in nodes.items()}
        ids = torch.tensor([i for name in NODES for i in seeds.get(name, [])])
        return TypedMiniBatch(
            {name: x[input_nodes[name]] for name, x in self.x.items()},
            pairs.label if pairs is not None else self.y[ids], tuple(blocks[::-1]), tuple(counts[::-1]), ids, target,
            0, 0, input_nodes, pairs,
        )  # fmt: skip

    @staticmethod
    def _edges_of(edges: Tensor, node: int, fanout: int | None, rng: np.random.Generator) -> np.ndarray:
        found = np.flatnonzero(edges[1].numpy() == node)
        return found if fanout is None or len(found) <= fanout else np.sort(rng.choice(found, fanout, replace=False))

    def _block(self, edge_type: EdgeType, lists: list[np.ndarray], sources: list[int], num_src: int) -> Block:
        positions = torch.from_numpy(np.concatenate([*lists, np.empty(0, np.int64)]).astype(np.int64))
        place = {node: i for i, node in enumerate(sources)}
        indices = [place[int(node)] for node in self.edges[edge_type][0, positions]]
        indptr = np.cumsum([0, *map(len, lists)], dtype=np.int32)
        edge_x = self.edge_x[edge_type][positions] if edge_type in self.edge_x else None
        return Block(torch.from_numpy(indptr), torch.tensor(indices, dtype=torch.int32), num_src, positions, edge_x)


def seed_pairs(num_edges: int = 6, num_negatives: int = 2, seed: int = 0) -> tuple[dict[str, list[int]], Pairs]:
    """Seeds of authors and papers, and pairs of them: edges, then the negatives of each edge in turn."""
    rng = np.random.default_rng(seed)
    seeds = {"author": rng.permutation(25)[:8].tolist(), "paper": rng.permutation(40)[:10].tolist()}
    total = num_edges * (1 + num_negatives)
    label = torch.tensor([1.0] * num_edges + [0.0] * (total - num_edges))
    return seeds, Pairs(torch.from_numpy(rng.integers(8, size=total)), torch.from_numpy(rng.integers(10, size=total)),
                        label)  # fmt: skip


class TypedSource(CursorSource):
    """A source of minibatches drawn in plain Python: papers of some class, labels or numbers, or authors' papers.

    Classes, labels and numbers follow from the papers' features, so that they can be learnt.
    """

    num_layers, num_batches_of = 2, 4

    def __init__(self, kind: str = "class", *, first: int = 0, negatives: int = 2) -> None:
        super().__init__(Cursor("TypedSource", self.num_batches_of, {"kind": kind, "first": first}))
        self.graph, self.kind, self.first, self.negatives = TypedGraph(dtype=torch.float32), kind, first, negatives
        outputs = {"class": CLASSES, "multilabel": 4, "regression": 2, "link": 1}[kind]
        self.schema = schema(WRITES if kind == "link" else "paper", kind, outputs)
        x = self.graph.x["paper"]
        self.graph.y = {"class": x[:, :3].argmax(1), "multilabel": (x[:, :4] > 0.3).to(torch.uint8),
                        "regression": x[:, :2] * 5 + 3, "link": self.graph.y}[kind]  # fmt: skip

    def epoch(self, epoch: int) -> Iterator[TypedMiniBatch]:
        start = self._cursor.start(epoch)
        return self._iterate(epoch, start)

    def _iterate(self, epoch: int, start: int) -> Iterator[TypedMiniBatch]:
        for number in range(start, self.num_batches):
            yield self._minibatch(epoch, number)

    def _minibatch(self, epoch: int, number: int) -> TypedMiniBatch:
        self._cursor.batch = number + 1
        seed = 1000 * epoch + number + self.first
        if self.kind == "link":
            seeds, pairs = self._links(seed)
            batch = self.graph.draw(seeds, 2, 3, seed, WRITES, pairs)
        else:
            papers = np.random.default_rng(seed).permutation(NODES["paper"])[:10].tolist()
            batch = self.graph.draw({"paper": papers}, 2, 3, seed)
        return replace(batch, epoch=epoch, batch_index=number)

    def _links(self, seed: int) -> tuple[dict[str, list[int]], Pairs]:
        rng = np.random.default_rng(seed)
        edges = self.graph.edges[WRITES][:, torch.from_numpy(rng.choice(NUM_EDGES[WRITES], 8, replace=False))]
        negatives = torch.from_numpy(rng.integers(NODES["paper"], size=8 * self.negatives))
        sources = torch.cat([edges[0], edges[0].repeat_interleave(self.negatives)])
        destinations = torch.cat([edges[1], negatives])
        authors, src = sources.unique(return_inverse=True)
        papers, dst = destinations.unique(return_inverse=True)
        label = torch.tensor([1.0] * 8 + [0.0] * len(negatives))
        return {"author": authors.tolist(), "paper": papers.tolist()}, Pairs(src, dst, label)

    def stats(self) -> LoadStats:
        return LoadStats()

    def close(self) -> None:
        self._cursor.close()
