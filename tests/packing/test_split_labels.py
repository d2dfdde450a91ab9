"""Labels of seeds, of which samples may say anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from diskgnn.errors import ArtifactError
from diskgnn.packing.split_labels import SplitLabels

LABELS = SplitLabels(np.array([2, 5, 9]), np.array([20, 50, 90]))


def minibatch(*seeds: int) -> Any:
    return SimpleNamespace(seeds=np.array(seeds), places=None)


def test_seeds_have_their_own_labels() -> None:
    np.testing.assert_array_equal(LABELS.of_seeds(minibatch(9, 2)), [90, 20])


@pytest.mark.parametrize("seed", [0, 4, 10])
def test_a_seed_that_is_not_in_the_split_is_refused(seed: int) -> None:
    """It has no neighbour's label either."""
    with pytest.raises(ArtifactError, match="seeds that are not in the split"):
        LABELS.of_seeds(minibatch(2, seed))
