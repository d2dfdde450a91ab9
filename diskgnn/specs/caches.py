"""How much memory training may spend on feature rows."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn.errors import ConfigError
from diskgnn.units import parse_size

DEFAULT_CPU_CACHE = "10%"  # of all rows


@dataclass(frozen=True)
class CacheSpec:
    """Says how much memory training may spend on feature rows: bytes, '2GiB', or a share of all rows such as '10%'."""

    cpu: int | str  # the cpu tier of the train split
    static: int | str = "auto"  # rows that stay: those of the device and pinned tiers; 'auto' is none without a GPU
    evaluation: int | str | None = None  # the cpu tier of each other split; a quarter of `cpu` by default


def cache_rows(cache: int | str, row_bytes: int, num_nodes: int, name: str = "cpu_cache") -> int:
    """Returns the rows that a cache holds: given in bytes, as '2GiB', or as a share of all rows, '10%'.

    Errors begin with `name`, that of the argument.

    Raises:
        ConfigError: neither a size nor a share, or a size above 0 with no room for a row: "10" is not "10%".
    """
    if isinstance(cache, str) and cache.strip().endswith("%"):
        try:
            share = float(cache.strip()[:-1]) / 100
        except ValueError as error:
            raise ConfigError(f"{name}: expected a cache size such as 2GiB or 10%, found {cache!r}") from error
        if not 0 <= share <= 1:
            raise ConfigError(f"{name}: expected a share between 0% and 100%, found {cache!r}")
        return int(num_nodes * share)
    try:
        num_bytes = parse_size(cache)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    if 0 < num_bytes < row_bytes:
        raise ConfigError(
            f"{name}: expected a cache of 0 or of at least one row ({row_bytes} bytes), found {cache!r}, which is in "
            "bytes: write 10% for a share of all rows, or a size such as 2GiB"
        )
    return min(num_bytes // row_bytes, num_nodes)
