"""Kills aimed at the moments in which files get their names: what is left goes with the next run, also with one that
only says that the output exists already.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import make_graph
from small_artifacts import names

from diskgnn.errors import OutputExistsError
from diskgnn.files import faults
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.preparing.prepare import prepare

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")
POINTS = ("artifact.exchanged", "artifact.publish", "artifact.sync", "prepare.packed", "unit.written", "work.unit")
SPREAD, LAST = 3, 4  # kills of each kind of run: anywhere, and at the end, where something is published


def run_until(passes: int | None, run: Callable[[], None]) -> list[str]:
    """Run until so many points were passed, and die there by SIGKILL; the points that were passed, if it did not."""
    passed: list[str] = []

    def at(point: str) -> Callable[[], None]:
        def act() -> None:
            if len(passed) == passes:
                os.kill(os.getpid(), signal.SIGKILL)
            passed.append(point)

        return act

    with ExitStack() as armed:
        for point in POINTS:
            armed.enter_context(faults.armed(point, at(point)))
        run()
    return passed


def killed(passes: int, run: Callable[[], None]) -> None:
    """In a child process."""
    if (child := os.fork()) == 0:
        try:
            run_until(passes, run)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    folder = tmp_path_factory.mktemp("aimed")
    return make_graph(folder / "graph", splits={"train": 57, "valid": 21, "test": 2})


@pytest.mark.parametrize(("keep_samples", "overwrite"), [(True, False), (False, True)])
def test_nothing_is_left(graph: Graph, tmp_path: Path, keep_samples: bool, overwrite: bool) -> None:
    settings: dict[str, Any] = {"fanouts": [3, 2], "batch_size": 4, "cpu_cache": "20%", "threads": 1}
    made = ["packed", "samples"] if keep_samples else ["packed"]

    def prepared(folder: Path, *, seed: int = 1, overwrite: bool = overwrite) -> None:
        kept = folder / "samples" if keep_samples else None
        prepare(graph, folder / "packed", **settings, seed=seed, samples=kept, overwrite=overwrite)

    (tmp_path / "whole").mkdir()
    passed = run_until(None, lambda: prepared(tmp_path / "whole"))
    digest = verify_artifact(tmp_path / "whole" / "packed").digest
    last = len(passed) - LAST
    aims = np.array([*np.linspace(0, last - 1, SPREAD).astype(int), *range(last, len(passed))])
    for aim in aims.tolist():
        folder = tmp_path / f"aim-{aim}"
        folder.mkdir()
        if overwrite:
            prepared(folder, seed=2)
        killed(aim, lambda folder=folder: prepared(folder))
        assert not [name for name in names(folder) if name.startswith("..")], (aim, passed[aim])
        if (folder / "packed").exists():
            with pytest.raises(OutputExistsError, match="exists already"):
                prepared(folder, overwrite=False)
            verify_artifact(folder / "packed")
        if not (folder / "packed").exists() or verify_artifact(folder / "packed").digest != digest:
            prepared(folder)
        assert verify_artifact(folder / "packed").digest == digest, (aim, passed[aim])
        assert names(folder) == made, (aim, passed[aim])
        assert "journal.jsonl" not in names(folder / "packed"), (aim, passed[aim])
