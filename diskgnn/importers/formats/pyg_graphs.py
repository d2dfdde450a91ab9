"""What a graph of PyTorch Geometric has, by type: Data, HeteroData, a file of one, (FeatureStore, GraphStore).

Tensors in memory are read where they are, those of a file from the file, those of a FeatureStore some rows at a time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError, UnavailableError
from diskgnn.importers.containers import edge_lists, torch_files
from diskgnn.importers.containers.arrays import Source
from diskgnn.importers.containers.file_kinds import describe, kind_of
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource, of_array
from diskgnn.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name


@dataclass(frozen=True)
class Stored:
    """What a source has of one type of nodes or edges."""

    num_rows: int
    attributes: Mapping[str, Any]  # tensors or arrays, or RowSources of a store
    topology: Mapping[str, Any] = field(default_factory=dict)  # of edges: fields of EdgeInput


@dataclass(frozen=True)
class StoredGraph:
    """What a source has, by type; types of a graph without any are called as everywhere in diskgnn."""

    nodes: Mapping[str, Stored]
    edges: Mapping[EdgeType, Stored]


def load(path: Path) -> Any:
    """The graph in a .pt file, its tensors memory-mapped; nothing but tensors and PyG's own classes is unpickled.

    Raises:
        InputError: there is none.
        UnavailableError: torch_geometric cannot be imported.
    """
    import torch

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
            found = torch.load(path, map_location="cpu", mmap=torch_files.is_zip(path), weights_only=True)
    except Exception as error:  # torch raises whatever the unpickler or the archive does
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        raise InputError(
            f"{path}: expected nothing but tensors and classes of PyG; where it was saved, save "
            f"torch.save(type(data).from_dict(data.to_dict()), path) instead. torch.load(weights_only=True) says: "
            f"{next(iter(reason.splitlines()), type(error).__name__):.200}"
        ) from error
    slices = None
    if isinstance(found, tuple) and len(found) in (2, 3) and isinstance(found[0], dict):  # of an InMemoryDataset
        kind = found[2] if len(found) == 3 else Data
        found, slices = kind.from_dict(found[0]), found[1]
    elif isinstance(found, tuple) and len(found) == 2:
        found, slices = found
    if slices is not None and any(len(each) > 2 for each in slices.values() if not isinstance(each, dict)):
        raise InputError(f"{path}: expected one graph, found a data set of several; save the one that is meant")
    if not isinstance(found, Data | HeteroData):
        raise InputError(f"{path}: expected Data or HeteroData, found {type(found).__name__} ({describe(path)})")
    return found


def _plain(_: object) -> dict[Any, Any]:
    """In place of a defaultdict of an unpickled graph: torch fills none."""
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


def of_file(path: Path) -> StoredGraph:
    """What the graph in a .pt file has; its tensors are read when they are asked for.

    Raises:
        InputError, UnavailableError: see `load`.
    """

    def read(name: str, value: Any) -> Any:
        array = value if isinstance(value, np.ndarray) else as_source(value) if _is_dense(value) else None
        return value if not isinstance(array, np.ndarray) or not array.ndim else torch_files.rows(name, path, array)

    def read_all(stored: Stored) -> Stored:
        parts = ({name: read(name, value) for name, value in part.items()}
                 for part in (stored.attributes, stored.topology))  # fmt: skip
        return Stored(stored.num_rows, *parts)

    found = stored_graph(load(path))
    return StoredGraph(
        {name: read_all(stored) for name, stored in found.nodes.items()},
        {name: read_all(stored) for name, stored in found.edges.items()},
    )


def _is_dense(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def stored_graph(source: Any) -> StoredGraph:
    """What `source` has, without reading rows.

    Raises:
        InputError: it is no graph, or parts of it are missing.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(source, Data):
        known = dict(source._store.items())
        of_nodes = {name: value for name, value in known.items() if source.is_node_attr(name)}
        of_edges = {name: value for name, value in known.items() if name == "adj_t" or source.is_edge_attr(name)}
        return StoredGraph(
            {ONE_NODE_TYPE: Stored(_count(ONE_NODE_TYPE, source.num_nodes), of_nodes)},
            {ONE_EDGE_TYPE: _edges(ONE_EDGE_TYPE, of_edges)},
        )
    if isinstance(source, HeteroData):
        return StoredGraph(
            {name: Stored(_count(name, store.num_nodes), dict(store.items())) for name, store in source.node_items()},
            {edge_type: _edges(edge_type, dict(store.items())) for edge_type, store in source.edge_items()},
        )
    if isinstance(source, tuple) and len(source) == 2:
        return _of_stores(*source)
    raise InputError(f"expected Data, HeteroData or (FeatureStore, GraphStore), found {type(source).__name__}")


def as_source(value: Any) -> Source:
    """What convert reads: the memory of a tensor on the CPU; others are copied a chunk at a time.

    Raises:
        InputError: no dense numbers.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value  # type: ignore[no-any-return]  # an array, or rows of a store
    if value.layout != torch.strided:
        raise InputError(f"expected dense tensors, found {value.layout}; pass tensor.to_dense()")
    value = value.detach().as_subclass(torch.Tensor)  # of an EdgeIndex, too
    if value.device.type == "cpu":
        return _as_numpy(value)
    rows = max(1, CHUNK_BYTES // max(1, value[:1].nbytes))
    return RowSource(
        "tensor", len(value), tuple(value.shape[1:]), _as_numpy(value[:0].cpu()).dtype,
        lambda: (_as_numpy(part.cpu()) for part in torch.split(value, rows)),
    )  # fmt: skip


def is_bfloat16(value: Any) -> bool:
    """Whether these are bfloat16 numbers, which NumPy has as uint16."""
    return str(getattr(value, "dtype", "")) in ("torch.bfloat16", "uint16")


def _as_numpy(value: Any) -> npt.NDArray[Any]:
    import torch

    array: npt.NDArray[Any] = (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()
    return array


def _count(name: str, num_nodes: int | None) -> int:
    if num_nodes is None:
        raise InputError(f"node type {name}: expected num_nodes, or something with a row per node, found neither")
    if num_nodes < 1:
        raise InputError(f"node type {name}: expected at least one node, found none; leave out an empty type")
    return int(num_nodes)


def _edges(edge_type: EdgeType, known: dict[str, Any]) -> Stored:
    import torch

    if (edges := known.get("edge_index")) is not None:
        return Stored(edges.shape[1], known, {"edges": as_source(edges)})
    adjacency = known.get("adj_t")
    if isinstance(adjacency, torch.Tensor) and adjacency.layout == torch.sparse_csr:
        ends = {"indptr": as_source(adjacency.crow_indices()), "indices": as_source(adjacency.col_indices())}
        return Stored(adjacency.values().numel(), known, ends)
    found = "neither" if adjacency is None else f"adj_t of {getattr(adjacency, 'layout', type(adjacency).__name__)}"
    raise InputError(f"{edge_type_name(edge_type)}: expected edge_index, or adj_t in torch.sparse_csr; found {found}")


def _of_stores(features: Any, graph: Any) -> StoredGraph:
    attributes: dict[Any, dict[str, RowSource]] = {}
    for attr in features.get_all_tensor_attrs():
        attributes.setdefault(attr.group_name, {})[attr.attr_name] = _rows(features, attr)
    edges: dict[EdgeType, Stored] = {}
    sizes: dict[str, int] = {}
    for attr in graph.get_all_edge_attrs():
        edge_type: EdgeType = ONE_EDGE_TYPE if attr.edge_type is None else tuple(attr.edge_type)
        first, second = map(as_source, graph.get_edge_index(attr))
        for end, size in zip((edge_type[0], edge_type[2]), attr.size or (), strict=False):
            sizes[end] = size
        layout = attr.layout.value
        sources, destinations = np.asarray(first), np.asarray(second)
        if layout == "csr":
            sources = np.repeat(np.arange(len(sources) - 1), np.diff(sources))
        if layout == "csc":
            topology: dict[str, Any] = {"indptr": destinations, "indices": sources}
        else:
            name = f"edges of {edge_type_name(edge_type)}"
            topology = {"edges": edge_lists.of_ends(of_array(name, sources), of_array(name, destinations))}
        edges[edge_type] = Stored(len(sources), attributes.get(attr.edge_type, {}), topology)
    groups = {ONE_NODE_TYPE if name is None else name: rows for name, rows in attributes.items()
              if not isinstance(name, tuple)}  # fmt: skip
    names = dict.fromkeys([*groups, *(end for edge_type in edges for end in (edge_type[0], edge_type[2]))])
    nodes = {}
    for name in names:
        known = groups.get(name, {})
        counted = max((rows.num_rows for rows in known.values()), default=sizes.get(name))
        nodes[name] = Stored(_count(name, counted), known)
    return StoredGraph(nodes, edges)


def _rows(store: Any, attr: Any) -> RowSource:
    """The rows of one attribute of a FeatureStore, asked for some at a time."""
    import copy

    import torch

    def get(start: int, stop: int) -> Any:
        asked = copy.copy(attr)
        asked.index = torch.arange(start, stop)
        found = store.get_tensor(asked)
        return found if isinstance(found, torch.Tensor) else torch.from_numpy(np.asarray(found))

    whole = copy.copy(attr)
    whole.index = None
    num_rows, *row_shape = store.get_tensor_size(whole)
    first = get(0, min(1, num_rows))
    step = max(1, CHUNK_BYTES // max(1, first.nbytes))
    return RowSource(
        str(attr.attr_name) + ("" if attr.group_name is None else f" of {attr.group_name}"),
        int(num_rows), tuple(row_shape), _as_numpy(first).dtype, partial(_chunks, get, int(num_rows), step),
    )  # fmt: skip


def _chunks(get: Callable[[int, int], Any], num_rows: int, step: int) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, num_rows, step):
        yield np.ascontiguousarray(_as_numpy(get(start, min(start + step, num_rows)).detach().cpu()))
