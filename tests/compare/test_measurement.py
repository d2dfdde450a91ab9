"""Commands that are measured, against what they were told to do."""

import sys
import time

import pytest

from diskgnn.compare.measurement import Measurement, median_and_spread, run, run_in_turns
from diskgnn.errors import DiskGNNError
from diskgnn.system.memory_cgroup import refusal

needs_cgroup = pytest.mark.skipif(bool(refusal()), reason="this process may make no memory cgroup")
TAKES_MEMORY = "taken = bytearray(64 << 20); taken[::4096] = b'x' * len(taken[::4096])"


def python(name, source, **more):
    return Measurement(name, [sys.executable, "-c", source], **more)


def test_what_a_command_takes_and_says():
    source = (
        f"{TAKES_MEMORY}\nimport time; began = time.process_time()\nwhile time.process_time() < began + 0.2: pass\n"
    )
    began = time.perf_counter()
    found = run(python("busy", source + "print('a line'); print('{\"rows\": 3}')", watched=True))
    assert (found.exit_code, found.figures) == (0, {"rows": 3})
    assert found.cpu_seconds >= 0.2
    assert 0.2 <= found.seconds <= time.perf_counter() - began
    assert found.resident_bytes > 64 << 20
    assert 64 << 20 < found.anonymous_bytes <= found.resident_bytes
    assert found.peak_bytes is None


@pytest.mark.parametrize("indent", [None, 1])
def test_figures_are_what_a_command_prints_as_json(indent):
    """Of one stage or, as `prepare --json` has it, of several; on a line of its own behind others, or as a document."""
    stages = [{"stage": "sample", "seconds": 1}, {"stage": "pack", "seconds": 2}]
    for printed, expected in ((stages[0], stages[0]), (stages, {"0": stages[0], "1": stages[1]})):
        source = f"import json; print(json.dumps({printed!r}, indent={indent}))"
        assert run(python("one", source)).figures == expected


def test_a_command_that_fails_has_no_figures():
    found = run(python("broken", "import sys; sys.exit('this is why')", watched=True))
    assert found.exit_code == 1
    with pytest.raises(DiskGNNError, match="broken ended with code 1 this is why"):
        _ = found.figures


@needs_cgroup
def test_a_command_keeps_to_its_limit_or_is_killed():
    within = run(python("within", TAKES_MEMORY, limit_bytes=256 << 20))
    assert (within.exit_code, within.oom_kills) == (0, 0)
    assert 64 << 20 < within.peak_bytes <= 256 << 20
    beyond = run(python("beyond", TAKES_MEMORY, limit_bytes=32 << 20))
    assert (beyond.exit_code, beyond.oom_kills) == (-9, 1)


def test_turns_alternate():
    order = []
    both = [python(name, f'print(\'{{"name": "{name}"}}\')') for name in ("one", "other")]
    found = run_in_turns(both, 2, before=lambda: order.append("cold"))
    assert {name: [each.figures["name"] for each in turns] for name, turns in found.items()} == {
        "one": ["one", "one"], "other": ["other", "other"],
    }  # fmt: skip
    assert order == ["cold"] * 4


def test_the_spread_is_told():
    assert median_and_spread([1.5301, 2.1, 1.49]) == "1.53 (1.49 to 2.1)"
    assert median_and_spread([7.0]) == "7"
