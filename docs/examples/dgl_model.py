"""Train a DGL model on a packed directory: python docs/examples/dgl_model.py PACKED [EPOCHS]"""

from __future__ import annotations

import sys
from itertools import pairwise

import dgl
import torch
from dgl.nn import SAGEConv
from torch import nn
from torch.nn import functional as F

import diskgnn


class SAGE(nn.Module):
    """The model of DGL's own minibatch examples."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGEConv(before, after, "mean") for before, after in pairwise(widths))

    def forward(self, blocks: list[dgl.DGLBlock], x: torch.Tensor) -> torch.Tensor:
        """[U, D] -> [B, num_classes]."""
        h = x
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            h = layer(block, (h, h[: block.num_dst_nodes()]))
            if number < len(self.layers) - 1:
                h = F.dropout(F.relu(h), 0.5, self.training)
        return h


def train(source: diskgnn.Loader, epochs: int) -> SAGE:
    """A model trained for that many epochs."""
    model = SAGE([source.num_features] + [256] * (source.num_layers - 1) + [source.num_classes])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        model.train()
        for batch in source:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch.to_dgl(), batch.x.float()), batch.y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss of the last minibatch {loss.item():.4f}")
    return model


@torch.no_grad()
def accuracy(model: SAGE, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    correct = total = 0
    for batch in source:
        correct += int((model(batch.to_dgl(), batch.x.float()).argmax(dim=1) == batch.y).sum())
        total += batch.y.numel()
    return correct / total


def main(packed: str, epochs: int) -> None:
    """Train, then evaluate on the test split."""
    with diskgnn.Loader(packed, "train") as source:
        model = train(source, epochs)
    with diskgnn.Loader(packed, "test") as source:
        print(f"test accuracy {accuracy(model, source):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
