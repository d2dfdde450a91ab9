"""A path that begins with `~` is in a home directory for every public function, as it is for a shell."""

from pathlib import Path

import numpy as np
import pytest

import diskgnn
from diskgnn.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where `~` is: beside the folder in which the test runs, which stays empty."""
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    random, home = np.random.default_rng(0), tmp_path / "home"
    arrays = {"edges": random.integers(0, 60, (2, 300)), "labels": random.integers(0, 3, 60), "nodes": np.arange(5),
              "x": random.random((60, 4), np.float32)}  # fmt: skip
    for name, array in {**arrays, "train": np.arange(40), "test": np.arange(40, 60)}.items():
        np.save(home / f"{name}.npy", array)
    arrays["x"].tofile(home / "x.bin")
    return home


def test_all_that_is_read_and_written_lies_there(home: Path, tmp_path: Path):
    given = {name: f"~/{name}.npy" for name in ("edges", "labels", "train", "test")}
    diskgnn.convert("~/graph", features="raw:float32:4:~/x.bin", **given)
    (home / "graph.yaml").write_text("nodes: {a: {features: ~/x.npy}}\nedges: {'a:to:a': {edges: ~/edges.npy}}\n")
    diskgnn.convert(Path("~/typed"), schema="~/graph.yaml")
    diskgnn.convert("~/referring", edges="~/edges.npy", features="~/x.npy", reference_features=True)
    (home / "x.npy").rename(home / "moved.npy")
    diskgnn.relink("~/referring", "~/moved.npy")
    drawing = {"fanouts": [2], "batch_size": 8}
    diskgnn.sample("~/graph", "~/samples", **drawing)
    diskgnn.pack("~/graph", "~/samples", "~/twice", cpu_cache=0)
    diskgnn.prepare("~/graph", "~/packed", samples="~/kept", cpu_cache=0, **drawing)
    diskgnn.train("~/packed", hidden=4, epochs=1, checkpoint="~/run", metrics="~/new/metrics", trace="~/trace")
    assert (
        diskgnn.evaluate("~/run", "~/packed").accuracy
        == diskgnn.evaluate(diskgnn.load_model(home / "run"), home / "packed").accuracy
    )
    diskgnn.infer("~/graph", "~/all.npy", "~/run", nodes="~/nodes.npy")
    diskgnn.predict("~/graph", "~/some.npy", "~/run", nodes="~/nodes.npy")
    np.testing.assert_allclose(np.load(home / "all.npy"), np.load(home / "some.npy"), rtol=1e-4, atol=1e-5)
    for name in ("typed", "referring", "samples", "twice", "packed", "kept", "run", "new/metrics", "trace"):
        assert (home / name).exists(), name
    assert not [*(tmp_path / "here").iterdir()]


def test_the_name_of_no_user_is_a_name(home: Path):
    np.save("~nobody-has-this-name.npy", np.load(home / "edges.npy"))
    diskgnn.convert(home / "graph", edges="~nobody-has-this-name.npy", features=home / "x.npy")
    assert diskgnn.Graph.open("~/graph").num_edges == 300


@pytest.mark.parametrize("argument", ["checkpoint", "metrics", "tensorboard", "trace"])
def test_outputs_of_training_are_no_urls(argument: str):
    with pytest.raises(ConfigError, match=f"{argument} needs a path of this machine, found s3://bucket/run"):
        diskgnn.train("packed", **{argument: "s3://bucket/run"})
