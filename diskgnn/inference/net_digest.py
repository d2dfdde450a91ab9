"""What names a network: its structure, its weights, and the functions and settings that its modules hold."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn

from diskgnn.embeddings.disk_embeddings import DiskEmbedding


def net_digest(net: nn.Module) -> str:
    """Names what `net` computes: another name, another network.

    Functions that modules hold, such as activations, are named by their code. Something without a representation of
    its own has another name in each process, so that what was computed with it is computed again.
    """
    found = hashlib.blake2b(repr(net).encode(), digest_size=16)
    for name, value in net.state_dict().items():
        found.update(f"{name} {tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    for module in net.modules():
        if isinstance(module, DiskEmbedding):
            for vectors in module.all_vectors():
                found.update(vectors.tobytes())
            continue
        own = ((name, value) for name, value in sorted(vars(module).items()) if not name.startswith("_"))
        for name, value in own:
            if name != "training":
                found.update(f"{name} {' '.join(_parts(value))}".encode())
    return found.hexdigest()


def _parts(value: Any) -> Iterator[str]:
    """Yields what a setting is: functions by their code and what they close over, others by their representation."""
    if isinstance(value, functools.partial):
        yield from _parts(value.func)
        yield repr((value.args, sorted(value.keywords.items())))
    elif isinstance(value, CodeType):
        yield value.co_code.hex()
        yield repr(value.co_names)
        for each in value.co_consts:
            yield from _parts(each)
    elif isinstance(value, torch.Tensor | np.ndarray):
        values = np.ascontiguousarray(value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value)
        yield f"{values.dtype} {values.shape} {hashlib.blake2b(values.tobytes()).hexdigest()}"
    elif isinstance(value, Callable) and hasattr(value, "__qualname__"):  # type: ignore[arg-type]
        yield f"{value.__module__}.{value.__qualname__}"
        yield from _parts(getattr(value, "__code__", None))
        yield repr((getattr(value, "__defaults__", None), getattr(value, "__kwdefaults__", None)))
        for cell in getattr(value, "__closure__", None) or ():
            yield from _parts(cell.cell_contents)
    else:
        yield repr(value)
