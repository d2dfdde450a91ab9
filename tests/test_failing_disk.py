"""A disk that fails, below each input and at each kind of write of each stage: the error names the file, nothing is
lost, nothing hangs, and the next run makes what an undisturbed one makes. tools/torture does so at length.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from torturing.children import in_child
from torturing.disks import run_on_failing_disk
from torturing.stages import make_inputs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the library that fails"),
]
# Of stages that read and write alike, one. What `convert` reads is mapped: docs/RELIABILITY.md says so.
WAYS = {
    "reads": ("reads/sample links", "reads/pack", "reads/infer", "reads/load", "reads/push"),
    "writes": ("writes/convert", "writes/sample", "writes/pack", "writes/infer", "writes/repair"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing") / "inputs"
    made = in_child(lambda: make_inputs(folder))
    assert made.ended, made
    return folder


@pytest.mark.parametrize("kind", WAYS)
def test_a_failing_disk_is_named_and_a_recovering_one_is_not_noticed(inputs: Path, tmp_path: Path, kind: str) -> None:
    found = list(run_on_failing_disk(inputs, tmp_path, 0, 1, WAYS[kind]))
    assert {each.stage.replace(" of ", "/") for each in found} == set(WAYS[kind])
    assert len(found) > 8 * len(WAYS[kind])
    assert not [each for each in found if each.failure]
