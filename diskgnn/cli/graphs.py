"""Commands that make a graph, of one's own data or of none: convert, relink, generate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.errors import ConfigError
from diskgnn.progress.reporter import StageReport
from diskgnn.specs.near_names import near_name
from diskgnn.specs.null_times import NULL_TIMES
from diskgnn.specs.schema import ORDERS, edge_type_name
from diskgnn.specs.time_windows import TIME_UNITS
from diskgnn.stores.locations import is_database

if TYPE_CHECKING:
    from diskgnn.graph.graph import Graph

_source = options.section("Data sets in the formats of others")
_edges = options.section("Edges")
_nodes = options.section("Nodes")
_tables = options.section("Tables: Parquet or CSV, one file or a folder of parts")


def _graph_made(output: Output, report: StageReport, out: Path) -> None:
    """Nobody knows fanouts and caches in advance: the next command predicts what these would take."""
    from diskgnn.graph.graph import Graph

    output.stages([report])
    output.result(report)
    contents = getattr(report, "contents", None)
    if contents is not None:
        output.source_contents(contents, with_warned=False)
    graph = Graph.open(out)
    splits = [each.splits for each in graph.nodes.values()] + [each.splits for each in graph.edges.values()]
    unsplit = [nodes for nodes in graph.nodes.values() if nodes.config.target is not None and not nodes.splits]
    if any(splits):
        if not any("train" in each for each in splits):
            output.note("it has nothing to train on (no split train): it is for evaluating a model of another graph")
        from diskgnn.cli.proposed_draws import about_times

        packed, (temporal, reason) = out.with_name(f"{out.name}-packed"), about_times(graph)
        if reason:
            output.note(reason)
        output.next("diskgnn", "prepare", out, packed, "--fanouts", "10,10", *_target(graph), *temporal, "--epochs", 4,
                    "--cpu-cache", "10%", "--estimate",
                    why="predicts time and disk space; without --estimate it prepares")  # fmt: skip
    elif unsplit:
        _propose_split(output, graph)
    else:
        output.next(
            "diskgnn",
            "inspect",
            out,
            why="it has no nodes to train on yet: convert with --train or a column of splits, or prepare with "
            "--target-seeds",
        )


def _target(graph: Graph) -> list[str]:
    """Returns the options that tell `prepare` which seeds to take; none if just one type of nodes has a train split."""
    nodes = [name for name, each in graph.nodes.items() if "train" in each.splits]
    links = [edge_type_name(edge_type) for edge_type, each in graph.edges.items() if "train" in each.splits]
    return [] if len(nodes) == 1 else ["--target", (*nodes, *links)[0]] if nodes or links else []


def _propose_split(output: Output, graph: Graph) -> None:
    """Proposes the same command with a split, where labelled nodes are in none and it takes one."""
    context = click.get_current_context()
    why = "its labels are in no split, so there is nothing to train on yet; or give --train or a column of splits"
    if len(graph.nodes) == 1 and context.params.get("schema") is None and context.parent is not None:
        words = [each for each in context.parent.obj if each != "--overwrite"]
        output.next("diskgnn", *words, "--random-split", "0.8,0.1,0.1", "--overwrite", why=why)
    else:
        output.next(
            "diskgnn", "inspect", graph.manifest.path, why=f"{why}, or in a schema random_split: [0.8, 0.1, 0.1]"
        )


def _by_name(argument: str, given: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Returns what a repeated option of NAME=VALUE says; of a name that is given twice, nobody would see the first."""
    found = dict(given)
    if len(found) < len(given):
        names = [name for name, _ in given]
        name = next(name for name in names if names.count(name) > 1)
        values = " and ".join(value for each, value in given if each == name)
        raise ConfigError(
            f"{argument}: expected {name} once, found {values}; where it lists names, give them with commas between"
        )
    return found


def _require_format(name: str) -> None:
    """Refuses what stands before a colon, and says nothing of what is behind it, which may be a password."""
    from diskgnn.importers.source_formats.registry import FORMATS
    from diskgnn.importers.source_listing import AUTO

    if name not in (*FORMATS, AUTO):
        raise click.UsageError(
            f"--from: expected FORMAT:PATH with one of {', '.join(FORMATS)}, or the URL of a PostgreSQL database, such "
            f"as postgresql:///shop; found {name!r} before the first colon{near_name(name, FORMATS)}"
        )


class _Convert(Command):
    """Takes --from FORMAT:PATH and --from URL, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Makes two words of what stands behind --from."""
        words, found = iter(args), list[str]()
        for word in words:
            option, equals, value = word.partition("=")
            if option != "--from" or (not equals and (value := next(words, "")) == ""):
                found.append(word)
            elif is_database(value):
                found += ["--from", "postgresql", value]
            elif ":" in value:
                name, _, path = value.partition(":")
                _require_format(name)
                found += ["--from", name, path]
            else:
                found += ["--from", value]
        return super().parse_args(ctx, found)


@click.command(cls=_Convert, short_help="Make a graph directory from your arrays or tables.")
@click.argument("out", type=options.ARTIFACT)
@_source(
    "--from",
    "format",
    type=(str, options.DATA_SET),
    metavar="FORMAT PATH",
    help="Read the graph from PATH. FORMAT is auto or one of {formats}. Or FORMAT:PATH, or the URL of a database, such "
    "as postgresql:///shop: give its password by PGPASSWORD, ~/.pgpass or a service.",
    cls=options.FormatOption,
)
@_source(
    "--set",
    "options",
    type=options.SETTING,
    multiple=True,
    help="An option of the format, such as weights=true; an unknown one is answered with those that there are.",
)
@_source(
    "--key",
    "keys",
    multiple=True,
    metavar="TABLE=COLUMN",
    help="The column that names the rows of a table of a database, where it has no primary key, or another one.",
)
@_source(
    "--link",
    "links",
    multiple=True,
    metavar="TABLE.COLUMN=TABLE",
    help="A column that names rows of another table, where the database has no foreign key; or by TABLE.COLUMN, of "
    "values that are unique there. Edges come of it.",
)
@click.option(
    "--schema",
    type=options.EXISTING,
    help="Description of a graph with types, in YAML (a file, or a folder with a graph.yaml), instead of the rest.",
)
@_edges(
    "--edges",
    type=options.SOURCE,
    help="Edges source -> destination: .npy of shape [2, E] or [E, 2], or a table (see below).",
)
@_edges("--indptr", type=options.SOURCE, help="Instead of --edges: CSC offsets, .npy [N + 1].")
@_edges("--indices", type=options.SOURCE, help="With --indptr: the in-neighbours, .npy [E].")
@_edges("--reverse", is_flag=True, help="Also add each edge's reverse: makes the graph undirected.")
@_edges("--self-loops", is_flag=True, help="Add an edge from each node to itself.")
@_edges("--drop-duplicates", is_flag=True, help="Keep one of several equal edges.")
@_edges("--keep-ids", is_flag=True, help="Keep the position of each edge in the list, for `prepare --edge-ids`.")
@_nodes("--ids", type=options.SOURCE, help="Your own ids of the nodes, in order: .npy, or a table's id column.")
@_nodes(
    "--features",
    type=options.ROWS,
    help="One row per node: .npy [N, D] of float32, float16, int8, or bfloat16 as uint16; or, of a file without a "
    "header, raw:DTYPE:D:PATH, such as raw:float32:1024:features.bin.",
)
@_nodes("--bfloat16", is_flag=True, help="The features' uint16 are the bits of bfloat16 numbers.")
@_nodes("--reference-features", is_flag=True, help="Leave the features where they are instead of copying them.")
@_nodes(
    "--quantise",
    type=options.Choice(["int8", "int4", "float16", "bfloat16"]),
    help="Store the features in fewer bits; says what that changes. Of tables that keep their columns, int8 is for "
    "embeddings.  [default: as they are]",
)
@_nodes("--labels", type=options.ROWS, help="One class per node: .npy [N], -1 where a node has none.")
@_nodes("--train", type=options.SOURCE, help="Nodes to train on: .npy of ids, or of bool [N].")
@_nodes("--valid", type=options.SOURCE, help="Nodes to choose the best epoch by.")
@_nodes("--test", type=options.SOURCE, help="Nodes to report accuracy on.")
@_nodes(
    "--random-split",
    metavar="SHARES",
    help="In place of these three: draw train, valid and test among the nodes with labels, such as 0.8,0.1,0.1, or "
    "0,0,1 where all are to test a model on.",
)
@_nodes("--num-nodes", type=click.IntRange(min=1), help="N.  [default: as many as there are feature rows]")
@_nodes("--num-classes", type=click.IntRange(min=1), help="Classes.  [default: the largest label + 1]")
@_tables("--nodes", type=options.SOURCE, help="Table with a row per node, for what the options above don't give.")
@_tables(
    "--column",
    "columns",
    type=options.COLUMN,
    multiple=True,
    help="What a column is called, such as src=from or label=topic; repeat it for several columns of features. "
    "Roles: src, dst, id, features, label, split, time, weight. Of CSV: delimiter=; and "
    "names=src,dst (of a file without names) and types=id:string.",
)
@_tables(
    "--encode",
    "--embed-text",
    type=options.SETTING,
    multiple=True,
    metavar="[TABLE.]COLUMN=ENCODING",
    help="How a column becomes features: number, raw, time, boolean, category, vector; text as hash:256 or as "
    "package.module:function says. Of a database, too (--from).  [default: by its type; numbers are scaled]",
)
@_tables(
    "--exclude",
    multiple=True,
    metavar="[TABLE.]COLUMN",
    help="Leave a column out, such as one that labels are made from; repeat it. Of a database, too (--from).",
)
@_tables(
    "--null-time",
    type=options.Choice(list(NULL_TIMES)),
    help="What a missing time of a node or an edge means: no seed sees it, or every seed does.  [default: there shall "
    "be none]",
)
@_tables(
    "--time-unit",
    type=options.Choice(TIME_UNITS),
    help="What whole numbers that are times count, so that windows of time may be given as 180d.  [default: s, "
    "where all times are dates or timestamps]",
)
@_edges(
    "--order",
    type=options.Choice(ORDERS),
    help="Of the in-neighbours of each node: time, if draws shall go by it, or hash.  [default: time for tables with "
    "keys, otherwise hash]",
)
@_tables(
    "--encoding-of",
    type=options.ARTIFACT,
    metavar="GRAPH",
    help="Encode tables as those that GRAPH was made from, for a model that was trained on it.  [default: each table "
    "by its own values]",
)
@options.memory
@options.output_disk
@options.overwrite
@options.serve
@click.pass_obj
def convert(
    output: Output,
    /,
    out: Path,
    format: tuple[str, Path] | None,  # noqa: A002
    options: tuple[tuple[str, str], ...],
    keys: tuple[str, ...],
    links: tuple[str, ...],
    columns: tuple[tuple[str, str], ...],
    encode: tuple[tuple[str, str], ...],
    **arguments: Any,
) -> None:
    """Make the graph directory OUT from your arrays, tables, or a data set in another format.

    Stopped half-way, the same command goes on where it was.
    """
    from diskgnn.cli.table_columns import table_columns
    from diskgnn.importers.convert import convert

    if format is not None:
        arguments["format"], arguments["source"] = format

    of_keys = {name: ",".join(given) for name, given in (("keys", keys), ("links", links)) if given}
    report = convert(
        out, **arguments, options=_by_name("options", (*options, *of_keys.items())),
        columns=table_columns(columns, tuple(_by_name("encode", encode).items())),
        reporter=output.reporter,
    )  # fmt: skip
    _graph_made(output, report, out)


@click.command(cls=Command, short_help="Say where a graph's features lie now.")
@click.argument("graph", type=options.LOCAL)
@click.option("--features", type=options.EXISTING, required=True, help="The feature file that the graph refers to.")
@click.option("--node-type", help="Whose features.  [default: the only type whose features lie elsewhere]")
@click.option("--verify", is_flag=True, help="Compare all of the file, not 1,024 pieces of it.")
@click.pass_obj
def relink(output: Output, /, graph: Path, **arguments: Any) -> None:
    """Say where the features lie now that GRAPH refers to (`convert --reference-features`).

    What was made from the graph still fits.
    """
    from diskgnn.graph.relinking import relink

    relink(graph, **arguments)
    output.text(f"{graph} refers to {arguments['features']} now")
    output.result({"graph": str(graph), "features": str(arguments["features"])})


_SIZES_AND_SHARES = ("num_nodes", "avg_degree", "num_classes", "num_features", "feature_dtype", "train_fraction",
                     "valid_fraction", "test_fraction", "homophily")  # fmt: skip


def _refuse_beside_schema(names: Iterable[str]) -> None:
    """Refuses options that a schema has in its place."""
    context = click.get_current_context()
    given = [name for name in names if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT]
    if given:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise click.UsageError(f"--schema says sizes and shares itself: leave out {flags}")


@click.command(cls=Command, short_help="Make a synthetic graph directory.")
@click.argument("out", type=options.ARTIFACT)
@click.option(
    "--schema",
    type=options.EXISTING,
    help="Description of a graph with types, in YAML, instead of the sizes and shares below.",
)
@click.option("--num-nodes", type=int, help="Number of nodes; meant for 10,000 to 100 million.")
@click.option("--avg-degree", type=float, default=12.5, show_default=True, help="Edges drawn per node.")
@click.option("--num-classes", type=int, default=16, show_default=True, help="Classes, of equal size.")
@click.option("--num-features", type=int, default=128, show_default=True, help="Numbers per feature row.")
@click.option(
    "--feature-dtype",
    type=options.Choice(["float32", "float16", "bfloat16", "int8"]),
    default="float32",
    show_default=True,
    help="Type of the features.",
)
@click.option("--train-fraction", type=float, default=0.02, show_default=True, help="Share of nodes to train on.")
@click.option("--valid-fraction", type=float, default=0.01, show_default=True, help="Share of nodes to validate on.")
@click.option("--test-fraction", type=float, default=0.01, show_default=True, help="Share of nodes to test on.")
@click.option(
    "--homophily", type=float, default=0.7, show_default=True, help="Share of edges that join nodes of one class."
)
@options.seed
@options.memory
@options.output_disk
@options.threads
@options.overwrite
@options.serve
@click.pass_obj
def generate(output: Output, /, out: Path, schema: Path | None, **arguments: Any) -> None:
    """Make a synthetic graph directory OUT of any size, with labels that a GNN can learn.

    Stopped half-way, the same command goes on where it was, if the graph is a large one.
    """
    if schema is not None:
        from diskgnn.importers.generating import generate_typed

        _refuse_beside_schema(_SIZES_AND_SHARES)
        kept = {name: arguments[name] for name in ("seed", "memory", "disk", "threads", "overwrite")}
        _graph_made(output, generate_typed(out, schema, **kept, reporter=output.reporter), out)
        return
    if arguments["num_nodes"] is None:
        raise click.UsageError("expected --num-nodes, or --schema for a graph with types")
    from diskgnn.graph.generation import generate

    _graph_made(output, generate(out, **arguments, reporter=output.reporter), out)
