"""Small graphs as PyG has them."""

from __future__ import annotations

import torch
from torch_geometric.data import Data, HeteroData

FROM, BACK = ("user", "rates", "item"), ("item", "rev_rates", "user")


def one_type(num_nodes: int = 120, num_edges: int = 900) -> Data:
    """A graph with an attribute of every sort."""
    random = torch.Generator().manual_seed(3)
    return Data(
        x=torch.randn(num_nodes, 6, generator=random), y=torch.randint(0, 3, (num_nodes,), generator=random),
        edge_index=torch.randint(0, num_nodes, (2, num_edges), generator=random),
        edge_attr=torch.randn(num_edges, 2, generator=random),
        edge_weight=torch.rand(num_edges, generator=random) + 0.1,
        train_mask=torch.rand(num_nodes, generator=random) < 0.4, token=torch.arange(num_nodes) * 7,
        time=torch.randint(0, 30, (num_nodes,), generator=random), name="graph",
    )  # fmt: skip


def two_types() -> HeteroData:
    """Users without features rate items, at times."""
    random = torch.Generator().manual_seed(4)
    data = HeteroData()
    data["user"].num_nodes = 40
    data["item"].x = torch.randn(60, 5, generator=random).bfloat16()
    data["item"].y = torch.randint(0, 2, (60,), generator=random)
    ends = torch.randint(0, 40, (500,), generator=random), torch.randint(0, 60, (500,), generator=random)
    data[FROM].edge_index, data[BACK].edge_index = torch.stack(ends), torch.stack(ends[::-1])
    data[FROM].edge_attr = torch.randn(500, 3, generator=random)
    data[FROM].time = data[BACK].time = torch.randint(0, 50, (500,), generator=random)
    return data
