"""Lightning: `PackedDataModule`. Needs the package `lightning` or `pytorch-lightning`, 2.2 or newer."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError
from diskgnn.loading.loader import Loader
from diskgnn.loading.options import LoaderOptions
from diskgnn.schema import SourceSchema
from diskgnn.specs import PathLike
from diskgnn.storage.packed import Packed


def _data_module() -> Any:
    """`LightningDataModule` of the package that the program has imported: neither takes the classes of the other."""
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
    """The train, valid and test minibatches of a packed directory, for Lightning's `Trainer`.

    Lightning's checkpoints hold the state of the train loader, so `trainer.fit(..., ckpt_path=...)` goes on exactly
    where the checkpoint was written, in the middle of an epoch, too. Threads end when the trainer is done, also after
    an exception. A split that was not prepared has no minibatches. Import Lightning before this module: if both of its
    packages are installed, the one that your program uses counts.

    Attributes:
        schema: types of nodes and edges, and what the seeds are for.
        num_layers: blocks in each minibatch.

    Args:
        packed: directory written by `diskgnn.prepare`.
        options: how it is read; see `diskgnn.LoaderOptions`.

    Raises:
        ArtifactError: not a packed directory.
        ConfigError: Lightning is not installed (when this module is imported); or, from the trainer, it has several
            processes, each of which would train on the same minibatches.

    Example:
        import lightning.pytorch as pl
        from diskgnn.training.lightning import PackedDataModule

        pl.Trainer(max_epochs=20).fit(module, datamodule=PackedDataModule("packed"), ckpt_path="last")
    """

    def __init__(self, packed: PathLike, options: LoaderOptions | None = None) -> None:
        super().__init__()
        self._packed, self._options = Packed.open(packed), options or LoaderOptions()
        self._loaders = list[Loader]()  # of the stage that the trainer is in
        self.schema: SourceSchema = self._packed.config.schema()
        self.num_layers: int = self._packed.config.samples.spec.num_layers

    @property
    def num_classes(self) -> int:
        """Labels are in [0, num_classes): outputs of other targets than classes."""
        return self.schema.num_outputs

    @property
    def num_features(self) -> int:
        """D, columns of x.

        Raises:
            ConfigError: there are the features of several types, or none: `schema` has them.
        """
        return self._packed.config.one_row_set.rows.num_features

    def train_dataloader(self) -> Loader | list[Loader]:
        """For the trainer."""
        return self._loader("train")

    def val_dataloader(self) -> Loader | list[Loader]:
        """For the trainer."""
        return self._loader("valid")

    def test_dataloader(self) -> Loader | list[Loader]:
        """For the trainer."""
        return self._loader("test")

    def _loader(self, split: str) -> Loader | list[Loader]:
        trainer = self.trainer
        if trainer.world_size > 1:
            raise ConfigError(
                f"this trainer has {trainer.world_size} processes, and each would train on all minibatches: "
                "pass Trainer(devices=1)"
            )
        if split not in self._packed.config.splits:
            return []
        loader = Loader.with_options(self._packed, split, trainer.strategy.root_device, self._options)
        self._loaders.append(loader)
        return loader

    def teardown(self, stage: str) -> None:
        """End the threads of this stage's loaders; the next stage makes new ones."""
        while self._loaders:
            self._loaders.pop().close()

    def on_exception(self, exception: BaseException) -> None:
        """The same, when the trainer failed or was interrupted."""
        self.teardown("")
