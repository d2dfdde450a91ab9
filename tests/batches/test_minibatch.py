from dataclasses import fields, replace
from itertools import chain

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from diskgnn import Block, MiniBatch, Pairs, TypedMiniBatch
from diskgnn.batches.blocks import tensors_of


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


BLOCK = Block(
    torch.tensor([0, 1]), torch.tensor([1]), 2, edge_ids=torch.tensor([40]), edge_x=torch.zeros(1, 4)
)  # fmt: skip
PAIRS = Pairs(torch.tensor([0]), torch.tensor([0]), torch.ones(1))
REST = {"y": torch.zeros(1, dtype=torch.int64), "seeds": torch.tensor([7]), "epoch": 4, "batch_index": 5}


def devices(batch: object) -> list[str]:
    return [tensor.device.type for tensor in tensors_of(batch)]


def test_to_moves_every_tensor():
    nodes = torch.tensor([7, 9])
    batch = MiniBatch(x=torch.zeros(2, 3), blocks=(BLOCK,), input_nodes=nodes, pairs=PAIRS, trees=nodes, **REST)
    moved = batch.to("meta")
    assert devices(batch) == ["cpu"] * 12
    assert devices(moved) == ["meta"] * 12
    assert (moved.epoch, moved.batch_index, moved.blocks[0].num_src) == (4, 5, 2)


def test_to_moves_every_tensor_of_every_type():
    nodes = {"paper": torch.tensor([7, 9]), "author": torch.tensor([3])}
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    batch = TypedMiniBatch(
        x={"paper": torch.zeros(2, 3)}, blocks=({writes: BLOCK, cites: BLOCK},), target=cites,
        node_counts=({"paper": 2, "author": 1}, {"paper": 1, "author": 0}), input_nodes=nodes, pairs=PAIRS,
        trees=nodes, **REST,
    )  # fmt: skip
    moved = batch.to("meta")
    assert devices(batch) == ["cpu"] * 18
    assert devices(moved) == ["meta"] * 18
    assert (moved.epoch, moved.batch_index, moved.target) == (4, 5, cites)
    assert moved.node_counts == batch.node_counts
    assert moved.blocks[0][writes].num_src == 2


def test_one_type_is_a_view_of_a_typed_minibatch():
    nodes, cites = torch.tensor([7, 9]), ("paper", "cites", "paper")
    batch = MiniBatch(x=torch.zeros(2, 3), blocks=(BLOCK,), input_nodes=nodes, trees=nodes, **REST)
    typed = batch.by_type("paper", cites)
    assert (typed.target, typed.node_counts) == ("paper", ({"paper": 2}, {"paper": 1}))
    assert typed.blocks == ({cites: BLOCK},)
    assert (typed.num_input_nodes, typed.num_edges) == (batch.num_input_nodes, batch.num_edges)
    assert replace(batch, pairs=PAIRS).by_type("paper", cites).target == cites
    back = typed.of_one_type()
    assert all(getattr(back, field.name) is getattr(batch, field.name) for field in fields(MiniBatch)
               if field.name != "blocks")  # fmt: skip
    assert back.blocks == batch.blocks


def test_a_minibatch_prints_as_its_sizes():
    blocks = (
        Block(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 0]), 3),
        Block(torch.tensor([0, 1]), torch.tensor([1]), 2, edge_ids=torch.tensor([7])),
    )
    batch = MiniBatch(torch.zeros(3, 4, dtype=torch.float16), torch.tensor([1]), blocks, torch.tensor([5]), 2, 8)
    assert str(batch).splitlines() == [
        "MiniBatch(epoch 2, minibatch 8: 1 seeds, 3 input nodes, 4 edges)",
        "  x: float16 [3, 4]",
        "  y: int64 [1]",
        "  blocks[0]: 3 sources, 2 destinations, 3 edges",
        "  blocks[1]: 2 sources, 1 destinations, 1 edges, with edge_ids",
    ]


def test_a_typed_minibatch_prints_as_its_sizes():
    cites, of = ("paper", "cites", "paper"), ("venue", "of", "paper")
    block, none = Block(torch.tensor([0, 1]), torch.tensor([1]), 2), Block(torch.tensor([0, 0]), torch.tensor([]), 0)
    batch = TypedMiniBatch(
        {"paper": torch.zeros(2, 4)}, None, ({cites: block, of: none},), ({"paper": 2, "venue": 0}, {"paper": 1}),
        torch.tensor([5]), "paper", 0, 0, pairs=Pairs(torch.tensor([0]), torch.tensor([0]), torch.tensor([1.0])),
    )  # fmt: skip
    assert str(batch).splitlines() == [
        "TypedMiniBatch(epoch 0, minibatch 0: 1 seeds, 2 input nodes, 1 edges)",
        "  x['paper']: float32 [2, 4]",
        "  blocks[0][('paper', 'cites', 'paper')]: 2 sources, 1 destinations, 1 edges",
        "  pairs: 1",
    ]


def test_what_a_minibatch_holds_prints_in_a_line():
    """However many nodes there are."""
    block = Block(torch.tensor([0, 2, 3]), torch.tensor([2, 1, 0]), 3)
    assert str(block) == "Block(num_src=3, num_dst=2, num_edges=3)"
    carrying = replace(block, edge_ids=torch.arange(3), edge_x=torch.zeros(3, 4))
    assert str(carrying) == "Block(num_src=3, num_dst=2, num_edges=3, edge_ids=[3], edge_x=[3, 4])"
    assert str(block.by_source) == "EdgesBySource(indptr=[4], destinations=[3], edges=[3])"
    assert str(PAIRS) == "Pairs(src=[1], dst=[1], label=[1])"
