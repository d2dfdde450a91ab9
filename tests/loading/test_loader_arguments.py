"""Arguments that make no sense, or not with this directory."""

import pytest
import torch
from graphs import prepare_graph

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files import faults
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"split": "test"}, ArtifactError, "'test'"),
        ({"engine": "aio"}, ConfigError, "engine"),
        ({"prefetch": 0}, ConfigError, "prefetch"),
        ({"threads": 0}, ConfigError, "threads"),
        ({"prefetch": 2.5}, ConfigError, "prefetch: expected a whole number, found 2.5"),
        ({"threads": "2"}, ConfigError, "threads: expected a whole number, found '2'"),
        ({"device_cache": "lots"}, ConfigError, "size"),
        ({"device_cache": -1}, ConfigError, "size"),
    ],
)
def test_arguments_are_checked(packed, arguments, error, message):
    with pytest.raises(error, match=message), Loader(packed, **arguments) as loader:
        list(loader.epoch(0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there(packed):
    with pytest.raises(ConfigError, match="CUDA"):
        Loader(packed, device="cuda")


def test_caches_without_static_rows_are_warned_of(graph, tmp_path):
    packed = prepare_graph(graph, tmp_path, epochs=1, static_cache=0)
    with Loader(packed, device_cache="1MiB") as loader, pytest.warns(UserWarning, match="static"):
        next(loader.epoch(0))


def test_a_cache_beyond_what_the_process_may_have_is_told_and_refused(graph, tmp_path):
    """The kernel would kill the process, without a message."""
    with faults.pretending("memory.limit", 1 << 10):
        with pytest.warns(UserWarning, match="cpu_cache: expected less than the 1.0 KiB that a process may have"):
            packed = prepare_graph(graph, tmp_path, epochs=1, cpu_cache="50%")
        expected = r"the cpu cache of .*packed: expected at most 0 B, which is what .* smaller `cpu_cache`"
        with pytest.raises(ConfigError, match=expected), Loader(packed) as loader:
            list(loader.epoch(0))
    with Loader(packed) as loader:
        assert sum(1 for _ in loader.epoch(0)) == len(loader)
