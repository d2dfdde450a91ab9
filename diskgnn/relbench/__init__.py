"""RelBench's scripts with their tables on disk: change imports, and keep the loop.

from diskgnn.relbench import LinkNeighborLoader, NeighborLoader, make_pkey_fkey_graph
"""

from diskgnn.relbench.fresh_loaders import NeighborLoader
from diskgnn.relbench.key_graph import make_pkey_fkey_graph
from diskgnn.relbench.link_loader import LinkNeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader", "make_pkey_fkey_graph"]
