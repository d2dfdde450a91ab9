"""Commands that apply trained models: infer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.options import Size
from diskgnn.cli.rendering import Output

_checkpoint = click.option(
    "--checkpoint", type=options.ARTIFACT, required=True, metavar="DIR", help="What `diskgnn train --checkpoint` left."
)
_what = click.option(
    "--what",
    type=click.Choice(["logits", "probabilities", "classes", "embeddings"]),
    help="What to write of each node; embeddings are the rows that enter the last layer.  "
    "[default: logits; of a model for links the vectors of nodes]",
)
_out = click.option(
    "--out", type=options.OUTPUT, required=True, metavar="FILE", help=".npy, or .parquet with the nodes' ids."
)


@click.command(cls=Command, short_help="Compute a trained model for all nodes, from all neighbours.")
@click.argument("graph", type=options.ARTIFACT)
@_checkpoint
@_out
@_what
@click.option("--node-type", metavar="TYPE", help="Whose rows.  [default: those that the model was trained for]")
@click.option("--nodes", type=options.EXISTING, metavar="FILE", help="Write these only: .npy of ids, or of bool [N].")
@options.memory
@click.option("--disk", type=Size(), help="What files between layers and the output may take.  [default: what is free]")
@options.threads
@options.overwrite
@click.pass_obj
def infer(
    output: Output, /, graph: Path, checkpoint: Path, out: Path, nodes: Path | None, **arguments: Any
) -> None:  # fmt: skip
    """Compute a trained model for all nodes of GRAPH, layer by layer, and write what it says of them to a file.

    A killed run goes on where it was with the same command.
    """
    from diskgnn.inference.infer import infer
    from diskgnn.inference.outputs import read_nodes

    report = infer(
        graph,
        out,
        checkpoint,
        nodes=None if nodes is None else read_nodes(nodes),
        reporter=output.reporter,
        **arguments,
    )
    output.stages([report])
    output.result(report)
