"""What RelBench knows of the columns of a shop, and loops over it, for whichever version of RelBench is installed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_frame import stype
from torch_geometric.data import HeteroData

from diskgnn import relbench

# As `get_stype_proposal` would say, which samples rows with NumPy's global state.
KINDS = {
    "customer": {"customer_id": stype.numerical, "joined": stype.timestamp, "age": stype.numerical,
                 "city": stype.categorical, "member": stype.categorical},
    "product": {"product_id": stype.numerical, "price": stype.numerical, "title": stype.text_embedded,
                "tags": stype.multicategorical, "grade": stype.categorical, "shape": stype.embedding},
    "review": {"review_id": stype.numerical, "customer_id": stype.numerical, "product_id": stype.numerical,
               "written": stype.timestamp, "rating": stype.numerical, "text": stype.text_embedded,
               "bought": stype.timestamp},
    "gift": {"customer_id": stype.numerical, "product_id": stype.numerical},
}  # fmt: skip


class Hashed:
    """Embeds text in 8 numbers that differ from text to text."""

    def __call__(self, texts: list[str]) -> torch.Tensor:
        assert all(isinstance(text, str) for text in texts)
        found = [np.frombuffer(hashlib.blake2b(text.encode(), digest_size=16).digest(), np.int16) for text in texts]
        return torch.from_numpy(np.stack(found).astype(np.float32) / 32768)


def entity_batches(data: HeteroData, table_inputs: list[Any], cache: Path) -> list[HeteroData]:
    """As gnn_entity.py has them, of one split after the other."""
    loaders = [
        relbench.NeighborLoader(data, [-1, -1], time_attr="time", input_nodes=each.nodes, input_time=each.time,
                                transform=each.transform, batch_size=64, cache=cache, progress=False)
        for each in table_inputs
    ]  # fmt: skip
    return [batch for loader in loaders for batch in loader]


def recommendation_batches(data: HeteroData, table_input: Any, cache: Path) -> list[HeteroData]:
    """As idgnn_recommendation.py has them, then those of gnn_recommendation.py."""
    of_sources = relbench.NeighborLoader(
        data, [-1, -1], time_attr="time", input_nodes=table_input.src_nodes, input_time=table_input.src_time,
        subgraph_type="bidirectional", batch_size=64, cache=cache, progress=False,
    )  # fmt: skip
    of_links = relbench.LinkNeighborLoader(
        data, [4, 2], table_input.src_nodes, table_input.dst_nodes, table_input.num_dst_nodes, table_input.src_time,
        share_same_time=True, time_attr="time", batch_size=8, cache=cache, seed=0, progress=False,
    )  # fmt: skip
    found = [*of_sources, *(part for parts in of_links for part in parts)]
    of_links.close()
    return found
