"""Numbers as sentences, tables and figures of a comparison say them."""

from __future__ import annotations

import math

_NO_BREAK = "\N{NO-BREAK SPACE}"


def duration(seconds: float) -> str:
    """Formats seconds: 0.0523 -> '52.3 ms', 31.21 -> '31.2 s', 754 -> '12.6 min', 9000 -> '2.50 h'."""
    if seconds == 0:
        return f"0{_NO_BREAK}s"
    for unit, factor, limit in (("ms", 1e-3, 0.1), ("s", 1.0, 600.0), ("min", 60.0, 7200.0)):
        if seconds < limit:
            return f"{_three_digits(seconds / factor)}{_NO_BREAK}{unit}"
    return f"{_three_digits(seconds / 3600)}{_NO_BREAK}h"


def times(ratio: float) -> str:
    """Formats a ratio: 12.41 -> '12.4×'."""
    return f"{_three_digits(ratio)}×"


def _three_digits(number: float) -> str:
    if number == 0 or number >= 99.95:
        return f"{number:,.0f}"
    return f"{number:.{min(9, 2 - math.floor(math.log10(number)))}f}"
