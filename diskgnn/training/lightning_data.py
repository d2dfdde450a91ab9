"""Lightning: `PackedDataModule`. Needs the package `lightning` or `pytorch-lightning`, 2.2 or newer."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import open_rank, ranks_in
from diskgnn.loading.loader import Loader
from diskgnn.loading.loader_options import LoaderOptions
from diskgnn.paths import PathLike
from diskgnn.specs.schema import SourceSchema
from diskgnn.specs.shard import Shard
from diskgnn.training.ranks import Ranks
from diskgnn.training.task import Task, task_of


def _data_module() -> Any:
    """Returns `LightningDataModule` of the package that the program has imported: neither takes those of the other."""
    for name in sorted(("lightning.pytorch", "pytorch_lightning"), key=lambda name: name not in sys.modules):
        try:
            return import_module(name).LightningDataModule
        except ImportError:
            continue
    raise ConfigError("PackedDataModule needs Lightning, which is not installed: pip install lightning")


if TYPE_CHECKING:

    class _DataModule:
        trainer: Any  # whoever asks for minibatches

else:
    _DataModule = _data_module()


class PackedDataModule(_DataModule):
    """Gives the train, valid and test minibatches of a packed directory to Lightning's `Trainer`.

    Lightning's checkpoints hold the state of the train loader, so `trainer.fit(..., ckpt_path=...)` goes on exactly
    where the checkpoint was written, in the middle of an epoch, too. Threads end when the trainer is done, also after
    an exception. A split that was not prepared has no minibatches. Import Lightning before this module: if both of its
    packages are installed, the one that your program uses counts.

    A trainer of several processes needs what was prepared for as many ranks. DDP has all of them take as many steps, so
    where some ranks have a minibatch more, `Trainer(limit_train_batches=...)` has to leave it out.

    Attributes:
        schema: types of nodes and edges, and what the seeds are for.
        num_layers: blocks in each minibatch.

    Args:
        packed: directory written by `diskgnn.prepare`, or its folder of directories for several ranks.
        options: how it is read; see `diskgnn.LoaderOptions`.

    Raises:
        ArtifactError: not a packed directory.
        ConfigError: Lightning is not installed (when this module is imported); or, from the trainer, it has another
            number of processes than the ranks that were prepared, or ranks have different numbers of minibatches.

    Example:
        import lightning.pytorch as pl
        from diskgnn.training.lightning_data import PackedDataModule

        pl.Trainer(max_epochs=20).fit(module, datamodule=PackedDataModule("packed"), ckpt_path="last")
    """

    def __init__(self, packed: PathLike, options: LoaderOptions | None = None) -> None:
        super().__init__()
        ranks = ranks_in(packed)
        self._path, self._options = packed, options or LoaderOptions()
        self._packed = open_rank(packed, ranks[0]) if ranks else Packed.open(packed)  # of the trainer's rank, later
        self._loaders = list[Loader]()  # of the stage that the trainer is in
        self.schema: SourceSchema = self._packed.config.schema()
        self.num_layers: int = self._packed.config.samples.spec.num_layers

    @property
    def num_classes(self) -> int:
        """Returns how many classes labels are of, from 0 on; outputs of other targets than classes."""
        return self.schema.num_outputs

    @property
    def num_features(self) -> int:
        """Returns D, the number of columns of x.

        Raises:
            ConfigError: there are the features of several types, or none: `schema` has them.
        """
        return self._packed.config.one_row_set.rows.num_features

    @property
    def task(self) -> Task:
        """Returns what the minibatches are for. `task.tally(device)` adds up its scores, minibatch by minibatch; log
        them for Lightning's ModelCheckpoint and EarlyStopping to go by.

        Raises:
            ConfigError: the seeds have no labels.
        """
        return task_of(self.schema)

    def train_dataloader(self) -> Loader | list[Loader]:
        """Returns the loader of the train split, for the trainer."""
        return self._loader("train")

    def val_dataloader(self) -> Loader | list[Loader]:
        """Returns the loader of the validation split, for the trainer."""
        return self._loader("valid")

    def test_dataloader(self) -> Loader | list[Loader]:
        """Returns the loader of the test split, for the trainer."""
        return self._loader("test")

    def _loader(self, split: str) -> Loader | list[Loader]:
        trainer = self.trainer
        shard = Shard(trainer.global_rank, trainer.world_size)
        if self._packed.config.samples.spec.shard != shard:
            self._packed = open_rank(self._path, shard)
        if split not in self._packed.config.splits:
            return []
        if split == "train" and shard.world_size > 1:
            _check_steps(self._packed.sequence(split).batches_per_epoch, trainer)
        loader = Loader.with_options(self._packed, split, trainer.strategy.root_device, self._options)
        self._loaders.append(loader)
        return loader

    def teardown(self, stage: str) -> None:
        """End the threads of this stage's loaders; the next stage makes new ones."""
        while self._loaders:
            self._loaders.pop().close()

    def on_exception(self, exception: BaseException) -> None:
        """Does the same when the trainer failed or was interrupted."""
        self.teardown("")


def _check_steps(num_batches: int, trainer: Any) -> None:
    """Refuse to train where DDP would wait for a rank that has no minibatch left."""
    counts = Ranks(trainer.global_rank, trainer.world_size).gathered(num_batches)
    limit = trainer.limit_train_batches
    if min(counts) != max(counts) and not (isinstance(limit, int) and limit <= min(counts)):
        raise ConfigError(
            f"the ranks have {min(counts)} to {max(counts)} minibatches in an epoch, and DDP has all of them take as "
            f"many steps: pass Trainer(limit_train_batches={min(counts)}), or prepare with another batch size"
        )
