"""Lightning goes on from its own checkpoints exactly where they were written, and ends the loader's threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from graphs import make_graph, prepare_graph

import diskgnn

pl = pytest.importorskip("pytorch_lightning")
from diskgnn.training.lightning import PackedDataModule  # noqa: E402

# 57 training nodes of 8 a minibatch: 8 minibatches an epoch, of which two are prepared
CHECKPOINTS_AFTER_STEPS = (1, 8, 11, 21)


class Mean(pl.LightningModule):
    """A linear layer over the mean of a minibatch's rows: no randomness, and every bit of x counts."""

    def __init__(self, num_features: int, fails_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fails_at, self.seen = torch.nn.Linear(num_features, 4), fails_at, []

    def training_step(self, batch, number):
        if self.global_step == self.fails_at:
            raise OSError("the disk failed")
        self.seen.append((batch.epoch, batch.batch_index, batch.input_nodes.tolist()))
        rows = torch.nan_to_num(batch.x, 0.0, 0.0, 0.0).clamp(-1, 1)
        return torch.nn.functional.cross_entropy(self.layer(rows[: batch.y.numel()] + rows.mean(dim=0)), batch.y)

    def validation_step(self, batch, number):
        self.log("seeds", float(batch.y.numel()), batch_size=1, reduce_fx="sum")

    def test_step(self, batch, number):
        self.validation_step(batch, number)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lightning")
    return prepare_graph(make_graph(folder / "graph"), folder)


def trainer(folder: Path, **arguments) -> pl.Trainer:
    saving = pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(callbacks=saving, **quiet, **arguments)


@pytest.fixture(scope="module")
def straight(packed, tmp_path_factory) -> tuple[Path, Mean]:
    """Three epochs, never stopped, with a checkpoint after each step; the folder of these, and the model."""
    folder = tmp_path_factory.mktemp("straight")
    data = PackedDataModule(packed)
    model = Mean(data.num_features)
    trainer(folder, max_epochs=3).fit(model, datamodule=data)
    return folder, model


def test_it_trains_on_what_a_loader_yields(packed, straight):
    with diskgnn.Loader(packed) as loader:
        expected = [(b.epoch, b.batch_index, b.input_nodes.tolist()) for epoch in range(3) for b in loader.epoch(epoch)]
    assert straight[1].seen == expected


@pytest.mark.parametrize("step", CHECKPOINTS_AFTER_STEPS)
def test_training_goes_on_exactly_from_any_checkpoint(packed, straight, tmp_path, step):
    folder, uninterrupted = straight
    data = PackedDataModule(packed)
    model = Mean(data.num_features)
    trainer(tmp_path, max_epochs=3).fit(model, datamodule=data, ckpt_path=folder / f"step={step}.ckpt")
    assert model.seen == uninterrupted.seen[step:]
    assert all(map(torch.equal, model.state_dict().values(), uninterrupted.state_dict().values()))


def test_other_minibatches_are_refused(straight, tmp_path):
    other = prepare_graph(make_graph(tmp_path / "graph"), tmp_path, batch_size=9)
    data = PackedDataModule(other)
    with pytest.raises(diskgnn.ArtifactError, match="the state is of other minibatches"):
        trainer(tmp_path, max_epochs=3).fit(
            Mean(data.num_features), datamodule=data, ckpt_path=straight[0] / "step=11.ckpt"
        )


def test_a_missing_split_has_no_minibatches_and_valid_has_all_of_its_seeds(packed, tmp_path):
    data, found = PackedDataModule(packed), trainer(tmp_path, max_epochs=1)
    (scores,) = found.validate(Mean(data.num_features), datamodule=data, verbose=False)
    assert scores == {"seeds": 21.0}
    assert found.test(Mean(data.num_features), datamodule=data, verbose=False) in ([], [{}])


def test_threads_end_with_the_trainer_also_when_it_fails(packed, tmp_path):
    before = threading.active_count()
    for fails_at in (None, 3):
        data = PackedDataModule(packed)
        try:
            trainer(tmp_path, max_epochs=1).fit(Mean(data.num_features, fails_at), datamodule=data)
        except OSError:
            assert fails_at == 3
        assert threading.active_count() == before
