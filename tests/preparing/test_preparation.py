"""prepare and its estimate, over a generated graph."""

import shutil

import numpy as np
import pytest

from diskgnn import ArtifactError, ConfigError, estimate, generate, prepare
from diskgnn.errors import DiskFullError, OutputExistsError
from diskgnn.graph.graph import Graph
from diskgnn.packing.pack import pack
from diskgnn.packing.space import most_disk_bytes, most_packed_bytes, probe_by_sampling
from diskgnn.progress import SILENT
from diskgnn.storage.samples import Samples
from diskgnn.sampling.sample import sample, samples_config
from diskgnn.storage import artifacts
from diskgnn.storage.artifacts import ArtifactWriter, open_artifact, verify_artifact

SETTINGS = {"fanouts": [4, 3], "batch_size": 64, "epochs": 2, "seed": 5}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepare") / "graph"
    generate(out, num_nodes=5000, avg_degree=8, num_classes=4, num_features=16, train_fraction=0.2,
             valid_fraction=0.05, test_fraction=0.05, homophily=0.7)  # fmt: skip
    return out


def test_prepare_is_sample_and_pack(graph, tmp_path):
    reports = prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert [report.stage for report in reports] == ["sample", "pack"]
    sample(graph, tmp_path / "samples", **SETTINGS)
    pack(graph, tmp_path / "samples", tmp_path / "apart", cpu_cache="10%")
    assert open_artifact(tmp_path / "packed").digest == open_artifact(tmp_path / "apart").digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["apart", "packed", "samples"]  # no scratch left
    verify_artifact(tmp_path / "packed")


def test_prepare_goes_on_with_what_was_sampled(graph, tmp_path, monkeypatch):
    import diskgnn.preparing.prepare as preparation

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "pack", interrupted)
        told = pytest.warns(UserWarning, match=r"kept in \S*/\.packed\.samples \(\d.*same command")
        with told, pytest.raises(KeyboardInterrupt):
            prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
        assert len(told) == 1
    assert not (tmp_path / "packed").exists()
    reports = prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert [report.stage for report in reports] == ["pack"]
    # Other settings are sampled anew.
    shutil.rmtree(tmp_path / "packed")
    reports = prepare(graph, tmp_path / "packed", **{**SETTINGS, "seed": 6}, cpu_cache="10%")
    assert [report.stage for report in reports] == ["sample", "pack"]


def test_what_an_interrupted_sampling_keeps_is_said(graph, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ArtifactWriter, "publish", interrupted)
        told = pytest.warns(UserWarning, match=r"kept in \S*/\.kept\.partial \(\d.*same command")
        with told, pytest.raises(KeyboardInterrupt):
            prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%", samples=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%", samples=tmp_path / "kept")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "packed"]


def test_samples_are_kept_where_asked(graph, tmp_path):
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=tmp_path / "kept")
    reports = prepare(graph, tmp_path / "other", **SETTINGS, cpu_cache="5%", samples=tmp_path / "kept")
    assert [report.stage for report in reports] == ["pack"]


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"cpu_cache": "150%"}, ConfigError),
        ({"cpu_cache": "lots"}, ConfigError),
        ({"static_cache": "lots"}, ConfigError),
        ({"eval_cpu_cache": "lots"}, ConfigError),
        ({"memory": "lots"}, ConfigError),
        ({"fanouts": []}, ConfigError),
        ({"batch_size": 0}, ConfigError),
    ],
)
def test_nonsense_is_refused_before_sampling(graph, tmp_path, changed, error):
    with pytest.raises(error):
        prepare(graph, tmp_path / "packed", **{**SETTINGS, "cpu_cache": "10%", **changed})
    assert list(tmp_path.iterdir()) == []


def test_output_that_exists_is_refused_before_sampling(graph, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
    with pytest.raises(ArtifactError, match="convert"):
        prepare(tmp_path / "nowhere", tmp_path / "new", **SETTINGS, cpu_cache="10%")


def test_the_estimate_is_close_and_writes_nothing(graph, tmp_path, monkeypatch):
    found = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert list(tmp_path.iterdir()) == []
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    packed = open_artifact(tmp_path / "packed")
    splits = packed.config["splits"]
    assert found.minibatches == sum(s["epochs"] * s["batches_per_epoch"] for s in splits.values())
    train = splits["train"]
    rows = train["rows"]["requested"] / (train["epochs"] * train["batches_per_epoch"])
    assert found.rows_per_minibatch == pytest.approx(rows, rel=0.1)
    # What a static cache would have to read bounds what Belady's schedule reads.
    assert train["rows"]["disk"] / train["rows"]["requested"] <= found.train_disk_row_share * 1.05
    assert 0.8 < found.packed_bytes / packed.total_bytes < 2
    largest = train["max_inputs"] * packed.config["row_bytes"]
    assert found.training_memory_bytes > 2 * 0.9 * largest + train["cpu_rows"] * packed.config["row_bytes"]
    static = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%", static_cache="20%", eval_cpu_cache=0)
    static_rows, eval_rows = 1000, splits["train"]["cpu_rows"] // 4
    grown = (static_rows - eval_rows) * packed.config["row_bytes"]
    assert static.training_memory_bytes == found.training_memory_bytes + grown
    assert found.missing_disk_bytes == 0
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: 1000)
    full = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert full.missing_disk_bytes == found.packed_bytes + found.scratch_bytes - 1000
    assert found.sample_seconds > 0
    assert found.pack_seconds > 0


def test_everything_fits_in_memory(graph, tmp_path):
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="100%", eval_cpu_cache="100%")
    splits = open_artifact(tmp_path / "packed").config["splits"]
    assert all(split["rows"]["disk"] == 0 for split in splits.values())
    accessed = splits["train"]["cpu_rows"]
    assert accessed <= Graph.open(graph).num_nodes
    assert np.load(tmp_path / "packed" / "train-initial.npy").shape[0] == accessed


def test_a_disk_that_is_too_small_is_refused_before_sampling(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: 100_000)
    with pytest.raises(DiskFullError, match=r"samples included.* \d+ bytes are missing") as caught:
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert "nothing was written" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_minibatches_are_probed_only_where_the_disk_may_be_too_small(graph, tmp_path, monkeypatch):
    for name in ("preparation.probe_by_sampling", "packing.probe_samples"):
        monkeypatch.setattr(f"diskgnn.{name}", None)
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: 100_000)
    with pytest.raises(TypeError, match="not callable"):
        prepare(graph, tmp_path / "other", **SETTINGS, cpu_cache="10%")


def test_a_swept_probe_is_that_of_topology_in_memory(graph):
    graph = Graph.open(graph)
    config = samples_config(graph, **SETTINGS, eval_fanouts=None, splits=artifacts.SPLITS)
    swept, loaded = (probe_by_sampling(graph, config, memory, 2, SILENT) for memory in (0, 1 << 30))
    for split in artifacts.SPLITS:
        assert swept[split].structure_bytes == loaded[split].structure_bytes
        for left, right in zip(swept[split].minibatches, loaded[split].minibatches, strict=True):
            np.testing.assert_array_equal(left, right)


def test_packing_is_refused_before_placing(graph, tmp_path, monkeypatch):
    sample(graph, tmp_path / "samples", **SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(artifacts, "free_bytes", lambda folder: 2 * open_artifact(tmp_path / "samples").total_bytes)
        patch.setattr("diskgnn.packing.headers.Accesses", None)  # placing would fail
        with pytest.raises(DiskFullError, match=r"\d+ bytes are missing"):
            pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0)
    assert [path.name for path in tmp_path.iterdir()] == ["samples"]


@pytest.mark.filterwarnings("ignore:what was sampled is kept")
@pytest.mark.parametrize("cache", ["0%", "2%", "10%", "30%", "60%", "90%", "100%"])
@pytest.mark.parametrize("settings", [{"batch_size": 8, "epochs": 3}, {"batch_size": 100}, {"batch_size": 1000}])
def test_what_fits_is_not_refused(graph, tmp_path, monkeypatch, cache, settings):
    """The disk has just what the result and the samples take."""
    settings = {"fanouts": [4, 3], "cpu_cache": cache, "eval_cpu_cache": cache, **settings}
    prepare(graph, tmp_path / "packed", **settings, samples=tmp_path / "samples")
    needed = sum(open_artifact(tmp_path / name).total_bytes for name in ("packed", "samples"))
    config, tiers = open_artifact(tmp_path / "samples").config, open_artifact(tmp_path / "packed").config["splits"]
    cpu_rows = {split: tier["cpu_rows"] for split, tier in tiers.items()}
    assert most_disk_bytes(Graph.open(graph), config, 0, cpu_rows, keep_input_nodes=False) >= needed
    packed_bytes = most_packed_bytes(Samples.open(tmp_path / "samples"), 4, 64, 0, cpu_rows)
    assert packed_bytes >= open_artifact(tmp_path / "packed").total_bytes
    predicted = estimate(graph, tmp_path / "packed", **settings)
    assert predicted.packed_bytes + predicted.scratch_bytes > 0.9 * needed
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: needed)
    prepare(graph, tmp_path / "packed", **settings, overwrite=True)
    monkeypatch.setattr(artifacts, "free_bytes", lambda folder: needed // 3)
    with pytest.raises(DiskFullError):
        prepare(graph, tmp_path / "packed", **settings, overwrite=True)


def test_inputs_are_never_overwritten(graph, tmp_path):
    own = shutil.copytree(graph, tmp_path / "graph")
    digest = open_artifact(own).digest
    for attempt in (
        lambda: prepare(own, own, **SETTINGS, cpu_cache=0, overwrite=True),
        lambda: sample(own, own, **SETTINGS, overwrite=True),
        lambda: prepare(own, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=own, overwrite=True),
    ):
        with pytest.raises(OutputExistsError, match="never overwritten"):
            attempt()
        assert open_artifact(own).digest == digest
