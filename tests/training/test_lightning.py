"""Lightning goes on from its own checkpoints exactly where they were written, and ends the loader's threads."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from graphs import make_graph, prepare_graph

import diskgnn

pl = pytest.importorskip("pytorch_lightning")
from diskgnn.training.lightning_data import PackedDataModule  # noqa: E402

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


class Seen(pl.Callback):
    """Writes what a process trained on and came to, and the scores of all of them together."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_fit_end(self, trainer, module) -> None:
        weights = {name: value.tolist() for name, value in module.state_dict().items()}
        found = {"seen": module.seen, "weights": weights, "valid_seeds": float(trainer.callback_metrics["seeds"])}
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(found))


class MeanOfRanks(Mean):
    def validation_step(self, batch, number):
        self.log("seeds", float(batch.y.numel()), batch_size=1, reduce_fx="sum", sync_dist=True)


def train_in_two_processes(folder: Path) -> None:
    data = PackedDataModule(folder / "packed")
    pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp_fork", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False, callbacks=Seen(folder),
    ).fit(MeanOfRanks(data.num_features), datamodule=data)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*fork")
def test_processes_of_lightning_train_together(forks, packed, tmp_path):
    """Lightning forks the processes and its DDP averages gradients: as one process with the minibatches of both."""
    diskgnn.prepare(make_graph(tmp_path / "graph"), tmp_path / "packed", fanouts=[3, 2], batch_size=8, epochs=2,
                    cpu_cache="10%", static_cache=0, keep_input_nodes=True, ranks=2)  # fmt: skip
    if (child := os.fork()) == 0:  # which has Lightning imported
        code = 1
        try:
            train_in_two_processes(tmp_path)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    model = Mean(PackedDataModule(packed).num_features)
    optimizer = model.configure_optimizers()
    with diskgnn.Loader(packed) as loader:
        for epoch in range(2):
            batches = list(loader.epoch(epoch))
            for step in zip(batches[::2], batches[1::2], strict=True):
                optimizer.zero_grad()
                (sum(model.training_step(batch, 0) for batch in step) / 2).backward()
                optimizer.step()
    for rank in range(2):
        nodes = [(epoch, input_nodes) for epoch, _, input_nodes in model.seen[rank::2]]
        assert [(epoch, input_nodes) for epoch, _, input_nodes in found[rank]["seen"]] == nodes
        assert found[rank]["valid_seeds"] == 21.0
        for name, value in model.state_dict().items():
            torch.testing.assert_close(torch.tensor(found[rank]["weights"][name]), value)


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
