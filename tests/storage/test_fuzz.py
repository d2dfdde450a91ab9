"""The targets of tools/fuzz.py refuse or accept, and never crash: on sound files, on all inputs that ever found a bug
(tests/corpus/), and on sound files with a few bytes changed.
"""

from __future__ import annotations

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
