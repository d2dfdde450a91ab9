"""A training loop of one's own on a packed directory: python docs/examples/custom_loop.py PACKED [EPOCHS]

A learning rate schedule, gradient clipping, and the parameters that did best on the validation split.
"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

import diskgnn
from diskgnn.training.models import make_model


def train(source: diskgnn.Loader, valid: diskgnn.Loader, epochs: int, device: str) -> nn.Module:
    """The model as it was after the epoch with the highest validation accuracy."""
    model = make_model(
        "gat",
        in_channels=source.num_features,
        hidden_channels=256,
        out_channels=source.num_classes,
        num_layers=source.num_layers,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * source.num_batches)
    best_accuracy, best = -1.0, model.state_dict()
    for epoch in range(epochs):
        model.train()
        for batch in source:
            loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        found = accuracy(model, valid)
        print(f"epoch {epoch}: loss of the last minibatch {loss.item():.4f}, validation accuracy {found:.4f}")
        if found > best_accuracy:
            best_accuracy, best = found, copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    correct = total = 0
    for batch in source:
        correct += int((model(batch.blocks, batch.x).argmax(dim=1) == batch.y).sum())
        total += batch.y.numel()
    return correct / total


def main(packed: str, epochs: int) -> None:
    """Train, then evaluate on the test split."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with (
        diskgnn.Loader(packed, "train", device=device) as source,
        diskgnn.Loader(packed, "valid", device=device) as valid,
    ):
        model = train(source, valid, epochs, device)
    with diskgnn.Loader(packed, "test", device=device) as source:
        print(f"test accuracy {accuracy(model, source):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
