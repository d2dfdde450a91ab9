"""Notebooks run from the first cell to the last, show their pictures, and are kept without outputs."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")
ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # where it makes its data
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    spec = importlib.util.spec_from_file_location("run_notebook", ROOT / "tools" / "run_notebook.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    pictures = tool.run(notebook)
    assert len(pictures) == len(list((ROOT / "docs" / "pictures").glob(f"{notebook.stem}-*.svg"))) == 2
    assert all(len(list(ElementTree.fromstring(picture).iter())) > 50 for picture in pictures)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_kept_without_outputs(notebook: Path):
    cells = json.loads(notebook.read_text())["cells"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells if "outputs" in cell)
