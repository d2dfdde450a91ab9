"""Lightning; run it again to go on: python docs/examples/lightning_loop.py PACKED [EPOCHS [DIR]]"""

from __future__ import annotations

import sys

import pytorch_lightning as pl  # or: import lightning.pytorch as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.nn import functional as F

from diskgnn.training.lightning import PackedDataModule
from diskgnn.training.models import make_model


class Classifier(pl.LightningModule):
    """GraphSAGE; any module that takes blocks and features does."""

    def __init__(self, num_features: int, num_classes: int, num_layers: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = make_model("sage", num_features, 128, num_classes, num_layers)

    def training_step(self, batch, number):
        return F.cross_entropy(self.model(batch.blocks, batch.x), batch.y)

    def validation_step(self, batch, number):
        self.log_accuracy("valid_accuracy", batch)

    def test_step(self, batch, number):
        self.log_accuracy("test_accuracy", batch)

    def log_accuracy(self, name: str, batch) -> None:
        found = self.model(batch.blocks, batch.x).argmax(dim=1)
        self.log(name, (found == batch.y).float().mean(), batch_size=batch.y.numel())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(packed: str, epochs: int, folder: str) -> None:
    """Train, or go on from the last checkpoint in `folder`; then test the weights that were best in validation."""
    pl.seed_everything(0)
    data = PackedDataModule(packed)
    best = ModelCheckpoint(folder, monitor="valid_accuracy", mode="max", save_last=True, enable_version_counter=False)
    trainer = pl.Trainer(max_epochs=epochs, callbacks=best, logger=False, enable_model_summary=False)
    model = Classifier(data.num_features, data.num_classes, data.num_layers)
    trainer.fit(model, datamodule=data, ckpt_path="last")
    (scores,) = trainer.test(model, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    print(f"test accuracy {scores['test_accuracy']:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10, *(sys.argv[3:] or ["lightning"]))
