"""The command that computes hops of whole neighbourhoods: propagate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.errors import ConfigError, InputError
from diskgnn.system.memory import available_cores

if TYPE_CHECKING:
    from diskgnn.propagation.choice import Way
    from diskgnn.propagation.propagate import PropagationEstimate

_FANOUT = 10  # drawn per layer, in what propagating is compared with
_SAMPLING_SECONDS = 5.0


@click.command(cls=Command, short_help="Average whole neighbourhoods, hop by hop, for models that learn from that.")
@click.argument("graph", type=options.ARTIFACT)
@click.argument("out", type=options.ARTIFACT)
@click.option(
    "--hops",
    type=click.IntRange(min=1),
    help="How far: 3 gives x, Px, PPx and PPPx. Of a graph with types: all paths of so many edge types or fewer that "
    "end at features.  [default: 2 of a graph with types]",
)
@click.option(
    "--operators",
    default="mean",
    show_default=True,
    metavar="NAME,NAME,...",
    help="What P is: mean of in-neighbours, symmetric (D^-1/2 A D^-1/2), gcn (the same of A + I). Of a graph with "
    "types: mean.",
)
@click.option(
    "--target",
    metavar="TYPE",
    help="Of a graph with types: the type of the seeds.  [default: the only node type with a train split]",
)
@click.option(
    "--paths",
    metavar="PATH,PATH,...",
    help="Of a graph with types, these in place of all: author:writes/institution:employs leads from papers over the "
    "authors that write them to those that employ these. It names sources and edge types.",
)
@click.option(
    "--nodes",
    metavar="all|FILE",
    help="Of these nodes: all, or .npy of ids, your own where the graph keeps some, or of bool [N]; or a table with a "
    "column `id`.  [default: the seeds of all splits]",
)
@options.seed
@click.option("--ignore-times", is_flag=True, help="Of a graph with times: take all edges, later ones, too.")
@options.memory
@options.output_disk
@options.threads
@options.overwrite
@options.serve
@click.option("--estimate", is_flag=True, help="Only count bytes, memory and disk space; edges are read for that.")
@click.pass_obj
def propagate(output: Output, /, graph: Path, out: Path, estimate: bool, overwrite: bool, **arguments: Any) -> None:
    """Write to OUT, for each seed of GRAPH, its features and their means over 1, 2, ... hops.

    Stopped half-way, the same command goes on where it was.
    """
    if estimate:
        from diskgnn.cli.estimates import show_ways
        from diskgnn.propagation.propagate import estimate_propagation

        found = estimate_propagation(graph, out, **arguments, reporter=output.reporter)
        output.fields(f"propagating {graph} would take", vars(found))
        _say_hops(output, arguments, found.hops)
        ways = _ways(output, graph, out, found, arguments)
        show_ways(output, ways)
        if found.disk_bytes > found.free_disk_bytes:
            missing = found.disk_bytes - found.free_disk_bytes
            output.warn(f"it does not fit the disk under {out.absolute().parent}: {missing} bytes missing")
        output.result({**vars(found), "ways": ways})
        return
    from diskgnn.propagation.propagate import propagate

    report = propagate(graph, out, overwrite=overwrite, **arguments, reporter=output.reporter)
    output.stages([replace(report, details={})])
    output.fields("what it took", report.details)
    _say_hops(output, arguments, int(report.details["hops"]))
    output.result(report)
    if arguments["nodes"] is None:
        output.next("diskgnn", "train", out, "--checkpoint", out.with_name(f"{out.name}-run"))


def _say_hops(output: Output, arguments: Mapping[str, Any], hops: int) -> None:
    """Says that fewer hops are computed than were asked for: in a star of types where only the middle has features,
    paths of 3 edge types end nowhere.
    """
    if arguments["hops"] is not None and hops < arguments["hops"]:
        output.text(f"--hops {arguments['hops']} is {hops} in effect: no longer path ends at a type with features")


def _ways(
    output: Output, graph: Path, out: Path, found: PropagationEstimate, arguments: Mapping[str, Any]
) -> list[Way]:
    """Compares sampling as deep with what was `found`; empty where there are no seeds with labels."""
    from diskgnn.preparing.estimate import estimate
    from diskgnn.propagation.choice import ways

    if arguments["nodes"] is not None:
        return []
    fanouts = [_FANOUT] * found.hops
    try:
        sampled = estimate(
            graph, out, fanouts=fanouts, memory=arguments["memory"], threads=arguments["threads"],
            max_seconds=_SAMPLING_SECONDS, reporter=output.reporter,
            temporal="ignore" if arguments["ignore_times"] else None, target=arguments["target"],
        )  # fmt: skip
    except (ConfigError, InputError):
        return []
    return ways(sampled, fanouts, found, arguments["threads"] or available_cores())
