"""Decides where every input row of every minibatch is: static, in a slot of the cpu tier, or in the minibatch's extent.

Sampling has fixed every future access, so nothing is guessed: the most accessed rows are static, and Belady's MIN with
bypass (Belady, IBM Systems Journal 1966) schedules the cpu tier. Sequences are cyclic: training for more epochs than
were prepared starts over, so the last minibatches already keep what the first ones need. A sequence that is played once
starts with an empty tier instead.

Node-sized memory is one int32 per node (counts, then next uses, then locations); packing adds one byte (whether the row
is needed). Data for each access is in memory as far as the budget reaches; the rest streams through scratch files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn._native import BeladyPlanner
from diskgnn.files import faults
from diskgnn.packing.accesses import changes_named
from diskgnn.packing.reuse import Reuse

_MAX_ADDRESSES = (1 << 31) - 2  # the location of a row is its address + 1, in an int32


@dataclass(frozen=True)
class Placement:
    """The places of one minibatch's rows.

    An address in [0, S) is a static row, one in [S, S+C) a slot of the cpu tier, one in [S+C, S+C+R) a row of the
    extent.
    """

    addresses: npt.NDArray[np.int32]  # [U]
    disk_nodes: npt.NDArray[Any]  # [R] ascending: the rows of the extent
    admissions: npt.NDArray[np.int32]  # [A, 2]: extent row -> slot, applied after the minibatch is assembled


def addressable_slots(wanted: int, num_static: int, most_rows: int) -> int:
    """Limits `wanted` slots of the cpu tier, so that static rows and an extent of `most_rows` have addresses, too.

    Example:
        >>> addressable_slots(1 << 31, 1 << 30, 1 << 20)
        1072693246
    """
    return max(0, min(wanted, _MAX_ADDRESSES - num_static - most_rows))


class Schedule:
    """The placement of one sequence. Read `initial_cpu_nodes`, iterate once, then read `next_cycle_slots`."""

    def __init__(self, reuse: Reuse, cpu_rows: int) -> None:
        """Plans with `cpu_rows` slots, or with as many as are of use if those are fewer.

        Raises:
            ArtifactError: scratch files were changed by somebody else; iterating raises it, too.
        """
        self.reuse = reuse
        static_nodes = reuse.static_nodes
        most_rows = int(np.diff(reuse.accesses.offsets).max(initial=0))
        self.cpu_rows = addressable_slots(reuse.most_kept(cpu_rows), len(static_nodes), most_rows)
        # What is not needed takes no memory.
        self._location: npt.NDArray[np.int32] = np.zeros(reuse.accesses.num_nodes, np.int32)
        self._location[static_nodes] = np.arange(1, 1 + len(static_nodes), dtype=np.int32)
        misses = reuse.misses(self.cpu_rows)  # [B] the fewest rows that can be read
        faults.point("pack.schedule")
        self._planner = BeladyPlanner(self._location, len(static_nodes), self.cpu_rows, misses, reuse.first_uses)
        with changes_named(reuse.accesses.path("nodes")):
            for nodes, next_uses in reuse.read_backwards():
                if self._planner.find_initial(nodes, next_uses):
                    break
            self.initial_cpu_nodes: npt.NDArray[np.int64] = self._planner.initial_cpu_nodes()  # [C] by slot, ascending

    @property
    def next_cycle_slots(self) -> npt.NDArray[np.int32]:
        """Returns [C] slot i of the next cycle takes the row in slot next_cycle_slots[i] of this one; known after
        iterating."""
        return self._planner.next_cycle_slots()

    def __iter__(self) -> Iterator[Placement]:
        for nodes, order, next_uses in self.reuse.read():
            with changes_named(self.reuse.accesses.path("nodes")):
                addresses, disk_nodes, admissions = self._planner.place(nodes, order, next_uses)
            yield Placement(addresses, disk_nodes, admissions.reshape(-1, 2))
