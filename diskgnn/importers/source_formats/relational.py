"""Relational tables with keys as a typed temporal graph: RelBench's view of a database.

Each table is a node type, with a node for each row. Each foreign key is an edge type, from the row that has it to the
row that it names, and the other way: (orders, f2p_user_id, users) and (users, rev_f2p_user_id, orders), as RelBench
calls them. A row's time is when its node appears. The other columns become features (`column_encoding`).

A task is a table, too: what is to be predicted of an entity at a time. Its rows are nodes with labels and splits, which
only the entity's row leads to. So a minibatch sees what the entity's neighbourhood was before that time.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats.graph_config import ALL_ROWS
from diskgnn.importers.completing import require_columns_there
from diskgnn.importers.containers.rows import CHUNK_EDGES, RowSource
from diskgnn.importers.encoding_of import GivenEncoding
from diskgnn.importers.graph_input import EdgeInput, GraphInput, NodeInput
from diskgnn.importers.quantising import require_of_records
from diskgnn.importers.source_formats import relbench_folder
from diskgnn.importers.source_formats.given_kinds import require_encodings, with_kinds, with_read_kinds
from diskgnn.importers.source_formats.relational_keys import (
    key_edges,
    primary_key,
    require_comparable,
    require_keys,
)
from diskgnn.importers.source_formats.relational_source import (
    DESCRIPTION,
    KeyedTable,
    RelationalSource,
    TaskTables,
    described,
)
from diskgnn.importers.source_formats.table_graph_options import TableGraphKeywords, TableGraphOptions
from diskgnn.importers.source_formats.table_keys import (
    ForeignKey,
    GivenKeys,
    TableKeys,
    id_column,
    key_word,
    why_not,
)
from diskgnn.importers.source_listing import AUTO, EXCLUDED, Listed, SourceListing
from diskgnn.importers.tables.column_encoding import (
    TableEncoding,
    encoded_rows,
    find_statistics,
    label_numbers,
)
from diskgnn.importers.tables.frames import JoinedTables, RowTable
from diskgnn.importers.tables.record_encoding import RecordEncoding
from diskgnn.importers.tables.rows_until import RowsUntil
from diskgnn.importers.tables.table_rows import times
from diskgnn.importers.tables.times import Moment, counts_numbers, is_date, is_time, moment, seconds
from diskgnn.specs.keywords import takes_options
from diskgnn.specs.near_names import near_name
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Resources

if TYPE_CHECKING:
    from typing_extensions import Unpack

_LOOKED_AT = 64  # rows, for what they look like


def recognises(source: object) -> bool:
    """Returns True for a folder with relational.yaml, that file, a folder of RelBench, a `RelationalSource`, or an
    object with tables by name.
    """
    if isinstance(source, Path):
        return _has_description(source) or relbench_folder.recognises(source)
    return isinstance(source, RelationalSource) or isinstance(
        getattr(source, "__dict__", {}).get("table_dict"),
        Mapping,  # PyG's HeteroData raises KeyError for any name
    )


@takes_options(TableGraphKeywords, TableGraphOptions)
def read(
    source: Any,
    *,
    until: Moment | None = AUTO,
    tasks: Listed | None = AUTO,
    keys: Listed | None = None,
    links: Listed | None = None,
    resources: Resources | None = None,
    **options: Unpack[TableGraphKeywords],
) -> GraphInput:
    """Returns the graph of a database.

    Args:
        source: see `recognises`.
        until: rows after this time are left out, of tables that have times, and so are rows without one; "auto": after
            `test_timestamp` in a folder of RelBench, none elsewhere; None: none.
        tasks: names of tasks, with commas between; "auto": all; None: none.
        keys: columns that name rows, beside or in place of those that the description has: "users=id".
        links: columns that name rows of other tables, the same: "orders.user_id=users".
        resources: have the memory for the values of categories.
        options: what graph it becomes.

    Raises:
        ConfigError: a description that is none, keys of tables that there are not, or columns to exclude or to encode
            that no table has, or that are keys or times.
        InputError: tables that cannot be read, or columns that are not what they are said to be.
    """
    if isinstance(source, Path):
        is_relbench = not _has_description(source) and relbench_folder.recognises(source)
        source = relbench_folder.read_folder(source) if is_relbench else described(source)
    elif not isinstance(source, RelationalSource):
        source = RelationalSource.of(source)
    source = _with_given_keys(source, keys, links)
    return graph_of(_choose_tasks(source, tasks), TableGraphOptions(until=until, **options), resources)


def graph_of(source: RelationalSource, options: TableGraphOptions, resources: Resources | None) -> GraphInput:
    """Returns the graph of a database whose description was read; see `read`."""
    source, listing = with_read_kinds(source, options.kinds), SourceListing()
    for word, name in source.names.items():
        listing.read(word, name, "the name of the table")
    source = require_graph(source, options, listing)
    _warn_of_counted_times(source)
    source = _cut(source, source.until if options.until == AUTO else options.until, listing)
    source = _without_empty(source, listing, options.encoding)
    if options.val_timestamp is None:
        options = replace(options, val_timestamp=source.val_timestamp)
    nodes, lookup_bytes = _table_nodes(source, options, listing, resources)
    edges: dict[EdgeType, EdgeInput] = {}
    for name, table in source.tables.items():
        for column, other in table.fkeys.items():
            ids = table.ids_of.get(column, column)
            keys = key_edges(name, table.rows, ids, options.skip_unknown)
            edges[name, key_word(column), other] = EdgeInput(keys, reverse=options.reverse, foreign_key=True)
            listing.read(name, column, f"edges to {other}")
    for name, task in source.tasks.items():
        if name in nodes:
            raise ConfigError(f"task {name}: there is a table of this name; call the task something else")
        column, entity = task.entity
        _require_key(f"task {name}: entity {column}", source, entity, by_row=task.by_row)
        rows = JoinedTables(f"task {name}", list(task.splits.values()))
        nodes[name] = _task_nodes(name, task, rows)
        if options.keeps_columns:
            nodes[name] = replace(nodes[name], features=None, constant=True)
        _list_task(name, task, listing)
        edges[entity, f"rev_{key_word(column)}", name] = EdgeInput(key_edges(name, rows, column, False, turned=True))
    if not edges:
        raise ConfigError("expected foreign keys between tables that have rows, found none")
    return GraphInput(
        nodes, edges, listing.contents(), reading_bytes=lookup_bytes, time_unit=time_unit(source), order="time",
        dated=tuple(name for name, is_dated in dated(source).items() if is_dated),
        statistics_until=_said_until(source, options),
    )  # fmt: skip


def _table_nodes(
    source: RelationalSource, options: TableGraphOptions, listing: SourceListing, resources: Resources | None
) -> tuple[dict[str, NodeInput], int]:
    """Returns the nodes of all tables, and the bytes that looking up values of one of them takes."""
    nodes, lookup_bytes, latest = dict[str, NodeInput](), 0, dict[str, int]()
    for name, table in source.tables.items():
        nodes[name], found, last = _nodes(name, table, options, listing, resources)
        latest |= {} if last is None else {name: last}
        resources = None if resources is None else resources.less(found.held_bytes)
        lookup_bytes = max(lookup_bytes, found.lookup_bytes)
    if (until := options.statistics_until) is not None and options.encoding is None:
        _warn_of_late_moment(source, options.val_timestamp, until, latest)
    return nodes, lookup_bytes


def _said_until(source: RelationalSource, options: TableGraphOptions) -> int | str | None:
    """Returns what the graph says of the rows that its statistics are of."""
    if options.encoding is not None:
        return options.encoding.opened.config.statistics_until
    if not options.keeps_columns:
        return None
    has_times = any(table.time for table in source.tables.values())
    until = options.statistics_until if has_times else None
    return ALL_ROWS if until is None else until


def require_graph(
    source: RelationalSource, options: TableGraphOptions, listing: SourceListing | None = None
) -> RelationalSource:
    """Returns `source` with the encodings and without the columns that the user says, if it can become a graph. No row
    is read; see `read`, whose arguments these are.

    Raises:
        ConfigError, InputError: as `read`, but for what only values show.
    """
    listing = SourceListing() if listing is None else listing
    until = None if options.until == AUTO else options.until
    for name, given in (("val_timestamp", options.val_timestamp), ("until", until)):
        if given is not None:
            moment(name, given)
    source = _with_columns(source, options, listing)
    _require_times(source, options)
    encodings = []
    for name, table in source.tables.items():
        encodings.append(_encoding(name, table, options, wanted=False)[0])
        _require_foreign_keys(source, name, table)
    if options.quantise is not None and options.keeps_columns:
        require_of_records(options.quantise)
        if not any(isinstance(each, RecordEncoding) and each.has_float_embeddings for each in encodings):
            raise ConfigError(
                "quantise: expected a column of embeddings in float32, lists of numbers or text by a function of your "
                "own, found none: numbers, times and codes are exact, and hash:256 is int8 already; leave it out, or "
                "make vectors of the tables, all of which are quantised (`diskgnn convert --set keep_columns=false`)"
            )
    if not source.tasks and not any(table.fkeys for table in source.tables.values()):
        found = "no tables"
        if source.tables:
            reasons = [f"{of}: {name}: {why}" for (of, name), why in source.left_out.items() if "foreign key" in name]
            found = f"none in {', '.join(source.tables)}" + (f" ({'; '.join(reasons)})" if reasons else "")
            found += "; `links` names them where the database does not"
        raise ConfigError(f"expected tables with foreign keys, found {found}")
    return source


def _with_columns(source: RelationalSource, options: TableGraphOptions, listing: SourceListing) -> RelationalSource:
    """Returns `source` with the encodings that are asked for, and without columns that are not wanted."""
    encoding = options.encoding
    if source.kinds is not None:
        if encoding is not None or not options.keeps_columns:
            found = "vectors" if encoding is None else f"those of {encoding.graph}"
            raise ConfigError(
                f"kinds: expected rows that keep their columns as they are (without keep_columns=false), found {found}"
            )
        source = with_kinds(source, source.kinds)
    source = _without_excluded(_encoded(source, options.encode), options.exclude, listing, encoding)
    if source.kinds is not None:
        require_encodings(source)
    for (of, name), reason in source.left_out.items():
        listing.leave_out(of, name, reason)
    return _without_hidden(source, listing)


def _require_foreign_keys(source: RelationalSource, name: str, table: KeyedTable) -> None:
    """Refuses foreign keys of a table that name nothing, or that would be edges of one name."""
    called = dict[tuple[str, str], str]()
    for column, other in table.fkeys.items():
        _require_key(f"table {name}: fkeys: {column}", source, other)
        named = source.tables[other]
        assert named.pkey is not None
        ids = table.ids_of.get(column, column)
        require_comparable(f"table {name}", table.rows, ids, other, named.rows, named.pkey)
        require_keys(f"table {other}", named.rows, named.pkey)
        word = key_word(column)
        if (before := called.setdefault((word, other), column)) != column:
            raise ConfigError(
                f"table {name}: the keys {before!r} and {column!r} would both be edges {word} to {other}: rename "
                "one of these columns, or leave one out (`exclude`)"
            )


def _require_times(source: RelationalSource, options: TableGraphOptions) -> None:
    """Refuses a time to validate from where rows have none, and tables that lack times of the other graph."""
    if options.encoding is not None:
        _require_times_of(source, options.encoding)
    elif options.val_timestamp is not None and not any(table.time for table in source.tables.values()):
        maybe = _maybe_times(source)
        found = f"none ({', '.join(maybe)} may be such)" if maybe else "none"
        raise ConfigError(
            f"val_timestamp: expected tables with times, by which rows up to it are known, found {found}; say when "
            f"rows appear (`times` of a database, such as times={maybe[0] if maybe else 'orders.at'}; `time` in "
            "relational.yaml), or leave it out"
        )


def _require_times_of(source: RelationalSource, encoding: GivenEncoding) -> None:
    """Refuses tables whose times nobody said, while they have the column that says these in the other graph: what is
    asked of a model at a time would draw rows of later."""
    said = encoding.times()
    for name, table in source.tables.items():
        if table.time is None and (column := said.get(name)) in table.rows.schema.names:
            shown = ",".join(f"{each}.{of_each}" for each, of_each in said.items() if each in source.tables)
            raise ConfigError(
                f"encoding_of: rows of {name} appear at {column!r} in {encoding.graph}, and nobody says when they do "
                f"here: a model would be shown rows that come later than it is asked. Say it as there: `diskgnn "
                f"convert --set times={shown}` of a database, `time: {column}` in {DESCRIPTION}"
            )


def _maybe_times(source: RelationalSource) -> list[str]:
    """Returns columns that may say when rows appear, TABLE.COLUMN: dates and timestamps, and text that begins with such
    rows."""
    found = []
    for name, table in source.tables.items():
        free = [field for field in table.rows.schema if field.name not in (table.pkey, *table.fkeys)]
        texts = [each.name for each in free if pa.types.is_string(each.type) or pa.types.is_large_string(each.type)]
        first = next(table.rows.batches(texts, _LOOKED_AT), None) if texts else None
        for field in free:
            values = [] if first is None or field.name not in texts else first[field.name].drop_null().to_pylist()
            if is_date(field.type) or (values and all(map(is_time, values))):
                found.append(f"{name}.{field.name}")
    return found


def dated(source: RelationalSource) -> dict[str, bool]:
    """Returns the tables and tasks that have times, and whether these are dates or timestamps, which become seconds."""
    columns = [(name, table.rows, table.time) for name, table in source.tables.items()]
    columns += [(name, rows, task.time) for name, task in source.tasks.items() for rows in task.splits.values()]
    found = dict[str, bool]()
    for name, rows, column in columns:
        if column is not None:
            found[name] = not counts_numbers(rows.field(column).type) and found.get(name, True)
    return found


def time_unit(source: RelationalSource) -> str | None:
    """Returns seconds if all times are dates or timestamps, which become that."""
    found = dated(source)
    return "s" if found and all(found.values()) else None


def _warn_of_late_moment(source: RelationalSource, given: Any, until: int, latest: dict[str, int]) -> None:
    """Warns if no row is later than `until`, as it was `given`: then statistics are of those to validate on, too.

    Args:
        latest: the latest time of tables that were read up to `until`. Others with times are read here, if need be.
    """
    if any(each > until for each in latest.values()):
        return
    for name, table in source.tables.items():
        if name not in latest and table.time is not None and (found := _latest(table.rows, table.time)) is not None:
            latest[name] = found
    if not latest or max(latest.values()) > until:
        return
    last = max(latest, key=lambda name: latest[name])
    shown = f"{np.datetime64(latest[last], 's')} ({latest[last]})" if dated(source)[last] else str(latest[last])
    warnings.warn(
        f"val_timestamp: no row is later than {given}, the last one is of {last} at {shown}: so statistics are "
        "of all rows, those to validate and test on, too. Give it as times are (dates and timestamps, or seconds since "
        "1970; whole numbers as they are), or leave it out if that is meant",
        DataWarning,
        stacklevel=callers_level(),
    )


def _latest(rows: RowTable, time: str) -> int | None:
    """Returns the latest time of the rows of a table; None: none has one."""
    where = f"{rows.name}: column {time!r}"
    found = [pc.max(seconds(batch.column(0), where)).as_py() for batch in rows.batches([time], CHUNK_EDGES)]
    return max((each for each in found if each is not None), default=None)


def _warn_of_counted_times(source: RelationalSource) -> None:
    """Warns of keys that are whole numbers and said to be times: they count rows, and nobody would see it later."""
    for name, table in source.tables.items():
        if table.time is not None and table.time in (table.pkey, *table.fkeys) and not dated(source)[name]:
            warnings.warn(
                f"{name}.{table.time}: a key of whole numbers is taken as the time when rows appear; if it only names "
                "rows, name another column as their time, or none",
                DataWarning,
                stacklevel=callers_level(),
            )


def _with_given_keys(source: RelationalSource, keys: str | None, links: str | None) -> RelationalSource:
    """Returns `source` with keys that the user gives.

    Raises:
        ConfigError: they are none.
    """
    if keys is None and links is None:
        return source
    declared = {
        name: TableKeys(
            table.rows.schema.names,
            () if table.pkey is None else (table.pkey,),
            [ForeignKey((column,), other) for column, other in table.fkeys.items()],
        )
        for name, table in source.tables.items()
    }
    given = GivenKeys.parse(keys, links, declared)
    found, tables = given.applied(declared), dict[str, KeyedTable]()
    for name, table in source.tables.items():
        for key in found[name].foreign_keys:
            is_link = (name, key.columns[0]) in given.links
            if (is_link or key.table in given.keys) and (reason := why_not(key, found)):
                raise ConfigError(f"{'links' if is_link else 'keys'}: {name}.{key.columns[0]}: {reason}")
        fkeys = {key.columns[0]: key.table for key in found[name].foreign_keys}
        tables[name] = replace(table, pkey=id_column(name, found), fkeys=fkeys)
    return replace(source, tables=tables)


def _has_description(path: Path) -> bool:
    return (path / DESCRIPTION).is_file() or path.name == DESCRIPTION


def _choose_tasks(source: RelationalSource, tasks: str | None) -> RelationalSource:
    """Returns `source` with these tasks only."""
    if tasks == AUTO:
        return source
    names = [name.strip() for name in tasks.split(",")] if tasks else []
    reasons = {of: reason for (of, name), reason in source.left_out.items() if name == "task"}
    for name in names:
        if name in reasons:
            raise ConfigError(f"tasks: {name} cannot be read: {reasons[name]}")
        if name not in source.tasks:
            raise ConfigError(
                f"tasks: expected some of {', '.join(source.tasks) or 'none'}; found {name!r}"
                f"{near_name(name, source.tasks)}"
            )
    kept = {name: task for name, task in source.tasks.items() if name in names}
    return replace(source, tasks=kept)


def _without_excluded(
    source: RelationalSource, exclude: Sequence[str], listing: SourceListing, encoding: GivenEncoding | None
) -> RelationalSource:
    """Returns `source` without columns that the user excludes, by names that `read` takes. It need not have those that
    another graph has."""
    there = {name: list(table.rows.schema.names) for name, table in source.tables.items()}
    for name, column in source.left_out:  # one of no type, for example
        if name in there:
            there[name].append(column)
    needed = [each for each in exclude if encoding is None or not encoding.leaves_out(each)]
    require_columns_there(needed, there, "exclude")
    tables = dict(source.tables)
    for name, column in ((name, column) for name, names in there.items() for column in names):
        if column in exclude or f"{name}.{column}" in exclude:
            listing.leave_out(name, column, EXCLUDED, expected=True)
            if column in tables[name].rows.schema.names:
                tables[name] = _without(tables[name], column, f"exclude: {name}.{column}")
    return replace(source, tables=tables)


def _encoded(source: RelationalSource, encode: Mapping[str, str]) -> RelationalSource:
    """Returns `source` with the encodings that the user asks for, by names that `read` takes."""
    there = {name: [*_free(table)] for name, table in source.tables.items()}
    for (name, column), reason in source.left_out.items():
        if name in there and column not in there[name] and f"{name}.{column}" in encode:
            raise ConfigError(f"encode: {name}.{column} cannot be read: {reason}")
    require_columns_there(encode, there, "encode", " that are no keys and no times")
    tables = dict(source.tables)
    for name, columns in there.items():
        of_table = {column: encode[column] for column in columns if column in encode}
        of_table |= {column: encode[f"{name}.{column}"] for column in columns if f"{name}.{column}" in encode}
        tables[name] = replace(
            tables[name], columns={**tables[name].columns, **of_table}, is_encoded_as_asked=bool(of_table)
        )
    return replace(source, tables=tables)


def _free(table: KeyedTable) -> list[str]:
    """Returns the columns that may be features."""
    used = {table.pkey, *table.fkeys, *([] if table.keeps_time else [table.time])}
    return [name for name in table.rows.schema.names if name not in used]


def _without_hidden(source: RelationalSource, listing: SourceListing) -> RelationalSource:
    """Returns `source` without the columns that its tasks hide."""
    tables = dict(source.tables)
    for task, (name, column) in ((task, pair) for task, found in source.tasks.items() for pair in found.hides):
        table = tables.get(name)
        if table is None or column not in table.rows.schema.names:
            continue  # as in RelBench
        listing.leave_out(name, column, f"the labels of task {task} are made of it; `tasks` names those to be read")
        tables[name] = _without(table, column, f"task {task} hides {name}.{column}")
    return replace(source, tables=tables)


def _without(table: KeyedTable, column: str, told: str) -> KeyedTable:
    """Returns `table` without a column.

    Raises:
        ConfigError: it cannot do without it; begins as `told`.
    """
    if column in (table.pkey, table.time):
        raise ConfigError(
            f"{told}, which is a key or a time: the graph needs it, and has no feature of it; leave this out"
        )
    fkeys = {key: other for key, other in table.fkeys.items() if key != column}
    return replace(table, fkeys=fkeys, columns={**table.columns, column: "none"})


def _cut(source: RelationalSource, until: Any, listing: SourceListing) -> RelationalSource:
    """Returns `source` without rows after a time."""
    if until is None:
        return source
    seconds_until = moment("until", until)
    tables = dict(source.tables)
    for name, table in source.tables.items():
        if table.time is not None:
            rows = RowsUntil(table.rows, table.time, seconds_until)
            tables[name] = replace(table, rows=rows)
            if count := table.rows.num_rows - rows.num_rows:
                reason = f"{count} of {table.rows.num_rows} are later than {until}, or have no time"
                listing.leave_out(name, "rows", reason, expected=True)
    return replace(source, tables=tables)


def is_left_empty(node_type: str, rows: RowTable, encoding: GivenEncoding | None) -> bool:
    """Returns True for a table without rows, which is no type of nodes, unless it is one of the graph of `encoding`."""
    return not rows.num_rows and (encoding is None or not encoding.has_table(node_type))


def _without_empty(
    source: RelationalSource, listing: SourceListing, encoding: GivenEncoding | None
) -> RelationalSource:  # fmt: skip
    """Returns `source` without tables that are left out as they have no rows."""
    empty = {name for name, table in source.tables.items() if is_left_empty(name, table.rows, encoding)}
    for name in empty:
        listing.leave_out(name, "table", "it has no rows")
    tables = {}
    for name, table in source.tables.items():
        for column, other in table.fkeys.items():
            if other in empty and name not in empty:
                listing.leave_out(name, column, f"table {other} has no rows")
        if name not in empty:
            fkeys = {column: other for column, other in table.fkeys.items() if other not in empty}
            lost = {column: "none" for column in table.fkeys if column not in fkeys}
            tables[name] = replace(table, fkeys=fkeys, columns={**table.columns, **lost})
    return replace(source, tables=tables)


def _require_key(where: str, source: RelationalSource, table: str, *, by_row: bool = False) -> None:
    if table not in source.tables:
        raise ConfigError(
            f"{where}: expected a table of {', '.join(source.tables)}, found {table!r}{near_name(table, source.tables)}"
        )
    if source.tables[table].pkey is None and not by_row:
        raise ConfigError(
            f"{where}: expected a pkey of table {table}, whose rows it names; found none: say which column it is, by "
            f"`pkey` in relational.yaml or by `keys` ({table}=COLUMN)"
        )


def _nodes(
    name: str,
    table: KeyedTable,
    options: TableGraphOptions,
    listing: SourceListing,
    resources: Resources | None,
) -> tuple[NodeInput, TableEncoding, int | None]:
    """Returns the nodes of a table, how its columns are encoded, and the latest time of its rows, see
    `find_statistics`."""
    rows, until = table.rows, options.statistics_until
    encoding, is_known = _encoding(name, table, options)
    latest = find_statistics(encoding, rows, time=table.time, until=None if is_known else until, resources=resources)
    for column, use in ((table.pkey, "ids"), (table.time, "times")):
        if column is not None:
            listing.read(name, column, use)
    encoding.list_columns(name, listing)
    if until is not None and not is_known and table.time is None and encoding.columns:
        listing.leave_out(name, "val_timestamp", "it has no times, so features are scaled by all rows", expected=True)
    is_constant = options.keeps_columns and not encoding.columns
    if table.time is not None:
        encoding.warn_of_later(name, table.time)
    nodes = NodeInput(
        num_nodes=rows.num_rows,
        may_be_empty=not rows.num_rows,
        ids=None if table.pkey is None else primary_key(name, rows, table.pkey, may_lack=table.may_lack_key),
        features=None if is_constant else encoding.rows(f"features of table {name}", rows),
        constant=is_constant,
        times=None if table.time is None else times(rows, table.time, f"times of table {name}"),
    )
    return nodes, encoding, latest


def _encoding(
    name: str, table: KeyedTable, options: TableGraphOptions, *, wanted: bool = True
) -> tuple[TableEncoding, bool]:
    """Returns how the columns become features, no row read, and whether another graph says that. Where it should and
    does not, there is a warning, unless it is not `wanted`."""
    rows, given = table.rows, options.encoding
    for column in (table.pkey, table.time, *table.fkeys):
        if column is not None:
            rows.field(column)
    free = {*_free(table)}
    kinds = {column.name: column.type for column in rows.schema if column.name in free}
    argument, of = "encode" if table.is_encoded_as_asked else DESCRIPTION, f"{name}."
    if options.keeps_columns:
        records = None if given is None else given.records(name, wanted=wanted)
        kept = [rows.schema.field(each) for each in kinds]
        return RecordEncoding.of(f"table {name}", kept, table.columns, argument, records, of), records is not None
    known = None if given is None else given.columns(name, wanted=wanted)
    return TableEncoding(f"table {name}", kinds, table.columns, argument, known, of=of), known is not None


def _list_task(name: str, task: TaskTables, listing: SourceListing) -> None:
    uses = {task.entity[0]: f"edges from {task.entity[1]}", task.time: "times", task.label: "labels"}
    for column in (column for table in task.splits.values() for column in table.schema.names):
        if column in uses:
            listing.read(name, column, uses[column])
        else:
            listing.leave_out(name, column, "of a task, the entity, the label and the time are read")
    for split in (split for split, table in task.splits.items() if _is_masked(table, task)):
        reason = f"its table has no column {task.label!r}: its rows are nodes without labels, in no split"
        listing.leave_out(name, split, reason)


def _task_nodes(name: str, task: TaskTables, rows: JoinedTables) -> NodeInput:
    splits, start = dict[str, Any](), 0
    for split, table in task.splits.items():
        labelled = _labelled(table, task) + start
        splits |= {split: labelled} if len(labelled) else {}
        start += table.num_rows
    ones = TableEncoding(f"task {name}", {}, {})
    labels = _labels(f"labels of task {name}", task, rows)
    moments = None if task.time is None else times(rows, task.time, f"times of task {name}")
    features = encoded_rows(f"features of task {name}", rows, ones)
    return NodeInput(num_nodes=rows.num_rows, features=features, labels=labels, times=moments, task=task.kind, **splits)


def _is_masked(table: RowTable, task: TaskTables) -> bool:
    """Returns whether a split has no labels while training has some: RelBench takes those of the test split away."""
    return task.label not in table.schema.names and table is not task.splits.get("train")


def _labelled(table: RowTable, task: TaskTables) -> npt.NDArray[np.int64]:
    """Returns the rows whose label is not null."""
    if _is_masked(table, task):
        return np.empty(0, np.int64)
    table.field(task.label)
    found = [np.asarray(batch.column(0).is_valid()) for batch in table.batches([task.label], CHUNK_EDGES)]
    return np.flatnonzero(np.concatenate([np.empty(0, bool), *found]))


def _labels(name: str, task: TaskTables, rows: JoinedTables) -> RowSource:
    dtype = np.dtype(np.int64 if task.kind == "class" else np.float32)
    none = -1 if task.kind == "class" else np.nan

    def chunks() -> Iterator[npt.NDArray[Any]]:
        for table in task.splits.values():
            if _is_masked(table, task):
                for start in range(0, table.num_rows, CHUNK_EDGES):
                    yield np.full(min(CHUNK_EDGES, table.num_rows - start), none, dtype)
                continue
            for batch in table.batches([task.label], CHUNK_EDGES):
                yield np.asarray(label_numbers(batch.column(0), task.kind, name).fill_null(none)).astype(dtype)

    return RowSource(name, rows.num_rows, (), dtype, chunks, stored_bytes=rows.stored_bytes)
