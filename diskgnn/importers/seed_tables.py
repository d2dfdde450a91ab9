"""Seeds from tables: a node or a pair, a time and a label in each row, as tasks over relational databases come."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, InputError, callers_level
from diskgnn.graph.graph import Graph
from diskgnn.graph.type_data import NodeSet
from diskgnn.importers.class_labels import KnownClasses, LabelColumn, class_labels, is_value
from diskgnn.importers.containers.file_kinds import permission_named
from diskgnn.importers.containers.rows import CHUNK_EDGES
from diskgnn.importers.guessed_task import warn_of_classes
from diskgnn.importers.ids.id_types import id_keys, id_kind
from diskgnn.importers.ids.kept_ids import nodes_of_ids
from diskgnn.importers.tables.column_encoding import label_numbers
from diskgnn.importers.tables.table import Table, TableColumns
from diskgnn.importers.tables.table_rows import is_list, no_integers, splits
from diskgnn.importers.tables.times import counted, is_date
from diskgnn.paths import PathLike
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import ClassValue, EdgeType, are_class_values, edge_type_name, parse_edge_type
from diskgnn.specs.targets import SEED_TASKS, LinkTarget, NodeTarget

_LABEL = "label"
_INDEX = re.compile(r"__index_level_\d+__")  # of pandas, in the files that it writes


def read_target(
    graph: PathLike | Graph,
    seeds: PathLike | Mapping[str, PathLike],
    *,
    node_type: str | None = None,
    edge_type: EdgeType | str | None = None,
    columns: TableColumns | None = None,
    task: str | None = None,
    num_classes: int | None = None,
    classes: Sequence[ClassValue] | None = None,
) -> NodeTarget | LinkTarget:
    """Returns the seeds that tables list, with the times and labels that they give them, as `prepare` and `sample` take
    them.

    Args:
        graph: whose nodes the seeds are.
        seeds: a Parquet or CSV table, or a folder of parts, with a column that names the split of each row; or a table
            for each split, {"train": path}.
        node_type: of the seeds; by default the only one of the graph.
        edge_type: that the seeds are pairs of, in place of nodes: of its sources and its destinations. The target is
            then a `LinkTarget`; with labels, these are predicted, and without, which pairs have an edge.
        columns: which columns hold `id` (the user's own ids where the graph keeps some), or `src` and `dst` of pairs,
            `time`, `label` and `split`;
            by default those of these names, and no times or labels without such a column. Times are whole numbers, or
            dates and timestamps, which become numbers of the unit of the graph's times. Several labels of a seed are a
            column of lists, all of one length, or several columns: label=["left", "paid"].
        task: what the labels are, 'class', 'multilabel' (0 and 1) or 'regression'. By default, whole numbers, text and
            truth values are a class, several numbers or truth values are 'multilabel', and others are to be regressed.
            Rows without any label are left out.
        num_classes: as in `NodeTarget`.
        classes: the values of labels that are classes 0, 1, 2, ..., for a model that was trained on labels that had
            others, too; by default those that the tables have, in ascending order.

    Raises:
        ConfigError: no such type of nodes or edges, task or split; labels that do not fit it, or several of a pair; or
            dates and timestamps where the graph's times are in minutes or longer units.
        InputError: a table that cannot be read, columns that are not what they should be, ids that no node has, or a
            label that is none of `classes`.

    Example:
        >>> target = diskgnn.read_target("graph", {"train": "train.parquet"}, node_type="users",
        ...                              columns=diskgnn.TableColumns(id="user", time="day", label="left"))
        >>> diskgnn.prepare("graph", "packed", target=target, temporal="last", fanouts=[15, 10], cpu_cache="10%")
    """
    if task is not None and task not in SEED_TASKS:
        raise ConfigError(f"task: expected one of {', '.join(SEED_TASKS)}, found {task!r}")
    opened = graph if isinstance(graph, Graph) else Graph.open(graph)
    if edge_type is None:
        ends = {"id": _nodes_of(opened, node_type)}
    else:
        ends = _ends_of(opened, parse_edge_type(edge_type, "target"))
    with permission_named():
        rows = _rows_by_split(seeds, columns or TableColumns(), tuple(ends))
    labels = _label_columns(rows)
    has_label = bool(labels)
    if has_label:
        rows = {split: _labelled(split, each, labels) for split, each in rows.items()}
    elif edge_type is None:
        _warn_of_no_labels(ends["id"], seeds, columns or TableColumns(), rows)
    numbers = {role: _nodes_by_split(nodes, {split: each[role] for split, each in rows.items()})
               for role, nodes in ends.items()}  # fmt: skip
    times, unit = None, opened.config.time_unit
    if _all_have("time", rows):
        times = {split: _times(split, each["time"], unit) for split, each in rows.items()}
    elif any(each.config.has_times for each in ends.values()):
        _warn_of_unread_times(opened, seeds, columns or TableColumns(), tuple(ends))
    known = None
    if classes is not None:
        if not has_label or isinstance(classes, str) or not are_class_values(classes, len(classes)):
            raise ConfigError(f"classes: expected the different values of a column of labels, found {classes!r:.80}")
        if num_classes not in (None, len(classes)):
            raise ConfigError(
                f"num_classes: expected {len(classes)}, as many as there are `classes`, found {num_classes}"
            )
        num_classes, known = len(classes), KnownClasses("`classes`", len(classes), tuple(classes))
    found, called = _labels(rows, labels, task, num_classes, known) if has_label else (None, None)
    given: dict[str, Any] = {"times": times, "labels": found, "num_classes": num_classes, "classes": called}
    if edge_type is None:
        return NodeTarget(ends["id"].name, numbers["id"], **given)
    pairs = {split: np.stack([numbers[role][split] for role in ends], axis=1) for split in rows}
    return LinkTarget(edge_type, seeds=pairs, **given)  # type: ignore[arg-type]  # it parses the name


def _free_columns(
    seeds: PathLike | Mapping[str, PathLike], columns: TableColumns, ids: Sequence[str]
) -> tuple[PathLike, list[pa.Field]]:
    """Returns the first table, and its columns that nobody named, without an index of pandas."""
    path = next(iter(seeds.values())) if isinstance(seeds, Mapping) else seeds
    labels = [columns.label or _LABEL] if isinstance(columns.label or _LABEL, str) else list(columns.label or ())
    taken = {*labels, *(getattr(columns, role) or role for role in (*ids, "time", "split"))}
    schema = Table("seeds", path, columns).schema
    return path, [each for each in schema if each.name not in taken and _INDEX.fullmatch(each.name) is None]


def _warn_of_no_labels(
    nodes: NodeSet, seeds: PathLike | Mapping[str, PathLike], columns: TableColumns, splits: Iterable[str]
) -> None:
    """Warns of seeds to train on or to be scored that have no labels, neither in their tables nor in the graph."""
    if nodes.config.target is not None or set(splits) <= {"test"}:  # others are there to be predicted
        return
    path, free = _free_columns(seeds, columns, ("id",))
    remedy = (
        f"if {' or '.join(each.name for each in free)} is the label, say so (`columns`, label=NAME)"
        if free
        else "add a column of them"
    )
    warnings.warn(
        f"seeds: no column of {path} is named as their labels, and nodes of type {nodes.name!r} have none of their "
        f"own, so models can neither be trained on these seeds nor be scored; {remedy}",
        DataWarning,
        stacklevel=callers_level(),
    )


def _warn_of_unread_times(
    graph: Graph, seeds: PathLike | Mapping[str, PathLike], columns: TableColumns, ids: Sequence[str]
) -> None:
    """Warns of columns that may be when seeds are asked, where nobody said which is and seeds have times of their
    own."""
    path, free = _free_columns(seeds, columns, ids)
    found = [each.name for each in free if is_date(each.type) or pa.types.is_integer(each.type)]
    if found:
        warnings.warn(
            f"seeds: no column of {path} is named as their times, so draws by time go by those of the nodes in "
            f"{graph.manifest.path}; if {' or '.join(found)} is when a seed is asked, say so (`columns`, time=NAME)",
            DataWarning,
            stacklevel=callers_level(),
        )


def _nodes_of(graph: Graph, node_type: str | None) -> NodeSet:
    if node_type is None and len(graph.nodes) == 1:
        return next(iter(graph.nodes.values()))
    if node_type is None or node_type not in graph.nodes:
        raise ConfigError(
            f"target: expected the type of the nodes that the seeds are, one of {', '.join(graph.nodes)}; found "
            f"{node_type or 'none'}{near_name(node_type, graph.nodes)}"
        )
    return graph.nodes[node_type]


def _ends_of(graph: Graph, edge_type: EdgeType) -> dict[str, NodeSet]:
    if edge_type not in graph.edges:
        raise ConfigError(
            f"target: expected the type of the edges that the seeds are pairs of, one of "
            f"{', '.join(map(edge_type_name, graph.edges))}; found {edge_type_name(edge_type)}"
            f"{near_name(edge_type_name(edge_type), map(edge_type_name, graph.edges))}"
        )
    return {"src": graph.nodes[edge_type[0]], "dst": graph.nodes[edge_type[2]]}


def _rows_by_split(
    seeds: PathLike | Mapping[str, PathLike], columns: TableColumns, ids: Sequence[str]
) -> dict[str, pa.Table]:
    """Returns the columns `ids`, and `time` and labels where there are such, of the rows of each split."""
    if isinstance(seeds, Mapping):
        return {split: _rows(_opened(path, columns), columns, ids) for split, path in seeds.items()}
    table = _opened(seeds, columns)
    split = columns.split or "split"
    if split not in table.schema.names:
        raise InputError(
            f"seeds: expected a column {split!r} in {table.path}, found {table.schema.names}; say what it is "
            f"called (`columns`, split=NAME), or give a table for each split, such as train={table.path}"
        )
    chosen = splits(table, split)
    if not chosen:
        raise InputError(f"seeds: expected rows of a split in {seeds}, found none")
    rows = _rows(table, columns, ids)
    return {split: rows.take(pa.array(numbers)) for split, numbers in chosen.items()}


def _opened(path: PathLike, columns: TableColumns) -> Table:
    table = Table("seeds", path, columns)
    if not table.num_rows:  # whose columns may be of no type
        raise InputError(f"seeds: expected at least one row in {table.path}, found no rows")
    return table


def _rows(table: Table, columns: TableColumns, ids: Sequence[str]) -> pa.Table:
    taken: dict[str, str] = {role: getattr(columns, role) or role for role in ids}
    if columns.time or "time" in table.schema.names:
        taken["time"] = columns.time or "time"
    if columns.label is not None and not isinstance(columns.label, str):
        taken |= {f"{_LABEL}{number}": name for number, name in enumerate(columns.label)}
    elif columns.label is not None or _LABEL in table.schema.names:
        taken[_LABEL] = columns.label or _LABEL
    for role in ids:
        name = taken[role]
        if name not in table.schema.names:
            raise InputError(
                f"seeds: expected a column {name!r} in {table.path}, found {table.schema.names}; say what the one of "
                f"ids is called (`columns`, {role}=NAME){near_name(name, table.schema.names)}"
            )
    kinds = {role: table.field(name).type for role, name in taken.items()}
    for role in ids:
        if id_kind(kinds[role]) is None:
            raise no_integers(table, taken[role], "whole numbers, strings or binary")
    batches = [
        pa.record_batch(
            [id_keys(column) if role in ids else column for role, column in zip(taken, batch.columns, strict=True)],
            names=list(taken),
        )
        for batch in table.batches(list(taken.values()), CHUNK_EDGES)
    ]
    rows = _without_lists(table, pa.Table.from_batches(batches))
    for role in [role for role in taken if role in (*ids, "time")]:
        if rows[role].null_count:
            place = int(np.asarray(rows[role].is_null()).argmax())
            raise InputError(
                f"seeds: expected no null in column {taken[role]!r} of {table.path}, found one in row {place} (from 0)"
            )
    return rows


def _without_lists(table: Table, rows: pa.Table) -> pa.Table:
    """Returns `rows` with a column for each place of their lists of labels."""
    if _LABEL not in rows.column_names or not is_list(rows[_LABEL].type):
        return rows
    labels = rows[_LABEL].combine_chunks()
    lengths = pc.unique(pc.list_value_length(labels)).drop_null().to_pylist()
    if len(lengths) != 1 or not lengths[0]:
        raise InputError(f"seeds: expected lists of one length as labels of {table.path}, found {sorted(lengths)}")
    rows = rows.drop_columns([_LABEL])
    for place in range(lengths[0]):
        rows = rows.append_column(f"{_LABEL}{place}", pc.list_element(labels, place))
    return rows


def _label_columns(rows: Mapping[str, pa.Table]) -> list[str]:
    """Returns those of labels, the same in all splits: `label`, or `label0`, `label1` and so on where a seed has
    several."""
    found = {split: [name for name in each.column_names if name.startswith(_LABEL)] for split, each in rows.items()}
    first, *others = found.values()
    if all(first == each for each in others):
        return first
    if lacking := [split for split, names in found.items() if not names]:
        raise InputError(
            f"seeds: expected a label of each seed or of none, found none in split {lacking[0]!r}; prepare seeds "
            f"without labels by themselves, for `predict`"
        )
    counts = ", ".join(f"{len(names)} in {split}" for split, names in found.items())
    raise InputError(f"seeds: expected as many labels of each seed in all splits, found {counts}")


def _all_have(column: str, rows: Mapping[str, pa.Table]) -> bool:
    lacking = [split for split, each in rows.items() if column not in each.column_names]
    if lacking and len(lacking) < len(rows):
        raise InputError(f"seeds: expected a {column} of each seed or of none, found none in split {lacking[0]!r}")
    return not lacking


def _labelled(split: str, rows: pa.Table, labels: Sequence[str]) -> pa.Table:
    lacking = np.all([np.asarray(rows[name].is_null(nan_is_null=True)) for name in labels], axis=0)
    kept = rows.filter(pa.array(~lacking))
    if not kept.num_rows:
        raise InputError(f"seeds: expected rows with a label in split {split!r}, found none; leave the split out")
    return kept


def _nodes_by_split(nodes: NodeSet, ids: Mapping[str, pa.ChunkedArray]) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the nodes [n] of these ids: the user's own, where the graph has some."""
    hint = "; columns of CSV are read as `types` says"
    return dict(zip(ids, nodes_of_ids("seeds", nodes, list(ids.values()), hint), strict=True))


def _times(split: str, values: pa.ChunkedArray, time_unit: str | None) -> npt.NDArray[np.int64]:
    where = f"seeds: times of split {split!r}"
    return np.asarray(counted(values.combine_chunks(), where, time_unit))


def _labels(
    rows: Mapping[str, pa.Table],
    names: Sequence[str],
    task: str | None,
    num_classes: int | None,
    known: KnownClasses | None,
) -> tuple[dict[str, npt.NDArray[Any]], tuple[ClassValue, ...] | None]:
    """Returns the labels [n] of each split; [n, C] of several labels, and of 'multilabel'. And what classes are
    called."""
    several, is_guessed = list(names) != [_LABEL], task is None
    _require_alike(rows, names)
    if task is None:
        kinds = [each[name].type for each in rows.values() for name in names]
        text = not several and all(pa.types.is_string(kind) or pa.types.is_large_string(kind) for kind in kinds)
        whole = text or all(pa.types.is_integer(kind) or pa.types.is_boolean(kind) for kind in kinds)
        task = ("multilabel" if several else "class") if whole else "regression"
    if several and task == "class":
        raise ConfigError(f"task: expected multilabel or regression for {len(names)} labels of each seed, found class")
    of_splits = {each[names[0]].type for each in rows.values()}
    if task == "class" and len(of_splits) == 1 and not pa.types.is_floating(kind := of_splits.pop()):
        return _classes(rows, names[0], kind, num_classes, known)
    if known is not None:
        raise ConfigError(
            "classes: expected labels that are text, truth values or whole numbers of a class, found others"
        )
    found = {split: [_numbers(split, each[name], task) for name in names] for split, each in rows.items()}
    if is_guessed and task == "regression" and not several:
        remedy = "pass task='class', and task='regression' if not"
        warn_of_classes("seeds: labels", [columns[0] for columns in found.values()], remedy)
    return {
        split: np.stack(columns, axis=1) if several or task == "multilabel" else columns[0]
        for split, columns in found.items()
    }, None


def _require_alike(rows: Mapping[str, pa.Table], names: Sequence[str]) -> None:
    """Raises InputError for labels that are text in some splits or columns, and not in others."""
    found = dict[str, str]()  # type -> where it comes first
    for split, name in ((split, name) for name in names for split in rows):
        kind = rows[split][name].type
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        found.setdefault("text" if is_text else str(kind), f"split {split!r}" + f" ({name})" * (len(names) > 1))
    if "text" in found and len(found) > 1:
        told = " and ".join(f"{kind} in {where}" for kind, where in found.items())
        raise InputError(
            f"seeds: labels: expected one type, found {told}; cast one to the other (of CSV: `types`, COLUMN:string)"
        )


def _classes(
    rows: Mapping[str, pa.Table], name: str, kind: pa.DataType, num_classes: int | None, known: KnownClasses | None
) -> tuple[dict[str, npt.NDArray[np.int64]], tuple[ClassValue, ...] | None]:
    """Returns the classes of all splits together, and what they are called where these are not their numbers."""
    if not is_value(kind):
        raise InputError(f"seeds: labels: expected whole numbers, text or truth values, found {kind}")
    column = pa.chunked_array([chunk for each in rows.values() for chunk in each[name].chunks], kind)
    labels = LabelColumn("seeds: labels", len(column), kind, lambda first: iter(column.slice(first).chunks))
    found = class_labels(labels, num_classes, known=known)
    ends = np.cumsum([each.num_rows for each in rows.values()])
    codes = dict(zip(rows, np.split(found.rows.load(), ends[:-1]), strict=True))
    return codes, found.values if len(found.values or ()) > 1 else None


def _numbers(split: str, values: pa.ChunkedArray, task: str) -> npt.NDArray[Any]:
    """Returns one label of each seed; NaN where it is not known."""
    where = f"seeds: labels of split {split!r}"
    numbers = label_numbers(values.combine_chunks(), "regression" if task == "regression" else "class", where)
    if task == "multilabel" and numbers.null_count:
        raise InputError(f"{where}: expected 0 or 1 for each label, found null in a row that has others")
    return np.asarray(numbers)
