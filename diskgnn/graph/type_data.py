"""The data of one node type or edge type in a graph directory, opened and compared with the manifest.

All arrays except splits are read-only memory maps, made when they are first asked for. They are neither loaded nor
checked. A disk that fails below a map ends the process, so stages read the files instead: `EdgeSet.topology`,
`NodeSet.labels_of`, `Manifest.parts`. For a graph on a store, a copy is mapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.files.checked_files import checksum_file, npy_data_offset
from diskgnn.files.file_reading import raise_if_disk_failed, read_array
from diskgnn.formats import artifacts
from diskgnn.formats.artifacts import categories_file, edge_file, node_file
from diskgnn.formats.categories import counted_values
from diskgnn.formats.column_statistics import col_stats, constant_stats
from diskgnn.formats.graph_config import EdgeTypeConfig, NodeTypeConfig
from diskgnn.formats.manifest import Manifest
from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.record_projection import Projection, without_columns
from diskgnn.formats.record_view import RecordView
from diskgnn.formats.value_counts import NOTHING_UNUSUAL
from diskgnn.graph.type_files import AGAIN, Expected, RowFiles, TypeData, expect, read_at_random
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import ONE_NODE_TYPE, SPLITS, EdgeType, edge_type_name
from diskgnn.stores.locations import Location

if TYPE_CHECKING:
    import torch_frame
    from torch_frame.data.stats import StatType


@dataclass(frozen=True)
class NodeSet(TypeData):
    """The nodes of one type: N of them, D features each."""

    config: NodeTypeConfig
    splits: dict[str, npt.NDArray[np.int64]]  # split name -> node ids, in the order given; loaded and checked
    stored_rows: RecordFormat | None = None  # in the file, where `config` has fewer columns of it

    @staticmethod
    def open(manifest: Manifest, number: int, config: NodeTypeConfig) -> NodeSet:
        """Opens the nodes of one type, which is number `number` among the node types of the graph.

        Raises:
            ArtifactError: its files do not fit what it says of them, or a split is damaged.
        """
        name, num_nodes, target = config.name, config.num_nodes, config.target
        what = f"its {num_nodes} nodes" if name == ONE_NODE_TYPE else f"its {num_nodes} nodes of type {name}"
        if target is not None:
            matrix = (num_nodes, target.num_outputs)
            kinds: dict[str, Expected] = {
                "class": [("<i8", (num_nodes,))],
                "multilabel": [("|u1", matrix)],
                "regression": [("<f4", matrix), *([("<f4", (num_nodes,))] if target.num_outputs == 1 else [])],
            }
            file = node_file(artifacts.LABELS, name)
            expect(manifest, file, kinds[target.kind], f"label for each of {what}")
        if config.has_times:
            expect(manifest, node_file(artifacts.TIMES, name), [("<i8", (num_nodes,))], f"time for {what}")
        files = {split: node_file(split, name) for split in SPLITS}
        there = {split: file for split, file in files.items() if file in manifest.files}
        for split, file in there.items():
            expect(manifest, file, [("<i8", (manifest.num_rows(file),))], f"list of nodes in {split}")
        splits = {split: manifest.checked_array(file) for split, file in there.items()}
        if splits and target is None:
            raise ArtifactError(f"{manifest.path} has no label for each of {what}; {AGAIN}")
        found = NodeSet(manifest, number, config, splits)
        found.row_files.check(manifest, what)
        return found

    def without(self, left_out: Sequence[str]) -> NodeSet:
        """Returns the nodes without some columns that their table keeps; without any of them, they are constants.

        Raises:
            ConfigError: their rows do not have such columns.
        """
        rows = self.stored_rows or self.config.rows
        if not isinstance(rows, RecordFormat):
            what = "have no columns" if rows is None else "are vectors, of which none can be left out"
            raise ConfigError(
                f"without: expected a table that keeps its columns, found {self.name} nodes, which {what}; make "
                f"the graph again with `diskgnn convert --exclude {self.name}.{left_out[0]}`; or, of a database or "
                "relational tables, without keep_columns=false"
            )
        if unknown := [name for name in left_out if name not in {each.name for each in rows.fields}]:
            raise ConfigError(
                f"without: expected columns of {self.name} that are no keys and no times, of "
                f"{', '.join(each.name for each in rows.fields)}; found {unknown[0]!r}"
                f"{near_name(unknown[0], [each.name for each in rows.fields])}"
            )
        if not isinstance(self.config.rows, RecordFormat):  # all are left out already
            return self
        kept, features = without_columns(self.config.rows, self.config.columns or (), left_out)
        statistics = tuple(each for each in self.config.statistics or () if each.name not in left_out)
        config = replace(
            self.config, rows=kept, columns=None if kept is None else features, is_constant=kept is None,
            values=NOTHING_UNUSUAL if kept is None else self.config.values,
            statistics=None if kept is None or self.config.statistics is None else statistics,
        )  # fmt: skip
        return replace(self, config=config, stored_rows=rows)

    @cached_property
    def labels(self) -> npt.NDArray[Any] | None:
        """Returns int64 [N] with -1 for none, uint8 [N, C] of 0 and 1, or float32 [N] or [N, C] with NaN for none.

        None if the type has no labels.
        """
        return self._mapped(artifacts.LABELS, has=self.config.target is not None)

    @cached_property
    def times(self) -> npt.NDArray[np.int64] | None:
        """Returns the times [N], or None if the type has none."""
        return self._mapped(artifacts.TIMES, has=self.config.has_times)

    @property
    def user_ids(self) -> pq.ParquetFile | None:
        """Returns the user's own ids of the nodes as an open file: one column `id`, row i is node i. None: they are 0,
        1, 2, ...

        It is opened at each call, and compared with its checksum. Whoever asks for it closes it.

        Raises:
            ArtifactError: the file is damaged, or not of these nodes.

        Example:
            >>> with graph.nodes["user"].user_ids as file:
            ...     table = file.read().append_column("prediction", pa.array(predictions))
        """
        name = artifacts.ids_file(self.name)
        if name not in self.manifest.files:
            return None
        path = self.manifest.local(name)
        self.manifest.check(name, checksum_file(path))
        try:
            file = pq.ParquetFile(path)
        except (OSError, pa.ArrowException) as error:
            raise_if_disk_failed(error, path)
            raise ArtifactError(f"{self.manifest.file(name)} is no readable Parquet file ({error}); {AGAIN}") from error
        if file.metadata.num_rows != self.num_nodes or file.schema_arrow.names != ["id"]:
            file.close()
            raise ArtifactError(f"{self.manifest.file(name)} does not hold an id for each of {self.num_nodes} nodes")
        return file

    def called(self, node: int) -> str:
        """Returns what messages call a node: the user's own id if there is one."""
        with self.user_ids or nullcontext() as file:
            return f"node {node}" if file is None else f"id {id_in(file, node)!r}"

    @property
    def name(self) -> str:
        """Returns the name of the type."""
        return self.config.name

    @property
    def num_nodes(self) -> int:
        """Returns N, the number of nodes."""
        return self.config.num_nodes

    @property
    def row_files(self) -> RowFiles:
        """Returns the files of feature rows."""
        rows = self.config.rows
        return RowFiles(
            self.file(artifacts.FEATURES), self.file(artifacts.FEATURE_CHECKSUMS), self.file(artifacts.FEATURE_CODES),
            self.num_nodes, rows, self.config.columns,
            Projection(self.stored_rows, rows) if self.stored_rows and isinstance(rows, RecordFormat) else None,
        )  # fmt: skip

    def file(self, kind: str) -> str:
        """Returns the name of the file of this kind."""
        return node_file(kind, self.name)

    @property
    def values_digest(self) -> str | None:
        """Returns what names the content of `categories`; None if there are none."""
        found = self.manifest.files.get(categories_file(self.name))
        return None if found is None else f"{found.crc32c:08x}-{found.bytes}"

    def categories(self) -> pa.Table | None:
        """Reads what the codes of categories stand for: `column`, `value` as text, `count` in the rows that were known,
        and the `type` that values had if that is not text, in the order of their codes. Returns None if rows have no
        categories, or are vectors.

        Raises:
            ArtifactError: the file is damaged.
        """
        name = categories_file(self.name)
        if name not in self.manifest.files:
            return None
        path = self.manifest.local(name)
        self.manifest.check(name, checksum_file(path))
        try:
            return pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise_if_disk_failed(error, path)
            raise ArtifactError(f"{self.manifest.file(name)} is no readable Parquet file ({error}); {AGAIN}") from error

    def tensor_frame(self, records: npt.NDArray[Any]) -> torch_frame.TensorFrame:
        """Returns rows of a table that kept its columns as torch_frame has them.

        Args:
            records: [n] of `features`, any of them in any order; of a table without columns, any array [n].

        Raises:
            ConfigError: the rows are vectors, or `records` are not of this type.
            UnavailableError: torch_frame cannot be imported.
        """
        from diskgnn.batches.tensor_frames import tensor_frame

        file = self.feature_file
        if file is not None and isinstance(view := file.view, RecordView):
            if records.ndim != 1 or records.dtype != self.features.dtype:
                raise ConfigError(
                    f"records: expected rows of {self.name!r} as its `features` has them, {self.features.dtype} [n], "
                    f"found {records.dtype} {[*records.shape]}"
                )
            stored = np.require(records, requirements=["C", "W"]).view(np.uint8).reshape(-1)
            return view.tensor_frame(file.rows.as_tensor(file.kept(stored)))
        if not self.config.is_constant:
            raise ConfigError(self._no_columns)
        return tensor_frame((), {}, {}, len(records), "cpu")

    def col_stats(self) -> dict[str, dict[StatType, Any]]:
        """Returns the statistics of the columns that a table kept, as torch_frame has them: what its encoders are made
        with. They are of the rows by which features are scaled. Values of categories are numbers, truth values or text.

        Raises:
            ArtifactError: the file of categories is damaged, or of another version.
            ConfigError: the rows are vectors, or records of no table.
            UnavailableError: torch_frame cannot be imported.
        """
        rows, statistics = self.config.rows, self.config.statistics
        if self.config.is_constant:
            return constant_stats(self.num_nodes)
        if not isinstance(rows, RecordFormat):
            raise ConfigError(self._no_columns)
        if statistics is None:
            raise ConfigError(
                f"{self.manifest.path}: nothing is known of the columns of {self.name}; convert its table"
            )
        categories, counts = self.categories(), dict[str, tuple[list[Any], list[int]]]()
        for field in rows.fields:
            if categories is not None and field.num_values is not None:
                try:
                    counts[field.name] = counted_values(categories, field.name)
                except (KeyError, ValueError) as error:
                    name = self.manifest.file(categories_file(self.name))
                    raise ArtifactError(f"{name} does not hold the values of categories ({error}); {AGAIN}") from error
        return col_stats(rows, statistics, counts)

    @property
    def _no_columns(self) -> str:
        return (
            f"{self.manifest.path}: expected rows of {self.name} that keep their columns, found vectors; convert a "
            "database or relational tables without keep_columns=false"
        )

    def labels_of(self, nodes: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the labels, [n] or [n, C], of ascending `nodes` [n]. All labels are read, front to back, and checked.

        Raises:
            ArtifactError: they are damaged, or there are none.
        """
        return self.manifest.take(node_file(artifacts.LABELS, self.name), nodes)

    def times_of(self, nodes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the times [n] of `nodes` [n], in any order. All times are read once, front to back, and checked.

        Raises:
            ArtifactError: they are damaged, or there are none.
        """
        distinct, positions = np.unique(nodes, return_inverse=True)
        return self.manifest.take(node_file(artifacts.TIMES, self.name), distinct)[positions]


@dataclass(frozen=True)
class EdgeSet(TypeData):
    """The edges of one type: E of them to N destination nodes, in CSC order."""

    config: EdgeTypeConfig
    num_destinations: int  # N
    id_dtype: np.dtype[Any]  # of `indices`: int32 when there are fewer than 2^31 source nodes, otherwise int64

    @staticmethod
    def open(manifest: Manifest, number: int, config: EdgeTypeConfig, num_nodes: int) -> EdgeSet:
        """Opens the edges of one type, which end in `num_nodes` nodes.

        Raises:
            ArtifactError: its files do not fit what it says of them, or each other.
        """
        edge_type, num_edges = config.type, config.num_edges

        names = edge_file(artifacts.INDPTR, edge_type), edge_file(artifacts.INDICES, edge_type)
        indptr, indices = (manifest.files.get(name) for name in names)
        valid = indptr is not None and (indptr.dtype, indptr.shape) == ("<i8", (num_nodes + 1,))
        valid = valid and indices is not None and indices.shape == (num_edges,) and indices.dtype in ("<i4", "<i8")
        if not valid or _ends(manifest.file(names[0]), num_nodes) != (0, num_edges):
            raise ArtifactError(
                f"{manifest.path} holds no CSC matrix ({' and '.join(names)} do not fit each other, or not "
                f"{num_nodes} nodes); {AGAIN}"
            )
        for kind, dtype, has in (
            (artifacts.WEIGHTS, "<f4", config.has_weights),
            (artifacts.TIMES, "<i8", config.has_times),
            (artifacts.EDGE_IDS, "<i8", config.has_ids),
        ):
            if has:
                expected, what = [(dtype, (num_edges,))], f"{kind} of {edge_type_name(edge_type)}"
                expect(manifest, edge_file(kind, edge_type), expected, what)
        assert indices is not None
        found = EdgeSet(manifest, number, config, num_nodes, np.dtype(indices.dtype))
        found.row_files.check(manifest, f"its {num_edges} edges of type {edge_type_name(edge_type)}")
        return found

    @cached_property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """Returns the weights [E], at least 0, and not all 0 in any list of in-edges. None if the type has none."""
        return self._mapped(artifacts.WEIGHTS, has=self.config.has_weights)

    @cached_property
    def times(self) -> npt.NDArray[np.int64] | None:
        """Returns the times [E], or None if the type has none."""
        return self._mapped(artifacts.TIMES, has=self.config.has_times)

    @cached_property
    def edge_ids(self) -> npt.NDArray[np.int64] | None:
        """Returns the positions [E] in the user's input; None if they were not kept."""
        return self._mapped(artifacts.EDGE_IDS, has=self.config.has_ids)

    @property
    def type(self) -> EdgeType:
        """Returns (source type, name, destination type)."""
        return self.config.type

    @property
    def num_edges(self) -> int:
        """Returns E, the number of edges."""
        return self.config.num_edges

    @property
    def topology_bytes(self) -> int:
        """Returns the bytes of `indptr` and `indices` when they are loaded."""
        return 8 * (self.num_destinations + 1) + self.id_dtype.itemsize * self.num_edges

    @cached_property
    def indptr(self) -> npt.NDArray[np.int64]:
        """Returns [N+1] memory map: in-neighbours of v are indices[indptr[v]:indptr[v+1]]."""
        return self.manifest.array(self.topology_files[0])

    @cached_property
    def indices(self) -> npt.NDArray[Any]:
        """Returns [E] memory map of source nodes."""
        return self.manifest.array(self.topology_files[1])

    @property
    def topology_files(self) -> tuple[str, str]:
        """Returns the names of the files that hold `indptr` and `indices`."""
        return edge_file(artifacts.INDPTR, self.type), edge_file(artifacts.INDICES, self.type)

    @cached_property
    def most_in_neighbours(self) -> int:
        """Returns how many edges the node has that most of them lead to. Reads `indptr` front to back.

        Raises:
            ArtifactError: it is damaged.
        """
        most, last, degrees = 0, 0, np.empty(0, np.int64)
        for part in self.manifest.parts(self.topology_files[0]):
            self.checked_offsets(part, last)
            if len(degrees) < len(part):  # once: memory that is new takes longer than what is done in it
                degrees = np.empty(len(part), np.int64)
            found = np.subtract(part[1:], part[:-1], out=degrees[: len(part) - 1])
            most, last = max(most, int(part[0]) - last, int(found.max(initial=0))), int(part[-1])
        return most

    def checked_offsets(self, offsets: npt.NDArray[np.int64], before: int = 0) -> npt.NDArray[np.int64]:
        """Checks and returns a part of `indptr` that was read from its file, where the offset `before` it is known.

        Raises:
            ArtifactError: the offsets do not ascend from 0 to the number of edges.
        """
        if len(offsets) and (offsets[0] < before or offsets[-1] > self.num_edges or (offsets[1:] < offsets[:-1]).any()):
            raise ArtifactError(
                f"{self.manifest.file(self.topology_files[0])} is damaged: expected offsets that ascend from 0 to "
                f"{self.num_edges}; {AGAIN}"
            )
        return offsets

    def topology(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Reads `indptr` and `indices` into memory, and checks them. They are not mapped as well, which would count
        twice.

        Raises:
            ArtifactError: one is damaged.
        """
        indptr, indices = self.topology_files
        return self.manifest.checked_array(indptr), self.manifest.checked_array(indices)

    def topology_at_random(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
        """Returns `indptr` and `indices` as memory maps that read no more than what is touched."""
        read_at_random(self.indptr)
        read_at_random(self.indices)
        return self.indptr, self.indices

    @cached_property
    def splits(self) -> dict[str, npt.NDArray[np.int64]]:
        """Returns the seed edges for link prediction by split, each [n, 2] (source, destination), loaded and checked.

        They need not be edges of the topology.

        Raises:
            ArtifactError: one is damaged, or of another shape.
        """
        splits = {}
        for split in self.config.link_splits:
            name = edge_file(split, self.type)
            splits[split] = self.manifest.checked_array(name)
            expect(self.manifest, name, [("<i8", (len(splits[split]), 2))], "seed edges")
        return splits

    @property
    def row_files(self) -> RowFiles:
        """Returns the files of feature rows, in CSC order."""
        return RowFiles(
            self.file(artifacts.EDGE_FEATURES), self.file(artifacts.EDGE_FEATURE_CHECKSUMS), None, self.num_edges,
            self.config.rows,
        )  # fmt: skip

    def file(self, kind: str) -> str:
        """Returns the name of the file of this kind."""
        return edge_file(kind, self.type)


def id_in(file: pq.ParquetFile, node: int) -> object:
    """Returns the user's own id of a node, from a file of the ids of all nodes."""
    group = 0
    while node >= (num_rows := file.metadata.row_group(group).num_rows):
        group, node = group + 1, node - num_rows
    return file.read_row_group(group)["id"][node].as_py()


def _ends(indptr: Location, num_nodes: int) -> tuple[int, int]:
    """Returns the first and the last offset in the file of [num_nodes + 1]."""
    start = npy_data_offset(indptr)
    first, last = (int(read_array(indptr, np.int64, 1, start + 8 * number)[0]) for number in (0, num_nodes))
    return first, last
