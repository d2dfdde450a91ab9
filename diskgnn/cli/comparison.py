"""The command that measures loaders side by side: compare."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import options
from diskgnn.cli.command import Command
from diskgnn.cli.options import CACHE, Size
from diskgnn.cli.rendering import Output, to_json

if TYPE_CHECKING:
    from diskgnn.compare.results import Comparison, LoaderResult


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
    "10%, at most 40% of --memory]",
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
    from diskgnn.compare.report import check_report_possible, write_report
    from diskgnn.compare.runner import compare

    if report is not None:
        check_report_possible()
    for path, option in ((out, "--out"), (report, "--report")):
        if path is not None:
            _check_writable_file(path, option)

    def keep(comparison: Comparison) -> None:
        latest = comparison.results[-1]
        output.note(_line(latest))
        if out is not None:
            temporary = out.with_name(f".{out.name}.partial")
            temporary.write_text(json.dumps(to_json(comparison), indent=1) + "\n")
            temporary.replace(out)

    comparison = compare(
        graph, **arguments, command=shlex.join(["diskgnn", *sys.argv[1:]]), on_result=keep, reporter=output.reporter
    )
    _show(output, comparison)
    if report is not None:
        write_report(comparison, report)
    output.result(comparison)


def _check_writable_file(path: Path, option: str) -> None:
    from diskgnn.checkpoints import writing

    with writing(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass


def _line(result: LoaderResult) -> str:
    if result.status != "ok":
        return f"{result.name}: {result.status} ({result.message})"
    assert result.training is not None
    accuracy = result.epochs[-1].test_accuracy
    shown = "" if accuracy is None else f", test accuracy {accuracy:.2%}"
    seed = f", seed {result.seed}" if result.seed else ""
    return f"{result.name}{seed}: {result.training.seconds:.2f} s an epoch{shown}"


def _show(output: Output, comparison: Comparison) -> None:
    first = [result for result in comparison.results if result.seed == 0]
    output.table(
        f"{comparison.graph['name']}: one epoch of each loader (loading: nobody computes)",
        ["", "prepare_seconds", "disk_bytes", "loading_seconds", "training_seconds", "wait_seconds", "bound_seconds",
         "read_bytes", "rows read", "of Belady's", "peak_bytes", "test accuracy"],
        [_row(result, comparison) for result in first],
    )  # fmt: skip
    if comparison.sweep:
        output.table(
            "rows read in an epoch, by size of the cache",
            ["", "cache", "requested", "read", "fewest", "ratio"],
            [(point.name, point.cache, point.requested_rows, point.rows_read, point.belady_rows,
              point.rows_read / max(point.belady_rows, 1)) for point in comparison.sweep],
        )  # fmt: skip


def _row(result: LoaderResult, comparison: Comparison) -> Sequence[Any]:
    """What was measured, also of a loader that failed later on; '' for the rest."""
    from diskgnn.compare.results import disk_bytes

    loading, training = result.loading, result.training
    rows = "" if loading is None else loading.disk_rows + loading.filled_rows
    return (
        result.name,
        result.prepare_seconds,
        result.prepared_bytes,
        "" if loading is None else loading.seconds,
        "" if training is None else training.seconds,
        "" if training is None else training.wait_seconds,
        result.bound_seconds if result.bound else "",
        "" if loading is None else disk_bytes(loading),
        rows,
        rows / result.belady_rows if isinstance(rows, int) and result.belady_rows else "",
        result.peak_cgroup_bytes or result.peak_process_bytes,
        _accuracy(each for each in comparison.results if each.name == result.name)
        if result.status == "ok" else result.status,
    )  # fmt: skip


def _accuracy(results: Iterable[LoaderResult]) -> str:
    """Of the epoch that was best on the validation split (else the last): the mean over the seeds."""
    found = []
    for result in results:
        scored = [point for point in result.epochs if point.test_accuracy is not None]
        if scored:
            best = max(scored, key=lambda point: (point.valid_accuracy or 0.0, -point.epoch))
            found.append(best.test_accuracy or 0.0)
    if not found:
        return ""
    deviation = f" +- {statistics.stdev(found):.2%}" if len(found) > 1 else ""
    return f"{statistics.mean(found):.2%}{deviation}"
