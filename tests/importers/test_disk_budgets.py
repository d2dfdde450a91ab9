"""`disk` of convert and generate beside what `du` sees: bytes of files and folders, at every point of the way."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run_python

from diskgnn import convert, generate, generate_typed
from diskgnn.errors import DiskFullError
from diskgnn.files import faults

NODES, EDGES = 3000, 90_000
POINTS = ("artifact.write", "artifact.sync", "shuffle.write", "unit.written", "work.piece")


def du(folder: Path) -> int:
    """Bytes that are allocated for the files in a folder; files may go while it looks."""
    total = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                total += Path(parent, file).stat().st_blocks * 512
            except FileNotFoundError:
                continue
    return total


@contextmanager
def watched(folder: Path) -> Iterator[list[int]]:
    """What `du` sees at each point."""
    seen: list[int] = [0]
    with ExitStack() as stack:
        for point in POINTS:
            stack.enter_context(faults.armed(point, lambda: seen.append(du(folder))))
        yield seen


def saved(folder: Path, arrays: dict[str, Any]) -> dict[str, Any]:
    """Where each array lies, as another process is told."""
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: str(folder / f"{name}.npy") for name in arrays}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[..., object]]:
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    np.save(folder / "edges.npy", rng.integers(0, NODES, (2, EDGES)))
    np.save(folder / "features.npy", rng.random((NODES, 300), np.float32))
    nodes: dict[str, Any] = {"labels": np.arange(NODES) % 3, "train": np.arange(100)}
    plain = {"edges": folder / "edges.npy", "features": folder / "features.npy", **nodes}
    carried = {"edges": folder / "edges.npy", "weights": rng.random(EDGES), "keep_ids": True,
               "features": rng.random((EDGES, 20), np.float32)}  # fmt: skip
    names = pa.array([f"node/{n:x}" for n in rng.permutation(1 << 24)[:NODES]])
    ends = {end: names.take(pa.array(rng.integers(0, NODES, EDGES))) for end in ("src", "dst")}
    pq.write_table(pa.table(ends), folder / "edges.parquet")
    small = {"memory": "2MiB"}
    sizes: Any = {"num_nodes": NODES, "avg_degree": 30, "num_classes": 4, "num_features": 300, "homophily": 0.7,
                  "train_fraction": 0.1, "valid_fraction": 0, "test_fraction": 0}  # fmt: skip
    typed = {"classes": 4, "nodes": {"a": {"num_nodes": NODES, "features": 200, "labels": "class", "train": 0.1}},
             "edges": {"a:to:a": {"num_edges": EDGES, "weights": True, "features": 12}}}  # fmt: skip
    schema = {"nodes": {"n": {"num_nodes": NODES}}, "edges": {"n:to:n": carried}}
    return {
        "edges": lambda out, **given: convert(out, **plain, **small, **given),
        "quantised": lambda out, **given: convert(out, **plain, quantise="int8", **small, **given),
        "carried": lambda out, **given: convert(out, schema=schema, **small, **given),
        "ids": lambda out, **given: convert(
            out, edges=folder / "edges.parquet", features=folder / "features.npy", ids=np.array(names.to_pylist()),
            labels=nodes["labels"], train=np.array(names[:100].to_pylist()), **small, **given,
        ),
        "generate": lambda out, **given: generate(out, **sizes, memory="6MiB", **given),
        "typed": lambda out, **given: generate_typed(out, typed, memory="6MiB", **given),
    }  # fmt: skip


@pytest.mark.parametrize("units", [False, True], ids=["whole", "units"])
@pytest.mark.parametrize("kind", ["edges", "quantised", "carried", "ids", "generate", "typed"])
def test_no_more_is_taken_than_is_allowed(
    sources: dict[str, Callable[..., object]], tmp_path: Path, kind: str, units: bool
) -> None:
    make, out = sources[kind], tmp_path / "out"
    out.mkdir()
    with faults.pretending("unit.bytes", 100_000 if units else 1 << 40):
        with watched(out) as seen:
            make(out / "free")
        peak = max(*seen, du(out / "free"))
        # What it says that it needs is what it takes, but for pages that files end in, journals and Arrow's footers.
        with (
            pytest.raises(DiskFullError, match=r"needs (at least|exactly) .* bytes are missing") as refusal,
            watched(out) as before,
        ):
            make(out / "refused", disk=str(peak // 2))
        assert max(before) - du(out / "free") <= peak // 2, refusal.value
        for entry in out.iterdir():
            assert entry.name == "free" or entry.name.startswith(".refused"), entry
        with watched(out) as during:
            make(out / "refused", disk=str(peak + peak // 10 + (256 << 10)))
        assert max(during) - du(out / "free") <= peak + peak // 10 + (256 << 10)
    assert (out / "refused" / "manifest.json").read_bytes() == (out / "free" / "manifest.json").read_bytes()


def test_what_a_killed_run_left_and_nobody_recorded_takes_nothing(tmp_path: Path) -> None:
    """So a budget that suffices without a kill suffices after it, too."""
    rng = np.random.default_rng(0)
    names = np.array([f"a node whose id is long/{n:032x}" for n in rng.permutation(1 << 24)[:NODES]])
    given: dict[str, Any] = {
        "edges": names[rng.integers(0, NODES, (2, EDGES // 3))], "ids": names, "train": names[:10],
        "features": np.ones((NODES, 1), np.float32), "labels": np.arange(NODES) % 3,
    }  # fmt: skip
    given = saved(tmp_path, given) | {"memory": "2MiB"}
    out = tmp_path / "out"
    out.mkdir()
    with watched(out) as seen:
        convert(out / "free", **given)
    program = f"""
import os
from diskgnn import convert
from diskgnn.files import faults
held, overhead = faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0)
with held, overhead, faults.armed("work.piece", lambda: os._exit(9), after=10):
    convert({str(out / "killed")!r}, **{given!r})
"""
    assert run_python("-c", program).returncode == 9
    margin = max(seen) // 10 + (256 << 10)
    assert du(out) - du(out / "free") > margin
    convert(out / "killed", **given, disk=str(max(seen) + margin))


def test_edges_that_a_killed_run_has_sorted_need_no_room_for_sorting(tmp_path: Path) -> None:
    """Their scratch is gone, while features that came after them lie there."""
    rng = np.random.default_rng(0)
    given: dict[str, Any] = {
        "edges": rng.integers(0, NODES, (2, EDGES)), "features": rng.random((NODES, 300), np.float32),
        "labels": np.arange(NODES) % 3, "train": np.arange(100),
    }  # fmt: skip
    given = saved(tmp_path, given) | {"memory": "800KiB"}
    out = tmp_path / "out"
    out.mkdir()
    convert(out / "free", **given)
    whole_bytes = du(out / "free")
    program = f"""
import os
from pathlib import Path
from diskgnn import convert
from diskgnn.files import faults

def look():
    if sum(path.stat().st_size for path in Path({str(out)!r}).glob(".killed*/features*")) > 3_500_000:
        os._exit(9)

held, overhead = faults.pretending("memory.held", 0), faults.pretending("memory.overhead", 0)
with held, overhead, faults.pretending("unit.bytes", 100_000), faults.armed("work.piece", look):
    convert({str(out / "killed")!r}, **{given!r})
"""
    assert run_python("-c", program).returncode == 9
    assert whole_bytes - (du(out) - whole_bytes) < 500_000 < EDGES * 8  # what is missing, beside scratch for sorting
    convert(out / "killed", **given, disk=str(whole_bytes + 400_000))
    assert (out / "killed" / "manifest.json").read_bytes() == (out / "free" / "manifest.json").read_bytes()
