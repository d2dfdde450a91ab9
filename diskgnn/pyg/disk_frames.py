"""TensorFrames of tables whose rows are on the disk."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import HeteroData
from torch_geometric.typing import TensorFrame

from diskgnn.batches.tensor_frames import tensor_frame
from diskgnn.errors import ConfigError
from diskgnn.formats.record_view import DecodedRecords
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.pyg.drawn import columns_of
from diskgnn.specs.schema import TableColumn
from diskgnn.units import counted, format_size


class DiskFrame(TensorFrame):  # type: ignore[misc]
    """Stands for the TensorFrame of a table in a graph directory, as PyG's and RelBench's code take one.

    `frame[index]` reads rows of it, as a TensorFrame; `frame.load()` reads all of them.

    Args:
        graph: keeps the columns of its tables.
        node_type: the table.
        table: its columns, in the order in which a TensorFrame has stypes and the columns of each; of none, there is a
            constant.

    Attributes:
        col_names_dict: the names of the columns by stype.
        num_rows: of the table.
        y: None.
        held: keeps the graph directory where it is.
    """

    held: object = None

    def __init__(self, graph: Graph, node_type: str, table: Sequence[TableColumn]) -> None:
        self.graph, self.node_type, self.table = graph, node_type, tuple(table)
        self._num_rows, self.y = graph.nodes[node_type].num_nodes, None
        none = self[torch.empty(0, dtype=torch.int64)]
        self.col_names_dict, self._col_to_stype_idx = none.col_names_dict, none._col_to_stype_idx

    @property
    def nodes(self) -> NodeSet:
        """Returns the rows of the table, as the graph has them."""
        return self.graph.nodes[self.node_type]

    @property
    def num_rows(self) -> int:
        """Returns the rows of the table."""
        return self._num_rows

    @property
    def feat_dict(self) -> NoReturn:
        """Refuses to read all rows without being asked for them.

        Raises:
            ConfigError: always, with what to call instead.
        """
        file = self.nodes.feature_file
        size_bytes = 0 if file is None else file.num_bytes
        raise ConfigError(
            f"feat_dict: the {counted(self.num_rows, 'row')} of {self.node_type!r} are on the disk, "
            f"{format_size(size_bytes)}; batches have those that they need in tf; tf[index] reads some, and tf.load() "
            "all of them"
        )

    def __getitem__(self, index: Any) -> TensorFrame:
        """Reads rows: by number, slice, mask, or a tensor or list of numbers.

        Raises:
            IndexError: a mask of another length, or numbers of rows that there are not.
        """
        if isinstance(index, int):
            index = [index]
        if isinstance(index, slice):
            rows = np.arange(self.num_rows)[index]
        else:
            given = torch.as_tensor(index).cpu()
            if given.dtype is torch.bool:
                if given.shape != (self.num_rows,):
                    raise IndexError(
                        f"expected a mask of the {counted(self.num_rows, 'row')} of {self.node_type!r}, found one of "
                        f"shape {[*given.shape]}"
                    )
                given = given.nonzero().flatten()
            rows = given.long().numpy()
        return frame_of(self.table, columns_of(self.nodes, rows), len(rows))

    def load(self) -> TensorFrame:
        """Reads all rows into memory."""
        return self[:]

    def _apply(self, function: Any) -> DiskFrame:
        """Returns itself: rows are read into the memory of the host, wherever the rest is moved."""
        return self

    @property
    def stypes(self) -> list[Any]:
        """Returns the kinds of its columns, in the order of torch_frame."""
        all_stypes = type(next(iter(self.col_names_dict)))
        return [each for each in all_stypes if each in self.col_names_dict]

    @property
    def device(self) -> torch.device:
        """Returns where rows are read into."""
        return torch.device("cpu")

    @property
    def is_empty(self) -> bool:
        """Returns False: there is a column at least."""
        return False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DiskFrame):
            return False
        return (self.graph.manifest.digest, self.node_type, self.table) == (
            other.graph.manifest.digest, other.node_type, other.table,
        )  # fmt: skip

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> DiskFrame:
        return self

    def __deepcopy__(self, memo: Any) -> DiskFrame:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return DiskFrame, (self.graph, self.node_type, self.table)


def frame_of(table: Sequence[TableColumn], decoded: DecodedRecords, num_rows: int, device: Any = "cpu") -> TensorFrame:
    """Returns rows that were read as a TensorFrame. Its stypes are in the order in which `table` has them first, in
    which models are initialised."""
    frame = tensor_frame(table, decoded.columns, decoded.nulls, num_rows, device)
    stypes = {name: stype for stype, names in frame.col_names_dict.items() for name in names}
    order = dict.fromkeys(stypes[column.name] for column in table) or frame.feat_dict
    if [*order] == [*frame.feat_dict]:
        return frame
    return type(frame)({key: frame.feat_dict[key] for key in order}, {key: frame.col_names_dict[key] for key in order})


def graph_of_frames(data: Any) -> Graph | None:
    """Returns the graph directory that all frames of `data` are in; None of data without such frames.

    Raises:
        ConfigError: `data` has not the types, the edges or the times of that graph any more.
    """
    if not isinstance(data, HeteroData):
        return None
    frames = {name: store.tf for name, store in data.node_items() if isinstance(store.get("tf"), DiskFrame)}
    if not frames:
        return None
    first, *others = frames.values()
    graph: Graph = first.graph
    different = [each.node_type for each in others if each.graph.manifest.digest != graph.manifest.digest]
    different += [name for name, each in frames.items() if each.node_type != name]
    types = {*data.node_types} ^ {*graph.nodes} | {*map(str, {*data.edge_types} ^ {*graph.edges})}
    if different or types or {*frames} != {*graph.nodes}:
        names = ", ".join(sorted({*different, *types, *({*graph.nodes} - {*frames})}))
        raise ConfigError(
            f"data: its rows are in {graph.manifest.path}; expected the types of nodes and edges of that graph, found "
            f"others: {names}. Make the graph of the tables that are meant, or read the frames into memory (tf.load())"
        )
    for name, nodes in graph.nodes.items():
        if not _are(data[name].get("time"), nodes):
            raise ConfigError(
                f"data: expected the times of {name!r} that {graph.manifest.path} has, found others; draws go by those "
                "of the graph: make it of tables with the times that are meant"
            )
    for edge_type, store in data.edge_items():
        if "edge_index" in store:
            raise ConfigError(
                f"data: the edges are those of {graph.manifest.path}, found others given for {edge_type}; make the "
                "graph of tables with these keys"
            )
        if given := [*store.keys()]:
            raise ConfigError(
                f"data: the edges are in {graph.manifest.path}, in the order that they have there, found {given[0]!r} "
                f"of {edge_type}, which batches cannot be cut from; make it an attribute of the rows that have the key"
            )
    return graph


def mapped_times(nodes: NodeSet) -> Tensor | None:
    """Returns the times [N] of rows as the graph has them, which stay on the disk; None if they have none."""
    if nodes.times is None:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that maps cannot be written to
        return torch.from_numpy(nodes.times)


def _are(times: Tensor | None, nodes: NodeSet) -> bool:
    mapped = mapped_times(nodes)
    if times is None or mapped is None:
        return times is mapped
    return times.data_ptr() == mapped.data_ptr() or torch.equal(times, mapped)


def tables_of(data: Any) -> Mapping[str, tuple[TableColumn, ...]]:
    """Returns the columns of each node type whose frame is on the disk."""
    if not isinstance(data, HeteroData):
        return {}
    return {name: store.tf.table for name, store in data.node_items() if isinstance(store.get("tf"), DiskFrame)}
