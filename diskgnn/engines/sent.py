"""A value that all processes of an engine have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sent:
    """A value that all processes of an engine know."""

    value: Any  # itself, or what stands for it there
    held_bytes: int = 0  # of memory that each takes for it, beside what this process has already
    versions: Mapping[str, str] = field(default_factory=dict)  # of libraries that each must have, by their names
