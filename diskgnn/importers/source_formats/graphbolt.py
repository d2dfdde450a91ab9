"""What GraphBolt's OnDiskDataset reads: a folder with a metadata.yaml that names edges, features and tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.containers import arrays, edge_lists, text_numbers, values
from diskgnn.importers.containers.rows import EdgeStream, RowSource, of_array
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput, load_yaml
from diskgnn.importers.guessed_task import warn_of_classes
from diskgnn.importers.source_listing import AUTO, Attributes, SourceListing
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, EdgeType, edge_type_name, parse_edge_type

METADATA = "metadata.yaml"
_SETS = {"train": "train_set", "valid": "validation_set", "test": "test_set"}
_WEIGHTS = ("weight", "weights")  # what `graph.feature_data` mostly calls them
_TIMES = ("timestamp", "timestamps", "time", "times")
_SEEDS = ("seeds", "seed_nodes", "node_pairs", None)  # what ids have been called; None: the first without a name

Record = Mapping[str, Any]


def recognises(source: object) -> bool:
    """Returns whether this is the path of such a folder, or of its metadata.yaml."""
    return isinstance(source, Path) and (source.name == METADATA or (source / METADATA).is_file())


def read(
    source: Path,
    *,
    task: str | None = None,
    features: str | None = "feat",
    edge_features: str | None = "feat",
    weights: str | None = AUTO,
    times: str | None = AUTO,
) -> GraphInput:
    """Returns the graph of a data set, with the seeds and labels of one of its tasks.

    Args:
        source: the folder, or its metadata.yaml.
        task: its name; None if there is only one.
        features: what `feature_data` calls the features of nodes; where a type has another one only, it is that.
        edge_features: the same of edges.
        weights: what the weights of edges are called, in `graph.feature_data` or `feature_data`; 'auto' takes what
            `graph.feature_data` calls weight or weights.
        times: what the times of nodes or edges are called; 'auto' takes what `graph.feature_data` calls timestamp,
            timestamps, time or times.

    Raises:
        InputError: metadata.yaml does not say what a graph needs, or names files that are not there.
        ConfigError: it is no YAML, or there are several tasks.
    """
    path = source / METADATA if source.is_dir() else source
    described = load_yaml(path)
    if not isinstance(described, dict) or not isinstance(described.get("graph"), dict):
        raise InputError(
            f"{path}: expected a graph with nodes and edges, found none; what GraphBolt has preprocessed is read from "
            "the metadata.yaml that it was made from"
        )
    listing = SourceListing()
    given = _Given(path.parent, described, listing)
    counts, edge_records = given.topology()
    chosen = given.task(task)
    nodes: dict[str, dict[str, Any]] = {}
    for name, count in counts.items():
        known = given.attributes("node", name)
        when = known.take(given.called("node", name, times, _TIMES), "times")
        nodes[name] = {
            "num_nodes": count, "times": when, "features": given.features(known, "node", name, features, "features")
        }  # fmt: skip
        known.leave_rest("no option names it, such as features and times")
    edges: dict[EdgeType, dict[str, Any]] = {}
    for edge_type, record in edge_records.items():
        known = given.attributes("edge", edge_type)
        listing.read(known.of, "edges", "edges")
        edges[edge_type] = {
            "edges": given.edges(record),
            "weights": known.take(given.called("edge", edge_type, weights, _WEIGHTS), "weights"),
            "times": known.take(given.called("edge", edge_type, times, _TIMES), "times"),
            "features": given.features(known, "edge", edge_type, edge_features, "edge_features"),
        }
        known.leave_rest("no option names it, such as edge_features, weights and times")
    given.leave_out_strangers([*counts, *edge_records])
    for split, key in _SETS.items():
        for seeds in chosen.get(key) or []:
            given.add_seeds(split, seeds, chosen, nodes, edges)
    given.warn_of_labels()
    return GraphInput(
        {name: NodeInput(**found) for name, found in nodes.items()},
        {edge_type: EdgeInput(**found) for edge_type, found in edges.items()},
        listing.contents(),
    )


class _Given:
    """The description and the folder that its paths are in."""

    def __init__(self, folder: Path, described: Record, listing: SourceListing) -> None:
        self._folder, self._described, self._listing = folder, described, listing
        self._labels: dict[str, npt.NDArray[Any]] = {}
        self._kinds: dict[str, str] = {}  # of these labels

    def topology(self) -> tuple[dict[str, int], dict[EdgeType, Record]]:
        """Returns the nodes of each type, and a record of each edge type."""
        graph = self._described["graph"]
        counts: dict[str, int] = {}
        for record in graph.get("nodes") or []:
            counts[record.get("type") or ONE_NODE_TYPE] = self._field(record, "num", int)
        edges = {
            parse_edge_type(record["type"]) if record.get("type") else ONE_EDGE_TYPE: record
            for record in graph.get("edges") or []
        }
        if not counts or not edges:
            raise InputError(f"{self._folder / METADATA}: expected a graph with nodes and edges, found {graph!r:.80}")
        return counts, edges

    def task(self, name: str | None) -> Record:
        """Returns one of the tasks; no task is one without seeds."""
        tasks = {
            str(record.get("name", number)): record for number, record in enumerate(self._described.get("tasks") or [])
        }
        if name is None and len(tasks) > 1:
            raise ConfigError(f"options: expected the option task, one of {', '.join(tasks)}")
        if name is not None and name not in tasks:
            raise ConfigError(f"options: task: expected one of {', '.join(tasks) or 'none'}, found {name!r}")
        for other in tasks.keys() - {name} if name is not None else ():
            self._listing.leave_out("", f"task {other}", f"task {name} was asked for", expected=True)
        return tasks[name] if name is not None else next(iter(tasks.values()), {})

    def attributes(self, domain: str, owner: str | EdgeType) -> Attributes:
        """Returns the files of what the nodes or edges of a type have. One that `feature_data` and `graph.feature_data`
        both name has the prefix "graph." in the latter.
        """
        found = self._records(self._described, domain, owner)
        for name, path in self._records(self._described["graph"], domain, owner).items():
            found[f"graph.{name}" if name in found else name] = path
        return Attributes(self._listing, owner if isinstance(owner, str) else edge_type_name(owner), found)

    def _records(self, part: Record, domain: str, owner: str | EdgeType) -> dict[str, Path]:
        return {
            self._field(record, "name", str): self._path(record)
            for record in part.get("feature_data") or []
            if record.get("domain") == domain and self._type(domain, record) == owner
        }

    def called(self, domain: str, owner: str | EdgeType, asked: str | None, usual: Sequence[str]) -> str | None:
        """Returns the name of an attribute that sampling goes by: as asked for, or a usual one of
        `graph.feature_data`."""
        if asked != AUTO:
            return asked
        named = self._records(self._described["graph"], domain, owner)
        name = next((name for name in usual if name in named), None)
        return f"graph.{name}" if name in self._records(self._described, domain, owner) else name

    def features(
        self, known: Attributes, domain: str, owner: str | EdgeType, asked: str | None, use: str
    ) -> Path | RowSource | None:
        """Returns the rows of features: what was asked for, or the only one of `feature_data` that nothing else needs.
        One number for each is a row of one.
        """
        others = [name for name in self._records(self._described, domain, owner) if not known.is_taken(name)]
        if asked is not None and asked not in known.values and len(others) == 1:
            asked = others[0]
        path: Path | None = known.take(asked, use)
        if path is None or (rows := arrays.stored_numbers(use, path)).row_shape:
            return path
        return rows.as_column()

    def leave_out_strangers(self, owners: Sequence[str | EdgeType]) -> None:
        """Notes data of other domains than nodes and edges, and of types that the graph does not have."""
        for part in (self._described, self._described["graph"]):
            for record in part.get("feature_data") or []:
                domain, name = record.get("domain"), str(record.get("name"))
                if domain not in ("node", "edge"):
                    self._listing.leave_out("", name, f"data of domain {domain!r} belong to no nodes or edges")
                elif self._type(domain, record) not in owners:
                    self._listing.leave_out(str(record.get("type")), name, "the graph has no such type")

    def _type(self, domain: str, record: Record) -> str | EdgeType:
        name = record.get("type")
        if domain == "node":
            return name or ONE_NODE_TYPE
        return parse_edge_type(name) if name else ONE_EDGE_TYPE

    def edges(self, record: Record) -> EdgeStream | Path:
        """Returns [2, E] of NumPy, or a line for each edge without a header."""
        path = self._path(record)
        if record.get("format") != "csv":
            return path
        num_edges = text_numbers.count_lines("edges", path)
        return edge_lists.of_pairs(text_numbers.rows("edges", path, num_edges, np.int64))

    def add_seeds(
        self,
        split: str,
        seeds: Record,
        task: Record,
        nodes: dict[str, dict[str, Any]],
        edges: dict[EdgeType, dict[str, Any]],
    ) -> None:
        """Put the seeds of a type, and their labels, to what that type has."""
        data: dict[str | None, Path] = {}
        for record in seeds.get("data") or []:
            name = record.get("name")
            if name in data:
                self._listing.leave_out("", f"{record.get('path')}", f"the {split} set has another one of that name")
            data.setdefault(name, self._path(record))
        names = [name for name in _SEEDS if name in data]
        if not names:
            raise InputError(
                f"{self._folder / METADATA}: expected seeds in the {split} set, found {', '.join(map(str, data))}"
            )
        where = f"{split} seeds of {self._folder / METADATA}"
        ids, owner = arrays.load(where, data[names[0]]), seeds.get("type")
        of = owner or (edge_type_name(ONE_EDGE_TYPE) if ids.ndim == 2 else ONE_NODE_TYPE)
        self._listing.read(of, f"{names[0] or 'seeds'} of {_SETS[split]}", split)
        for other in data.keys() - {names[0], "labels"}:
            self._listing.leave_out(of, f"{other} of {_SETS[split]}", "of seeds, ids and labels are read")
        labels = arrays.load(f"labels of {where}", data["labels"]) if "labels" in data else None
        if ids.ndim == 2:
            edge_type = parse_edge_type(owner) if owner else ONE_EDGE_TYPE
            if edge_type not in edges:
                raise InputError(f"{where}: expected a type of edges of the graph, found {owner}")
            positive = ids if labels is None else ids[labels.reshape(-1) > 0]  # the others are negatives
            if labels is not None:
                self._listing.read(of, f"labels of {_SETS[split]}", f"what pairs are {split}")
                if len(positive) < len(ids):
                    reason = "diskgnn draws negative pairs of its own"
                    self._listing.leave_out(of, f"negative pairs of {_SETS[split]}", reason, expected=True)
            chunk = positive[:, 0], positive[:, 1]
            edges[edge_type][split] = EdgeStream(where, len(positive), lambda: iter([chunk]))
            return
        name = owner or ONE_NODE_TYPE
        if name not in nodes:
            raise InputError(f"{where}: expected a type of nodes of the graph, found {owner}")
        if labels is None or len(labels) != len(ids):
            raise InputError(
                f"{where}: expected labels for {len(ids)} seeds, found {'none' if labels is None else len(labels)}"
            )
        self._listing.read(of, f"labels of {_SETS[split]}", "labels")
        nodes[name] |= {split: ids, **self._labelled(name, nodes[name]["num_nodes"], ids, labels, task)}

    def _labelled(
        self, name: str, num_nodes: int, ids: npt.NDArray[Any], labels: npt.NDArray[Any], task: Record
    ) -> dict[str, Any]:
        """Returns the labels of all nodes of a type, of which those of `ids` are known now."""
        labels = labels.reshape(len(labels)) if labels.ndim == 2 and labels.shape[1] == 1 else labels
        num_classes = task.get("num_classes")
        kind = (
            "multilabel" if labels.ndim == 2 else "class" if labels.dtype.kind != "f" or num_classes else "regression"
        )
        kind = self._kinds.setdefault(name, kind)  # that of train: where labels of test are hidden they are all NaN
        if (kind == "multilabel") != (labels.ndim == 2):
            raise InputError(
                f"labels of {name} in {self._folder / METADATA}: expected as many for a seed in all sets, found others"
            )
        if name not in self._labels:
            dtype, none = {"multilabel": (np.uint8, 0), "class": (np.int64, -1), "regression": (np.float32, np.nan)}[
                kind
            ]
            self._labels[name] = np.full((num_nodes, *labels.shape[1:]), none, dtype)
        rows = of_array(f"labels of {name} in {self._folder / METADATA}", labels)
        if kind == "multilabel":
            labels = values.multilabel(rows).load()
        elif kind == "class" and labels.dtype.kind == "f":
            labels = values.classes(rows).load()
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
            raise InputError(f"{self._folder / METADATA}: expected seeds from 0 to {num_nodes - 1}, found others")
        self._labels[name][ids] = labels
        return {"labels": self._labels[name], "task": kind, "num_classes": num_classes if kind == "class" else None}

    def warn_of_labels(self) -> None:
        """Warns of targets of regression that look like classes, once the labels of all sets are known."""
        for name, labels in self._labels.items():
            if labels.dtype.kind == "f":
                remedy = f"say num_classes in the metadata of the task in {self._folder / METADATA}"
                warn_of_classes(f"labels of {name}", [labels], remedy)

    def _path(self, record: Record) -> Path:
        return self._folder / str(self._field(record, "path", str))

    def _field(self, record: Record, name: str, kind: type) -> Any:
        value = record.get(name) if isinstance(record, dict) else None
        if type(value) is not kind:
            raise InputError(f"{self._folder / METADATA}: expected {name}: {kind.__name__} in {record!r:.120}")
        return value
