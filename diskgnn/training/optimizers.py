"""Adam, also for parameters of which a minibatch touches a few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn


class Optimizer(Protocol):
    """What training asks of an optimizer: as torch's have it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> Any:
        """Change the parameters by their gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the next steps depend on, beside the parameters."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from that."""
        ...


class AdamWithSparse:
    """Adam for most parameters, and `torch.optim.SparseAdam` for embeddings whose gradients are sparse.

    SparseAdam changes the rows that a minibatch has, and their moments, and nothing else. It has no weight decay.

    Args:
        dense, sparse: parameters, at least one of each.
        lr, weight_decay: Adam's.
    """

    def __init__(self, dense: list[Tensor], sparse: list[Tensor], lr: float, weight_decay: float) -> None:
        self._dense = torch.optim.Adam(dense, lr=lr, weight_decay=weight_decay)
        self._sparse = torch.optim.SparseAdam(sparse, lr=lr)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        self._dense.zero_grad(set_to_none=set_to_none)
        self._sparse.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Change the parameters by their gradients."""
        self._dense.step()
        self._sparse.step()  # type: ignore[no-untyped-call]

    def state_dict(self) -> dict[str, Any]:
        """Of both."""
        return {"dense": self._dense.state_dict(), "sparse": self._sparse.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            ValueError: it is of other parameters.
        """
        if set(state_dict) != {"dense", "sparse"}:
            raise ValueError("expected the state of an optimizer of embeddings")
        self._dense.load_state_dict(state_dict["dense"])
        self._sparse.load_state_dict(state_dict["sparse"])


def make_optimizer(net: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """Adam of all parameters; those of `torch.nn.Embedding(sparse=True)` by `AdamWithSparse`."""
    tables: list[Tensor] = [
        module.weight for module in net.modules() if isinstance(module, nn.Embedding) and module.sparse
    ]
    if not tables:
        return torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay)
    kept = {id(table) for table in tables}
    dense: list[Tensor] = [parameter for parameter in net.parameters() if id(parameter) not in kept]
    return AdamWithSparse(dense, tables, lr, weight_decay)
