"""What a graph of PyTorch Geometric has, by type: Data, HeteroData, (FeatureStore, GraphStore).

Tensors in memory are read where they are, those of a FeatureStore some rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import InputError
from diskgnn.importers.containers import edge_lists, torch_files
from diskgnn.importers.containers.arrays import Source
from diskgnn.importers.containers.rows import CHUNK_BYTES, RowSource, of_array
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name


@dataclass(frozen=True)
class Stored:
    """Holds what a source has of one type of nodes or edges."""

    num_rows: int
    attributes: Mapping[str, Any]  # tensors or arrays, or RowSources of a store
    topology: Mapping[str, Any] = field(default_factory=dict)  # of edges: fields of EdgeInput


@dataclass(frozen=True)
class StoredGraph:
    """Holds what a source has, by type; types of a graph without any are called as everywhere in diskgnn."""

    nodes: Mapping[str, Stored]
    edges: Mapping[EdgeType, Stored]
    others: Mapping[str, Any] = field(default_factory=dict)  # attributes without a row for each node or edge


def stored_graph(source: Any) -> StoredGraph:
    """Returns what `source` has, without reading rows.

    Raises:
        InputError: it is no graph, or parts of it are missing.
    """
    from torch_geometric.data import Data, HeteroData

    if isinstance(source, Data):
        known = dict(source._store.items())
        of_nodes = {name: value for name, value in known.items() if source.is_node_attr(name)}
        of_edges = {
            name: value for name, value in known.items()
            if name == "adj_t" or is_link_label(name) or source.is_edge_attr(name)
        }  # fmt: skip
        return StoredGraph(
            {ONE_NODE_TYPE: Stored(_count(ONE_NODE_TYPE, source.num_nodes), of_nodes)},
            {ONE_EDGE_TYPE: _edges(ONE_EDGE_TYPE, of_edges)},
            {name: value for name, value in known.items() if name not in of_nodes and name not in of_edges},
        )
    if isinstance(source, HeteroData):
        return StoredGraph(
            {name: Stored(_count(name, store.num_nodes), dict(store.items())) for name, store in source.node_items()},
            {edge_type: _edges(edge_type, dict(store.items())) for edge_type, store in source.edge_items()},
            dict(source._global_store.items()),
        )
    if is_stores(source):
        return _of_stores(*source)
    found = type(source).__name__
    if isinstance(source, tuple):
        found = f"({', '.join(type(each).__name__ for each in source)})"
    raise InputError(f"expected Data, HeteroData or (FeatureStore, GraphStore), found {found}")


def is_stores(source: Any) -> bool:
    """Returns True of (FeatureStore, GraphStore). HeteroData is both, and so is Data, but that cannot list what it
    has."""
    from torch_geometric.data import Data, FeatureStore, GraphStore

    is_pair = isinstance(source, tuple) and len(source) == 2
    return is_pair and all(map(isinstance, source, (FeatureStore, GraphStore))) and not isinstance(source[0], Data)


def is_data_set(source: Any) -> bool:
    """Returns True of a data set of PyG in memory, or of the tuple (data, slices, ...) that an InMemoryDataset
    saves."""
    from torch_geometric.data import Data, Dataset, HeteroData

    if isinstance(source, Dataset):
        return True
    if not isinstance(source, tuple) or len(source) not in (1, 2, 3) or is_stores(source):
        return False
    is_dict = isinstance(source[0], dict) and any(each in (Data, HeteroData) for each in source[2:])
    return isinstance(source[0], Data | HeteroData) or is_dict


def only_graph(source: Any, where: str) -> Any:
    """Returns the graph of a data set that has one: Data or HeteroData.

    Args:
        source: as `is_data_set` takes it.
        where: it stands, for messages.

    Raises:
        InputError: it has several graphs, or is another tuple.
    """
    from torch_geometric.data import Data, Dataset, HeteroData

    several = f"{where}: expected one graph, found a data set of several; pass or save the one that is meant"
    if isinstance(source, Dataset):
        if len(source) != 1:
            raise InputError(several)
        return source[0]
    data, slices, kind = (*source, None, None, None)[:3]
    if slices is data:  # given as both stores
        slices = None
    is_read = isinstance(data, dict | Data | HeteroData) and _are_slices({} if slices is None else slices)
    if len(source) > 3 or not is_read:
        held = ", ".join(type(each).__name__ for each in source)
        raise InputError(
            f"{where}: expected Data or HeteroData, or the (data, slices) of an InMemoryDataset, found ({held}); save "
            f"the graph that is meant, torch.save(data, path), or pass it"
        )
    if _have_several(slices or {}):
        raise InputError(several)
    kind = kind if kind in (Data, HeteroData) else Data
    return kind.from_dict(data) if isinstance(data, dict) else data


def _are_slices(value: object) -> bool:
    """Returns True of the offsets of each attribute, which HeteroData has by type."""
    return isinstance(value, dict) and all(
        each is None or _are_slices(each) or isinstance(each, Sized) for each in value.values()
    )


def _have_several(slices: Mapping[str, Any]) -> bool:
    """Returns True if more than one graph lies between the offsets of each attribute, which HeteroData has by type."""
    return any(
        _have_several(each) if isinstance(each, Mapping) else each is not None and len(each) > 2
        for each in slices.values()
    )


def is_link_label(name: str) -> bool:
    """Returns True of what RandomLinkSplit calls seed edges and their labels, whose number is not that of the edges."""
    return name in ("edge_label", "edge_label_index", "pos_edge_label", "pos_edge_label_index", "neg_edge_label",
                    "neg_edge_label_index")  # fmt: skip


def is_link_split(source: Any) -> bool:
    """Returns True of the three graphs that RandomLinkSplit makes of one."""
    from torch_geometric.data import Data, HeteroData

    return (
        isinstance(source, tuple) and len(source) == 3 and all(isinstance(part, Data | HeteroData) for part in source)
    )


def is_numeric(value: Any) -> bool:
    """Returns True of tensors and arrays of numbers: what `as_source` takes."""
    import torch

    return isinstance(value, torch.Tensor | np.ndarray | RowSource)


def as_source(value: Any) -> Source:
    """Returns what convert reads: the memory of a tensor on the CPU; others are copied a chunk at a time.

    Raises:
        InputError: no dense numbers.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return value  # type: ignore[no-any-return]  # an array, or rows of a store
    if value.layout != torch.strided:
        raise InputError(f"expected dense tensors, found {value.layout}; pass tensor.to_dense()")
    value = value.detach().as_subclass(torch.Tensor)  # of an EdgeIndex, too
    is_bfloat16 = torch_files.is_bfloat16(value)
    if value.device.type == "cpu":
        return torch_files.tensor_rows("tensor", value) if is_bfloat16 else torch_files.of_tensor("tensor", value)
    rows = max(1, CHUNK_BYTES // max(1, value[:1].nbytes))
    return RowSource(
        "tensor", len(value), tuple(value.shape[1:]), _as_numpy(value[:0]).dtype,
        lambda: map(_as_numpy, torch.split(value, rows)), bfloat16=is_bfloat16,
    )  # fmt: skip


def _as_numpy(value: Any) -> npt.NDArray[Any]:
    return torch_files.of_tensor("tensor", value.detach().cpu())


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
        values = adjacency.values()  # of which there may be several for an edge
        return Stored(len(values), {**known, "adj_t": values}, ends)
    found = "neither" if adjacency is None else f"adj_t of {getattr(adjacency, 'layout', type(adjacency).__name__)}"
    raise InputError(f"{edge_type_name(edge_type)}: expected edge_index, or adj_t in torch.sparse_csr; found {found}")


def _of_stores(features: Any, graph: Any) -> StoredGraph:
    attributes: dict[Any, dict[str, RowSource]] = {}
    for attr in features.get_all_tensor_attrs():
        attributes.setdefault(attr.group_name, {})[attr.attr_name] = _rows(features, attr)
    edges: dict[EdgeType, Stored] = {}
    sizes: dict[str, dict[str, int]] = {}  # by node type: what each says that there are
    for attr in graph.get_all_edge_attrs():
        edge_type: EdgeType = ONE_EDGE_TYPE if attr.edge_type is None else tuple(attr.edge_type)
        first, second = map(as_source, graph.get_edge_index(attr))
        for end, size in zip((edge_type[0], edge_type[2]), attr.size or (), strict=False):
            if size is not None:
                sizes.setdefault(end, {})[f"size of {edge_type_name(edge_type)}"] = int(size)
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
    ends = dict.fromkeys(end for edge_type in edges for end in (edge_type[0], edge_type[2]))
    _require_types(groups, [name for name in attributes if isinstance(name, tuple)], ends, edges)
    nodes = {}
    for name in dict.fromkeys([*groups, *ends]):
        known = groups.get(name, {})
        counts = {**{rows.name: rows.num_rows for rows in known.values()}, **sizes.get(name, {})}
        nodes[name] = Stored(_count(name, _agree_on_count(f"node type {name}", counts)), known)
    for edge_type, each in edges.items():
        if edge_type in attributes:
            counts = {rows.name: rows.num_rows for rows in each.attributes.values()}
            _agree_on_count(f"edge type {edge_type_name(edge_type)}", {"the GraphStore": each.num_rows, **counts})
    return StoredGraph(nodes, edges)


def _require_types(
    groups: Iterable[str], edge_groups: Iterable[EdgeType], ends: Iterable[str], edges: Iterable[EdgeType]
) -> None:
    """Refuse stores of different graphs: features of edges that are not there, or of nodes at no edge, while nodes at
    edges have none.
    """
    if missing := sorted(edge_type_name(each) for each in {*edge_groups} - {*edges}):
        raise InputError(
            f"the FeatureStore has attributes of edge type {missing[0]}, the GraphStore only "
            f"{', '.join(map(edge_type_name, edges)) or 'none'}: are they of the same graph?"
        )
    apart, without = sorted({*groups} - {*ends}), sorted({*ends} - {*groups})
    if apart and without:
        raise InputError(
            f"the FeatureStore has attributes of node type {apart[0]}, which no edge of the GraphStore ends at, and "
            f"none of {', '.join(without)}, which edges have: are they of the same graph?"
        )


def _agree_on_count(what: str, counts: Mapping[str, int]) -> int | None:
    """Returns how many there are of a type, on which both stores must agree; None if neither says it."""
    for name, count in counts.items():
        first, expected = next(iter(counts.items()))
        if count != expected:
            raise InputError(
                f"{what}: expected {expected} in both stores, as {first} says, found {count} by {name}: are they of "
                "the same graph?"
            )
    return next(iter(counts.values()), None)


def _rows(store: Any, attr: Any) -> RowSource:
    """Returns the rows of one attribute of a FeatureStore, asked for some at a time."""
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
        bfloat16=torch_files.is_bfloat16(first),
    )  # fmt: skip


def _chunks(get: Callable[[int, int], Any], num_rows: int, step: int) -> Iterator[npt.NDArray[Any]]:
    for start in range(0, num_rows, step):
        yield np.ascontiguousarray(_as_numpy(get(start, min(start + step, num_rows))))
