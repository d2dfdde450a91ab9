"""A plain loop with a schedule, clipping and early stopping: python docs/examples/custom_loop.py PACKED [EPOCHS]"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn
from torch.nn import functional as F

import diskgnn
from diskgnn.models import make_model

PATIENCE = 3  # epochs without a better validation accuracy


def train(source: diskgnn.Loader, valid: diskgnn.Loader, epochs: int) -> nn.Module:
    """The model as it was after the epoch with the highest validation accuracy."""
    model = make_model("gat", source.num_features, 128, source.num_classes, source.num_layers).to(source.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=epochs * source.num_batches)
    best_accuracy, best_epoch, best = -1.0, 0, model.state_dict()
    for epoch in range(epochs):
        model.train()
        for batch in source:
            loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: validation accuracy {(found := accuracy(model, valid)):.4f}")
        if found > best_accuracy:
            best_accuracy, best_epoch, best = found, epoch, copy.deepcopy(model.state_dict())
        elif epoch - best_epoch == PATIENCE:
            break
    model.load_state_dict(best)
    return model


@torch.no_grad()
def accuracy(model: nn.Module, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    return torch.cat([model(batch.blocks, batch.x).argmax(dim=1) == batch.y for batch in source]).float().mean().item()


def main(packed: str, epochs: int) -> None:
    """Train, then evaluate on the test split."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with diskgnn.Loader(packed, device=device) as source, diskgnn.Loader(packed, "valid", device=device) as valid:
        model = train(source, valid, epochs)
    with diskgnn.Loader(packed, "test", device=device) as test:
        print(f"test accuracy {accuracy(model, test):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
