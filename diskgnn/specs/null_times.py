"""Missing times of nodes and edges, as they are stored: nobody can compare with what is not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line asks for the words alone
    import numpy as np
    import numpy.typing as npt

MISSING = -(2**63)  # NaT's bits: what a time that is not there has where it is read
ALWAYS_SEEN = MISSING  # as PyG, which compares with them as they are
NEVER_SEEN = 2**63 - 1
NULL_TIMES = {"never": NEVER_SEEN, "always": ALWAYS_SEEN}  # by what a missing time means to seeds


def is_missing(times: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns which of the times [n] are none."""
    found: npt.NDArray[np.bool_] = (times == ALWAYS_SEEN) | (times == NEVER_SEEN)
    return found
