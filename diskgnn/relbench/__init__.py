"""RelBench's scripts with their tables on disk: change imports, and keep the loop.

from diskgnn.relbench import NeighborLoader, make_pkey_fkey_graph
"""

from diskgnn.relbench.fresh_loaders import NeighborLoader
from diskgnn.relbench.key_graph import make_pkey_fkey_graph

__all__ = ["NeighborLoader", "make_pkey_fkey_graph"]
