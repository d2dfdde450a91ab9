"""A reporter that remembers which stages there were."""

from __future__ import annotations

from typing import Any

from diskgnn.progress.reporter import SILENT


class Stages:
    def __init__(self) -> None:
        self.names: list[str] = []

    def stage(self, description: str, total: int, unit: str) -> Any:
        self.names.append(description)
        return SILENT.stage(description, total, unit)
