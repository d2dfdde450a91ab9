"""What a loader was given as `data`: which of it goes to the disk, and which PyG slices in memory."""

from __future__ import annotations

import copy
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import TensorFrame

from diskgnn._native import crc32c
from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import EdgeSet, NodeSet
from diskgnn.importers.containers.rows import RowSource
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.source_formats.pyg_graphs import Stored, StoredGraph, as_source, stored_graph
from diskgnn.pyg.disk_frames import graph_of_frames, tables_of
from diskgnn.pyg.frame_rows import frame_rows, parts_of, why_in_memory
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import (
    ONE_EDGE_TYPE,
    ONE_NODE_TYPE,
    TableColumn,
    edge_type_name,
    require_edge_type,
    require_node_type,
)
from diskgnn.units import format_size

FRAME = "tf"  # the attribute of nodes that PyG and RelBench keep a TensorFrame in
ON_DISK = (torch.float32, torch.float16, torch.bfloat16)  # [N, D] of these; others are sliced in memory
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True)
class Source:
    """Data in memory or in stores, beside what is on disk of it."""

    stored: StoredGraph
    time_attr: str | None
    weight_attr: str | None

    @staticmethod
    def of(data: Any, time_attr: str | None, weight_attr: str | None) -> Source:
        """Look at what there is, without reading it.

        Raises:
            ConfigError: no type has `time_attr` or `weight_attr`, or what PyG is to slice is a list.
            InputError: it is no graph.
        """
        stored = stored_graph(data)
        for argument, name, types in (
            ("time_attr", time_attr, [*stored.nodes.values(), *stored.edges.values()]),
            ("weight_attr", weight_attr, list(stored.edges.values())),
        ):
            if name is not None and not any(name in each.attributes for each in types):
                raise ConfigError(f"{argument}: expected an attribute of the data, found {name!r}, which nothing has")
        for each in (*stored.nodes.values(), *stored.edges.values()):
            for name, value in each.attributes.items():
                if isinstance(value, list | tuple) and len(value) == each.num_rows:
                    raise ConfigError(
                        f"data: expected attributes with a row for each node or edge to be tensors, found {name!r}, a "
                        f"{type(value).__name__} of {len(value)}: make it a tensor, or delete it from loader.data"
                    )
        if in_memory := list(_large_in_memory(stored)):
            warnings.warn(
                f"data: {'; '.join(in_memory)}: PyG slices what is no x or edge_attr [N, D] of float32, float16 or "
                "bfloat16, and no tf of nodes. Only such rows go to the disk: make it x, or see to it that memory "
                "holds it",
                DataWarning, stacklevel=callers_level(),
            )  # fmt: skip
        return Source(stored, time_attr, weight_attr)

    def graph_input(self) -> GraphInput:
        """Returns what `convert` takes: x or tf, edge_attr, and what draws depend on."""
        nodes = {
            name: NodeInput(
                each.num_rows, times=self._attribute(each, self.time_attr), null_time="always", **_rows(each)
            )
            for name, each in self.stored.nodes.items()
        }
        edges = {
            edge_type: EdgeInput(
                **each.topology, times=self._attribute(each, self.time_attr), null_time="always", keep_ids=True,
                weights=self._attribute(each, self.weight_attr),
                foreign_key=edge_type[1].startswith("f2p_"), **_rows(each),  # as RelBench calls them
            )
            for edge_type, each in self.stored.edges.items()
        }  # fmt: skip
        return GraphInput(nodes, edges)

    @staticmethod
    def _attribute(stored: Stored, name: str | None) -> Any:
        return None if name is None or name not in stored.attributes else as_source(stored.attributes[name])

    def node_times(self) -> dict[str, Tensor] | None:
        """Returns [N] of the node types that have times; None if draws do not go by times."""
        if self.time_attr is None:
            return None
        return {
            name: torch.as_tensor(each.attributes[self.time_attr])
            for name, each in self.stored.nodes.items() if self.time_attr in each.attributes
        }  # fmt: skip

    def size_bytes(self) -> int:
        """Returns what the graph directory takes, about: rows that go to the disk, and edges with their numbers."""
        types = [*self.stored.nodes.values(), *self.stored.edges.values()]
        found = [rows["features"] for each in types if (rows := _rows(each))]
        row_bytes = sum(
            each.num_rows * each.row_bytes if isinstance(each, RowSource) else each.nbytes for each in found
        )
        return int(row_bytes) + 12 * sum(each.num_rows for each in self.stored.edges.values())

    def frames(self) -> dict[str, tuple[TableColumn, ...]]:
        """Returns the columns of the node types whose tf goes to the disk, in the order of that."""
        found = {}
        for name, each in self.stored.nodes.items():
            if _on_disk(each) == FRAME:
                record = frame_rows(name, frame := each.attributes[FRAME]).record
                assert record is not None
                columns = {column.name: column for column in record.columns((), None)}
                found[name] = tuple(columns[column] for listed in frame.col_names_dict.values() for column in listed)
        return found

    def digest(self) -> str:
        """Names what goes to the disk by its content: all of it is read."""
        found = hashlib.blake2b(digest_size=16)
        types: list[tuple[str, Stored]] = [*self.stored.nodes.items()]
        types += [(edge_type_name(edge_type), each) for edge_type, each in self.stored.edges.items()]
        for name, each in types:
            found.update(f"{name} {each.num_rows}".encode())
            parts = dict(each.topology)
            if (key := _on_disk(each)) is not None:
                rows = each.attributes[key]
                parts |= dict(parts_of(rows)) if key == FRAME else {"rows": rows}
            for attribute in (self.time_attr, self.weight_attr):
                if attribute is not None and attribute in each.attributes:
                    parts[attribute] = each.attributes[attribute]
            for part, value in parts.items():
                found.update(part.encode())
                update(found, value)
        return found.hexdigest()


def _large_in_memory(stored: StoredGraph) -> Iterator[str]:
    """Says which attributes somebody may expect on the disk that stay in memory."""
    for kind, types in (("node", stored.nodes), ("edge", stored.edges)):
        for key, each in types.items():
            for name, value in each.attributes.items():
                if name == _on_disk(each):
                    continue
                is_frame, is_wide = isinstance(value, TensorFrame), getattr(value, "ndim", 0) > 1
                if is_frame or (is_wide and name in ("x", "edge_attr")):
                    dtype = "" if is_frame else f" of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                    why = why_in_memory(value) if is_frame and name == FRAME and kind == "node" else None
                    yield (
                        f"{name} of {kind} type {key if isinstance(key, str) else edge_type_name(key)}, a "
                        f"{type(value).__name__}{dtype}, stays in memory ({format_size(_bytes_of(value))})"
                        + ("" if why is None else f", as {why}")
                    )


def _bytes_of(value: Any) -> int:
    """Returns the bytes of tensors, and of those that a TensorFrame consists of."""
    if isinstance(value, Tensor | np.ndarray):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(_bytes_of(each) for each in value.values())
    parts = (getattr(value, name, None) for name in ("feat_dict", "y", "values", "offset"))
    return sum(_bytes_of(each) for each in parts if isinstance(each, Tensor | Mapping) or hasattr(each, "offset"))


def _on_disk(stored: Stored) -> str | None:
    """Returns the attribute of a type whose rows go to the disk."""
    if stored.topology:
        return "edge_attr" if _is_matrix(stored.attributes.get("edge_attr")) else None
    if _is_matrix(stored.attributes.get("x")):
        return "x"
    frame = stored.attributes.get(FRAME)
    return FRAME if isinstance(frame, TensorFrame) and why_in_memory(frame) is None else None


def _is_matrix(value: Any) -> bool:
    """Returns True of rows of one of the dtypes that go to the disk."""
    is_matrix = len(getattr(value, "row_shape", ())) == 1 or getattr(value, "ndim", 0) == 2
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    known = [str(each).removeprefix("torch.") for each in ON_DISK]
    return is_matrix and (dtype in known or getattr(value, "bfloat16", False) is True)


def _rows(stored: Stored) -> dict[str, Any]:
    """Returns `features` of NodeInput and EdgeInput; nothing if PyG is to slice them in memory."""
    name = _on_disk(stored)
    if name is None:
        return {}
    value = stored.attributes[name]
    return {"features": frame_rows("tf", value) if name == FRAME else as_source(value)}


def without_rows(data: Any) -> Any:
    """Returns `data` as PyG is to slice it: without what comes from the disk, and with numbers of nodes that are
    said."""
    if isinstance(data, tuple):
        return _StoreWithoutRows(data[0]), data[1]
    bare, stored = copy.copy(data), stored_graph(data)
    if isinstance(data, Data):
        for each in (*stored.nodes.values(), *stored.edges.values()):
            if (name := _on_disk(each)) is not None:
                del bare[name]
        bare.num_nodes = data.num_nodes
        return bare
    for name, each in stored.nodes.items():
        if (attribute := _on_disk(each)) is not None:
            del bare[name][attribute]
        bare[name].num_nodes = each.num_rows
    for edge_type, each in stored.edges.items():
        if _on_disk(each) is not None:
            del bare[edge_type].edge_attr
    return bare


def without_frames(data: HeteroData) -> HeteroData:
    """Returns `data` whose frames are in a graph directory as PyG is to slice it: with numbers of nodes in their
    place, and edges that are put there."""
    bare = copy.copy(data)
    for name in tables_of(data):
        bare[name].num_nodes = data[name].num_nodes
        del bare[name].tf
    for edge_type in data.edge_types:
        bare[edge_type].edge_index = torch.empty((2, 0), dtype=torch.int64)
    return bare


class _StoreWithoutRows:
    """Answers what PyG asks of a FeatureStore while it slices: all attributes but x and edge_attr."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get_all_tensor_attrs(self) -> list[Any]:
        """Returns the others."""
        return [attr for attr in self._store.get_all_tensor_attrs()
                if attr.attr_name not in ("x", "edge_attr") and not isinstance(attr.group_name, tuple)]  # fmt: skip

    def multi_get_tensor(self, attrs: list[Any]) -> list[Any]:
        """Returns their rows."""
        return self._store.multi_get_tensor(attrs)  # type: ignore[no-any-return]


def stand_in(graph: Graph) -> Data | HeteroData:
    """Returns a graph directory as PyG's loaders take data: what is small is mapped, x and edges are on the disk.

    It is `HeteroData` where types have names of their own, also if there is one of each.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that maps cannot be written to
        if [*graph.nodes, *graph.edges] == [ONE_NODE_TYPE, ONE_EDGE_TYPE]:
            data = Data(edge_index=torch.empty((2, 0), dtype=torch.int64), num_nodes=graph.num_nodes)
            for name, value in _small(graph, ONE_NODE_TYPE).items():
                data[name] = value
            return data
        typed = HeteroData()
        for name, nodes in graph.nodes.items():
            typed[name].num_nodes = nodes.num_nodes
            for attribute, value in _small(graph, name).items():
                typed[name][attribute] = value
        for edge_type in graph.edges:
            typed[edge_type].edge_index = torch.empty((2, 0), dtype=torch.int64)
        return typed


def _small(graph: Graph, name: str) -> dict[str, Tensor]:
    nodes = graph.nodes[name]
    found = {"y": nodes.labels, "time": nodes.times}
    return {attribute: torch.from_numpy(value) for attribute, value in found.items() if value is not None}


def opened(data: Any) -> tuple[Any, Graph | None]:
    """Returns (what PyG's loaders take, the graph directory if `data` is the path of one).

    Raises:
        ConfigError: it is neither.
        ArtifactError: see `Graph.open`.
    """
    if not isinstance(data, str | os.PathLike | Graph):
        is_pair = isinstance(data, tuple) and len(data) == 2
        if not isinstance(data, Data | HeteroData) and not is_pair:
            raise ConfigError(
                "data: expected Data, HeteroData, (FeatureStore, GraphStore) or the path of a graph directory, found "
                f"{type(data).__name__}"
            )
        if not is_pair:
            _require_edge_index(data)
        return data, graph_of_frames(data)
    graph = data if isinstance(data, Graph) else Graph.open(data)
    return stand_in(graph), graph


def _require_edge_index(data: Data | HeteroData) -> None:
    """Refuse adjacency matrices that PyG's loaders cannot slice, or that are all there is of the edges.

    Raises:
        ConfigError: there is one.
    """
    for store in data.edge_stores:
        adjacency = store.get("adj_t")
        if isinstance(adjacency, Tensor) or (adjacency is not None and "edge_index" not in store):
            kind = str(adjacency.layout) if isinstance(adjacency, Tensor) else type(adjacency).__name__
            raise ConfigError(
                f"data: expected edge_index, found adj_t of {kind}, as T.ToSparseTensor makes it: batches cannot be "
                "cut from it. Leave the transform out of the data set, and pass transform=T.ToSparseTensor() to the "
                "loader: each batch has adj_t then; trim_to_layer takes edge_index"
            )


def seeds_of(data: Any, graph: Graph | None, given: Any, *, is_link: bool) -> Any:
    """Returns the nodes or edges to start from, where a split of a graph directory may be named: "train", or (type,
    "train"); and where a mask may be no tensor, of which PyG makes ids 0 and 1.

    Raises:
        ConfigError: there is no such split, or nothing to start from.
    """
    name = "edge_label_index" if is_link else "input_nodes"
    if isinstance(data, HeteroData) and not isinstance(given, str):
        _require_type(name, given, data, is_link=is_link)
    kind, split = given if isinstance(given, tuple) and len(given) == 2 else (None, given)
    if isinstance(split, Tensor | np.ndarray | list):
        array = split if isinstance(split, Tensor) else np.asarray(split)
        is_mask = str(array.dtype).endswith("bool")
        if 0 in array.shape or (is_mask and not array.any()):
            raise ConfigError(f"{name}: expected at least one to start from, found none")
        if is_mask:
            return torch.as_tensor(array) if kind is None else (kind, torch.as_tensor(array))
    if not isinstance(split, str):
        return given
    if graph is None:
        is_type = not isinstance(data, HeteroData) or split in data.node_types
        if kind is not None or isinstance(data, Data) or not is_type:
            raise ConfigError(
                f"{name}: expected ids or a mask, or a type of the data, found {split!r}: splits are known by name of "
                f"graph directories only; pass those such as data.train_mask"
            )
        return given
    if split in graph.nodes:
        return given
    types: Mapping[Any, NodeSet | EdgeSet] = graph.edges if is_link else graph.nodes
    if kind not in types and (kind is not None or len(types) > 1):
        known = ", ".join(repr(each) for each in types)
        raise ConfigError(f"{name}: expected (type, {split!r}) with a type of {known}, found {given!r}")
    kind = next(iter(types)) if kind is None else kind
    splits = types[kind].splits
    if split not in splits:
        raise ConfigError(
            f"{name}: expected a split of {', '.join(splits) or 'none'} of {graph.manifest.path}, found {split!r}"
            f"{near_name(split, splits)}"
        )
    ids = torch.from_numpy(np.array(splits[split].T))
    return ids if isinstance(data, Data) else (kind, ids)


def _require_type(name: str, given: Any, data: HeteroData, *, is_link: bool) -> None:
    """Refuses to start from ids of no type, or of one that the data does not have.

    Raises:
        ConfigError: names the types that there are.
    """
    is_pair = isinstance(given, tuple | list) and len(given) == 2
    kind, start = given if is_pair else (given, None)
    if isinstance(start, str):  # a split, of a type that is looked for with it
        return
    if is_link and isinstance(kind, tuple) and len(kind) == 3:
        require_edge_type(name, kind, data.edge_types)
    elif not is_link and is_pair and isinstance(kind, str):
        require_node_type(name, kind, data.node_types)
    elif not is_link:
        raise ConfigError(
            f"{name}: expected (type, ids), with a type of {', '.join(data.node_types)}, or a type, as the data has "
            f"several; found {'none' if given is None else 'no type'}"
        )


def update(found: Any, value: Any) -> None:
    """Add the content of a tensor, an array or rows of a store to a hash: a checksum of each 4 MiB."""
    chunks = value.chunks if hasattr(value, "chunks") else None
    if chunks is not None:
        for chunk in chunks():
            for part in chunk if isinstance(chunk, tuple) else (chunk,):
                _update(found, np.asarray(part))
        return
    source = as_source(value)
    if isinstance(source, RowSource):
        update(found, source)
    else:
        _update(found, np.asarray(source))


def _update(found: Any, array: npt.NDArray[Any]) -> None:
    found.update(f"{array.dtype} {array.shape}".encode())
    if not array.flags.c_contiguous:
        for row in range(0, len(array), step := max(1, _CHUNK_BYTES // max(1, array[:1].nbytes))):
            _update(found, np.ascontiguousarray(array[row : row + step]))
        return
    data = array.reshape(-1).view(np.uint8)
    for start in range(0, len(data), _CHUNK_BYTES):
        found.update(crc32c(data[start : start + _CHUNK_BYTES]).to_bytes(4, "little"))
