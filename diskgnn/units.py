"""Sizes, counts and durations as people write them: '512MiB', '2GB', '1,234', '1 min 15 s'."""

from __future__ import annotations

import math
import operator
import re
from typing import Any, SupportsIndex

from diskgnn.errors import ConfigError

_FACTORS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip


def parse_size(size: int | str) -> int:
    """Returns the bytes named by `size`: an int, or text such as '512MiB' (binary) or '2GB' (decimal).

    Raises:
        ConfigError: the text is no size, is negative, or is a fraction of a byte: 0.1 is meant to be a share, 10%.
    """
    if isinstance(size, int):
        if size < 0:
            raise ConfigError(f"expected a size of at least 0 bytes, found {size}")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(size))
    if match is None or match[2].lower() not in _FACTORS:
        raise ConfigError(f"expected a size such as 512MiB, 2GB or 4096, found {size!r}")
    number = float(match[1]) if "." in match[1] else int(match[1])
    num_bytes = number * _FACTORS[match[2].lower()]
    if 0 < num_bytes < 1:
        raise ConfigError(
            f"expected a size such as 512MiB, 2GB or 4096, found {size}, less than a byte (a share of all rows is "
            f"written {100 * number:g}%)"
        )
    return int(num_bytes)


def format_size(num_bytes: float) -> str:
    """Returns `num_bytes` for people, in binary units: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def format_count(number: float) -> str:
    """Formats a number: 1234567 -> '1,234,567'; floats keep three significant digits."""
    is_fraction = isinstance(number, float) and not 1000 <= abs(number) < math.inf  # NaN, too
    return f"{number:,.3g}" if is_fraction else f"{round(number):,}"


def counted(count: int, noun: str) -> str:
    """Formats a number of things: (1, 'layer') -> '1 layer', (3, 'layer') -> '3 layers'."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_seconds(seconds: float) -> str:
    """Formats a duration: 0.1234 -> '0.12 s', 75 -> '1 min 15 s', 7260 -> '2 h 1 min'."""
    if round(seconds) < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_value(name: str, value: Any) -> str:
    """Returns `value` for people; the unit is read from the end of `name` (_bytes, _seconds, _rate)."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if name.endswith("bytes_per_second"):
            return f"{format_size(value)}/s"
        if name.endswith("bytes"):
            return format_size(value)
        if name.endswith("seconds"):
            return format_seconds(value)
        if name.endswith("_share"):
            return f"{value:.2%}"
        return format_count(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(format_value("", item) for item in value)
    return str(value)


def label(name: str) -> str:
    """Returns the words of a field's name, less the unit that `format_value` shows: 'read_bytes' -> 'read'."""
    for unit in ("_bytes_per_second", "_bytes", "_seconds"):
        name = name.removesuffix(unit)
    return name


def whole_number(name: str, value: SupportsIndex, least: int | None = 1) -> int:
    """Returns `value` as an int: NumPy's numbers are welcome, but no JSON. With `least` None it may be negative.

    Raises:
        ConfigError: no whole number, or less than `least`.
    """
    number = _index(f"{name}: expected a whole number", value)
    if least is not None and number < least:
        raise ConfigError(f"{name}: expected at least {least}, found {number}")
    return number


def seed_number(value: SupportsIndex, name: str = "seed") -> int:
    """Returns a seed as an int.

    Raises:
        ConfigError: no whole number of 64 bits.
    """
    expected = f"{name}: expected a number from 0 to 2^64 - 1"
    number = _index(expected, value)
    if not 0 <= number < 1 << 64:
        raise ConfigError(f"{expected}, found {number}")
    return number


def _index(expected: str, value: SupportsIndex) -> int:
    if isinstance(value, bool):  # which JSON writes as true
        raise ConfigError(f"{expected}, found {value!r}")
    try:
        return operator.index(value)
    except TypeError as error:
        raise ConfigError(f"{expected}, found {value!r}") from error
