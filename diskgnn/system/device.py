"""The one check of where a user wants tensors."""

from __future__ import annotations

import torch

from diskgnn.errors import ConfigError


def checked_device(device: str | torch.device) -> torch.device:
    """Returns `device`, if torch can use it here. Takes no memory of a GPU.

    Raises:
        ConfigError: no device of that name, or none that this torch build and machine offer.
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device: expected cpu, cuda or cuda:1, found {str(device)!r}") from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ConfigError(
                f"device={str(device)!r} cannot be used here: torch finds no CUDA device; use device='cpu'"
            )
        if found.index is not None and found.index >= count:
            raise ConfigError(f"device={str(device)!r} cannot be used here: torch finds cuda:0 to cuda:{count - 1}")
        return found
    try:
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device={str(device)!r} cannot be used here ({reason}); use device='cpu'") from error
    return found


def located_device(device: str | torch.device) -> torch.device:
    """Returns `checked_device`, and says for 'cuda' which one it is: threads have a current device of their own."""
    found = checked_device(device)
    if found.type == "cuda" and found.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return found
