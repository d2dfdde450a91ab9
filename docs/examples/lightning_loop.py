"""Lightning; run it again to go on: python docs/examples/lightning_loop.py PACKED [EPOCHS [DIR]]"""

from __future__ import annotations

import sys

import pytorch_lightning as pl  # or: import lightning.pytorch as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint
from torch.nn import functional as F

from diskgnn.lightning import PackedDataModule
from diskgnn.models import make_model

SCORE, MODE = "valid_accuracy", "max"  # or valid_roc_auc of two classes, valid_mae and "min" of regression


class Classifier(pl.LightningModule):
    """GraphSAGE; any module that takes blocks and features does."""

    def __init__(self, num_features: int, num_classes: int, num_layers: int) -> None:
        super().__init__()
        self.model = make_model("sage", num_features, 128, num_classes, num_layers)

    def training_step(self, batch, number):
        return F.cross_entropy(self.model(batch.blocks, batch.x), batch.y)

    def on_validation_epoch_start(self):
        self.tally = self.trainer.datamodule.task.tally(self.device)  # scores of the whole split, exactly

    def validation_step(self, batch, number):
        self.tally.add(self.model(batch.blocks, batch.x), batch)

    def on_validation_epoch_end(self):
        split = "test" if self.trainer.testing else "valid"
        self.log_dict({f"{split}_{name}": score for name, score in self.tally.scores().items()})

    on_test_epoch_start, test_step = on_validation_epoch_start, validation_step
    on_test_epoch_end = on_validation_epoch_end

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


def main(packed: str, epochs: int, folder: str) -> None:
    """Train, or go on from the last checkpoint in `folder`; then test the weights that were best in validation."""
    pl.seed_everything(0)
    data = PackedDataModule(packed)
    best = ModelCheckpoint(folder, monitor=SCORE, mode=MODE, save_last=True, enable_version_counter=False)
    callbacks = [best, EarlyStopping(SCORE, mode=MODE, patience=5)]
    trainer = pl.Trainer(max_epochs=epochs, callbacks=callbacks, logger=False, enable_model_summary=False)
    model = Classifier(data.num_features, data.num_classes, data.num_layers)
    trainer.fit(model, datamodule=data, ckpt_path="last")
    (scores,) = trainer.test(model, datamodule=data, ckpt_path=best.best_model_path, verbose=False)
    print(f"test accuracy {scores['test_accuracy']:.4f}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10, *(sys.argv[3:] or ["lightning"]))
