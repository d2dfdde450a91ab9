"""What minibatches start from: nodes of a split, or the ends of seed edges and of pairs without an edge."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn.formats.sampled_minibatch import PairSample
from diskgnn.graph.held_out import HeldOut
from diskgnn.progress.reporter import Reporter
from diskgnn.specs.targets import LinkTarget, NodeTarget

Excluded = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # (sources, destinations) of edges that are not drawn


@dataclass(frozen=True)
class SeedBatch:
    """The seeds of one minibatch."""

    seeds: npt.NDArray[np.int64]  # [B] by node type in order
    seed_counts: tuple[int, ...]  # how many are of each node type
    times: npt.NDArray[np.int64] | None = None  # [B] nothing later is drawn for a seed; None: times do not matter
    excluded: tuple[Excluded | None, ...] = ()  # by edge type; (): none
    pairs: PairSample | None = None
    places: npt.NDArray[np.int64] | None = None  # [B] positions among the seeds of the split, if these have labels
    # [B], with times: of edge types that have a window, only what is later than this is drawn
    starts: npt.NDArray[np.int64] | None = None


class Seeds(ABC):
    """All that a plan can start minibatches from.

    Attributes:
        splits: those of the splits asked for that the graph has.
        target: what was asked for, with every type named.
    """

    splits: tuple[str, ...]
    target: NodeTarget | LinkTarget

    @property
    def negatives_bytes(self) -> int:
        """Returns what drawing pairs without an edge takes of memory, whatever the minibatch."""
        return 0

    @property
    def held_out_bytes(self) -> int:
        """Returns what `held_out` takes of memory, and finding it."""
        return 0

    def held_out(self, reporter: Reporter) -> HeldOut:
        """Returns the edges of the graph that minibatches of no split draw; the graph is read for it.

        Raises:
            ArtifactError: its topology is damaged.
        """
        return HeldOut()

    @abstractmethod
    def count(self, split: str) -> int:
        """Counts the seed nodes or seed edges of a split."""

    @abstractmethod
    def listed(self, split: str) -> npt.NDArray[np.int64]:
        """Returns [n] these nodes, or [n, 2] these edges, in the order of their positions."""

    @abstractmethod
    def batch(self, split: str, epoch: int, positions: npt.NDArray[np.int64]) -> SeedBatch:
        """Returns the minibatch of those at these `positions` of the split."""
