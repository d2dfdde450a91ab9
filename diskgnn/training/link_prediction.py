"""Link prediction: edges to tell from pairs of nodes that are none, and how high edges rank among those."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.blocks import Pairs
from diskgnn.batches.minibatch import AnyBatch, pairs_of
from diskgnn.errors import ConfigError
from diskgnn.nn.decoders import DotProduct
from diskgnn.nn.model_output import pair_ends
from diskgnn.specs.schema import EdgeType
from diskgnn.training.criterion import metrics_of

_RANKS = (1, 3, 10)  # of Hits@K


@dataclass(frozen=True)
class PairScores:
    """Holds how likely a model finds the pairs of a minibatch; the higher, the likelier."""

    edges: Tensor  # [P]
    negatives: Tensor  # [P, N] of each edge
    counted: Tensor | None = None  # [P, N] bool: the negatives that are none of the minibatch's edges; None: all


class LinkPrediction:
    """Trains to tell edges from negatives: binary cross-entropy or softmax; MRR and Hits@K.

    A minibatch whose pairs are edges alone is its own negatives: each edge's source with the other edges'
    destinations, but for those that it has an edge to. Ranks are those of OGB's `Evaluator` for MRR (Hu et al., Open
    Graph Benchmark, NeurIPS 2020): an edge ranks among its own negatives, in the middle of those of its score.

    A model returns vectors of the seeds: [B, H], or by node type. Its attribute `decoder`, a module as in
    `decoders.py`, makes scores of them, and a dot product does if it has none.

    Args:
        edge_type: what is predicted.
        loss: 'bce', the mean over all pairs, or 'softmax', the cross-entropy of each edge among its negatives. By
            default ('auto') 'bce', and 'softmax' for minibatches that are their own negatives.

    Raises:
        ConfigError: another loss.
    """

    name, metrics = "link prediction", metrics_of("link", 1)
    out_channels = None

    def __init__(self, edge_type: EdgeType, loss: str = "auto") -> None:
        if loss not in ("auto", "bce", "softmax"):
            raise ConfigError(f"loss: expected bce or softmax for link prediction, found {loss!r}")
        self.edge_type, self.loss_name = edge_type, loss

    def output(self) -> str:
        """Says in words what a model has to return."""
        return "one vector per seed, by node type where the graph has several"

    def outputs(self, net: nn.Module, batch: AnyBatch) -> PairScores:
        """Returns what the model's decoder makes of the vectors of the pairs' nodes.

        Raises:
            ConfigError: the decoder cannot compare every source with every destination.
        """
        sources, destinations = pair_ends(net, batch)
        decoder: Any = getattr(net, "decoder", None) or DotProduct()
        return pair_scores(decoder, sources, destinations, pairs_of(batch))

    def accepts(self, outputs: PairScores, num_seeds: int) -> bool:
        """Returns True if there is a score for the edge."""
        return outputs.edges.dim() == 1 and bool(len(outputs.edges))

    def loss(self, outputs: PairScores, batch: AnyBatch) -> Tensor:
        """Returns [] the mean over pairs ('bce') or edges ('softmax')."""
        losses, count = self.summed_loss(outputs)
        return losses / count

    def summed_loss(self, found: PairScores) -> tuple[Tensor, Tensor | int]:
        """Returns the sum of the losses, and of how many pairs ('bce') or edges ('softmax')."""
        negatives, counted = found.negatives, found.counted
        if self.loss_name == "softmax" or (self.loss_name == "auto" and counted is not None):
            if counted is not None:
                negatives = negatives.masked_fill(~counted, -torch.inf)
            logits = torch.cat([found.edges.unsqueeze(1), negatives], dim=1)
            return (torch.logsumexp(logits, dim=1) - found.edges).sum(), len(logits)
        edges, against = F.softplus(-found.edges).sum(), F.softplus(negatives)
        if counted is None:
            return edges + against.sum(), found.edges.numel() + negatives.numel()
        return edges + (against * counted).sum(), found.edges.numel() + counted.sum()

    def tally(self, device: torch.device) -> LinkTally:
        """Adds up reciprocal ranks."""
        return LinkTally(self, device)


class LinkTally:
    """Adds up the ranks of edges among their negatives.

    Args:
        task: whose loss is added up, too.
        device: of the outputs.
    """

    def __init__(self, task: LinkPrediction, device: torch.device) -> None:
        self.num_seeds = 0  # edges
        self._task = task
        # Loss, and of how many; reciprocal ranks; edges that rank at least so high.
        self._sums = torch.zeros(3 + len(_RANKS), dtype=torch.float64, device=device)

    def add(self, outputs: PairScores, batch: AnyBatch) -> None:
        """Count the scores of one minibatch."""
        loss, count = self._task.summed_loss(outputs)
        ranks = edge_ranks(outputs)
        hits = [(ranks <= rank).sum() for rank in _RANKS]
        self._sums += torch.stack([loss.double(), loss.new_tensor(0, dtype=torch.float64) + count,
                                   ranks.reciprocal().sum(), *(hit.double() for hit in hits)])  # fmt: skip
        self.num_seeds += len(ranks)

    def merge(self, other: LinkTally) -> None:
        """Count what another one has counted."""
        self._sums += other._sums
        self.num_seeds += other.num_seeds

    def loss(self) -> float:
        """Returns the mean over all pairs ('bce') or edges ('softmax')."""
        return (self._sums[0] / self._sums[1]).item()

    def scores(self) -> dict[str, float]:
        """Returns the scores, in [0, 1]."""
        mrr, *hits = (self._sums[2:] / self.num_seeds).tolist()
        return {"mrr": mrr, **{f"hits@{rank}": hit for rank, hit in zip(_RANKS, hits, strict=True)}}


def edge_ranks(found: PairScores) -> Tensor:
    """Returns [P] float64: 1 for an edge that is likelier than all of its negatives.

    Negatives of the edge's own score count half. So does every negative of an edge whose score is not a number.
    """
    edges, counted = found.edges.unsqueeze(1), found.counted
    higher, not_lower = found.negatives > edges, ~(found.negatives < edges)
    if counted is not None:
        higher, not_lower = higher & counted, not_lower & counted
    return 1 + (higher.sum(1) + not_lower.sum(1)).double() / 2


def pair_scores(decoder: Any, sources: Tensor, destinations: Tensor, pairs: Pairs) -> PairScores:
    """Returns scores of the pairs, or, where all are edges, of each edge's source with every edge's destination.

    Args:
        decoder: of two vectors.
        sources, destinations: [B, H] vectors of the seeds.
        pairs: edges first, then the negatives of each edge in turn.

    Raises:
        ConfigError: the decoder cannot compare every source with every destination.
    """
    num_edges = int(pairs.label.sum())
    if num_edges < len(pairs.label):
        scores: Tensor = decoder(sources[pairs.src], destinations[pairs.dst])
        return PairScores(scores[:num_edges], scores[num_edges:].view(num_edges, -1))
    if not hasattr(decoder, "against_all"):
        raise ConfigError(
            f"decoder: {type(decoder).__name__} cannot compare all edges of a minibatch with each other: sample at "
            "least 1 negative per edge, or take decoder dot or distmult"
        )
    matrix = decoder.against_all(sources[pairs.src], destinations[pairs.dst])
    linked = torch.zeros(len(sources), len(destinations), dtype=torch.bool, device=pairs.src.device)
    linked[pairs.src, pairs.dst] = True
    return PairScores(matrix.diagonal(), matrix, ~linked[pairs.src][:, pairs.dst])
