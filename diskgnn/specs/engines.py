"""Names of the engines that do the work of a command."""

from __future__ import annotations

ENGINES = ("local", "ray")
