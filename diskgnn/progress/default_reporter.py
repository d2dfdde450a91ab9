"""Whom public functions tell their progress if they were not given a reporter."""

from __future__ import annotations

import os

from diskgnn.progress.reporter import SILENT, Reporter


def reporter_for(reporter: Reporter | None, progress: bool) -> Reporter:
    """Returns what a public function tells its progress: `reporter` if it was given one; otherwise, with `progress`,
    bars on stderr if that is a terminal, or in a notebook. Nothing in scripts without a terminal, and in ranks other
    than 0.
    """
    if reporter is not None:
        return reporter
    if not progress or os.environ.get("RANK", "0") != "0":
        return SILENT
    from diskgnn.progress.bars import bars_on_stderr  # rich takes a tenth of a second to import

    return bars_on_stderr()
