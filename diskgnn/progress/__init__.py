"""Progress of long-running stages: `Reporter` is what they tell it to; `reporter` has an example of one."""

from diskgnn.progress.reporter import SILENT, Advance, Reporter, StageReport

__all__ = ["SILENT", "Advance", "Reporter", "StageReport"]
