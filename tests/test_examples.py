"""The examples run as written on a packed directory, and learn; the guide's files are there."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typed_batches import WRITES, TypedGraph
from typed_directories import write_typed_graph

import diskgnn
from diskgnn.specs import LinkTarget

os.environ.setdefault("DGLBACKEND", "pytorch")
ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
LINKS = "link_prediction"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight training minibatches of two layers, float16 features, three classes."""
    folder = tmp_path_factory.mktemp("examples")
    diskgnn.generate(
        folder / "graph", num_nodes=600, avg_degree=8, num_classes=3, num_features=8, feature_dtype="float16",
        homophily=0.8, train_fraction=0.5, valid_fraction=0.2, test_fraction=0.3,
    )  # fmt: skip
    diskgnn.prepare(
        folder / "graph", folder / "packed", fanouts=[4, 4], batch_size=40, epochs=2, cpu_cache="10%", static_cache=0,
        threads=1,
    )  # fmt: skip
    return folder / "packed"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.stem != LINKS], ids=lambda path: path.stem)
def test_examples_learn(path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip({"dgl_model": "dgl", "pyg_model": "torch_geometric"}.get(path.stem, "torch"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.manual_seed(0)
    load(path).main(str(packed), 10)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 11
    assert float(lines[-1].removeprefix("test accuracy ")) > 0.6  # chance is a third


def test_the_example_of_links_learns(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    graph = write_typed_graph(tmp_path / "graph", TypedGraph(dtype=torch.float32))
    target = LinkTarget(WRITES, negatives=2, eval_negatives=9)
    diskgnn.sample(graph, tmp_path / "samples", fanouts=[3, 2], batch_size=8, target=target)
    diskgnn.pack(graph, tmp_path / "samples", tmp_path / "packed", cpu_cache="20%", static_cache=0)
    torch.manual_seed(0)
    load(ROOT / "docs" / "examples" / f"{LINKS}.py").main(str(tmp_path / "packed"), 10)
    *epochs, last = capsys.readouterr().out.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in epochs]
    assert losses[-1] < losses[0] / 2
    assert 0 < float(last.removeprefix("test MRR ")) <= 1


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page: Path):
    links = [link for link in re.findall(r"\]\(([^)#]+)", page.read_text()) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_links_guide_and_examples():
    text = (ROOT / "README.md").read_text()
    for path in ("docs/GUIDE.md", *(f"docs/examples/{example.name}" for example in EXAMPLES)):
        assert f"]({path})" in text
