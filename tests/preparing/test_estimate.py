"""The comparison of settings before anything is prepared: against what `prepare` then packs."""

import json

import pytest
from click.testing import CliRunner

from diskgnn import estimate, generate, prepare
from diskgnn.cli import main
from diskgnn.errors import ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.preparing.alternatives import SettingEstimate, recommended

SETTINGS = {"fanouts": [5, 5], "batch_size": 64, "epochs": 2, "cpu_cache": "10%", "static_cache": 0}
WAYS = [  # draws, period (32 is an epoch), groups
    ("independent", 1, 1), ("coordinated", 1, 1), ("coordinated", 16, 1), ("coordinated", 32, 1),
    ("independent", 1, 32), ("coordinated", 16, 128),
]  # fmt: skip


def generated(out, num_nodes):
    generate(out, num_nodes=num_nodes, avg_degree=8, num_classes=4, num_features=32, train_fraction=0.1,
             valid_fraction=0.01, test_fraction=0.01, homophily=0.7)  # fmt: skip
    return out


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    return generated(tmp_path_factory.mktemp("estimate") / "graph", 20_000)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """For tests that ask for one estimate after the other, of whatever size."""
    return generated(tmp_path_factory.mktemp("estimate") / "small", 5000)


@pytest.fixture(scope="module")
def packed(graph, tmp_path_factory):
    """What `prepare` makes, by the way of drawing."""
    made = {}
    for draws, period, group_seeds in WAYS:
        out = tmp_path_factory.mktemp("packed") / "packed"
        prepare(graph, out, **SETTINGS, draws=draws, draw_period=period, group_seeds=group_seeds)
        made[draws, period, group_seeds] = Packed.open(out)
    return made


def drawn(settings, dtype="float32"):
    return {(each.draws, each.draw_period, each.group_seeds): each for each in settings if each.feature_dtype == dtype}


def test_only_what_nobody_can_know_has_to_be_said(graph, packed, tmp_path, monkeypatch):
    """As on the command line: minibatches of 1024 seeds, here."""
    monkeypatch.chdir(tmp_path)
    least = {"fanouts": [5, 5], "cpu_cache": "10%"}
    found = estimate(graph, **least, max_seconds=0)
    assert found.packed_bytes == estimate(graph, "packed", **least, batch_size=1024, max_seconds=0).packed_bytes
    assert list(tmp_path.iterdir()) == []
    prepare(graph, "packed", **least)
    assert Packed.open("packed").config.samples.spec.batch_size == 1024


@pytest.mark.parametrize("max_seconds", [60, 0], ids=["all", "a few"])
def test_each_setting_is_what_prepare_packs(graph, packed, tmp_path, max_seconds):
    found = estimate(graph, tmp_path / "packed", **SETTINGS, max_seconds=max_seconds)
    assert list(tmp_path.iterdir()) == []
    settings = drawn(found.settings)
    assert len(settings) == 4 * 3
    tolerance = 1e-9 if max_seconds else 0.12
    for way, made in packed.items():
        setting, rows = settings[way], made.config.splits["train"].rows
        assert setting.disk_rows == pytest.approx(rows.disk / 2, rel=tolerance, abs=0.5)
        assert setting.rows_per_minibatch == pytest.approx(rows.requested / 64, rel=tolerance)
        assert setting.packed_bytes == pytest.approx(made.manifest.total_bytes, rel=0.05 + tolerance)
        extents_bytes = made.file(artifacts.extents_file("train")).stat().st_size
        assert setting.read_bytes == pytest.approx(extents_bytes / 2, rel=0.05 + tolerance)
        assert (setting.disk_rows_error == 0) == bool(max_seconds)
    assert found.sampled_minibatches == (found.minibatches if max_seconds else 3 * 8 - 2 * 4)


def test_narrower_rows_are_what_prepare_packs_of_a_quantised_graph(graph, tmp_path):
    opened, arrays = Graph.open(graph), {}
    for split in ("train", "valid", "test"):
        arrays[split] = opened.splits[split]
    convert(tmp_path / "int8", indptr=opened.indptr, indices=opened.indices, features=opened.features,
            labels=opened.labels, **arrays, quantise="int8")  # fmt: skip
    given = {**SETTINGS, "cpu_cache": "100KiB"}  # four times as many rows of int8
    predicted = drawn(estimate(graph, tmp_path / "packed", **given).settings, "int8")["independent", 1, 1]
    prepare(tmp_path / "int8", tmp_path / "packed", **given)
    made = Packed.open(tmp_path / "packed")
    assert predicted.disk_rows == made.config.splits["train"].rows.disk // 2
    assert predicted.packed_bytes == pytest.approx(made.manifest.total_bytes, rel=0.1)


def setting(**changes):
    fields = {
        "draws": "independent", "draw_period": 1, "group_seeds": 1, "feature_dtype": "float32", "row_sets": (),
        "rows_per_minibatch": 10.0, "disk_rows": 5, "disk_rows_error": 0.0,
        "read_bytes": 100, "packed_bytes": 200, "scratch_bytes": 50,
        "epoch_seconds": 1.0, "fits": True, "accuracy_held": True,
    }  # fmt: skip
    return SettingEstimate(**{**fields, **changes})


def test_the_fewest_bytes_are_recommended_of_what_fits_and_is_known_to_learn():
    large = setting(read_bytes=10, fits=False)
    unproven = setting(read_bytes=20, accuracy_held=False)
    best = setting(read_bytes=30)
    assert recommended([setting(), large, unproven, best, setting(read_bytes=30, packed_bytes=300)]) is best
    assert recommended([large, unproven]) is None


def test_what_does_not_fit_the_disk_is_not_recommended(small, tmp_path):
    plenty = estimate(small, tmp_path / "packed", **SETTINGS)
    best = plenty.recommended
    needed_bytes = best.packed_bytes + best.scratch_bytes
    assert all(each.fits for each in plenty.settings)
    less = estimate(small, tmp_path / "packed", **SETTINGS, disk=needed_bytes)
    assert less.recommended is not None
    assert (less.recommended.draws, less.recommended.feature_dtype) == (best.draws, best.feature_dtype)
    assert less.missing_disk_bytes == plenty.packed_bytes + plenty.scratch_bytes - needed_bytes
    none = estimate(small, tmp_path / "packed", **SETTINGS, disk="10KiB")
    assert none.recommended is None


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == exit_code, result.output
    return result


def test_one_table_compares_all_settings(small, tmp_path):
    arguments = ["prepare", small, tmp_path / "packed", "--fanouts", "5,5", "--batch-size", 64, "--cpu-cache", "10%"]
    told = run(*arguments, "--estimate").stdout
    document = json.loads(run(*arguments, "--estimate", "--json").stdout)
    assert {each["feature_dtype"] for each in document["settings"]} == {"float32", "float16", "int8", "int4"}
    lines = [line.split() for line in told.splitlines()]
    for each in drawn_json(document["settings"], "float32"):
        way = each["draws"] + (f", period {each['draw_period']}" if each["draw_period"] > 1 else "")
        way += f", groups {each['group_seeds']}" if each["group_seeds"] > 1 else ""
        (line,) = (line for line in told.splitlines() if line.split("  ")[0].strip() == way)
        assert f"{each['disk_rows']:,}" in line
        assert ("*" in line) != each["accuracy_held"]
    for dtype in ("float16", "int8", "int4"):
        assert any(line[:1] == [dtype] for line in lines)
    told_here = told.replace(str(tmp_path), "").replace(str(small), "")  # a folder may have a long name
    assert all(len(line.rstrip()) <= 80 for line in told_here.splitlines() if not line.startswith("rows and bytes"))
    best, packed_bytes = document["recommended"], document["settings"][0]["packed_bytes"]
    assert "--quantise" not in told  # nobody asked
    assert "no setting fits" in run(*arguments, "--estimate", "--disk", "1KiB").stdout
    short = run(*arguments, "--estimate", "--disk", packed_bytes).stdout  # and samples
    assert f"what fits: --draws {best['draws']}" in short
    assert f"--quantise {best['feature_dtype']}" in short
    assert not (tmp_path / "packed").exists()
    refused = " ".join(run(*arguments, "--disk", "1KiB", exit_code=6).stderr.split())
    assert "disk: preparing" in refused
    assert "needs at least" in refused
    assert not (tmp_path / "packed").exists()


def drawn_json(settings, dtype):
    return [each for each in settings if each["feature_dtype"] == dtype]


def test_nonsense_is_refused(graph, tmp_path):
    with pytest.raises(ConfigError):
        estimate(graph, tmp_path / "packed", **SETTINGS, disk="much")
