from itertools import chain

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from diskgnn import Block, MiniBatch


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    num_dst = draw(st.integers(1, 5))
    num_src = num_dst + draw(st.integers(0, 5))
    lists = draw(
        st.lists(st.lists(st.integers(0, num_src - 1), max_size=4, unique=True), min_size=num_dst, max_size=num_dst)
    )
    indptr = np.cumsum([0, *map(len, lists)], dtype=np.int32)
    indices = np.array(list(chain(*lists)), dtype=np.int32)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src)


@given(blocks())
def test_edges_by_source_are_the_transpose_that_scipy_makes(block: Block):
    numbers = np.arange(block.num_edges)  # each edge carries its own number through the conversion
    by_destination = sparse.csr_matrix(
        (numbers + 1, block.indices.numpy(), block.indptr.numpy()), shape=(block.num_dst, block.num_src)
    )
    by_source = by_destination.tocsc()
    assert np.array_equal(block.by_source.indptr, by_source.indptr)
    assert np.array_equal(block.by_source.destinations, by_source.indices)
    assert np.array_equal(block.by_source.edges, by_source.data - 1)
    assert np.array_equal(block.destinations, by_destination.tocoo().row)
    assert np.array_equal(block.in_degrees, np.diff(by_destination.indptr))
    assert np.array_equal(block.out_degrees, np.diff(by_source.indptr))
    derived = (block.destinations, block.in_degrees, block.out_degrees, *block.by_source[:2])
    assert all(tensor.dtype == torch.int32 for tensor in derived)


def test_duplicate_edges_are_kept():
    block = Block(torch.tensor([0, 3, 4]), torch.tensor([2, 0, 2, 2]), 3)
    assert block.by_source.indptr.tolist() == [0, 1, 1, 4]
    assert block.by_source.destinations.tolist() == [0, 0, 0, 1]
    assert block.by_source.edges.tolist() == [1, 0, 2, 3]


def test_to_moves_every_tensor():
    block = Block(torch.tensor([0, 1]), torch.tensor([1]), 2)
    batch = MiniBatch(
        x=torch.zeros(2, 3),
        y=torch.zeros(1, dtype=torch.int64),
        blocks=(block,),
        seeds=torch.tensor([7]),
        epoch=4,
        batch_index=5,
        input_nodes=torch.tensor([7, 9]),
    )
    moved = batch.to("meta")
    tensors = (moved.x, moved.y, moved.seeds, moved.input_nodes, moved.blocks[0].indptr, moved.blocks[0].indices)
    assert all(tensor.device.type == "meta" for tensor in tensors)
    assert (moved.epoch, moved.batch_index, moved.blocks[0].num_src) == (4, 5, 2)
