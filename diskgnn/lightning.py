"""Packed directories for PyTorch Lightning (`pip install 'diskgnn[lightning]'`)."""

from diskgnn.training.lightning import PackedDataModule

__all__ = ["PackedDataModule"]
