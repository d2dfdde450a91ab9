"""What caches mean in rows."""

import subprocess
import sys
from pathlib import Path

import pytest

from diskgnn.errors import ConfigError
from diskgnn.files import faults
from diskgnn.formats.row_format import FeatureFile, RowFormat
from diskgnn.packing.pack import pack
from diskgnn.packing.tiers import TierBudgets, TierRows
from diskgnn.specs.caches import CacheSpec, cache_rows
from diskgnn.system.resources import Resources

MANY_ROWS = FeatureFile(Path("features.npy"), 128, 1 << 40, RowFormat("int8", 100))


def rows_of(cache, features, memory_bytes):
    """Where all rows are those of one file."""
    return TierBudgets.of(cache, [features], Resources(memory_bytes, 1)).rows_of(features)


@pytest.mark.parametrize(
    ("cache", "rows"),
    [(0, 0), (100, 1), (250, 2), ("1KiB", 10), ("1GiB", 50), ("0%", 0),
     ("10%", 5), ("100%", 50), (" 9 % ", 4)],
)  # fmt: skip
def test_sizes_of_caches(cache, rows):
    assert cache_rows(cache, 100, 50) == rows


@pytest.mark.parametrize("cache", ["101%", "-1%", "%", "ten%", "nan%", -1, "", "5 rows"])
def test_bad_sizes_of_caches(graph, samples, tmp_path, cache):
    with pytest.raises(ConfigError, match=r"^cpu_cache: expected a"):
        pack(graph, samples, tmp_path / "packed", cpu_cache=cache)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cache", ["10", 5, 99, "1.5", "99B"])
def test_a_size_without_room_for_a_row_is_refused(cache):
    """Who writes 10 for 10% is told so; before, the cache silently had no rows."""
    message = (
        rf"0 or of at least one row \(100 bytes\), found '?{cache}'?, which is in bytes: write 10% .* such as 2GiB"
    )
    with pytest.raises(ConfigError, match=message):
        cache_rows(cache, 100, 50)


def test_tiers_of_a_spec():
    assert rows_of(CacheSpec(1000, 250), MANY_ROWS, 0) == TierRows(static=2, train=10, valid=2, test=2)
    tiers = rows_of(CacheSpec(1000, 0, 700), MANY_ROWS, 0)
    assert (tiers.cpu("train"), tiers.cpu("valid"), tiers.cpu("test")) == (10, 7, 7)


@pytest.mark.parametrize(
    ("free_bytes", "memory_bytes", "rows"),
    [(1000, 1 << 40, 5), (1 << 40, 4000, 10), (1 << 40, 1 << 40, (4 << 30) // 100), (0, 1 << 40, 0), (198, 1 << 40, 0)],
)
def test_automatic_static_rows(free_bytes, memory_bytes, rows):
    with faults.pretending("gpu.free", free_bytes):
        assert rows_of(CacheSpec(0), MANY_ROWS, memory_bytes).static == rows


def test_static_rows_are_for_gpus():
    torch = pytest.importorskip("torch")
    assert (rows_of(CacheSpec(0), MANY_ROWS, 1 << 40).static > 0) == torch.cuda.is_available()


def test_torch_is_not_imported_for_nothing(graph, samples, tmp_path):
    """It takes seconds; without a driver there is no GPU to give rows to."""
    script = """
import ctypes, sys
from diskgnn import pack
library = ctypes.CDLL
def no_driver(name):
    if name is None:  # the process itself
        return library(name)
    raise OSError(name)
ctypes.CDLL = no_driver
pack(*sys.argv[1:], cpu_cache=0)
sys.exit("torch" in sys.modules)
"""
    subprocess.run(
        [sys.executable, "-c", script, graph.manifest.path, samples.manifest.path, tmp_path / "packed"], check=True
    )
