"""tools/choose_between.py at a tiny size: its scores are those of `train`, and what is done is not done again."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import choose_between
import diskgnn

SETTINGS = [(norm, skip) for skip in (False, True) for norm in ("none", "batch", "layer")]


def run(monkeypatch, data, *options):
    """Returns its lines of results."""
    results = data / "results.jsonl"
    command = ["choose_between.py", data, "--results", results, "--tasks", "packages", "--epochs", "2", *options]
    monkeypatch.setattr(sys, "argv", [*map(str, command)])
    choose_between.main()
    return results.read_text().splitlines()


def test_the_table_is_of_what_train_says_and_nothing_is_done_again(tmp_path, monkeypatch, capsys):
    diskgnn.generate(
        tmp_path / "packages", num_nodes=100, avg_degree=6, num_classes=3, num_features=8, train_fraction=0.5,
        valid_fraction=0.2, test_fraction=0.3, homophily=0.6,
    )  # fmt: skip
    lines = run(monkeypatch, tmp_path, "--seeds", "0,1")
    found = {(each["setting"], each["seed"]): each["score"] for each in map(json.loads, lines)}
    assert len(lines) == len(found) == 2 * len(SETTINGS)
    printed = capsys.readouterr().out
    for seed in (0, 1):
        packed = tmp_path / f"packed-{seed}"
        diskgnn.prepare(tmp_path / "packages", packed, fanouts=[10, 10], batch_size=512, epochs=2, cpu_cache="10%",
                        seed=seed)  # fmt: skip
        result = diskgnn.train(packed, epochs=2, norm="batch", skip=True, seed=seed)
        assert found["--norm batch --skip", seed] == result.test_accuracy
    for norm, skip in SETTINGS:
        setting = f"--norm {norm}{' --skip' * skip}"
        percent = [100 * found[setting, seed] for seed in (0, 1)]
        assert f"| `{setting}` | {np.mean(percent):.2f} ± {np.std(percent, ddof=1):.2f} |" in printed

    changed = [re.sub(r'"score": .*}', '"score": 0.25}', lines[0]), *lines[1:-1]]
    (tmp_path / "results.jsonl").write_text("".join(f"{line}\n" for line in changed))
    assert run(monkeypatch, tmp_path, "--seeds", "0,1") == [*changed, lines[-1]]
    assert run(monkeypatch, tmp_path, "--seeds", "0", "--settings", "--norm none") == [*changed, lines[-1]]
    assert capsys.readouterr().out.endswith("| `--norm none` | 25.00 |\n")


@pytest.mark.parametrize(("option", "known"), [("--tasks", "packages, genes"), ("--settings", "--norm none, ")])
def test_what_there_is_not_is_refused(option, known, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, option, "nosuch")
    assert re.search(f"{option}: expected some of {known}.*, found nosuch", capsys.readouterr().err)
