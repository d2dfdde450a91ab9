"""Labels and splits of nodes as PyG and DGL keep them; a mask may have a column for each of several splits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers.rows import of_array
from diskgnn.importers.containers.values import classes
from diskgnn.importers.guessed_task import guessed_task, warn_of_classes
from diskgnn.importers.source_listing import Attributes

_NAMES = {"train": ("train_mask",), "valid": ("val_mask", "valid_mask"), "test": ("test_mask",)}


def node_labels(name: str, labels: npt.NDArray[Any], task: str | None) -> dict[str, Any]:
    """Returns `labels` and `task` of NodeInput.

    Args:
        name: for messages.
        labels: [N], [N, 1] or [N, C].
        task: what they are; None: whole numbers [N] are classes, 0 and 1 [N, C] are labels, the others are numbers.

    Raises:
        InputError: another shape.
    """
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim > 2:
        raise InputError(f"{name}: expected labels [N] or [N, C], found {list(labels.shape)}; pass labels=None")
    if task is None and (task := guessed_task(labels)) == "regression":
        warn_of_classes(name, [labels], "pass `options` task=class, and task=regression if not")
    if labels.dtype.kind == "b":
        labels = labels.astype(np.int64)
    if task == "class" and labels.dtype.kind == "f":
        labels = classes(of_array(name, labels)).load()
    return {"labels": labels, "task": task}


def node_splits(
    known: Attributes, split: int | None, as_array: Callable[[Any], npt.NDArray[Any]], *, labelled: bool
) -> dict[str, Any]:
    """Returns `train`, `valid` and `test` of NodeInput, bool [N]; masks of no node are left out.

    Args:
        known: the attributes of a node type.
        split: the column of masks [N, several].
        as_array: a mask as an array.
        labelled: the nodes have labels, without which nothing can be learned of them.

    Raises:
        ConfigError: masks have several columns, and `split` is none of them.
    """
    found: dict[str, Any] = {}
    for name, masks in _NAMES.items():
        for mask in masks:
            if known.values.get(mask) is None or name in found:
                continue
            if not labelled:
                known.leave_out(mask, "the nodes have no labels that were read")
                continue
            values, use = as_array(known.values[mask]), name
            if values.ndim == 2:
                if split is None or not 0 <= split < values.shape[1]:
                    raise ConfigError(
                        f"{known.of}: {mask} has {values.shape[1]} columns: pass split=0 for the first one, and so on"
                    )
                use = f"{name}, column {split} of {values.shape[1]}"
                values = values[:, split]
            values = values.astype(np.bool_)
            if values.any():
                found[name] = values
                known.take(mask, use)
            else:
                known.leave_out(mask, "true of no node", expected=True)
    return found


def require_columns(split: int | None, types: Iterable[Mapping[str, Any]]) -> None:
    """Refuses `split` where no mask has columns.

    Raises:
        ConfigError: there are none.
    """
    masks = [values.get(mask) for values in types for names in _NAMES.values() for mask in names]
    if split is not None and not any(len(getattr(mask, "shape", ())) == 2 for mask in masks):
        raise ConfigError(f"split={split}: expected masks of several columns, found none; leave it out")
