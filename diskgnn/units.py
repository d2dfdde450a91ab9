"""Byte sizes as people write them: '512MiB', '2GB', 4096."""

from __future__ import annotations

import re

from diskgnn.errors import ConfigError

_FACTORS = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}  # fmt: skip


def parse_size(size: int | str) -> int:
    """Bytes named by `size`: an int, or text such as '512MiB' (binary) or '2GB' (decimal).

    Raises:
        ConfigError: the text is no size, or is negative.
    """
    if isinstance(size, int):
        if size < 0:
            raise ConfigError(f"expected a size of at least 0 bytes, found {size}")
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", size)
    if match is None or match[2].lower() not in _FACTORS:
        raise ConfigError(f"expected a size such as 512MiB, 2GB or 4096, found {size!r}")
    number = float(match[1]) if "." in match[1] else int(match[1])
    return int(number * _FACTORS[match[2].lower()])


def format_size(num_bytes: float) -> str:
    """`num_bytes` for people, in binary units: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
