"""Train graph neural networks from disk at the speed of its sequential bandwidth."""

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, DiskFullError, DiskGNNError, InputError
from diskgnn.graph import Graph
from diskgnn.minibatch import BatchSource, Block, MiniBatch

__version__ = "0.1.0"

__all__ = [
    "ArtifactError",
    "BatchSource",
    "Block",
    "ConfigError",
    "DataWarning",
    "DiskFullError",
    "DiskGNNError",
    "Graph",
    "InputError",
    "MiniBatch",
]
