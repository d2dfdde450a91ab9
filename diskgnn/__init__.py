"""Train graph neural networks from disk at the speed of its sequential bandwidth."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, DiskFullError, DiskGNNError, InputError

if TYPE_CHECKING:
    from diskgnn.graph import Graph
    from diskgnn.minibatch import BatchSource, Block, MiniBatch

__version__ = "0.1.0"

# Public names and their modules. Imported when first used: torch takes seconds, and most commands do without it.
_MODULES = {
    "BatchSource": "minibatch",
    "Block": "minibatch",
    "Graph": "graph",
    "MiniBatch": "minibatch",
}

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


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
