import os

import pytest
import torch

if not torch.cuda.is_available():  # before anything imports triton: its kernels then run in NumPy
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
