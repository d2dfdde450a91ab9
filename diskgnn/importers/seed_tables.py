"""Seeds from tables: a node, a time and a label in each row, as tasks over relational databases come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, InputError
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.ids.dense_ids import id_keys, id_kind
from diskgnn.importers.ids.kept_ids import nodes_of_ids
from diskgnn.importers.tables.column_encoding import label_numbers, seconds
from diskgnn.importers.tables.table import Table, TableColumns
from diskgnn.importers.tables.table_rows import splits
from diskgnn.paths import PathLike
from diskgnn.specs.targets import SEED_TASKS, NodeTarget


def read_target(
    graph: PathLike | Graph,
    seeds: PathLike | Mapping[str, PathLike],
    *,
    node_type: str | None = None,
    columns: TableColumns | None = None,
    task: str | None = None,
    num_classes: int | None = None,
) -> NodeTarget:
    """The seeds that tables list, with the times and labels that they give them, as `prepare` and `sample` take them.

    Args:
        graph: whose nodes the seeds are.
        seeds: a Parquet or CSV table, or a folder of parts, with a column that names the split of each row; or a table
            for each split, {"train": path}.
        node_type: of the seeds; by default the only one of the graph.
        columns: which columns hold `id` (the user's own ids where the graph keeps some), `time`, `label` and `split`;
            by default those of these names, and no times or labels without such a column. Times are whole numbers, or
            become seconds since 1970.
        task: what the labels are, 'class' or 'regression'; by default classes if they are whole numbers or truth
            values. Rows without a label are left out.
        num_classes: as in `NodeTarget`.

    Raises:
        ConfigError: no such type of nodes, task or split, or labels that do not fit it.
        InputError: a table that cannot be read, columns that are not what they should be, or ids that no node has.

    Example:
        >>> target = diskgnn.read_target("graph", {"train": "train.parquet"}, node_type="users",
        ...                              columns=diskgnn.TableColumns(id="user", time="day", label="left"))
        >>> diskgnn.prepare("graph", "packed", target=target, temporal="last", fanouts=[15, 10], cpu_cache="10%")
    """
    if task is not None and task not in SEED_TASKS:
        raise ConfigError(f"task: expected one of {', '.join(SEED_TASKS)}, found {task!r}")
    nodes = _nodes_of(graph if isinstance(graph, Graph) else Graph.open(graph), node_type)
    rows = _rows_by_split(seeds, columns or TableColumns())
    has_label = _all_have("label", rows)
    if has_label:
        rows = {split: _labelled(split, each) for split, each in rows.items()}
    return NodeTarget(
        nodes.name,
        _nodes_by_split(nodes, {split: each["id"] for split, each in rows.items()}),
        {split: _times(split, each["time"]) for split, each in rows.items()} if _all_have("time", rows) else None,
        _labels({split: each["label"] for split, each in rows.items()}, task) if has_label else None,
        num_classes,
    )


def _nodes_of(graph: Graph, node_type: str | None) -> NodeSet:
    if node_type is None and len(graph.nodes) == 1:
        return next(iter(graph.nodes.values()))
    if node_type is None or node_type not in graph.nodes:
        raise ConfigError(
            f"target: expected the type of the nodes that the seeds are, one of {', '.join(graph.nodes)}; found "
            f"{node_type or 'none'}"
        )
    return graph.nodes[node_type]


def _rows_by_split(seeds: PathLike | Mapping[str, PathLike], columns: TableColumns) -> dict[str, pa.Table]:
    """The columns `id`, and `time` and `label` where there are such, of the rows of each split."""
    if isinstance(seeds, Mapping):
        return {split: _rows(Table("seeds", path, columns), columns) for split, path in seeds.items()}
    table = Table("seeds", seeds, columns)
    chosen = splits(table, columns)
    if not chosen:
        raise InputError(f"seeds: expected rows of a split in {seeds}, found none")
    rows = _rows(table, columns)
    return {split: rows.take(pa.array(numbers)) for split, numbers in chosen.items()}


def _rows(table: Table, columns: TableColumns) -> pa.Table:
    taken = {"id": columns.id}
    for role, name, usual in (("time", columns.time or "time", "time"), ("label", columns.label, "label")):
        if name != usual or usual in table.schema.names:
            taken[role] = name
    kind = {role: table.field(name).type for role, name in taken.items()}["id"]
    if id_kind(kind) is None:
        raise InputError(
            f"seeds: expected whole numbers, strings or binary in column {columns.id!r} of {table.path}, found {kind}"
        )
    batches = [
        pa.record_batch([id_keys(batch.column(0)), *batch.columns[1:]], names=list(taken))
        for batch in table.batches(list(taken.values()), CHUNK_EDGES)
    ]
    if not sum(batch.num_rows for batch in batches):
        raise InputError(f"seeds: expected at least one row in {table.path}, found none")
    rows = pa.Table.from_batches(batches)
    for role in {"id", "time"} & taken.keys():
        if rows[role].null_count:
            place = int(np.asarray(rows[role].is_null()).argmax())
            raise InputError(
                f"seeds: expected no null in column {taken[role]!r} of {table.path}, found one in row {place} (from 0)"
            )
    return rows


def _all_have(column: str, rows: Mapping[str, pa.Table]) -> bool:
    lacking = [split for split, each in rows.items() if column not in each.column_names]
    if lacking and len(lacking) < len(rows):
        raise InputError(f"seeds: expected a {column} of each seed or of none, found none in split {lacking[0]!r}")
    return not lacking


def _labelled(split: str, rows: pa.Table) -> pa.Table:
    kept = rows.filter(pc.invert(rows["label"].is_null(nan_is_null=True)))
    if not kept.num_rows:
        raise InputError(f"seeds: expected rows with a label in split {split!r}, found none; leave the split out")
    return kept


def _nodes_by_split(nodes: NodeSet, ids: Mapping[str, pa.ChunkedArray]) -> dict[str, npt.NDArray[np.int64]]:
    """The nodes [n] of these ids: the user's own, where the graph has some."""
    hint = "; columns of CSV are read as `types` says"
    return dict(zip(ids, nodes_of_ids("seeds", nodes, list(ids.values()), hint), strict=True))


def _times(split: str, values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    return np.asarray(seconds(values.combine_chunks(), f"seeds: times of split {split!r}"))


def _labels(values: Mapping[str, pa.ChunkedArray], task: str | None) -> dict[str, npt.NDArray[Any]]:
    if task is None:
        whole = all(pa.types.is_integer(each.type) or pa.types.is_boolean(each.type) for each in values.values())
        task = "class" if whole else "regression"
    return {
        split: np.asarray(label_numbers(each.combine_chunks(), task, f"seeds: labels of split {split!r}"))
        for split, each in values.items()
    }
