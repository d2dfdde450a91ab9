"""A DGL model on a packed directory: python docs/examples/dgl_model.py PACKED [EPOCHS]"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
from dgl.nn import SAGEConv
from torch import nn
from torch.nn import functional as F

import diskgnn


class SAGE(nn.Module):
    """The model of DGL's own examples."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGEConv(before, after, "mean") for before, after in pairwise(widths))

    def forward(self, blocks, x):
        for layer, block in zip(self.layers, blocks, strict=True):
            x = x if layer is self.layers[0] else F.dropout(F.relu(x), 0.5, self.training)
            x = layer(block, (x, x[: block.num_dst_nodes()]))
        return x


def train(source: diskgnn.Loader, epochs: int) -> SAGE:
    """A model trained for that many epochs."""
    model = SAGE([source.num_features, *[256] * (source.num_layers - 1), source.num_classes])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        for batch in source:
            loss = F.cross_entropy(model(batch.to_dgl(), batch.x.float()), batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")
    return model


@torch.no_grad()
def accuracy(model: SAGE, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    found = [model(b.to_dgl(), b.x.float()).argmax(dim=1) == b.y for b in source]
    return torch.cat(found).float().mean().item()


def main(packed: str, epochs: int) -> None:
    """Train, then evaluate on the test split."""
    with diskgnn.Loader(packed) as source, diskgnn.Loader(packed, "test") as test:
        print(f"test accuracy {accuracy(train(source, epochs), test):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
