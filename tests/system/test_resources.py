"""What a stage may spend, and where tensors may go: checked once."""

from __future__ import annotations

import pytest
import torch

from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import SILENT
from diskgnn.system.device import checked_device
from diskgnn.system.memory import available_cores
from diskgnn.system.resources import Resources


def test_resources_as_users_name_them() -> None:
    assert Resources.of("2MiB", 3) == Resources(2 << 20, 3, SILENT)
    automatic = Resources.of()
    assert automatic.memory_bytes > 1 << 20
    assert automatic.threads == available_cores()


@pytest.mark.parametrize(
    ("memory", "threads", "message"),
    [("much", None, "such as 512MiB"), (1, 0, "threads: expected at least 1, found 0")],
)
def test_resources_that_there_are_not(memory: int | str, threads: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Resources.of(memory, threads)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), "meta"])
def test_devices_that_torch_can_use(device: str | torch.device) -> None:
    assert checked_device(device) == torch.device(device)


@pytest.mark.parametrize(
    ("device", "message"),
    [("gpu", "expected cpu, cuda or cuda:1, found 'gpu'"), ("cuda:999", "device='cuda:999' cannot be used here"),
     ("xpu", r"device='xpu' cannot be used here .*; use device='cpu'")],
)  # fmt: skip
def test_devices_that_it_cannot(device: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        checked_device(device)
