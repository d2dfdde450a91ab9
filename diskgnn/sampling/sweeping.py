"""Sampling when the topology does not fit in memory: groups of minibatches grow together, layer by layer, while indptr
and indices pass by from front to back. Every minibatch is what `NeighborSampler` makes of it, byte for byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import tee

from diskgnn._native import (
    DIRECT_ALIGNMENT,
    Expansion32,
    Expansion64,
    TopologySweep,
    TreeExpansion32,
    TreeExpansion64,
)
from diskgnn.files import faults
from diskgnn.formats.sampled_minibatch import SampledMinibatch
from diskgnn.ordered import in_order
from diskgnn.sampling.planned_minibatch import PlannedMinibatch
from diskgnn.sampling.topology import TopologyParts
from diskgnn.sampling.user_sampling import DrawnArrays
from diskgnn.system.resources import Resources

# Share of the memory left that minibatches may take which wait for the layers below: per layer, so that few sweeps
# for the inner layers leave most of the memory to the outermost, which has most of the edges. For G1 minibatches of
# w bytes that wait and G2 of a bytes that draw, sweeps per minibatch are 1 / G1 + 1 / G2: least with
# G1 w : G2 a = sqrt(w : a), and a is 2 to 3 times w.
_WAITING_SHARE = 0.4
_BUFFER_SHARE = 8  # of the budget, one part in so many is for reading
_MIN_WINDOW_BYTES, _MAX_WINDOW_BYTES = 64 << 10, 4 << 20
MIN_READER_BYTES = _MIN_WINDOW_BYTES * 3 // 2

_Expansions = list[Expansion32]


class SweepingSampler:
    """Samples minibatches from a topology on disk within a budget of memory. A context manager: its end joins threads.

    Memory: first come times of nodes, where draws depend on them. Of what they leave, reading takes an eighth at most.
    From the rest, a group is the longest run of minibatches whose present state and next layer (edges are counted
    before they are drawn) fit; while the innermost layers are sampled, groups are held to 40 % of what is left per
    layer further out, and each is divided again for the next layer. What a minibatch needs while it is relabelled is
    set aside for every thread. One minibatch at a time is the least there can be: it is sampled whatever the budget.
    """

    def __init__(self, parts: TopologyParts, resources: Resources) -> None:
        self._is_wide, self._threads = parts.is_wide, resources.threads
        self._files = parts.open_files()
        left, readers = resources.less(parts.node_bytes), resources.threads * TopologySweep.READERS_PER_THREAD
        per_reader = left.divided(readers, part=_BUFFER_SHARE)
        window_bytes = min(max(per_reader * 2 // 3, _MIN_WINDOW_BYTES), _MAX_WINDOW_BYTES)
        window_bytes -= window_bytes % DIRECT_ALIGNMENT
        self._budget_bytes = max(0, left.memory_bytes) - readers * window_bytes * 3 // 2
        self._sweep = TopologySweep(self._files, engine="auto", window_bytes=window_bytes, threads=self._threads)
        self._pool = ThreadPoolExecutor(self._threads)

    def __enter__(self) -> SweepingSampler:
        return self

    def __exit__(self, *_: object) -> None:
        self._sweep.stop()
        self._pool.shutdown(cancel_futures=True)

    @property
    def read_bytes(self) -> int:
        """Returns the bytes read from disk so far."""
        return self._sweep.read_bytes

    def sample(self, minibatches: Iterable[PlannedMinibatch]) -> Iterator[SampledMinibatch]:
        """Yields each minibatch, in order. All have the same number of layers.

        Raises:
            IndexError: the topology leads outside of itself.
            ValueError: a seed out of range or repeated, or a block of more than 2^31 - 1 edges.
            OSError: a read failed.
        """
        planned, ahead = tee(minibatches)
        for minibatch, arrays in zip(planned, self._draw(ahead), strict=True):
            yield minibatch.drawn(arrays)

    def _draw(self, minibatches: Iterable[PlannedMinibatch]) -> Iterator[DrawnArrays]:
        group: _Expansions = []
        limit, group_bytes = 0.0, 0
        for minibatch in minibatches:
            layers = minibatch.num_layers
            limit = self._budget_bytes * _WAITING_SHARE**layers
            expansion = self._start(minibatch)
            added = expansion.next_layer_bytes
            if group and group_bytes + added > limit:
                yield from self._grow(group, layers, self._budget_bytes)
                group, group_bytes = [], 0
            group.append(expansion)
            group_bytes += added
        if group:
            yield from self._grow(group, layers, self._budget_bytes)

    def _start(self, minibatch: PlannedMinibatch) -> Expansion32:
        if minibatch.times is None:
            new: type[Expansion32] = Expansion64 if self._is_wide else Expansion32
        else:
            new = TreeExpansion64 if self._is_wide else TreeExpansion32
        return new(minibatch.request(), self._files)

    def _grow(self, group: _Expansions, layers_left: int, budget_bytes: int) -> Iterator[DrawnArrays]:
        """Sample the remaining layers of `group`, whose memory is the budget's first use; empties `group`."""
        self._run(self._sweep.count, group)
        waiting = deque(group)
        group.clear()
        while waiting:
            left_bytes = budget_bytes - sum(expansion.memory_bytes for expansion in waiting)
            part = self._take_fitting(waiting, left_bytes, layers_left)
            faults.point("sample.sweep")
            self._run(self._sweep.draw, part)
            if layers_left == 1:
                yield from self._finish(part)
            else:
                for _ in in_order(self._pool, (expansion.relabel for expansion in part), self._threads):
                    pass
                held_bytes = sum(expansion.memory_bytes for expansion in waiting)
                yield from self._grow(part, layers_left - 1, budget_bytes - held_bytes)

    def _take_fitting(self, waiting: deque[Expansion32], left_bytes: int, layers_left: int) -> _Expansions:
        """Returns those from the front of `waiting` whose next layer fits; at least one."""
        share_bytes = left_bytes * _WAITING_SHARE ** (layers_left - 1)
        part: _Expansions = []
        taken_bytes = relabel_bytes = 0
        while waiting:
            expansion = waiting[0]
            if layers_left == 1:
                taken_bytes += expansion.drawn_bytes
            else:
                taken_bytes += expansion.next_layer_bytes - expansion.memory_bytes
            relabel_bytes = max(relabel_bytes, (self._threads + 1) * expansion.relabel_bytes)
            if part and taken_bytes > min(share_bytes, left_bytes - relabel_bytes):
                break
            part.append(waiting.popleft())
        return part

    def _finish(self, part: _Expansions) -> Iterator[DrawnArrays]:
        """Relabel minibatches whose last layer is drawn, one per thread at a time."""

        def finish(expansion: Expansion32) -> DrawnArrays:
            expansion.relabel()
            return expansion.take()

        yield from in_order(self._pool, (partial(finish, expansion) for expansion in part), self._threads)

    def _run(self, sweep: Callable[[Sequence[Expansion32]], None], group: _Expansions) -> None:
        """Sweep in a thread of the pool, so that Ctrl-C reaches the one that waits."""
        future = self._pool.submit(sweep, group)
        try:
            future.result()
        except BaseException:
            self._sweep.stop()
            raise
