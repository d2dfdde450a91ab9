"""Extents of many chunks, whose rows several threads move while the user keeps the loader waiting."""

import numpy as np
import pytest
from graphs import bits_of, make_graph, prepare_graph
from packed_directories import flip

from diskgnn.errors import ArtifactError
from diskgnn.formats.packed import Packed
from diskgnn.loading.loader import Loader

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
SPLITS = {"train": 600, "valid": 1, "test": 1}


@pytest.fixture(params=[2048, 2039])  # whole cache lines, and rows that begin within one
def wide(request, tmp_path):
    """Three minibatches a cycle of at least 5 MB of rows."""
    graph = make_graph(tmp_path / "graph", num_nodes=900, width=request.param, splits=SPLITS)
    return graph, prepare_graph(graph, tmp_path, fanouts=(5, 5), batch_size=200, epochs=1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("verify", [True, False])
def test_rows_are_those_of_the_graph(wide, threads, verify):
    graph, packed = wide
    index = Packed.open(packed).index("train")
    assert index.rows["num_rows"].min() * graph.feature_file.row_bytes > 5_000_000
    with Loader(packed, threads=threads, verify=verify) as loader:
        for epoch in range(3):
            for batch in loader.epoch(epoch):
                expected = np.ascontiguousarray(graph.features[batch.input_nodes.numpy()])
                assert bits_of(batch) == expected.tobytes()


def test_a_flipped_bit_in_any_chunk_is_noticed(wide):
    _, packed = wide
    index = Packed.open(packed).index("train")
    first = int(index.extents["offset"][1] + index.rows["rows_offset"][1, 0])
    for offset in (0, 1_500_000, 4_999_999):
        flip(packed / "train.bin", first + offset)
        with Loader(packed, threads=3) as loader, pytest.raises(ArtifactError, match=r"extent 1 .*rows"):
            list(loader.epoch(0))
        flip(packed / "train.bin", first + offset)
