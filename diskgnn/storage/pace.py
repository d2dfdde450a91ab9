"""How often a long stage records how far it is.

A kill costs what was done after the last record, and a record costs waiting for the disk. So a unit of a stage is a
fixed part of it, and never so small that the wait would be noticed.
"""

from __future__ import annotations

from diskgnn.storage import faults

UNITS_PER_STAGE = 32
# A second's work of a fast disk, about: 50 times what waiting for it takes.
LEAST_UNIT_BYTES = 512 << 20


class Pace:
    """Counts the bytes that a stage has written, and says when a unit is done."""

    def __init__(self, total_bytes: int) -> None:
        """`total_bytes` are those of the whole stage, about."""
        self._unit_bytes = max(1, total_bytes // UNITS_PER_STAGE, faults.reading("unit.bytes", LEAST_UNIT_BYTES))
        self._done_bytes = 0
        self.has_units = total_bytes > self._unit_bytes  # or else nothing is worth a record

    def done(self, num_bytes: int) -> bool:
        """Whether a unit is complete with `num_bytes` more."""
        self._done_bytes += num_bytes
        if self._done_bytes < self._unit_bytes:
            return False
        self._done_bytes = 0
        return True
