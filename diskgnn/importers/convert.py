"""Make a graph directory from the user's own data: arrays, tables, and data sets in the formats of others."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.files.destination import Destination
from diskgnn.formats import artifacts
from diskgnn.formats.source_contents import SourceContents
from diskgnn.graph.csc import EdgeOptions
from diskgnn.graph.graph import Graph
from diskgnn.graph.held_out import told_of_graph
from diskgnn.graph.time_units import warn_of_units
from diskgnn.importers.completing import (
    completed,
    is_of_one_type,
    require_times,
    with_times,
    without_columns,
)
from diskgnn.importers.containers.arrays import Source
from diskgnn.importers.containers.edge_arrays import edge_list
from diskgnn.importers.containers.file_kinds import permission_named
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.fetched_tables import Wanted, fetched, identity_of
from diskgnn.importers.given_graph import GivenGraph
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput, read_description
from diskgnn.importers.identity import identity
from diskgnn.importers.source_formats.catalogue import Catalogue
from diskgnn.importers.source_formats.registry import FORMATS, ChosenSource, SourceFormat, choose_source, named_format
from diskgnn.importers.source_listing import AUTO, warn_of_left_out
from diskgnn.importers.tables.table import Table, TableColumns, is_table
from diskgnn.paths import PathLike
from diskgnn.progress.default_reporter import reporter_for
from diskgnn.progress.reporter import Reporter, StageReport, say
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import ONE_EDGE_TYPE, ONE_NODE_TYPE, SPLITS, EdgeType
from diskgnn.system.allocators import freed_memory_returned
from diskgnn.system.memory import memory_budget
from diskgnn.system.resources import Resources, SmallBudgetError
from diskgnn.work.publishing import published
from diskgnn.work.writer import ArtifactWriter

__all__ = [
    "FORMATS",
    "ConvertReport",
    "EdgeInput",
    "GraphInput",
    "NodeInput",
    "SourceFormat",
    "TableColumns",
    "convert",
]


@dataclass(frozen=True)
class ConvertReport(StageReport):
    """Tells what `convert` did, and what it read of a data set and left out."""

    contents: SourceContents = field(default_factory=SourceContents)


_OF_FORMATS = ("times", "val_timestamp", "until", "keys", "links", "keep_columns")
_ELSEWHERE = {  # what a keyword that there is not should have been
    **dict.fromkeys(("embed_text", "encode"), "columns=TableColumns(encode={'reviews.text': 'hash:256'})"),
    **{name: f"options={{{name!r}: ...}}" for name in _OF_FORMATS},
}


@published(artifacts.GRAPH, elsewhere=_ELSEWHERE)
@freed_memory_returned()
def convert(
    out: PathLike,
    *,
    source: Any = None,
    format: str = AUTO,  # noqa: A002  (the word of everybody)
    options: Mapping[str, Any] | None = None,
    schema: PathLike | Mapping[str, Any] | GraphInput | None = None,
    edges: Source | None = None,
    indptr: Source | None = None,
    indices: Source | None = None,
    nodes: PathLike | None = None,
    ids: Source | None = None,
    features: Source | None = None,
    labels: Source | None = None,
    train: Source | None = None,
    valid: Source | None = None,
    test: Source | None = None,
    random_split: str | Sequence[float] | None = None,
    columns: TableColumns | None = None,
    exclude: str | Sequence[str] = (),
    encoding_of: PathLike | Graph | None = None,
    num_nodes: int | None = None,
    num_classes: int | None = None,
    reverse: bool = False,
    self_loops: bool = False,
    drop_duplicates: bool = False,
    keep_ids: bool = False,
    null_time: str | None = None,
    time_unit: str | None = None,
    order: str | None = None,
    bfloat16: bool = False,
    reference_features: bool = False,
    quantise: str | None = None,
    memory: int | str = "auto",
    disk: int | str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    reporter: Reporter | None = None,
) -> ConvertReport:
    """Make a graph directory. N is the number of nodes, E of edges, D of features.

    There are three ways to say what the graph is. A data set in one of the `FORMATS` is `source`. A graph with several
    types of nodes and edges, or with edge features, weights, times or seed edges, is described by `schema`, which then
    says all of it. The other arguments make a graph of one type of nodes and edges.

    Edges come either as a list or as CSC (in-neighbours). A source is the path of a .npy file or of a tensor saved by
    torch, or an array in memory; `edges` may also be the path of a Parquet file, or of a folder of them. Sources are
    read in pieces.

    After a kill the same call goes on within ids, edges and features: what is complete is kept. Sources in memory are
    known again by what is in them, if they are arrays, tensors, or graphs of PyG, DGL or SciPy.

    Args:
        out: the directory to make.
        source: the path of a data set, with its format before it or not ("sqlite:shop.db"); an object in memory; or the
            URL of a database, postgresql://user@host/shop, whose password is better given by PGPASSWORD, ~/.pgpass or a
            service. Other arguments may give what it
            lacks (features, labels, splits), if it is of one type, and say how it is stored. For a graph of several
            types `reverse` adds a type for each edge type between two node types.
        format: of `source`: a name of `FORMATS`, or 'auto'.
        options: of the format, as `diskgnn convert --set` takes them. Those that list names take a list of text, too,
            and those that are times a date, datetime, pandas.Timestamp or numpy.datetime64.
        schema: a YAML file, a folder that holds it as graph.yaml, the same as mappings, or a `GraphInput`: what each
            type of nodes and edges has. See `NodeInput` and `EdgeInput` for the keys.
        edges: integers [2, E] (sources, destinations) or [E, 2]; [2, 2] is taken as [2, E], of a list with a
            DataWarning. Or a Parquet table.
        indptr: integers [N+1], with `indices`: in-neighbours of v are indices[indptr[v]:indptr[v+1]].
        indices: integers [E].
        nodes: a Parquet table of one row per node, for whatever of features, labels and splits is not given.
        ids: your own ids [N] of the nodes, whole numbers or strings: a .npy file, an array, or a table with a column of
            them. Edges and splits then name nodes by these.
        features: [N, D] float32, float16, int8, uint16 (see `bfloat16`), or float64, which becomes float32.
        labels: integers [N], -1 where a node has none. With them goes `train`; a graph may do without both.
        train: node ids, or bool [N]. A graph may do without: with `test` alone it is for evaluating a model.
        valid: as `train`; None if there is none.
        test: as `train`; None if there is none.
        random_split: shares of train, valid and test, [0.8, 0.1, 0.1] or '0.8,0.1,0.1', to be drawn at random among the
            nodes with labels in place of these three: always the same ones. With [0, 0, 1] all are of test.
        columns: what the columns of Parquet tables are called, and how they become features. Of a data set with
            tables, `TableColumns(encode={"reviews.text": "hash:256"})` says how columns of its tables do.
        exclude: columns to leave out of the graph, such as one that labels are made from: COLUMN of every table that
            has it, or TABLE.COLUMN. The tables of a database have their own names, those of a `schema` the names of
            their types; otherwise they are called nodes and edges.
        encoding_of: encode tables as those that this graph was made from, for a model that was trained on it: with its
            columns, matched by name, its means, deviations and categories, and the classes of its labels. Columns that
            it has no features of are left out, and so are those of `exclude` that its tables keep, whether the new
            ones have them or not: for a model that was trained without them. A graph directory, or an opened one.
        num_nodes: N; None means as many as there are feature rows.
        num_classes: labels are in [0, num_classes); None means the largest label plus 1.
        reverse: add the reverse of every edge, self-loops included.
        self_loops: add (v, v) for every node that has none.
        drop_duplicates: keep one of equal edges.
        keep_ids: remember the position of each edge in the list, which `Block.edge_ids` then says.
        null_time: what a missing time of a node or an edge means: 'never', no seed sees it, or 'always', every seed
            does. By default there shall be none.
        time_unit: what whole numbers that are times count: 'ns', 'us', 'ms', 's', 'min', 'h', 'd', 'w' or 'y'. Then
            windows of time may be given as '180d'. Dates and timestamps become seconds; where all times are such, they
            say it themselves.
        order: of in-neighbours in the graph. 'time': by the times of edges, or where these have none by those of their
            sources, so that draws by time look at no more than they draw from; needs 8 bytes of memory for each source
            that has a time. 'hash': by a hash of theirs alone. 'time' for tables with keys, 'hash' otherwise by
            default.
        bfloat16: features stored as uint16 are bfloat16 bits.
        reference_features: leave the feature file where it is (.npy in C order) and refer to it.
        quantise: store the features as 'int8' or 'int4', with a scale and a zero point per column found in a pass of
            its own, or as 'float16' or 'bfloat16'. The report says what that changes, in standard deviations. Of
            tables that keep their columns 'int8' is for embeddings in float32, number by number; all else is exact.
        memory: what the whole process may have, in bytes or as '2GiB'; 'auto' is half of what is available beside what
            it has. Sources in memory, and formats that are read as a whole, count.
        disk: what files may take at any time, scratch included, as '100GiB'; what is free by default.
        overwrite: replace `out` if it is an artifact.
        progress: draw bars on stderr, if that is a terminal or this is a notebook.
        reporter: told about every pass over the data, in place of the bars; see `diskgnn.progress`.

    Warns:
        DataWarning: NaN or infinite features (InputError if quantised), overlapping splits, repeated ids in a split,
            float64 features, something of a data set that is left out of the graph, values of a category that
            `encoding_of` has not, embeddings beyond those that it was quantised by, or types of nodes and edges whose
            times look like different units.

    Returns:
        What was done. `contents` has what a data set holds: each part with what it was read as, or with the reason why
        it was left out.

    Raises:
        ConfigError: arguments that do not go together.
        InputError: data that is no graph; says where. Or tables that lack a column of `encoding_of`, or have one of
            another type.
        OutputExistsError: `out` is there already.
        DiskFullError: too little disk space; nothing was written.

    Example:
        >>> diskgnn.convert("graph", edges="edges.npy", features="features.npy", labels="labels.npy",
        ...                 train="train.npy", valid="valid.npy", test="test.npy", reverse=True)
        >>> diskgnn.convert("typed", schema={
        ...     "nodes": {"paper": {"features": x, "labels": y, "train": train}, "author": {"num_nodes": 1000}},
        ...     "edges": {"author:writes:paper": {"edges": writes, "reverse": True}},
        ... })
    """
    started = time.perf_counter()
    memory_budget(memory)  # refuses now what makes no sense
    source, format = named_format(source, format)  # noqa: A001
    exclude = [exclude] if isinstance(exclude, str) else list(exclude)
    added = {"reverse": reverse, "self_loops": self_loops, "drop_duplicates": drop_duplicates}
    on_edges = {**added, "keep_ids": keep_ids}
    topology = {"edges": edges, "indptr": indptr, "indices": indices}
    on_nodes = {
        "nodes": nodes, "ids": ids, "features": features, "labels": labels, "train": train, "valid": valid,
        "test": test, "random_split": random_split, "columns": columns, "num_nodes": num_nodes,
        "num_classes": num_classes, "bfloat16": bfloat16, "reference_features": reference_features,
        "quantise": quantise,
    }  # fmt: skip
    made_with = {}
    if schema is None:
        made_with = asdict(EdgeOptions(**added)) | ({} if quantise is None else {"quantise": quantise})
    of_times: dict[str, Any] = {"null_time": null_time, "time_unit": time_unit, "order": order}
    out = Destination.of(out)
    measured = partial(Resources.of, memory, sending_bytes=out.sending_bytes)  # what the process has when it is called
    chosen, beside = _choose_source(source, format, options, schema, topology, on_nodes, on_edges, exclude)
    excluded = exclude if chosen is None else chosen.exclude  # with those that `columns` says
    encoding = None if encoding_of is None else GivenEncoding.of(encoding_of).without(excluded)
    database = None if chosen is None else chosen.database
    if database is None:  # those of a database are checked before it is read
        ArtifactWriter(out, artifacts.GRAPH, config={}, overwrite=overwrite)  # refuses what is there before all is read

    def look(tables: Catalogue | None = None) -> tuple[GivenGraph, SourceContents]:
        with permission_named():
            if chosen is None:
                described, typed = _describe_input(schema, topology, on_nodes, on_edges, exclude, encoding)
            else:
                described = completed(chosen.read(measured(), encoding, tables), beside, **on_edges)
                typed = not is_of_one_type(described)
            contents, described = described.contents, replace(described, contents=SourceContents())
            described = with_times(described, **of_times)
            warn_of_left_out(contents)
            return GivenGraph.of(replace(described, encoding=encoding), typed=typed), contents

    def resources_of(given: GivenGraph) -> Resources:
        return given.resources(replace(measured(), reporter=told), is_data_set=source is not None)

    told = reporter_for(reporter, progress)
    if database is None:
        given, contents = look()
        resources = resources_of(given)
        described = replace(given.described, encoding=None)
    making = identity({
        "source": identity_of(database, out.staging) if database is not None
        else source if isinstance(source, (str, os.PathLike)) else described,
        "format": format, "options": options, "schema": None if schema is None else described,
        "exclude": exclude, **of_times,
        "encoding_of": None if encoding is None else encoding.digest,
        **topology, **on_nodes, **on_edges,
    })  # fmt: skip
    config = {} if making is None else {"making": making}
    budget = out.budget(disk)
    with ArtifactWriter(
        out, artifacts.GRAPH, config=config, overwrite=overwrite, resumable=making is not None, disk=budget
    ) as writer:
        try:
            if database is not None:
                assert chosen is not None
                said = {name: chosen.options.get(name) for name in ("keys", "links", "times")}
                require = partial(chosen.require, encoding, partial(require_times, **of_times))
                wanted = Wanted(**said, exclude=excluded, encode=chosen.encode, require=require)
                given, contents = look(fetched(database, wanted, writer, replace(measured(), reporter=told)))
                resources = resources_of(given)
            opened, written = given.write(writer, resources, f"the graph {out}")
        except ConfigError as error:
            if not isinstance(error, SmallBudgetError):  # with more memory, the same command goes on
                writer.leave_nothing()
            raise
        contents += opened.contents
        writer.config = replace(written.config, contents=contents).to_json(made_with)
        manifest = writer.publish()
    if out.target is None:  # or else its files are on their way
        with suppress(OSError, ArtifactError):  # the graph is there: who needs what cannot be read says so
            _warn_of_units(Graph.open(out))
        say(resources.reporter, partial(_told_of, out, resources))
    return ConvertReport(
        "convert",
        time.perf_counter() - started,
        read_bytes=opened.read_bytes,
        written_bytes=sum(entry.bytes for name, entry in manifest.files.items() if name not in manifest.external),
        details=written.details,
        contents=contents,
    )


def _told_of(out: Destination, resources: Resources) -> str:
    with suppress(OSError, ArtifactError):  # as of units
        return "\n".join(told_of_graph(Graph.open(out), resources))
    return ""


def _warn_of_units(graph: Graph) -> None:
    timed: list[str | EdgeType] = [each for each, edges in graph.edges.items() if edges.config.has_times]
    warn_of_units(graph, [*timed, *(each for each, nodes in graph.nodes.items() if nodes.config.has_times)], ())


def _without_none(on_nodes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in on_nodes.items() if value is not None and value is not False}


def _choose_source(
    source: Any,
    format: str,  # noqa: A002
    options: Mapping[str, Any] | None,
    schema: PathLike | Mapping[str, Any] | GraphInput | None,
    topology: Mapping[str, Any],
    on_nodes: Mapping[str, Any],
    on_edges: Mapping[str, bool],
    exclude: Sequence[str],
) -> tuple[ChosenSource | None, dict[str, Any]]:
    """Returns the data set, nothing of it read, where the graph is one (None where it is said otherwise), and what is
    given beside it.

    Raises:
        ConfigError: what is said does not go together.
    """
    given_on_nodes = _without_none(on_nodes)
    given_topology = [name for name, value in topology.items() if value is not None]
    if source is None and (format != AUTO or options):
        name = "options" if options else "format"
        raise ConfigError(f"{name}: expected a data set that it is about (`format` and what to read), found none")
    if schema is not None:
        surplus = [*given_topology, *given_on_nodes, *(name for name, value in on_edges.items() if value)]
        if surplus or source is not None:
            found = ["the data set of `format`"] * (source is not None) + [f"`{name}`" for name in surplus]
            raise ConfigError(f"schema: it says all about the graph; leave out {' and '.join(found)}")
        return None, given_on_nodes
    files = [topology["edges"], *(given_on_nodes.get(name) for name in ("nodes", "ids", "features", "labels", *SPLITS))]
    encode: Mapping[str, str] = {}
    if source is not None and _says_encodings(given_on_nodes.get("columns")) and not any(map(is_table, files)):
        of_tables = given_on_nodes.pop("columns")
        encode, exclude = of_tables.encode, [*exclude, *of_tables.exclude]
    if "columns" in given_on_nodes and not any(map(is_table, files)):
        raise ConfigError(
            "columns: expected a table that has them, a Parquet or CSV file, found none; leave out `columns`. What a "
            "data set is read for is said by `options`, which its page lists"
        )
    if source is None:
        return None, given_on_nodes
    if given_topology:
        beside = " and ".join(f"`{name}`" for name in given_topology)
        raise ConfigError(f"{given_topology[0]}: the data set that is read has edges of its own; leave out {beside}")
    with permission_named():
        quantise = given_on_nodes.get("quantise")
        return choose_source(source, format, options or {}, exclude, encode, quantise), given_on_nodes


def _describe_input(
    schema: PathLike | Mapping[str, Any] | GraphInput | None,
    topology: Mapping[str, Any],
    on_nodes: Mapping[str, Any],
    on_edges: Mapping[str, bool],
    exclude: Sequence[str],
    encoding: GivenEncoding | None,
) -> tuple[GraphInput, bool]:
    """Returns what the graph is, and whether it has several types."""
    may_lack = (lambda name: False) if encoding is None else encoding.leaves_out
    if schema is not None:
        return without_columns(read_description(schema), exclude, may_lack), True
    return without_columns(_plain(topology, _without_none(on_nodes), on_edges), exclude, may_lack), False


def _says_encodings(columns: TableColumns | None) -> bool:
    return columns is not None and columns == TableColumns(encode=columns.encode, exclude=columns.exclude)


def _plain(topology: Mapping[str, Any], on_nodes: Mapping[str, Any], on_edges: Mapping[str, bool]) -> GraphInput:
    if "nodes" not in on_nodes:
        if "features" not in on_nodes and topology["edges"] is not None:
            _require_edges(topology["edges"], on_nodes.get("columns"))
        _require_something(on_nodes)
    of_edges, of_nodes = _columns_by_table(on_nodes.get("columns"), topology["edges"], on_nodes.get("nodes"))
    edges = EdgeInput(**topology, columns=of_edges)
    on_nodes = {**on_nodes, **({} if of_nodes is None else {"columns": of_nodes})}
    return completed(GraphInput({ONE_NODE_TYPE: NodeInput()}, {ONE_EDGE_TYPE: edges}), on_nodes, **on_edges)


def _require_edges(edges: Source, columns: TableColumns | None) -> None:
    """Raises InputError if there are none, or they cannot be read. That is told before what the nodes lack."""
    if is_table(edges):
        table = Table("edges", edges, columns)
        num_edges = sum(batch.num_rows for batch in islice(table.batches(table.schema.names[:1], 1), 1))
    else:
        num_edges = edge_list(edges).num_edges
    if not num_edges:
        where = edges if isinstance(edges, (str, os.PathLike)) else "what is given"
        raise InputError(f"edges: {where} has no edges; is it the file that was meant?")


def _require_something(on_nodes: Mapping[str, Any]) -> None:
    """Raises ConfigError if nothing says what the nodes have, or only a part of what training on nodes needs."""
    if "features" not in on_nodes:
        raise ConfigError(
            "features: expected an array with a row for each node, or a table of the nodes (`nodes`), found neither; "
            "for edges alone, whatever ids they have, give the nodes as `node: {}` in a `schema`"
        )
    splits = [name for name in SPLITS if name in on_nodes]
    if splits and "labels" not in on_nodes:
        raise ConfigError(
            f"labels: expected one for each node of {' and '.join(splits)}, found none; pass `labels`, or leave out "
            f"{' and '.join(f'`{name}`' for name in splits)} if there is nothing to learn of nodes"
        )
    if "labels" in on_nodes and not splits and "random_split" not in on_nodes:
        raise ConfigError(
            "train: expected the nodes to train on, found none; pass `train`, or random_split='0.8,0.1,0.1' to draw "
            "them among those with labels, or only `test` to evaluate another graph's model; or leave out `labels` if "
            "there is nothing to learn of nodes"
        )


def _columns_by_table(
    columns: TableColumns | None, edges: Any, nodes: Any
) -> tuple[TableColumns, TableColumns | None]:  # fmt: skip
    """Returns what is said of columns, for the table of edges and for that of nodes: each has those of its own.

    Raises:
        ConfigError: neither table has a column that was named.
    """
    if columns is None:
        return TableColumns(), None
    named = columns.names or ()
    of_ends = columns.src in named and columns.dst in named
    at_edges = replace(columns, names=columns.names if of_ends else None)
    at_nodes = replace(columns, names=None if of_ends else columns.names)
    tables = [
        Table(name, source, read_with) if is_table(source) else None
        for name, source, read_with in (("edges", edges, at_edges), ("nodes", nodes, at_nodes))
    ]
    of_edges, of_nodes = ([] if table is None else table.schema.names for table in tables)

    def require(role: str, name: str, *having: Collection[str]) -> None:
        if not any(name in names for names in having):
            there = "; ".join(f"{table.path} has {', '.join(table.schema.names)}" for table in tables if table)
            raise ConfigError(
                f"columns: {role}: expected a column of the tables, found {name!r}; {there or 'no table'}"
                f"{near_name(name, [each for names in having for each in names])}"
            )

    features = [columns.features] if isinstance(columns.features, str) else columns.features
    if columns.weight is not None:
        require("weight", columns.weight, of_edges)
    if columns.time is not None:
        require("time", columns.time, of_edges, of_nodes)
    for name in features or ():
        require("features", name, of_nodes, of_edges)
    for name in columns.encode:
        require("encode", name, of_nodes, of_edges)
    carried = [name for name in features or () if name not in of_nodes]
    kept = [name for name in features or () if name in of_nodes]
    encode = {name: encoding for name, encoding in columns.encode.items() if name not in of_nodes}
    return (
        replace(at_edges, features=carried or None, time=columns.time if columns.time in of_edges else None,
                encode=encode),
        replace(at_nodes, features=kept or None, time=columns.time if columns.time in of_nodes else None, weight=None,
                encode={name: encoding for name, encoding in columns.encode.items() if name not in encode}),
    )  # fmt: skip
