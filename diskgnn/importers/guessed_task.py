"""Guesses from the numbers of labels what they are: classes, several labels of 0 and 1, or targets of regression."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DataWarning, callers_level

_MOST_CLASSES = 1000  # so many whole numbers, each many times, look like classes
_FEW = 32  # so many do, however often they occur
_PIECE = 1 << 18  # labels that are looked at together


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
    num_labels, values = 0, np.empty(0)
    for part in parts:
        for first in range(0, len(part) if part.ndim == 1 else 0, _PIECE):
            piece = part[first : first + _PIECE]
            known = piece[~np.isnan(piece)]
            num_labels, values = num_labels + len(known), np.union1d(values, known)
            if len(values) > _MOST_CLASSES or not np.isfinite(values).all() or (values != np.floor(values)).any():
                return
    if not len(values) or len(values) > max(_FEW, num_labels // 10):
        return
    shown = ", ".join(f"{value:.0f}" for value in values[:8]) + (", ..." if len(values) > 8 else "")
    warnings.warn(
        f"{name}: taken as targets of a regression, as they are floats; but all are whole numbers, and "
        f"only {len(values)} different ones ({shown}): if they are classes, {remedy}",
        DataWarning,
        stacklevel=callers_level(),
    )
