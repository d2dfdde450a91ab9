"""Memory for x: used again when nobody holds it, and never before."""

import tracemalloc

import numpy as np
import pytest
import torch
from graphs import make_graph

from diskgnn.baselines.in_memory import InMemory
from diskgnn.baselines.row_buffers import MAX_FREE, RowBuffers
from diskgnn.formats.row_format import RowFormat


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_memory_is_used_again_when_the_last_view_is_dropped(dtype):
    buffers = RowBuffers(RowFormat(dtype, 3))
    x, x_bytes = buffers.take(100)
    assert (x.shape, x.dtype) == ((100, 3), getattr(torch, dtype))
    assert x_bytes.nbytes == x.numel() * x.element_size()
    x_bytes[:] = 1
    address = x.data_ptr()
    assert address == x_bytes.ctypes.data
    part, as_numpy = x[50:, 1], x.view(torch.int8).numpy()
    del x
    assert buffers.take(100)[0].data_ptr() != address
    del part
    assert buffers.take(100)[0].data_ptr() != address
    assert (as_numpy == 1).all()
    del as_numpy
    taken = [buffers.take(number)[0] for number in (1, 100)]
    assert address in [tensor.data_ptr() for tensor in taken]


def test_what_is_too_small_makes_room_for_larger_and_few_stay_free():
    buffers = RowBuffers(RowFormat("float32", 7))
    small = buffers.take(10)[0].data_ptr()
    larger, _ = buffers.take(12)  # a little larger fits
    assert larger.data_ptr() == small
    tracemalloc.start()
    kept = [buffers.take(10_000)[0] for _ in range(3 * MAX_FREE)]
    buffer_bytes = tracemalloc.get_traced_memory()[0] // (3 * MAX_FREE)
    assert len({tensor.data_ptr() for tensor in kept}) == 3 * MAX_FREE
    del kept
    assert round(tracemalloc.get_traced_memory()[0] / buffer_bytes) == MAX_FREE
    buffers.clear()
    assert round(tracemalloc.get_traced_memory()[0] / buffer_bytes) == 0
    tracemalloc.stop()
    assert buffers.take(0)[0].shape == (0, larger.shape[1])


def test_minibatches_that_are_kept_stay_as_they_are(tmp_path):
    graph = make_graph(tmp_path / "graph")
    with InMemory(graph, fanouts=[3, 2], batch_size=4, threads=2) as source:
        kept = [batch for epoch in range(3) for batch in source.epoch(epoch)]
        addresses = set()
        for batch in source.epoch(3):
            addresses.add(batch.x.data_ptr())
    for batch in kept:
        expected = np.asarray(graph.features)[batch.input_nodes.numpy()]
        assert batch.x.numpy().tobytes() == expected.tobytes()
    assert addresses.isdisjoint(batch.x.data_ptr() for batch in kept)
