"""Memory of minibatches of hop features: who reads a record puts it where it belongs, and nobody copies it again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn._native import page_memory
from diskgnn.formats.hops_config import VALUE_BYTES
from diskgnn.loading.hop_order import HopOrder, Pool

Records = npt.NDArray[np.float32]  # [n, V]
Data = npt.NDArray[np.uint8]
_SEGMENT_BYTES = 1 << 20  # that small minibatches share


def record_buffer(num_records: int, row_bytes: int) -> Records:
    """Returns memory for records, [num_records, V] of any content."""
    return as_records(page_memory(num_records * row_bytes), row_bytes)


def as_records(data: Data, row_bytes: int) -> Records:
    """Returns bytes [n * row_bytes] as records [n, V]."""
    return data.view(np.float32).reshape(-1, row_bytes // VALUE_BYTES)


def as_bytes(records: Records) -> Data:
    """Returns records [n, V] as bytes [n * row_bytes]."""
    return records.reshape(-1).view(np.uint8)


@dataclass(frozen=True)
class Target:
    """Says to which bytes of memory the records of a pool go.

    Attributes:
        places: [n] byte of `segments` at which each record begins, in the order of reading, as if each segment had
            `segment_bytes` and the next one followed; negative: nowhere.
    """

    places: npt.NDArray[np.int64]
    segments: list[Data]
    segment_bytes: int


class BatchMemory:
    """Memory of the minibatches of an epoch, from number `first` on.

    A minibatch is a segment, of which nothing is left when the user drops it. Small ones share one, so that there are
    not thousands.
    """

    def __init__(self, order: HopOrder, first: int) -> None:
        most_records = -(-order.num_seeds // order.num_batches)
        self._order, self._first, self._row_bytes = order, first, order.row_bytes
        self._shared = max(1, _SEGMENT_BYTES // (most_records * order.row_bytes))  # minibatches of a segment
        self._segment_bytes = self._shared * most_records * order.row_bytes
        self._segments = dict[int, Data]()

    def target(self, pool: Pool) -> Target:
        """Returns where records of the next pool belong."""
        places, segments = np.full(pool.num_records, -1), list[Data]()
        record = max(pool.first, self._order.bounds(self._first)[0])
        while record < pool.end:
            number = self._order.batch_of(record) // self._shared
            begin, end = self._records_of(number)
            end = min(end, pool.end)
            in_segment = np.arange(record - begin, end - begin) * self._row_bytes
            places[record - pool.first : end - pool.first] = len(segments) * self._segment_bytes + in_segment
            if number not in self._segments:
                self._segments[number] = page_memory(self._segment_bytes)
            segments.append(self._segments[number])
            record = end
        return Target(pool.as_read(places), segments, self._segment_bytes)

    def taken(self, number: int) -> Records:
        """Returns the records [B, V] of the next minibatch. They are not kept here any more."""
        shared, in_segment = divmod(number, self._shared)
        first, _ = self._records_of(shared)
        begin, end = (self._row_bytes * (record - first) for record in self._order.bounds(number))
        segment = self._segments[shared]
        if in_segment == self._shared - 1:
            del self._segments[shared]
        return as_records(segment[begin:end], self._row_bytes)

    def _records_of(self, segment: int) -> tuple[int, int]:
        """Returns which records of the epoch a segment has: from the first to before the second."""
        last = min((segment + 1) * self._shared, self._order.num_batches) - 1
        return self._order.bounds(segment * self._shared)[0], self._order.bounds(last)[1]
