"""prepare and its estimate, over a generated graph."""

import os
import shutil
import signal
import warnings

import numpy as np
import pytest
from packed_directories import flip
from told_stages import Stages

from diskgnn import ArtifactError, ConfigError, estimate, generate, prepare
from diskgnn.errors import BusyError, DiskFullError, OutputExistsError
from diskgnn.files import faults
from diskgnn.formats.manifest import open_artifact
from diskgnn.formats.packed import Packed
from diskgnn.formats.samples import Samples
from diskgnn.formats.verification import verify_artifact
from diskgnn.graph.graph import Graph
from diskgnn.importers.convert import convert
from diskgnn.packing.pack import pack
from diskgnn.packing.probes import probe_by_sampling
from diskgnn.packing.space import UNBOUNDED, most_disk_bytes, most_packed_bytes
from diskgnn.packing.tiers import TierRows
from diskgnn.sampling.plan import SamplingPlan
from diskgnn.sampling.sample import sample
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.schema import SPLITS
from diskgnn.specs.targets import LinkTarget
from diskgnn.system.resources import Resources

SETTINGS = {"fanouts": [4, 3], "batch_size": 64, "epochs": 2, "seed": 5}


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    out = tmp_path_factory.mktemp("prepare") / "graph"
    generate(out, num_nodes=2400, avg_degree=8, num_classes=4, num_features=16, train_fraction=0.2,
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


def test_prepare_goes_on_with_what_was_sampled(graph, tmp_path):
    with faults.armed("pack.header", KeyboardInterrupt()):
        told = pytest.warns(UserWarning, match=r"kept in \S*/\.packed\.preparing \(\d.*same command")
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


def test_what_an_interrupted_sampling_keeps_is_said(graph, tmp_path):
    with faults.armed("artifact.sync", KeyboardInterrupt()):
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


def test_nothing_is_written_into_the_graph(graph):
    folder = graph
    before = sorted(folder.iterdir())
    for places in (
        {"out": folder / "packed"},
        {"out": folder.with_name("packed"), "samples": folder / "deep" / "samples"},
    ):
        with pytest.raises(ConfigError, match=r"(out|samples): \S+ lies inside of the graph directory"):
            prepare(graph, **places, fanouts=[2], batch_size=4, cpu_cache=0)
    assert sorted(folder.iterdir()) == before


def test_output_that_exists_is_refused_before_sampling(graph, tmp_path):
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "notes.txt").write_text("mine")
    with pytest.raises(OutputExistsError):
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]
    with pytest.raises(ArtifactError, match="convert"):
        prepare(tmp_path / "nowhere", tmp_path / "new", **SETTINGS, cpu_cache="10%")


def test_the_estimate_is_close_and_writes_nothing(graph, tmp_path):
    found = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert list(tmp_path.iterdir()) == []
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    packed = Packed.open(tmp_path / "packed")
    splits, row_bytes = packed.config.splits, packed.config.one_row_set.rows.row_bytes
    assert found.minibatches == sum(split.num_batches for split in splits.values())
    train = splits["train"]
    assert found.rows_per_minibatch == pytest.approx(train.rows.requested / train.num_batches, rel=0.1)
    assert found.train_disk_row_share == pytest.approx(train.rows.disk / train.rows.requested, rel=1e-3)  # all sampled
    assert found.packed_bytes == pytest.approx(packed.manifest.total_bytes, rel=0.1)
    assert found.training_memory_bytes > (2 * 0.9 * train.max_inputs + train.cpu_rows) * row_bytes
    static = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%", static_cache="20%", eval_cpu_cache=0)
    static_rows, eval_rows = 480, train.cpu_rows // 4
    grown = (static_rows - eval_rows) * row_bytes
    assert static.training_memory_bytes == found.training_memory_bytes + grown
    assert found.missing_disk_bytes == 0
    with faults.pretending("disk.free", 1000):
        full = estimate(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert full.missing_disk_bytes == found.packed_bytes + found.scratch_bytes - 1000
    assert found.sample_seconds > 0
    assert found.pack_seconds > 0


def test_everything_fits_in_memory(graph, tmp_path):
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="100%", eval_cpu_cache="100%")
    splits = Packed.open(tmp_path / "packed").config.splits
    assert all(split.rows.disk == 0 for split in splits.values())
    accessed = splits["train"].cpu_rows
    assert accessed <= Graph.open(graph).num_nodes
    assert np.load(tmp_path / "packed" / "train-initial-node.npy").shape[0] == accessed


def test_a_disk_that_is_too_small_is_refused_before_sampling(graph, tmp_path):
    message = r"samples included.* \d+ bytes are missing"
    with faults.pretending("disk.free", 100_000), pytest.raises(DiskFullError, match=message) as caught:
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert "nothing was written" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_minibatches_are_probed_only_where_the_disk_may_be_too_small(graph, tmp_path):
    stages = Stages()
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%", reporter=stages)
    assert stages.names == ["sample", "place train", "place valid", "place test", "pack"]
    stages = Stages()
    with faults.pretending("disk.free", 100_000), pytest.raises(DiskFullError):
        prepare(graph, tmp_path / "other", **SETTINGS, cpu_cache="10%", reporter=stages)
    assert stages.names == ["sample a few"]


def test_a_swept_probe_is_that_of_topology_in_memory(graph):
    plan = SamplingPlan(Graph.open(graph), SamplingSpec(**SETTINGS))
    swept, loaded = (probe_by_sampling(plan, Resources(memory_bytes, threads=2)) for memory_bytes in (0, 1 << 30))
    for split in SPLITS:
        assert swept[split].structure_bytes == loaded[split].structure_bytes > 0
        for left, right in zip(swept[split].minibatches, loaded[split].minibatches, strict=True):
            np.testing.assert_array_equal(left, right)


def test_packing_is_refused_before_placing(graph, tmp_path):
    sample(graph, tmp_path / "samples", **SETTINGS)
    free_bytes, stages = 2 * open_artifact(tmp_path / "samples").total_bytes, Stages()
    with (
        faults.pretending("disk.free", free_bytes),
        pytest.raises(DiskFullError, match=r"\d+ bytes are missing"),
    ):
        pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache=0, reporter=stages)
    assert stages.names == []
    assert [path.name for path in tmp_path.iterdir()] == ["samples"]


@pytest.mark.filterwarnings("ignore:what was sampled is kept")
@pytest.mark.parametrize(
    ("cache", "settings"),
    [
        ("0%", {"batch_size": 100}), ("0%", {"batch_size": 1000, "edge_ids": True}),
        ("10%", {"batch_size": 8, "epochs": 3}), ("10%", {"batch_size": 1000, "edge_ids": True}),
        ("60%", {"batch_size": 8, "epochs": 3, "draws": "coordinated", "draw_period": 1000}),
        ("60%", {"batch_size": 100}), ("100%", {"batch_size": 1000, "edge_ids": True}),
        ("100%", {"batch_size": 16, "epochs": 2}),
    ],
)  # fmt: skip
def test_what_fits_is_not_refused(graph, tmp_path, cache, settings):
    """The disk has just what the result and the samples take."""
    settings = {"fanouts": [4, 3], "cpu_cache": cache, "eval_cpu_cache": cache, **settings}
    prepare(graph, tmp_path / "packed", **settings, samples=tmp_path / "samples")
    needed = sum(open_artifact(tmp_path / name).total_bytes for name in ("packed", "samples"))
    splits = Packed.open(tmp_path / "packed").config.splits
    spec = SamplingSpec(**{name: value for name, value in settings.items() if not name.endswith("cache")})
    evaluated = min(splits[split].cpu_rows for split in ("valid", "test"))
    tiers = TierRows(0, splits["train"].cpu_rows, evaluated, evaluated)
    assert most_disk_bytes(SamplingPlan(Graph.open(graph), spec), tiers, keep_input_nodes=False) >= needed
    packed_bytes = most_packed_bytes(Samples.open(tmp_path / "samples"), tiers, 4, 64)
    assert packed_bytes >= open_artifact(tmp_path / "packed").total_bytes
    predicted = estimate(graph, tmp_path / "packed", **settings)
    assert predicted.packed_bytes + predicted.scratch_bytes > 0.9 * needed
    with faults.pretending("disk.free", needed):
        prepare(graph, tmp_path / "packed", **settings, overwrite=True)
    with pytest.raises(DiskFullError):
        prepare(graph, tmp_path / "packed", **settings, disk=needed // 3, overwrite=True)


@pytest.fixture(scope="module")
def timed_graph(tmp_path_factory):
    random, out = np.random.default_rng(0), tmp_path_factory.mktemp("timed") / "graph"
    edges, times = random.integers(0, 300, (2, 3000)), random.integers(0, 100, 300)
    nodes = {"features": random.random((300, 16), np.float32), "times": times}
    links = {"edges": edges, "train": edges[:, :200], "valid": edges[:, 200:300]}
    convert(out, schema={"nodes": {"node": nodes}, "edges": {"node:to:node": links}})
    return out


@pytest.mark.parametrize("fanouts", [[4], [10, 5], [3, 3, 3]])
def test_trees_of_seeds_take_more_than_the_graph_has(timed_graph, tmp_path, fanouts):
    """Each end of each pair has a tree of its own, negatives too: 100 of these for each pair of evaluation."""
    sampling = {"fanouts": fanouts, "batch_size": 50, "target": LinkTarget(("node", "to", "node")), "temporal": "last"}
    prepare(timed_graph, tmp_path / "packed", **sampling, cpu_cache=0, samples=tmp_path / "samples")
    needed = sum(open_artifact(tmp_path / name).total_bytes for name in ("packed", "samples"))
    plan = SamplingPlan(Graph.open(timed_graph), SamplingSpec(**sampling))
    assert most_disk_bytes(plan, TierRows(0, 0, 0, 0), keep_input_nodes=False) >= needed
    stages = Stages()
    with faults.pretending("disk.free", needed // 3), pytest.raises(DiskFullError):
        prepare(timed_graph, tmp_path / "other", **sampling, cpu_cache=0, reporter=stages)
    assert "sample" not in stages.names
    every = SamplingPlan(Graph.open(timed_graph), SamplingSpec(**sampling | {"fanouts": [-1]}))
    assert most_disk_bytes(every, TierRows(0, 0, 0, 0), keep_input_nodes=False) == UNBOUNDED


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


# What killed runs leave, and runs side by side


def prepare_and_die(graph, out, point, **settings):
    """In a child process."""
    child = os.fork()
    if child == 0:
        try:
            with faults.armed(point, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                prepare(graph, out, **{**SETTINGS, **settings}, cpu_cache="10%", threads=1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_run_that_is_killed_when_all_is_published_leaves_nothing(graph, tmp_path, damaged):
    """The next one says that the output exists, and clears up, also if samples that nobody needs were damaged."""
    prepare_and_die(graph, tmp_path / "packed", "prepare.packed")
    assert (tmp_path / ".packed.preparing").exists()
    if damaged:
        (tmp_path / ".packed.preparing" / "samples" / "manifest.json").write_bytes(b"{")
    with pytest.raises(OutputExistsError, match="exists already"):
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    verify_artifact(tmp_path / "packed")
    assert names(tmp_path) == ["packed"]


@pytest.mark.filterwarnings("ignore:.*fork")
def test_what_overwriting_goes_on_with_is_not_cleaned(graph, tmp_path):
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    before = verify_artifact(tmp_path / "packed").digest
    changed = {**SETTINGS, "seed": 8}
    told = pytest.warns(UserWarning, match="is kept")
    with faults.armed("pack.header", KeyboardInterrupt()), told, pytest.raises(KeyboardInterrupt):
        prepare(graph, tmp_path / "packed", **changed, cpu_cache="10%", overwrite=True)
    with pytest.raises(OutputExistsError, match="exists already"):
        prepare(graph, tmp_path / "packed", **changed, cpu_cache="10%")
    assert verify_artifact(tmp_path / "packed").digest == before
    assert [report.stage for report in prepare(graph, tmp_path / "packed", **changed, cpu_cache="10%", overwrite=True)
            ] == ["pack"]  # fmt: skip
    assert names(tmp_path) == ["packed"]


@pytest.mark.parametrize("of_graph", [False, True])
def test_what_was_sampled_is_not_given_up_for_a_damaged_graph(graph, tmp_path, of_graph):
    """Nor for one of its own shards, which is sampled again."""
    shutil.copytree(graph, tmp_path / "graph")
    told = pytest.warns(UserWarning, match="is kept")
    with faults.armed("pack.header", KeyboardInterrupt()), told, pytest.raises(KeyboardInterrupt):
        prepare(tmp_path / "graph", tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    samples = tmp_path / ".packed.preparing" / "samples"
    flip(min(samples.glob("*.arrow")), 500)
    if of_graph:
        indices, *_ = (tmp_path / "graph").glob("indices-*.npy")
        flip(indices, indices.stat().st_size // 2)
        with pytest.warns(UserWarning, match="is kept"), pytest.raises(ArtifactError, match=indices.name):
            prepare(tmp_path / "graph", tmp_path / "packed", **SETTINGS, cpu_cache="10%")
        flip(indices, indices.stat().st_size // 2)
    reports = prepare(tmp_path / "graph", tmp_path / "packed", **SETTINGS, cpu_cache="10%")
    assert [report.stage for report in reports] == ["pack"]
    verify_artifact(tmp_path / "packed")


def test_kept_samples_are_never_replaced(graph, tmp_path):
    prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=tmp_path / "kept")
    before = verify_artifact(tmp_path / "kept").digest
    for out in ("packed", "other"):
        with pytest.raises(OutputExistsError, match=r"kept holds samples .* choose another `samples`"):
            prepare(graph, tmp_path / out, **{**SETTINGS, "seed": 6}, cpu_cache=0, samples=tmp_path / "kept",
                    overwrite=True)  # fmt: skip
    assert verify_artifact(tmp_path / "kept").digest == before
    assert names(tmp_path) == ["kept", "packed"]


@pytest.mark.parametrize("kept", [None, "kept"])
@pytest.mark.parametrize("point", ["sample.minibatch", "pack.header"])
def test_a_second_run_on_the_same_output_is_refused_without_advice(graph, tmp_path, kept, point):
    """It must not tell to remove what the first one works with."""
    samples, errors = kept and tmp_path / kept, []

    def second():
        if errors:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(BusyError, match="another process is preparing") as refused:
                prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=samples, overwrite=True)
        errors.append(refused.value)

    with faults.armed(point, second):
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=samples, threads=1)
    assert len(errors) == 1
    verify_artifact(tmp_path / "packed")


def test_a_run_that_keeps_samples_where_another_one_does_is_refused_without_advice(graph, tmp_path):
    errors = []

    def second():
        if not errors:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                with pytest.raises(BusyError, match="another process is writing") as refused:
                    prepare(graph, tmp_path / "other", **SETTINGS, cpu_cache=0, samples=tmp_path / "kept")
            errors.append(refused.value)

    with faults.armed("sample.minibatch", second):
        prepare(graph, tmp_path / "packed", **SETTINGS, cpu_cache=0, samples=tmp_path / "kept", threads=1)
    assert names(tmp_path) == ["kept", "packed"]
