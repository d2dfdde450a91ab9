"""Graphs of PyTorch Geometric that torch.save wrote: read without running code of the file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from diskgnn.errors import InputError, UnavailableError
from diskgnn.files.file_reading import raise_if_disk_failed
from diskgnn.importers.containers import torch_files
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.source_formats.pyg_graphs import (
    Stored,
    StoredGraph,
    is_link_split,
    only_graph,
    stored_graph,
)


def load(path: Path) -> Any:
    """Returns the graph in a .pt file, or the three graphs of RandomLinkSplit, with memory-mapped tensors. Nothing but
    tensors and PyG's own classes is unpickled.

    Raises:
        InputError: there is none.
        UnavailableError: torch_geometric cannot be imported.
    """
    if kind_of(path) != "torch":
        raise InputError(f"expected a graph of PyG that torch.save wrote, found {describe(path)} ({path})")
    try:
        from torch_geometric.data import Data, HeteroData, storage
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    except ImportError as error:
        raise UnavailableError(f"{path} holds a graph of PyG: pip install torch-geometric ({error})") from error
    try:
        known: list[Any] = [storage.BaseStorage, storage.NodeStorage, storage.EdgeStorage, storage.GlobalStorage]
        if hasattr(storage, "AttrType"):  # in what a graph that was used remembers of its attributes
            known += [storage.AttrType, (_plain, "collections.defaultdict")]
        with _unpickled_too([DataEdgeAttr, DataTensorAttr, *known]):  # PyG's list lacks these
            found = torch_files.unpickled(path)
    except Exception as error:  # torch raises whatever the unpickler or the archive does
        raise_if_disk_failed(error, path)
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        raise InputError(
            f"{path}: expected nothing but tensors and classes of PyG; where it was saved, save "
            f"torch.save(type(data).from_dict(data.to_dict()), path) instead. torch.load(weights_only=True) says: "
            f"{next(iter(reason.splitlines()), type(error).__name__):.200}"
        ) from error
    if is_link_split(found):
        return found
    if isinstance(found, tuple):
        found = only_graph(found, str(path))
    if not isinstance(found, Data | HeteroData):
        raise InputError(f"{path}: expected Data or HeteroData, found {type(found).__name__} ({describe(path)})")
    return found


def _plain(_: object) -> dict[Any, Any]:
    """Makes a dict, in place of a defaultdict of an unpickled graph: torch fills none."""
    return {}


@contextmanager
def _unpickled_too(known: list[Any]) -> Iterator[None]:
    """torch.load(weights_only=True) takes these besides what it takes already, which is without PyG's defaultdict."""
    from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals([each for each in before if each is not defaultdict] + known)
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def of_file(path: Path) -> list[StoredGraph]:
    """Returns what the graph in a .pt file has, or each of the three graphs of RandomLinkSplit; tensors are read when
    they are asked for.

    Raises:
        InputError, UnavailableError: see `load`.
    """
    found = load(path)
    return [_read_from(path, stored_graph(part)) for part in (found if isinstance(found, tuple) else (found,))]


def _read_from(path: Path, found: StoredGraph) -> StoredGraph:
    def read(name: str, value: Any) -> Any:
        is_array = isinstance(value, np.ndarray) or _is_dense(value)
        return torch_files.rows(name, path, value) if is_array and value.ndim else value

    def read_all(stored: Stored) -> Stored:
        parts = ({name: read(name, value) for name, value in part.items()}
                 for part in (stored.attributes, stored.topology))  # fmt: skip
        return Stored(stored.num_rows, *parts)

    return StoredGraph(
        {name: read_all(stored) for name, stored in found.nodes.items()},
        {name: read_all(stored) for name, stored in found.edges.items()},
        found.others,
    )


def _is_dense(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout == torch.strided
