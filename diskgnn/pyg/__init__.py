"""PyG's loaders, with features and sampled neighbourhoods on disk: change one import, and keep the loop.

from diskgnn.pyg import NeighborLoader, LinkNeighborLoader
"""

from diskgnn.pyg.loaders import LinkNeighborLoader, NeighborLoader

__all__ = ["LinkNeighborLoader", "NeighborLoader"]
