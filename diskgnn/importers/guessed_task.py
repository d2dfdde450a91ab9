"""What labels are, where only their numbers say it: a class, several labels of 0 and 1, or a target of regression."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level

_MOST_CLASSES = 1000  # so many whole numbers, each many times, look like classes
_FEW = 32  # so many do, however often they occur


def guessed_task(labels: npt.NDArray[Any]) -> str:
    """Returns "class" of whole numbers [N], "multilabel" of 0 and 1 [N, C], and "regression" of all others.

    `warn_of_classes` goes with it, as whole numbers are often stored as floats.
    """
    if labels.ndim == 2:
        return "multilabel" if bool(np.isin(labels, (0, 1)).all()) else "regression"
    return "class" if labels.dtype.kind in "iub" else "regression"


def warn_of_classes(name: str, parts: Iterable[npt.NDArray[Any]], remedy: str) -> None:
    """Warns of numbers that are taken as targets of regression, and look like classes: all whole, and few different.

    Args:
        name: of the labels, for messages.
        parts: the labels [n] of each split, or of all nodes; NaN is none. Of several columns nothing is said.
        remedy: what makes them classes.
    """
    known = [part[~np.isnan(part)] for part in parts if part.ndim == 1]
    numbers = np.concatenate([*known, np.empty(0)])
    values = np.unique(numbers)
    if not len(values) or len(values) > min(max(_FEW, len(numbers) // 10), _MOST_CLASSES):
        return
    if (values != np.floor(values)).any() or not np.isfinite(values).all():
        return
    shown = ", ".join(f"{value:.0f}" for value in values[:8]) + (", ..." if len(values) > 8 else "")
    warnings.warn(
        f"{name}: taken as targets of a regression, as they are floats; but all are whole numbers, and "
        f"only {len(values)} different ones ({shown}): if they are classes, {remedy}",
        DataWarning,
        stacklevel=callers_level(),
    )
