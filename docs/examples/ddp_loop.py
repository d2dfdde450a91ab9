"""DDP, one process for each rank that was prepared: torchrun --nproc-per-node 2 docs/examples/ddp_loop.py PACKED"""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import diskgnn
from diskgnn.models import make_model


@torch.no_grad()
def accuracy(model: torch.nn.Module, source: diskgnn.Loader) -> float:
    """Share of the seeds of all ranks whose label the model predicts."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=source.device)
    for batch in source:
        right = (model(batch.blocks, batch.x).argmax(dim=1) == batch.y).sum()
        counts += torch.stack([right, right.new_tensor(len(batch.y))])
    distributed.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main(packed: str, epochs: int) -> None:
    """Train and test, with gloo on CPUs and NCCL on GPUs."""
    on_gpus = torch.cuda.is_available()
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    torch.manual_seed(0)
    with diskgnn.Loader(packed, "train", device=device) as source:  # of the rank that RANK and WORLD_SIZE name
        model = make_model("sage", source.num_features, 128, source.num_classes, source.num_layers).to(device)
        shared = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(epochs):
            model.train()
            with shared.join():  # a rank that has no minibatch left averages gradients with those that have
                for batch in source:
                    loss = F.cross_entropy(shared(batch.blocks, batch.x), batch.y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    with diskgnn.Loader(packed, "test", device=device) as source:
        found = accuracy(model, source)
    if distributed.get_rank() == 0:
        print(f"test accuracy {found:.4f}")
    del shared  # first: if it were the last to hold the process group, it could wait for it forever
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10)
