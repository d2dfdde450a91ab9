"""Heads of models over pairs: they say how likely an edge is, or what its label is, from the vectors of its nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diskgnn.errors import ConfigError


class DotProduct(nn.Module):
    """Scores a pair by the dot product of its two vectors; it has no parameters."""

    def forward(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Maps [..., H] and [..., H], which broadcast, to [...]."""
        return (sources * destinations).sum(-1)

    def against_all(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Maps [P, H] and [Q, H] to [P, Q]: every source with every destination."""
        return sources @ destinations.T


class DistMult(DotProduct):
    """Scores a pair by the dot product with a learnt weight for each column.

    Yang et al., Embedding Entities and Relations for Learning and Inference in Knowledge Bases, ICLR 2015.

    Args:
        width: H, length of the vectors.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.relation = nn.Parameter(torch.ones(width))

    def forward(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Maps [..., H] and [..., H], which broadcast, to [...]."""
        return super().forward(sources * self.relation, destinations)

    def against_all(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Maps [P, H] and [Q, H] to [P, Q]: every source with every destination."""
        return super().against_all(sources * self.relation, destinations)


class MLPDecoder(nn.Module):
    """Scores a pair by a hidden layer over the two vectors side by side, so that an edge's direction counts.

    Args:
        width: H, length of the vectors and of the hidden layer.
        outputs: C, numbers for each pair; None: one, its score.
    """

    def __init__(self, width: int, outputs: int | None = None) -> None:
        super().__init__()
        self.source, self.destination = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.out, self.is_score = nn.Linear(width, outputs or 1), outputs is None

    def forward(self, sources: Tensor, destinations: Tensor) -> Tensor:
        """Maps [..., H] and [..., H], which broadcast, to [...], or [..., C]."""
        hidden = torch.relu(self.source(sources) + self.destination(destinations))
        found: Tensor = self.out(hidden)
        return found.squeeze(-1) if self.is_score else found


def make_decoder(name: str, width: int, outputs: int | None = None) -> nn.Module:
    """Makes the head of that name for vectors of length `width`.

    Args:
        name: 'dot', 'distmult' or 'mlp'.
        width: H, length of the vectors.
        outputs: C, numbers for each pair, where these have labels; None: one, how likely it is an edge.

    Raises:
        ConfigError: there is none, or it cannot say so many numbers.
    """
    if outputs is not None:
        if name != "mlp":
            raise ConfigError(f"decoder: expected mlp for pairs that have labels, found {name!r}, which is one score")
        return MLPDecoder(width, outputs)
    if name == "dot":
        return DotProduct()
    if name == "distmult":
        return DistMult(width)
    if name == "mlp":
        return MLPDecoder(width)
    raise ConfigError(f"decoder: expected dot, distmult or mlp, found {name!r}")
