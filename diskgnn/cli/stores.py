"""Commands between this machine and object stores: fetch, push."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.rendering import Output
from diskgnn.units import format_size

if TYPE_CHECKING:
    from diskgnn.progress.reporter import StageReport


@click.command(cls=Command, short_help="Copy a directory from an object store to this machine.")
@click.argument("url", type=options.ARTIFACT)
@click.argument("directory", type=options.OUTPUT)
@click.option("--rank", type=click.IntRange(min=0), help="Of what `prepare --ranks` made, only this rank's directory.")
@options.overwrite
@options.serve
@click.pass_obj
def fetch(output: Output, /, url: Any, directory: Path, **arguments: Any) -> None:
    """Copy the graph, samples, packed or hops directory at URL (s3://bucket/packed) to DIRECTORY.

    What comes is compared with its checksums. Stopped half-way, the same command goes on where it was.
    """
    from diskgnn.work.fetching import fetch

    report = fetch(url, directory, **arguments, reporter=output.reporter)
    _show(output, report, f"{directory} is a copy of {url}", report.read_bytes)


@click.command(cls=Command, short_help="Send a directory to an object store.")
@click.argument("directory", type=options.OUTPUT)
@click.argument("url", type=options.ARTIFACT)
@options.overwrite
@options.serve
@click.pass_obj
def push(output: Output, /, directory: Path, url: Any, overwrite: bool) -> None:
    """Send the graph, samples or packed DIRECTORY to an object store, as URL (s3://bucket/graph).

    It appears there whole or not at all. Stopped half-way, the same command goes on with the files that are missing.
    """
    from diskgnn.work.pushing import push

    report = push(directory, url, overwrite=overwrite, reporter=output.reporter)
    _show(output, report, f"{url} is a copy of {directory}", report.written_bytes)


def _show(output: Output, report: StageReport, done: str, moved_bytes: int) -> None:
    rate = format_size(int(moved_bytes / max(report.seconds, 1e-9)))
    output.text(f"{done}: {format_size(moved_bytes)} in {report.seconds:.1f} s, {rate}/s")
    output.result(report)
