"""Accelerate; run it again to go on: python docs/examples/accelerate_loop.py PACKED [EPOCHS [DIR]]"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn import functional as F

import diskgnn
from diskgnn.models import make_model


@torch.no_grad()
def accuracy(model: torch.nn.Module, source: diskgnn.Loader) -> float:
    """Share of seeds whose label the model predicts."""
    model.eval()
    found = [(model(batch.blocks, batch.x).argmax(dim=1) == batch.y).float() for batch in source]
    return torch.cat(found).mean().item()


def main(packed: str, epochs: int, folder: str) -> None:
    """Train, or go on where the state in `folder` was saved; then test."""
    set_seed(0)
    accelerator = Accelerator()  # mixed_precision="bf16" computes in bfloat16
    with diskgnn.Loader(packed, "train", device=accelerator.device) as source:
        model = make_model("sage", source.num_features, 128, source.num_classes, source.num_layers)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5 * source.num_batches, gamma=0.5)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        accelerator.register_for_checkpointing(source)  # where it stands is saved with the rest
        if Path(folder).exists():
            accelerator.load_state(folder)
        while (epoch := source.next_epoch) < epochs:
            model.train()
            for batch in source:
                with accelerator.autocast():
                    loss = F.cross_entropy(model(batch.blocks, batch.x), batch.y)
                accelerator.backward(loss)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            accelerator.print(f"epoch {epoch}: loss {loss.item():.4f}")
            accelerator.save_state(folder)
    with diskgnn.Loader(packed, "test", device=accelerator.device) as source:
        accelerator.print(f"test accuracy {accuracy(model, source):.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10, *(sys.argv[3:] or ["accelerate"]))
