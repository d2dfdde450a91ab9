"""All arrays of a sampled minibatch, whatever it has: for comparisons that do not ask the code what there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt


def arrays_of(found: Any) -> Iterator[npt.NDArray[Any]]:
    """Flat, in the order of fields."""
    if isinstance(found, np.ndarray):
        yield found.reshape(-1)
    elif found is not None:
        for each in found if isinstance(found, tuple) else (getattr(found, field.name) for field in fields(found)):
            yield from arrays_of(each)


def assert_same_minibatch(one: Any, other: Any) -> None:
    """Every array of one is that of the other."""
    for left, right in zip(arrays_of(one), arrays_of(other), strict=True):
        np.testing.assert_array_equal(left, right)
