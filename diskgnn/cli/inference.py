"""Commands that apply trained models: infer, predict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.cli.sampling_arguments import FanoutsOption, fanouts_argument
from diskgnn.specs.targets import MESSAGE_EDGES

_checkpoint = click.option(
    "--checkpoint", type=options.OUTPUT, required=True, metavar="DIR", help="What `diskgnn train --checkpoint` left."
)
_what = click.option(
    "--what",
    type=options.Choice(["logits", "probabilities", "classes", "embeddings"]),
    help="What to write of each node or pair; embeddings are the rows that enter the last layer.  "
    "[default: logits; of nodes, by a model for links, embeddings]",
)
_out = click.option(
    "--out",
    type=options.OUTPUT,
    required=True,
    metavar="FILE",
    help=".npy; or .parquet or .csv, which have the ids, and the times where each seed has one, beside the values.",
)


@click.command(cls=Command, short_help="Compute a trained model for all nodes, from all neighbours.")
@click.argument("graph", type=options.ARTIFACT)
@_checkpoint
@_out
@_what
@click.option("--node-type", metavar="TYPE", help="Whose rows.  [default: those that the model was trained for]")
@click.option(
    "--nodes",
    type=options.EXISTING,
    metavar="FILE",
    help="Write these only: .npy of ids, "
    "your own where the graph keeps some, or of bool [N]; or a table with a column `id`.",
)
@click.option(
    "--column",
    "columns",
    type=options.Column("id"),
    multiple=True,
    help="What the column of a table of --nodes is called: id=NAME.",
)
@click.option(
    "--ignore-times", is_flag=True, help="Take later edges, too, though the model was trained with --temporal."
)
@options.memory
@options.output_disk
@options.threads
@options.engine
@options.overwrite
@click.pass_obj
def infer(
    output: Output, /, graph: Path, checkpoint: Path, out: Path, columns: tuple[tuple[str, str], ...], **arguments: Any
) -> None:  # fmt: skip
    """Compute a trained model for all nodes of GRAPH, layer by layer, and write what it says of them to a file.

    A killed run goes on where it was with the same command.
    """
    from diskgnn.cli.table_columns import table_columns
    from diskgnn.inference.infer import infer

    report = infer(
        graph, out, checkpoint, columns=table_columns(columns), reporter=output.reporter, **arguments
    )  # fmt: skip
    output.stages([replace(report, details={})])
    output.fields("what it took", report.details)
    output.result(report)


@click.command(cls=Command, short_help="Compute a trained model for some nodes or pairs.")
@click.argument("source", type=options.ARTIFACT)
@_checkpoint
@_out
@_what
@click.option(
    "--nodes",
    default="all",
    show_default=True,
    metavar="FILE",
    help="Which: .npy of ids, your own "
    "where SOURCE is a graph that keeps some, or of bool [N]; or a table with a column `id`.",
)
@click.option(
    "--pairs",
    type=options.EXISTING,
    metavar="FILE",
    help="Say it of these pairs instead: .npy of ids [n, 2], or a table with columns `src` and `dst`.",
)
@click.option(
    "--column",
    "columns",
    type=options.Column("id", "src", "dst", "time"),
    multiple=True,
    help="What a column of a table of --nodes or --pairs is called, such as id=user or time=day.  [default: id, src, "
    "dst, time]",
)
@click.option(
    "--message-edges",
    type=options.Choice(MESSAGE_EDGES),
    default="train",
    show_default=True,
    help="Of pairs: draw neighbourhoods as evaluation does, without the graph's seed edges of valid and test and their "
    "reverses; or from all edges.",
)
@click.option(
    "--hold-out-pairs", is_flag=True, help="Of pairs: draw none of them either, to score those that are edges."
)
@click.option("--node-type", metavar="TYPE", help="Of the nodes.  [default: what the model was trained for]")
@click.option(
    "--split",
    type=options.Choice(["train", "valid", "test", "nodes"]),
    default="test",
    show_default=True,
    help="Whose seeds, where SOURCE is a packed or a hops directory; of the latter, nodes where these were chosen.",
)
@click.option(
    "--fanouts",
    type=options.TypedFanouts(),
    multiple=True,
    help="Neighbours drawn per layer.  [default: all of them; by times, as evaluation drew]",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Draw nothing later than this, of a model that was trained with --temporal: a whole number as the graph's "
    "times are, or a date or time such as 2024-01-31. A table of nodes or pairs may have a column `time` instead.",
)
@click.option("--ignore-times", is_flag=True, help="Draw what is later, too.")
@click.option("--batch-size", type=click.IntRange(min=1), default=256, show_default=True, help="Nodes at a time.")
@click.option("--device", default="cpu", show_default=True, help="Where the model is: cpu, cuda, cuda:1.")
@options.seed
@options.memory
@options.output_disk
@options.threads
@options.overwrite
@click.pass_obj
def predict(
    output: Output, /, source: Path, checkpoint: Path, out: Path, nodes: str,
    columns: tuple[tuple[str, str], ...], fanouts: tuple[FanoutsOption, ...], **arguments: Any,
) -> None:  # fmt: skip
    """Write what a trained model says of nodes of SOURCE, a graph, or of the seeds of SOURCE, a packed or a hops
    directory.

    Nodes need no labels. For all nodes of a large graph, `infer` is faster by far.
    """
    from diskgnn.cli.table_columns import table_columns
    from diskgnn.inference.predict import predict

    report = predict(
        source, out, checkpoint, nodes=None if nodes == "all" else Path(nodes), columns=table_columns(columns),
        fanouts=fanouts_argument("fanouts", fanouts), reporter=output.reporter, **arguments,
    )  # fmt: skip
    output.stages([report])
    output.result(report)
