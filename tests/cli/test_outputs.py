"""Outputs that would lie in an artifact's directory are refused by every command before anything is written."""

import errno
import os
import shutil
from pathlib import Path

from commands import run

from diskgnn.storage import faults

CACHE = ["--cpu-cache", "10%"]
COMMANDS = [
    ["generate", "{graph}/deep/er", "--num-nodes", "1000"],
    ["sample", "{graph}", "{graph}/samples", "--fanouts", "2"],
    ["prepare", "{graph}", "{packed}/packed", "--fanouts", "2", *CACHE],
    ["prepare", "{graph}", "{packed}/ranks", "--fanouts", "2", "--ranks", "2", *CACHE],
    ["prepare", "{graph}", "new", "--fanouts", "2", "--samples", "{graph}/samples", *CACHE],
    ["infer", "{graph}", "--checkpoint", "runs", "--out", "{graph}/features-node.npy", "--overwrite"],
    ["predict", "{graph}", "--checkpoint", "runs", "--out", "{packed}/q.parquet"],
    ["train", "{packed}", "--checkpoint", "{packed}"],
    ["train", "{packed}", "--checkpoint", "new", "--metrics", "{packed}/manifest.json"],
    ["train", "{packed}", "--trace", "{packed}/trace.json"],
    ["train", "{packed}", "--tensorboard", "{packed}"],
    ["compare", "{graph}", "--out", "{graph}/manifest.json", "--memory", "1GiB", "--fanouts", "2", *CACHE],
    ["compare", "{graph}", "--report", "{graph}/report.html", "--memory", "1GiB", "--fanouts", "2", *CACHE],
]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_written_into_an_artifact(graph, packed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = _files(tmp_path), set(tmp_path.iterdir())
    for command in COMMANDS:
        arguments = [each.format(graph=graph, packed=packed) for each in command]
        assert "lies inside of the" in run(*arguments, exit_code=2).stderr, arguments
        assert (_files(tmp_path), set(tmp_path.iterdir())) == before, arguments


def test_a_link_into_an_artifact_is_no_way_around(graph, tmp_path):
    (tmp_path / "link").symlink_to(graph, target_is_directory=True)
    run("generate", tmp_path / "link" / "inner", "--num-nodes", 1000, exit_code=2)
    assert not (graph / "inner").exists()


def test_a_rank_that_was_deleted_is_named_and_made_alone(graph, tmp_path):
    prepare = ["prepare", graph, tmp_path / "ranks", "--fanouts", "2", "--batch-size", 1, "--ranks", "2", *CACHE]
    run(*prepare)
    shutil.rmtree(tmp_path / "ranks" / "rank-1-of-2")
    assert "leaves those as they are" in run("verify", tmp_path / "ranks", exit_code=4).stderr
    kept = (tmp_path / "ranks" / "rank-0-of-2").stat().st_ino
    run(*prepare)
    assert (tmp_path / "ranks" / "rank-0-of-2").stat().st_ino == kept
    run("verify", tmp_path / "ranks")


def test_a_read_only_disk_is_no_failing_one(tmp_path):
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with faults.armed("artifact.publish", read_only):
        stderr = run("generate", tmp_path / "graph", "--num-nodes", 1000, exit_code=2).stderr
    assert "is read-only" in stderr
    assert list(tmp_path.iterdir()) == []
    assert "10 the disk failed to write" in " ".join(run("--help").stdout.split())
