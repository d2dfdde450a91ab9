"""The targets of tools/fuzz.py refuse or accept, and never crash: on sound files, on all inputs that ever found a bug
(tests/corpus/), and on sound files with a few bytes changed. So do those of tools/fuzz_native, where it has built them
from what native/ holds now.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from fuzz_targets import TARGETS, sound_inputs  # noqa: E402


@pytest.fixture(scope="module")
def sound() -> dict[str, list[bytes]]:
    return sound_inputs()


@pytest.mark.parametrize("name", TARGETS)
def test_targets_neither_crash_nor_raise(name: str, sound: dict[str, list[bytes]]) -> None:
    assert all(map(TARGETS[name], sound[name]))
    inputs = [*sound[name], *(path.read_bytes() for path in sorted((ROOT / "tests" / "corpus" / name).glob("*"))), b""]
    random = np.random.default_rng(1)
    for data in inputs:
        TARGETS[name](data)
        for _ in range(40 if data else 0):
            changed = np.frombuffer(data, np.uint8).copy()
            changed[random.integers(0, len(changed), random.integers(1, 4))] = random.integers(0, 256)
            TARGETS[name](changed.tobytes())


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "native" / "fuzz").glob("*.cpp")))
def test_native_targets_neither_crash_nor_break_a_promise(name: str, tmp_path: Path) -> None:
    target = ROOT / "build" / "fuzz" / name
    built = target.stat().st_mtime if target.exists() else 0.0
    if any(path.stat().st_mtime > built for path in (ROOT / "native").rglob("*") if path.is_file()):
        pytest.skip("it is older than its sources, or not there: tools/fuzz_native build makes it, with clang")
    known = [
        path for path in (ROOT / "build" / "fuzz" / "seeds" / name, ROOT / "tests" / "corpus" / name) if path.is_dir()
    ]
    done = subprocess.run(
        [target, tmp_path, *known, "-runs=2000", "-seed=1", f"-artifact_prefix={tmp_path}/"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
