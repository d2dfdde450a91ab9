"""Arguments that make no sense, or not with this directory."""

import pytest
import torch
from graphs import prepare_graph

from diskgnn.errors import ArtifactError, ConfigError
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
