"""Stages with the least memory that they accept."""

from __future__ import annotations

from collections.abc import Callable

from diskgnn.files import faults
from diskgnn.system.resources import SmallBudgetError


def with_least(stage: Callable[..., object], memory: int = 1) -> None:
    """Runs a stage with the least memory from `memory` on that it accepts, one thread, and as many units as there may
    be."""
    with faults.pretending("unit.bytes", 1), faults.pretending("memory.anonymous", 0):
        while True:
            try:
                stage(memory=memory, threads=1)
                return
            except SmallBudgetError as error:
                memory = error.least_bytes
