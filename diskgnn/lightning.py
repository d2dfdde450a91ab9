"""Packed directories for PyTorch Lightning (`pip install 'diskgnn[lightning]'`)."""

from diskgnn.training.lightning_data import PackedDataModule

__all__ = ["PackedDataModule"]
