"""A rank that is killed: torchrun starts the group again, which ends as if nothing had happened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Python
from rank_processes import environment_of
from torch import distributed

ROOT = Path(__file__).parents[1]


@pytest.fixture
def store():
    """What two ranks find each other by, as torchrun has one."""
    return distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


@pytest.mark.slow
def test_a_killed_rank_costs_nothing_but_time(tmp_path, monkeypatch, capsys, store):
    """The run that nobody disturbs needs no torchrun."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import measure_ranks

    by_torchrun, others = measure_ranks.launch, []

    def launch(ranks: int, *arguments: object, max_restarts: int = 0) -> subprocess.Popen[bytes]:
        if max_restarts:
            return by_torchrun(ranks, *arguments, max_restarts=max_restarts)
        for rank in reversed(range(ranks)):
            environment = measure_ranks.ENVIRONMENT | environment_of(rank, ranks, store)
            others.append(Python("-m", "diskgnn", "train", *arguments, env=environment, stderr=subprocess.PIPE))
        return others.pop()

    monkeypatch.setattr(measure_ranks, "launch", launch)
    arguments = ["measure_ranks.py", "kills", tmp_path, "--kills", 1, "--epochs", 4]
    monkeypatch.setattr(sys, "argv", [str(each) for each in arguments])
    measure_ranks.main()
    assert "1 of 1 runs of 2 ranks ended equal to the undisturbed one" in capsys.readouterr().out
    for other in others:
        _, errors = other.communicate(timeout=300)
        assert other.returncode == 0, errors
