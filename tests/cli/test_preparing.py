"""Commands that make, prepare and look at directories."""

import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from commands import run
from graphs import FEATURES, INDICES, INDPTR, LABELS, TRAIN

import diskgnn
from diskgnn import errors
from diskgnn.formats.samples import Samples


def test_options_reach_the_library(graph, tmp_path):
    arguments = ["sample", graph, tmp_path / "s", "--fanouts", "2,1", "--batch-size", 1, "--seed", 7, "--epochs", 2]
    said = run(*arguments).stdout
    assert said.startswith("sample: read ")
    assert "minibatches 4" in said
    spec = Samples.open(tmp_path / "s").config.spec
    assert (spec.fanouts, spec.batch_size, spec.seed, spec.epochs) == ((2, 1), 1, 7, 2)
    assert (spec.draws, spec.draw_period) == ("independent", 1)
    run(*arguments, exit_code=errors.OutputExistsError.exit_code)
    assert json.loads(run(*arguments, "--overwrite", "--json").stdout)["details"]["minibatches"] == 4
    generating = ["generate", tmp_path / "g", "--num-nodes", 10_000, "--memory", "1KiB"]
    assert "--memory: expected at least" in run(*generating, exit_code=2).stderr
    few = run("generate", tmp_path / "g", "--num-nodes", 10, exit_code=2).stderr
    assert "change --num-classes or --num-nodes" in few


def test_convert_says_what_quantising_changes(tmp_path):
    random = np.random.default_rng(0)
    arrays = {
        "edges": random.integers(0, 50, (2, 200)), "labels": random.integers(0, 3, 50), "train": np.arange(10),
        "features": np.c_[random.normal(size=(50, 2)), np.r_[100.0, np.zeros(49)]].astype(np.float32),
    }  # fmt: skip
    flags = []
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
        flags += [f"--{name}", tmp_path / f"{name}.npy"]
    said = run("convert", tmp_path / "graph", *flags, "--quantise", "int4").stdout
    assert "mean_error_in_deviations 0.0" in said
    assert "worst_column 1" in said
    described = run("inspect", tmp_path / "graph").stdout
    assert "3 x int4" in described
    assert "(code - zero_point) * scale" in described
    refused = run("convert", tmp_path / "other", *flags, "--quantise", "int4", "--reference-features", exit_code=2)
    assert "leave out --reference-features" in refused.stderr
    again = json.loads(run("convert", tmp_path / "graph", *flags, "--quantise", "int8", "--overwrite", "--json").stdout)
    assert again["details"]["worst_column"] in (0, 1, 2)


def test_coordinated_draws(graph, tmp_path):
    sampling = ["--fanouts", "1,1", "--batch-size", 1, "--draws", "coordinated", "--draw-period", 2, "--group-seeds", 2]
    run("sample", graph, tmp_path / "samples", *sampling)
    run("prepare", graph, tmp_path / "packed", *sampling, "--cpu-cache", 0)
    assert json.loads(
        run("prepare", graph, tmp_path / "none", *sampling, "--cpu-cache", 0, "--estimate", "--json").stdout
    )
    for made, part in (("samples", ""), ("packed", "samples.")):
        config = json.loads(run("inspect", tmp_path / made, "--json").stdout)["config"]
        found = [config[f"{part}{name}"] for name in ("draws", "draw_period", "group_seeds")]
        assert found == ["coordinated", 2, 2]
    told = run(
        "prepare", graph, tmp_path / "none", *sampling[:4], "--cpu-cache", 0, "--draw-period", 2, exit_code=2
    ).stderr
    assert "--draw-period: independent draws have none, found 2" in told


def test_inspect_tells_people_and_machines_the_same(graph):
    told = run("inspect", graph).stdout
    document = json.loads(run("inspect", graph, "--json").stdout)
    assert document["kind"] == "a graph"
    assert document["facts"]["nodes"] == 4
    assert document["facts"]["edges"] == 8
    assert document["facts"]["max_in_degree"] == 2
    assert document["facts"]["nodes_without_in_edges"] == 0
    assert document["facts"]["train_nodes"] == 2
    assert {file["name"]: file["shape"] for file in document["files"]}[FEATURES] == [4, 3]
    assert "3 x float32" in told
    assert FEATURES in told


def test_verify_finds_a_flipped_bit(graph):
    assert "is whole: 6 files" in run("verify", graph).stdout
    assert json.loads(run("verify", graph, "--json").stdout)["files"] == 6
    with (graph / FEATURES).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    result = run("verify", graph, exit_code=4)
    assert f"{FEATURES} is damaged" in result.stderr
    assert "diskgnn convert" in result.stderr
    assert result.stdout == ""


def test_sample_then_inspect(graph, tmp_path):
    run("sample", graph, tmp_path / "samples", "--fanouts", "2,2", "--batch-size", 1, "--epochs", 2)
    document = json.loads(run("inspect", tmp_path / "samples", "--json").stdout)
    assert document["kind"] == "sampled minibatches"
    assert document["config"]["fanouts"] == [2, 2]
    assert document["config"]["splits.train.epochs"] == 2
    assert document["source_digest"] == json.loads(run("inspect", graph, "--json").stdout)["digest"]


def test_convert_takes_arrays_and_tables_and_warns_of_nan(graph, tmp_path):
    features = np.arange(12, dtype=np.float32).reshape(4, 3)
    features[1, 1] = np.nan
    arrays = {"edges": [[0, 1, 2, 3], [1, 2, 3, 0]], "features": features, "labels": [0, 1, 0, 1], "train": [0, 2]}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    given = [part for name in arrays for part in (f"--{name}", tmp_path / f"{name}.npy")]
    result = run("convert", tmp_path / "out", *given, "--reverse", "--json")
    assert json.loads(result.stdout)["stage"] == "convert"
    assert "warning: " in result.stderr
    assert "NaN" in result.stderr
    for name in (INDPTR, INDICES, LABELS, TRAIN):
        assert np.array_equal(np.load(tmp_path / "out" / name), np.load(graph / name)), name

    pq.write_table(pa.table({"from": [0, 1, 2, 3], "to": [1, 2, 3, 0]}), tmp_path / "edges.parquet")
    columns = {"a": [0.0, 3, 6, 9], "b": [1.0, 4, 7, 10], "class": [0, 1, 0, 1], "split": ["train", "", "train", ""]}
    pq.write_table(pa.table(columns), tmp_path / "nodes.parquet")
    names = ["src=from", "dst=to", "features=a", "features=b", "label=class"]
    run("convert", tmp_path / "table", "--edges", tmp_path / "edges.parquet", "--nodes", tmp_path / "nodes.parquet",
        "--reverse", *(part for name in names for part in ("--column", name)))  # fmt: skip
    assert np.array_equal(np.load(tmp_path / "table" / FEATURES), np.array([columns["a"], columns["b"]]).T)
    assert np.array_equal(np.load(tmp_path / "table" / INDICES), np.load(graph / INDICES))


def test_doctor(tmp_path):
    document = json.loads(run("doctor", tmp_path, "--size", "1MiB", "--json").stdout)
    assert document["folder"]["rates"]["file_bytes"] == 1 << 20
    assert document["machine"]["io_uring"]["kernel"]
    told = run("doctor", tmp_path, "--no-measure").stdout
    assert "io_uring" in told
    assert "random read" not in told


def test_what_tables_lack_is_said_in_flags(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n1,2\n")
    (tmp_path / "named.csv").write_text("from,to\n0,1\n1,2\n")
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "y.npy", np.arange(3))
    given = ["convert", tmp_path / "graph", "--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy",
             "--train", tmp_path / "y.npy", "--num-nodes", 3, "--edges"]  # fmt: skip
    for options, code, message in (
        (["edges.csv"], 3, "pass them as --column, such as names=src,dst"),
        (["named.csv"], 3, "found ['from', 'to']; say with --column which ones are meant, such as src=from and dst=to"),
        (
            ["edges.csv", "--column", "src=a", "--column", "src=b"],
            2,
            "--column: expected src once, found src=a and src=b",
        ),
    ):
        refused = run(*given, tmp_path / options[0], *options[1:], exit_code=code)
        assert message in " ".join(refused.stderr.split())


def test_edges_out_of_range_are_named_by_their_flag(tmp_path):
    np.save(tmp_path / "edges.npy", np.array([[0], [9]]))
    np.save(tmp_path / "x.npy", np.ones((3, 2), np.float32))
    np.save(tmp_path / "y.npy", np.arange(3))
    refused = run("convert", tmp_path / "graph", "--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy",
                  "--train", tmp_path / "y.npy", "--edges", tmp_path / "edges.npy", exit_code=3)  # fmt: skip
    assert "--edges: expected node ids from 0 to 2, found destination 9 in edge 0" in " ".join(refused.stderr.split())


def test_a_batch_larger_than_a_split_is_one_of_all_its_seeds(tmp_path):
    diskgnn.convert(tmp_path / "graph", edges=np.array([[0, 1], [1, 2]]), features=np.ones((3, 2), np.float32),
                    labels=np.arange(3), train=np.arange(3))  # fmt: skip
    diskgnn.prepare(tmp_path / "graph", tmp_path / "packed", fanouts=[2], batch_size=10**12, cpu_cache=0)
    with diskgnn.Loader(tmp_path / "packed") as loader:
        assert [sorted(batch.seeds.tolist()) for batch in loader] == [[0, 1, 2]]


def test_what_has_no_train_split_is_not_for_training(packed, tmp_path):
    sampling = ["--fanouts", 2, "--batch-size", 20, "--cpu-cache", 0]
    pq.write_table(pa.table({"id": np.arange(7)}), tmp_path / "test.parquet")
    seeds = ["--target-seeds", f"test={tmp_path / 'test.parquet'}"]
    said = run("prepare", tmp_path / "generated", tmp_path / "seeds", *sampling, *seeds).stderr
    assert f"next: diskgnn evaluate {tmp_path}/seeds --checkpoint RUN --split test" in said
    assert "diskgnn train" not in said
