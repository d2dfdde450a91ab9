"""Adam, also for parameters of which a minibatch touches a few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diskgnn.embeddings.disk_embeddings import DiskEmbeddings
from diskgnn.training.finite import all_finite


class Optimizer(Protocol):
    """Stands for what training asks of an optimizer: as torch's have it."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients."""
        ...

    def step(self) -> Any:
        """Change the parameters by their gradients."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns all that the next steps depend on, beside the parameters."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from that."""
        ...


class AdamWithSparse:
    """Trains most parameters by Adam, and embeddings whose gradients are sparse by `torch.optim.SparseAdam`.

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
        """Returns the states of both."""
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


class WithDiskEmbeddings:
    """Wraps an optimizer, and also trains vectors on disk, as `torch.optim.SparseAdam` would.

    Args:
        others: of all other parameters.
        tables: whose rows are trained; their state lies with them, and not in `state_dict`.
        lr: Adam's.
    """

    def __init__(self, others: Optimizer, tables: DiskEmbeddings, lr: float) -> None:
        self._others, self._tables, self._lr = others, tables, lr

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients; those of rows on disk are forgotten by each step."""
        self._others.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """Change the parameters and the rows by their gradients."""
        self._others.step()
        self._tables.step(self._lr)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the other parameters' optimizer."""
        return self._others.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self._others.load_state_dict(state_dict)


def step_if_finite(net: nn.Module, optimizer: Optimizer) -> bool:
    """Take a step if all gradients are finite, and forget them otherwise. Returns True if the step was taken.

    Gradients that ranks have averaged are the same in all of them, so they all decide alike.
    """
    tables = DiskEmbeddings(net)
    gradients = [parameter.grad for parameter in net.parameters() if parameter.grad is not None]
    if not all_finite([*gradients, *tables.gradients()]):
        optimizer.zero_grad(set_to_none=True)
        tables.forget_gradients()
        return False
    optimizer.step()
    return True


def make_optimizer(net: nn.Module, lr: float, weight_decay: float = 0.0) -> Optimizer:
    """Makes Adam for all parameters; `AdamWithSparse` trains those of `torch.nn.Embedding(sparse=True)`, and those on
    disk are trained there.
    """
    others = _in_memory(net, lr, weight_decay)
    tables = DiskEmbeddings(net)
    return WithDiskEmbeddings(others, tables, lr) if tables else others


def _in_memory(net: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    tables: list[Tensor] = [
        module.weight for module in net.modules() if isinstance(module, nn.Embedding) and module.sparse
    ]
    if not tables:
        return torch.optim.Adam(net.parameters(), lr=lr, weight_decay=weight_decay)
    kept = {id(table) for table in tables}
    dense: list[Tensor] = [parameter for parameter in net.parameters() if id(parameter) not in kept]
    return AdamWithSparse(dense, tables, lr, weight_decay)
