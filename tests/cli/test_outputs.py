"""Outputs that would lie in an artifact's directory are refused by every command before anything is written."""

import ctypes
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

from commands import run

from diskgnn.files import faults

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
        said = run(*arguments, exit_code=2).stderr
        assert "lies inside of the" in said or f"{packed} is a packed directory" in said, arguments
        assert (_files(tmp_path), set(tmp_path.iterdir())) == before, arguments


def test_a_link_into_an_artifact_is_no_way_around(graph, tmp_path):
    (tmp_path / "link").symlink_to(graph, target_is_directory=True)
    run("generate", tmp_path / "link" / "inner", "--num-nodes", 1000, exit_code=2)
    assert not (graph / "inner").exists()


def test_the_root_of_all_folders_is_no_output(graph):
    for command in (["generate", "/", "--num-nodes", 1000], ["sample", graph, "/", "--fanouts", 2, "--overwrite"]):
        assert "cannot write /: choose a folder in it" in run(*command, exit_code=2).stderr


def test_links_that_go_in_a_circle_are_one_line(graph, packed, tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    circle = tmp_path / "circle"
    for command in (
        ["train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", circle],
        ["sample", graph, circle, "--fanouts", 2],
        ["sample", graph, circle / "samples", "--fanouts", 2],
        ["generate", circle, "--num-nodes", 1000, "--overwrite"],
    ):
        assert f"cannot write {circle}" in run(*command, exit_code=2).stderr
    run("relink", circle, "--features", graph / "features-node.npy", exit_code=4)
    run("doctor", circle, "--no-measure", exit_code=2)


def test_a_rank_that_was_deleted_is_named_and_made_alone(graph, tmp_path):
    prepare = ["prepare", graph, tmp_path / "ranks", "--fanouts", "2", "--batch-size", 1, "--ranks", "2", *CACHE]
    run(*prepare)
    shutil.rmtree(tmp_path / "ranks" / "rank-1-of-2")
    assert "leaves those as they are" in run("verify", tmp_path / "ranks", exit_code=4).stderr
    kept = (tmp_path / "ranks" / "rank-0-of-2").stat().st_ino
    run(*prepare)
    assert (tmp_path / "ranks" / "rank-0-of-2").stat().st_ino == kept
    run("verify", tmp_path / "ranks")


REFUSED = """
import os, sys
from commands import run
os.chdir({folder!r})
for command in {commands!r}:
    sys.stdout.write(" ".join(run(*command, exit_code=2).stderr.split()) + "\\n")
"""
_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE = 24, 1


def test_a_folder_that_one_may_not_write_to_is_named_as_that(graph, packed, tmp_path):
    folder = tmp_path / "refusing"
    shutil.copytree(packed, folder / "packed")
    (folder / "packed" / "train.bin").write_bytes(b"damaged")
    folder.chmod(0o555)
    commands = [
        ["generate", "refusing/new", "--num-nodes", 1000],
        ["prepare", graph, "refusing/new", "--fanouts", 2, *CACHE],
        ["prepare", graph, "new", "--fanouts", 2, "--samples", "refusing/new", *CACHE],
        ["verify", "--repair", "refusing/packed", "--graph", graph],
    ]
    commands = [[str(each) for each in command] for command in commands]
    found = subprocess.run(
        [sys.executable, "-c", REFUSED.format(folder=str(tmp_path), commands=commands)], check=False,
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0),  # root, too
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    messages = found.stdout.splitlines()
    assert len(messages) == len(commands)
    assert [message for message in messages if "you have no permission to write to" not in message] == []
    assert list(folder.iterdir()) == [folder / "packed"]


def test_a_read_only_disk_is_no_failing_one(tmp_path):
    read_only = OSError(errno.EROFS, os.strerror(errno.EROFS))
    with faults.armed("artifact.publish", read_only):
        stderr = run("generate", tmp_path / "graph", "--num-nodes", 1000, exit_code=2).stderr
    assert "is on a read-only file system" in stderr
    assert list(tmp_path.iterdir()) == []
    assert "10 the disk failed to write" in " ".join(run("--help").stdout.split())


def test_files_that_are_something_else_are_not_lost(graph, packed, tmp_path):
    run("train", packed, "--hidden", 4, "--epochs", 1, "--checkpoint", tmp_path / "run", "--metrics", tmp_path / "m",
        "--trace", tmp_path / "t")  # fmt: skip
    run("train", packed, "--hidden", 4, "--epochs", 1, "--metrics", tmp_path / "m", "--trace", tmp_path / "t")
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("id\n3\n")
    apply = [tmp_path / "generated", "--checkpoint", tmp_path / "run", "--nodes", nodes, "--out", nodes, "--overwrite"]
    compare = ["compare", graph, "--memory", "1GiB", "--fanouts", "2", *CACHE]
    train = ["train", packed, "--hidden", 4, "--epochs", 1]
    for command, said in (
        ([*train, "--metrics", nodes], "--metrics: {} exists and is no file of training metrics; name another file"),
        ([*train, "--trace", nodes], "--trace: {} exists and is no timeline of training; name another file"),
        ([*compare, "--out", nodes], "--out: {} exists and is no JSON of a comparison; name another file"),
        ([*compare, "--report", nodes], "--report: {} exists and is no page of a comparison; name another file"),
        (["infer", *apply], "--nodes: {} would be replaced by what is made of it; choose another output"),
        (["predict", *apply, "--fanouts", "2"], "--nodes: {} would be replaced by what is made of it; choose another"),
    ):
        assert said.format(nodes) in run(*command, exit_code=2).stderr
        assert nodes.read_text() == "id\n3\n"


def test_paths_that_are_no_text_are_refused_where_native_code_opens_them(graph, tmp_path):
    run("sample", graph, tmp_path / "samples", "--fanouts", 2)
    for command in (["pack", graph, tmp_path / "samples"], ["prepare", graph, "--fanouts", 2]):
        said = run(*command, os.fsdecode(os.fsencode(tmp_path) + b"/\xff"), *CACHE, exit_code=2).stderr
        assert "expected a path in UTF-8, and a locale that says so" in said
