"""Train a PyTorch Geometric model on a packed directory: python docs/examples/pyg_model.py PACKED [EPOCHS]"""

from __future__ import annotations

import sys

import torch
from torch.nn import functional as F
from torch_geometric.nn import GraphSAGE

import diskgnn


def logits(model: GraphSAGE, batch: diskgnn.MiniBatch) -> torch.Tensor:
    """[B, num_classes] of the seeds."""
    data = batch.to_pyg()  # a subgraph, the seeds first
    out = model(
        data.x.float(),
        data.edge_index,
        num_sampled_nodes_per_hop=data.num_sampled_nodes,  # lets each layer skip what the next one does not need
        num_sampled_edges_per_hop=data.num_sampled_edges,
    )
    return out[: data.batch_size]


def train(source: diskgnn.Loader, epochs: int) -> GraphSAGE:
    """A model trained for that many epochs."""
    model = GraphSAGE(
        source.num_features, 256, num_layers=source.num_layers, out_channels=source.num_classes, dropout=0.5
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(epochs):
        model.train()
        for batch in source:
            optimizer.zero_grad()
            loss = F.cross_entropy(logits(model, batch), batch.y)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: loss of the last minibatch {loss.item():.4f}")
    return model


@torch.no_grad()
def accuracy(model: GraphSAGE, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    return torch.cat([logits(model, batch).argmax(dim=1) == batch.y for batch in source]).float().mean().item()


def main(packed: str, epochs: int) -> None:
    """Train, then evaluate on the test split."""
    with diskgnn.Loader(packed, "train") as source:
        model = train(source, epochs)
    with diskgnn.Loader(packed, "test") as source:
        print(f"test accuracy {accuracy(model, source):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
