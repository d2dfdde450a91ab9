"""RelBench's scripts with their tables on disk: change imports, and keep the loop.

from diskgnn.relbench import NeighborLoader
"""

from diskgnn.relbench.fresh_loaders import NeighborLoader

__all__ = ["NeighborLoader"]
