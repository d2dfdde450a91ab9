"""Train graph neural networks from disk at the speed of its sequential bandwidth."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ArtifactError, ConfigError, DataWarning, DiskFullError, DiskGNNError, InputError

if TYPE_CHECKING:
    from diskgnn.evaluation import evaluate
    from diskgnn.generation import generate
    from diskgnn.graph import Graph
    from diskgnn.importers import convert
    from diskgnn.loader import Loader
    from diskgnn.minibatch import BatchSource, Block, MiniBatch
    from diskgnn.packing import pack
    from diskgnn.preparation import estimate, prepare
    from diskgnn.sampling import sample
    from diskgnn.training import train

__version__ = "0.1.0"

# Public names and their modules. Imported when first used: torch takes seconds, and most commands do without it.
_MODULES = {
    "BatchSource": "minibatch",
    "Block": "minibatch",
    "Graph": "graph",
    "Loader": "loader",
    "MiniBatch": "minibatch",
    "convert": "importers",
    "estimate": "preparation",
    "evaluate": "evaluation",
    "generate": "generation",
    "pack": "packing",
    "prepare": "preparation",
    "sample": "sampling",
    "train": "training",
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
    "Loader",
    "MiniBatch",
    "convert",
    "estimate",
    "evaluate",
    "generate",
    "pack",
    "prepare",
    "sample",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Also the names that were not used yet, for tab completion."""
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "import_module"})
