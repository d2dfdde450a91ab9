"""Standard output and standard error that cannot be written: full disks, readers that have gone, closed ones."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from commands import run_python

FULL = Path("/dev/full")
pytestmark = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full, a disk that is full")


@pytest.mark.parametrize("arguments", [["inspect"], ["verify"], ["inspect", "--json"]])
def test_results_that_cannot_be_written_are_an_error(graph, arguments):
    with FULL.open("w") as full:
        ended = run_python("-m", "diskgnn", *arguments, graph, stdout=full, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 10, ended.stderr
    said = ended.stderr.splitlines()[-1]
    assert said.startswith("error: standard output cannot be written (No space left on device)")
    assert "Traceback" not in ended.stderr


def test_a_log_that_cannot_be_written_ends_no_work(graph, tmp_path):
    command = ["-m", "diskgnn", "sample", graph, tmp_path / "samples", "--fanouts", "2", "--json"]
    with FULL.open("w") as full:
        ended = run_python(*command, stderr=full, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["stage"] == "sample"
    assert (tmp_path / "samples" / "manifest.json").exists()


@pytest.mark.parametrize("arguments", [["inspect"], ["inspect", "--json"]])
def test_a_reader_that_has_gone_ends_it_quietly(graph, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ended = run_python("-m", "diskgnn", *arguments, graph, stdout=gone, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (1, "")
