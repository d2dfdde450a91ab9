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
from torturing.disks import WAYS, run_on_failing_disk
from torturing.stages import make_inputs

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler for the library that fails")
# What convert is given is mapped: docs/RELIABILITY.md says so.
NOT_PROMISED = {"reads/convert", "reads/convert links", "reads/generate"}
SIMILAR = {"writes/convert links", "writes/sample, swept", "writes/sample links", "writes/prepare links",
           "reads/prepare", "reads/prepare links", "reads/sample", "reads/train"}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("failing") / "inputs"
    made = in_child(lambda: make_inputs(folder))
    assert made.ended, made
    return folder


@pytest.mark.parametrize("kind", ["reads", "writes"])
def test_a_failing_disk_is_named_and_a_recovering_one_is_not_noticed(inputs: Path, tmp_path: Path, kind: str) -> None:
    ways = [way for way in WAYS if way.startswith(kind) and way not in NOT_PROMISED | SIMILAR]
    found = list(run_on_failing_disk(inputs, tmp_path, 0, 1, ways))
    assert {each.stage.replace(" of ", "/") for each in found} == set(ways)
    assert len(found) > 8 * len(ways)
    assert not [each for each in found if each.failure]
