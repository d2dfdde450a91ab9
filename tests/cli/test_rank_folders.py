"""Commands that look at a folder with a packed directory for each rank take all of them."""

import json
import shutil

import pytest
from commands import run


@pytest.fixture
def ranks(packed, tmp_path):
    said = run("prepare", tmp_path / "generated", tmp_path / "ranks", "--fanouts", "3", "--batch-size", 20,
               "--ranks", 2, "--cpu-cache", "10%", "--static-cache", "10%")  # fmt: skip
    assert "warning" not in said.stderr
    return tmp_path / "ranks"


def flip(path):
    written = path.read_bytes()
    path.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    return written


def test_inspect_describes_each_rank(ranks):
    described = json.loads(run("inspect", ranks, "--json").stdout)["ranks"]
    alone = [json.loads(run("inspect", ranks / f"rank-{rank}-of-2", "--json").stdout) for rank in range(2)]
    assert described == alone
    assert [each["facts"]["train_minibatches"] for each in described] == [3, 2]
    assert "of 2 ranks" in run("inspect", ranks).stdout


def test_verify_finds_and_repairs_what_is_damaged_in_any_rank(ranks, tmp_path):
    assert run("verify", ranks).stdout.count("is whole") == 2
    index, static = ranks / "rank-0-of-2" / "train-index.npy", ranks / "rank-1-of-2" / "static-node.npy"
    before = {path: flip(path) for path in (index, static)}
    found = json.loads(run("verify", ranks, "--json", exit_code=4).stdout)["ranks"]
    assert [[damage["file"] for damage in each["damaged"]] for each in found] == [[index.name], [static.name]]
    repaired = run("verify", ranks, "--repair", "--graph", tmp_path / "generated").stdout
    assert repaired.count("made again") == repaired.count("is whole") == 2
    assert {path: path.read_bytes() for path in before} == before


def test_a_rank_that_is_missing_is_named(ranks):
    shutil.rmtree(ranks / "rank-0-of-2")
    for command in ("verify", "inspect"):
        said = run(command, ranks, exit_code=4).stderr
        assert "rank-0-of-2 is not there: copy it here, or make it with the same `diskgnn prepare --ranks 2`" in said


def test_prepare_warns_of_ranks_that_would_have_nothing_to_train_on(packed, tmp_path):
    said = run("prepare", tmp_path / "generated", tmp_path / "many", "--fanouts", "3", "--batch-size", 20, "--ranks", 7,
               "--cpu-cache", "10%", "--static-cache", 0)  # fmt: skip
    assert "an epoch has 5 minibatches, so 2 of 7 ranks will have none" in said.stderr
    assert "--ranks 5 at most, or a smaller --batch-size" in said.stderr.replace("\n", " ")
