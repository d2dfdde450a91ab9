"""The command that measures loaders side by side: compare."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.options import CACHE, Size
from diskgnn.cli.rendering import Output, to_json

if TYPE_CHECKING:
    from diskgnn.compare.results import Comparison, LoaderResult
    from diskgnn.compare.summary import LoaderSummary


_LEGEND = (
    "loading: nobody computes · bound: what was read, at the limits of disk or memory · wait: of training, for "
    "minibatches · total: an epoch with its part of preparing and opening · disk: the most that was taken beside the "
    "graph · of Belady's: rows read by the fewest that any cache of the size reads · peak: of memory, with page cache"
)


class Sweep(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """WHAT=SIZE,SIZE,...: cpu-cache=5%,10%,30%,50%."""

    name = "cpu-cache=size,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """The sizes, as they were given."""
        if isinstance(value, list):
            return value
        what, equals, sizes = str(value).partition("=")
        if what != "cpu-cache" or not equals:
            self.fail(
                f"expected sizes or shares of all rows, such as cpu-cache=5%,10%,50%; found {value!r}", param, ctx
            )
        return [str(CACHE.convert(size.strip(), param, ctx)) for size in sizes.split(",")]


@click.command(cls=Command)
@click.argument("graph", type=options.ARTIFACT)
@click.option("--memory", type=Size(), required=True, help="What each loader's processes may use, page cache included.")
@click.option(
    "--loaders",
    default="all",
    show_default=True,
    metavar="NAME,...",
    help="Which: a loader stands for all its variants, loader:variant for one.",
)
@click.option(
    "--fanouts", type=options.Fanouts(), required=True, help="Neighbours drawn per layer, from the seeds outwards."
)
@click.option("--batch-size", type=click.IntRange(min=1), default=1024, show_default=True, help="Seeds per minibatch.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Epochs to train.")
@click.option(
    "--max-batches",
    type=click.IntRange(min=1),
    metavar="K",
    help="Minibatches per epoch: the rest of the train split is left out.  [default: all]",
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Train with so many seeds: accuracies then come with their deviation.",
)
@click.option(
    "--cpu-cache",
    type=CACHE,
    help="Main memory for feature rows, for all loaders that cache: 512MiB, or 10% of all rows.  [default: "
    "10%, at most 20% of --memory]",
)
@click.option(
    "--sweep",
    type=Sweep(),
    default=list,
    help="Also count the rows that caches of these sizes would read: cpu-cache=5%,10%,30%,50%.",
)
@click.option(
    "--model",
    type=click.Choice(["sage", "gat", "gcn"]),
    default="sage",
    show_default=True,
    help="GraphSAGE (mean), GAT or GCN.",
)
@click.option(
    "--hidden", type=click.IntRange(min=1), default=256, show_default=True, help="Width of the hidden layers."
)
@click.option("--dropout", type=float, default=0.5, show_default=True, help="Share of hidden units dropped.")
@click.option("--lr", type=float, default=0.003, show_default=True, help="Adam's learning rate.")
@click.option("--device", default="cpu", show_default=True, help="Where the model is: cpu, cuda, cuda:1.")
@click.option(
    "--evaluate/--no-evaluate",
    default=True,
    show_default=True,
    help="Measure accuracy after every epoch, outside the clock.",
)
@click.option(
    "--scratch",
    type=options.OUTPUT,
    metavar="DIR",
    help="Where to prepare, on the disk to measure; emptied in the end.  [default: beside GRAPH]",
)
@click.option(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="For each process.",
)
@click.option(
    "--size",
    "rate_file_bytes",
    type=Size(),
    default="1GiB",
    show_default=True,
    help="Of the file that the disk's own rates are measured with.",
)
@click.option("--out", type=options.OUTPUT, metavar="FILE", help="Write everything measured here as JSON, as it comes.")
@click.option("--report", type=options.OUTPUT, metavar="FILE", help="Write a page with figures (HTML) here.")
@click.pass_obj
def compare(output: Output, /, graph: Path, out: Path | None, report: Path | None, **arguments: Any) -> None:
    """Measure loaders side by side on GRAPH: the same minibatches, model and memory cap for each."""
    from diskgnn.compare.report.write import check_report_possible, write_report
    from diskgnn.compare.runner import compare

    if report is not None:
        check_report_possible()
    for path, option in ((out, "--out"), (report, "--report")):
        if path is not None:
            _check_writable_file(path, option)

    latest: list[Comparison] = []

    def keep(comparison: Comparison) -> None:
        latest[:] = [comparison]
        output.note(_line(comparison.results[-1]))
        if out is not None:
            temporary = out.with_name(f".{out.name}.partial")
            temporary.write_text(json.dumps(to_json(comparison), indent=1) + "\n")
            temporary.replace(out)

    try:
        compare(
            graph, **arguments, command=shlex.join(["diskgnn", *sys.argv[1:]]), on_result=keep, reporter=output.reporter
        )
    finally:  # also when Ctrl-C ends it early
        if latest:
            _show(output, latest[0])
            if report is not None:
                write_report(latest[0], report)
            for path, what in ((out, "everything measured, as JSON"), (report, "the page with figures")):
                if path is not None:
                    output.note(f"{path}: {what}")
    output.result(latest[0])


def _check_writable_file(path: Path, option: str) -> None:
    from diskgnn.training.checkpoints import writing

    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("a"):
            pass
        if is_new:
            path.unlink()


def _line(result: LoaderResult) -> str:
    if result.status != "ok":
        return f"{result.name}: {result.status} ({result.message})"
    assert result.training is not None
    accuracy = result.epochs[-1].test_accuracy
    shown = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
    seed = f", seed {result.seed}" if result.seed else ""
    return f"{result.name}{seed}: {result.training.seconds:.2f} s an epoch{shown}"


def _show(output: Output, comparison: Comparison) -> None:
    from diskgnn.compare.answer import headline, reasons
    from diskgnn.compare.summary import summarize

    summaries = summarize(comparison.results)
    output.table(
        f"{comparison.graph['name']}: an epoch of each loader",
        ["", "minibatches", "prepare_seconds", "disk_bytes", "loading_seconds", "bound_seconds", "training_seconds",
         "wait_seconds", "total_seconds", "read_bytes", "rows read", "of Belady's", "peak_bytes", "test accuracy"],
        [_row(summary) for summary in summaries],
    )  # fmt: skip
    output.text(_LEGEND)
    if comparison.sweep:
        output.table(
            "rows read in an epoch, by size of the cache",
            ["", "cache", "requested", "read", "fewest", "ratio"],
            [(point.name, point.cache, point.requested_rows, point.rows_read, point.belady_rows,
              point.rows_read / max(point.belady_rows, 1)) for point in comparison.sweep],
        )  # fmt: skip
    for sentence in (headline(comparison, summaries), *reasons(summaries)):
        output.text(sentence)


def _row(summary: LoaderSummary) -> Sequence[Any]:
    """What was measured, also of a loader that failed later on; '' for the rest."""
    from diskgnn.compare.summary import accuracy_text

    found = (
        summary.minibatches,
        summary.prepare_seconds or None,
        summary.peak_disk_bytes or None,
        summary.loading_seconds,
        summary.bound_seconds if summary.bound else None,
        summary.training_seconds,
        summary.training_wait_seconds,
        summary.total_seconds,
        summary.read_bytes,
        summary.rows_read,
        summary.rows_read / summary.belady_rows if summary.rows_read is not None and summary.belady_rows else None,
        summary.peak_cgroup_bytes or summary.peak_process_bytes or None,
        accuracy_text(summary, "+-") if summary.ok else summary.status,
    )
    return (summary.name, *("" if value is None else value for value in found))
