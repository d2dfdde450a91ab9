"""Train graph neural networks from disk at the speed of its sequential bandwidth."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError("diskgnn does not run on Windows itself: install it in WSL, Windows' own Linux (wsl --install)")

from diskgnn.errors import (
    ArtifactError,
    ConfigError,
    DataWarning,
    DiskFullError,
    DiskGNNError,
    DivergedError,
    InputError,
    OutputExistsError,
)
from diskgnn.version import VERSION

if TYPE_CHECKING:
    from diskgnn.batches.batch_source import BatchSource, LoadStats
    from diskgnn.batches.blocks import Block, Pairs
    from diskgnn.batches.hop_batch import HopBatch
    from diskgnn.batches.minibatch import MiniBatch, TypedMiniBatch
    from diskgnn.fresh.fresh_epochs import FreshEpochs
    from diskgnn.graph.generation import generate
    from diskgnn.graph.graph import Graph
    from diskgnn.graph.relinking import relink
    from diskgnn.importers.convert import EdgeInput, GraphInput, NodeInput, TableColumns, convert
    from diskgnn.importers.generating import generate_typed
    from diskgnn.importers.seed_tables import read_target
    from diskgnn.inference.infer import infer
    from diskgnn.inference.predict import predict
    from diskgnn.loading.hops_loader import HopsLoader
    from diskgnn.loading.hops_options import HopsOptions
    from diskgnn.loading.loader import Loader
    from diskgnn.loading.loader_options import LoaderOptions
    from diskgnn.packing.pack import pack
    from diskgnn.preparing.estimate import estimate
    from diskgnn.preparing.prepare import prepare
    from diskgnn.propagation.propagate import propagate
    from diskgnn.sampling.neighbourhood import Neighbourhood
    from diskgnn.sampling.sample import sample
    from diskgnn.specs.sampling import SamplingSpec
    from diskgnn.specs.targets import LinkTarget, NodeTarget
    from diskgnn.training.checkpoints import load_model
    from diskgnn.training.evaluate import evaluate
    from diskgnn.training.train import train
    from diskgnn.work.fetching import fetch
    from diskgnn.work.pushing import push

__version__ = VERSION

# Public names and their modules. Imported when first used: torch takes seconds, and most commands do without it.
_MODULES = {
    "BatchSource": "batches.batch_source",
    "Block": "batches.blocks",
    "EdgeInput": "importers.convert",
    "FreshEpochs": "fresh.fresh_epochs",
    "Graph": "graph.graph",
    "GraphInput": "importers.convert",
    "HopBatch": "batches.hop_batch",
    "HopsLoader": "loading.hops_loader",
    "HopsOptions": "loading.hops_options",
    "LoadStats": "batches.batch_source",
    "LinkTarget": "specs.targets",
    "Loader": "loading.loader",
    "LoaderOptions": "loading.loader_options",
    "MiniBatch": "batches.minibatch",
    "Neighbourhood": "sampling.neighbourhood",
    "NodeInput": "importers.convert",
    "NodeTarget": "specs.targets",
    "Pairs": "batches.blocks",
    "SamplingSpec": "specs.sampling",
    "TableColumns": "importers.convert",
    "TypedMiniBatch": "batches.minibatch",
    "convert": "importers.convert",
    "estimate": "preparing.estimate",
    "evaluate": "training.evaluate",
    "fetch": "work.fetching",
    "generate": "graph.generation",
    "generate_typed": "importers.generating",
    "infer": "inference.infer",
    "load_model": "training.checkpoints",
    "pack": "packing.pack",
    "predict": "inference.predict",
    "prepare": "preparing.prepare",
    "propagate": "propagation.propagate",
    "push": "work.pushing",
    "read_target": "importers.seed_tables",
    "relink": "graph.relinking",
    "sample": "sampling.sample",
    "train": "training.train",
}

__all__ = [
    "ArtifactError",
    "BatchSource",
    "Block",
    "ConfigError",
    "DataWarning",
    "DiskFullError",
    "DiskGNNError",
    "DivergedError",
    "EdgeInput",
    "FreshEpochs",
    "Graph",
    "GraphInput",
    "HopBatch",
    "HopsLoader",
    "HopsOptions",
    "InputError",
    "LinkTarget",
    "LoadStats",
    "Loader",
    "LoaderOptions",
    "MiniBatch",
    "Neighbourhood",
    "NodeInput",
    "NodeTarget",
    "OutputExistsError",
    "Pairs",
    "SamplingSpec",
    "TableColumns",
    "TypedMiniBatch",
    "convert",
    "estimate",
    "evaluate",
    "fetch",
    "generate",
    "generate_typed",
    "infer",
    "load_model",
    "pack",
    "predict",
    "prepare",
    "propagate",
    "push",
    "read_target",
    "relink",
    "sample",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    """Returns all public names, for tab completion: also those that were not used yet."""
    return sorted({*globals(), *__all__} - {"Any", "TYPE_CHECKING", "import_module"})
