"""Link prediction with a loop of one's own: python docs/examples/link_prediction.py PACKED [EPOCHS]"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import diskgnn
from diskgnn.models import make_optimizer, model_input, named_model


def pair_scores(model: nn.Module, batch: Any, edge_type: tuple[str, str, str]) -> Tensor:
    """[P] dot products of the vectors of each pair's nodes; edges come first, then the negatives of each."""
    vectors = model(batch.blocks, model_input(batch))
    sources, destinations = (vectors[edge_type[i]] if isinstance(vectors, Mapping) else vectors for i in (0, 2))
    return (sources[batch.pairs.src] * destinations[batch.pairs.dst]).sum(dim=1)


@torch.no_grad()
def mean_reciprocal_rank(model: nn.Module, source: diskgnn.Loader) -> float:
    """Of each edge among its own negatives."""
    model.eval()
    ranks = []
    for batch in source:
        scores, num_edges = pair_scores(model, batch, source.schema.target), int(batch.pairs.label.sum())
        ranks.append(1 + (scores[num_edges:].view(num_edges, -1) >= scores[:num_edges, None]).sum(dim=1))
    return torch.cat(ranks).double().reciprocal().mean().item()


def main(packed: str, epochs: int) -> None:
    """Train, then rank the edges of the test split."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with diskgnn.Loader(packed, device=device) as source, diskgnn.Loader(packed, "test", device=device) as test:
        model = named_model(source, hidden=64, dropout=0.0).to(device)
        optimizer = make_optimizer(model, lr=0.01)
        for epoch in range(epochs):
            model.train()
            for batch in source:
                scores = pair_scores(model, batch, source.schema.target)
                loss = F.binary_cross_entropy_with_logits(scores, batch.pairs.label)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            print(f"epoch {epoch}: loss of the last minibatch {loss.item():.4f}")
        print(f"test MRR {mean_reciprocal_rank(model, test):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
