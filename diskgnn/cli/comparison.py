"""The command that measures loaders side by side: compare."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from diskgnn.cli import model_options, options
from diskgnn.cli.command import Command
from diskgnn.cli.options import CACHE, Size
from diskgnn.cli.rendering import Output, to_json
from diskgnn.cli.sampling_arguments import sampling_arguments
from diskgnn.files.own_files import open_new_file
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.specs.sampling import SamplingSpec

if TYPE_CHECKING:
    from diskgnn.compare.comparison_record import Comparison, LoaderResult
    from diskgnn.compare.settings import ComparisonSettings


_conditions = options.section("Conditions")
_output = options.section("Output")
_LEGENDS = (
    "epoch: of training · spread: the slowest of several measurements by the fastest · in all: an epoch with its share "
    "of preparing and opening · loading: an epoch without a model",
    "rows: read from the disk in an epoch · by fewest: by the rows that a cache of that size must read even if it "
    "knows all that comes · disk: the most taken beside the graph · memory: the most, with page cache",
)


class Sweep(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """WHAT=SIZE,SIZE,...: cpu-cache=5%,10%,30%,50%."""

    name = "cpu-cache=size,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Returns the sizes, as they were given."""
        if isinstance(value, list):
            return value
        what, equals, sizes = str(value).partition("=")
        if what != "cpu-cache" or not equals:
            self.fail(
                f"expected sizes or shares of all rows, such as cpu-cache=5%,10%,50%; found {value!r}", param, ctx
            )
        return [str(CACHE.convert(size.strip(), param, ctx)) for size in sizes.split(",")]


@click.command(cls=Command, short_help="Measure loaders side by side on a graph.")
@click.argument("graph", type=options.LOCAL)
@_conditions("--memory", type=Size(), required=True, help="What each loader's processes may use, page cache included.")
@_conditions(
    "--loaders",
    default="usual",
    show_default=True,
    metavar="NAME,...",
    help="Which: 'usual' for diskgnn (reused and fresh), in memory, cached reads and a memory map; 'all'; a loader "
    "stands for all its variants, loader:variant for one.",
)
@_conditions("--epochs", type=int, default=1, show_default=True, help="Epochs to train.")
@options.minibatches
@options.given_seeds
@options.without
@_conditions(
    "--max-batches",
    type=int,
    metavar="K",
    help="Minibatches per epoch: the rest of the train split is left out.  [default: all]",
)
@_conditions(
    "--seeds",
    "num_seeds",
    type=int,
    default=1,
    show_default=True,
    help="Train with so many seeds: scores then come with their deviation.",
)
@_conditions(
    "--cpu-cache",
    type=CACHE,
    help="Main memory for feature rows, for all loaders that cache: 512MiB, or 10% of all rows.  [default: "
    "10%, at most 20% of --memory]",
)
@_conditions(
    "--sweep",
    type=Sweep(),
    default=list,
    help="Also count the rows that caches of these sizes would read: cpu-cache=5%,10%,30%,50%.",
)
@model_options.shape
@model_options.training
@model_options.device
@_conditions(
    "--evaluate/--no-evaluate",
    default=True,
    show_default=True,
    help="Measure the task's score (accuracy, MRR, ...) after every epoch, outside the clock.",
)
@_conditions(
    "--scratch",
    type=options.OUTPUT,
    metavar="DIR",
    help="Directory for prepared files. Put it on the disk to measure. It is emptied at the end.  "
    "[default: beside GRAPH]",
)
@_conditions(
    "--timeout",
    "timeout_seconds",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    metavar="SECONDS",
    help="For each process.",
)
@_conditions(
    "--size",
    "rate_file_bytes",
    type=Size(),
    default="1GiB",
    show_default=True,
    help="Size of the file used to measure the disk.",
)
@_output("--out", type=options.OUTPUT, metavar="FILE", help="Write everything measured here as JSON, as it comes.")
@_output("--report", type=options.OUTPUT, metavar="FILE", help="Write a page with figures (HTML) here.")
@click.pass_obj
def compare(output: Output, /, graph: Path, out: Path | None, report: Path | None, **arguments: Any) -> None:
    """Measure loaders side by side on GRAPH: the same minibatches, model and memory cap for each."""
    from diskgnn.compare.compare import compare
    from diskgnn.compare.report.write import check_report_possible, write_report

    settings = _settings(graph, **arguments)
    if report is not None:
        check_report_possible()
    for path, argument in ((out, "out"), (report, "report")):
        if path is not None:
            _check_writable_file(path, argument)

    latest: list[Comparison] = []

    def keep(comparison: Comparison) -> None:
        if not latest or len(comparison.results) > len(latest[0].results):
            output.note(_line(comparison.results[-1]))
        latest[:] = [comparison]
        if out is not None:
            temporary = out.with_name(f".{out.name}.partial")
            with open_new_file(temporary) as file:
                file.write((json.dumps(to_json(comparison), indent=1) + "\n").encode())
            temporary.replace(out)

    command, is_whole = shlex.join(["diskgnn", *sys.argv[1:]]), False
    try:
        compare(graph, settings, command=command, on_result=keep, reporter=output.reporter)
        is_whole = True
    finally:  # also when Ctrl-C ends it early
        if latest:
            if not is_whole:
                output.warn(f"{_progress(latest[0], settings)}: what follows is not whole")
            _show(output, latest[0])
            measured = "everything measured" if is_whole else "what was measured until then"
            if report is not None:
                write_report(latest[0], report)
            for path, what in ((out, f"{measured}, as JSON"), (report, "the page with figures")):
                if path is not None:
                    output.note(f"{path}: {what}")
    output.result(latest[0])


def _progress(comparison: Comparison, settings: ComparisonSettings) -> str:
    """Returns how far a comparison came that ended early."""
    # What does not fit the cap may have a row without it, too.
    done = sum(result.capped for result in comparison.results)
    wanted = len(settings.variants) * settings.num_seeds
    if done < wanted:
        return f"the comparison ended early, with {done} of {wanted} rows; short epochs were to be measured once more"
    return "the comparison ended while short epochs were measured once more"


def _settings(
    graph: Path, *, model: str | None, hidden: int, decoder: str | None, embedding_memory: int | str, dropout: float,
    aggregation: str, norm: str, skip: bool, lr: float, **others: Any,
) -> ComparisonSettings:  # fmt: skip
    from diskgnn.compare.settings import ComparisonSettings

    others = sampling_arguments(others, graph)
    sampling = {field.name: others.pop(field.name) for field in fields(SamplingSpec) if field.name in others}
    return ComparisonSettings(
        sampling=SamplingSpec(**sampling),
        model=ModelSpec(
            model,
            hidden,
            dropout=dropout,
            decoder=decoder,
            embedding_memory=embedding_memory,
            aggregation=aggregation,
            norm=norm,
            skip=skip,
        ),
        lr=lr,
        **others,
    )


def _check_writable_file(path: Path, argument: str) -> None:
    from diskgnn.training.result_files import refuse_foreign, writing
    from diskgnn.work.overwriting import refuse_inside_artifact

    refuse_inside_artifact(path, argument)
    if argument == "out":
        refuse_foreign(path, argument, "{", "JSON of a comparison")
    else:
        refuse_foreign(path, argument, "<", "page of a comparison")
    with writing(path, argument):
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("a"):
            pass
        if is_new:
            path.unlink()


def _line(result: LoaderResult) -> str:
    from diskgnn.compare.number_format import duration

    if result.status != "ok":
        return f"{result.name}: {result.status} ({result.message})"
    assert result.training is not None
    metric, score = result.metric, result.epochs[-1].test_score
    shown = "" if score is None else f", test {metric.name} {metric.text(score)}"
    seed = f", seed {result.seed}" if result.seed else ""
    return f"{result.name}{seed}: {duration(result.training.seconds)} an epoch{shown}"


def _show(output: Output, comparison: Comparison) -> None:
    from diskgnn.compare.headline import headline, reason
    from diskgnn.compare.loader_summary import other_score_columns, summarize
    from diskgnn.compare.terminal_columns import cost_columns, rows, speed_columns

    summaries = summarize(comparison.results)
    metric = summaries[0].metric
    for title, columns, legend in (
        (f"{comparison.graph['name']}: an epoch of each loader", speed_columns(metric), _LEGENDS[0]),
        ("what it takes", cost_columns(), _LEGENDS[1]),
    ):
        output.table(title, ["", *columns], rows(columns, summaries))
        output.paragraph(legend)
    if others := other_score_columns(summaries):
        output.table(f"other scores, of the epoch with the best {metric.words}", ["", *others], rows(others, summaries))
    if comparison.sweep:
        output.table(
            "rows read in an epoch, by size of the cache",
            ["", "cache", "requested", "read", "fewest", "ratio"],
            [(point.name, point.cache, point.requested_rows, point.rows_read, point.belady_rows,
              point.rows_read / max(point.belady_rows, 1)) for point in comparison.sweep],
        )  # fmt: skip
    output.paragraph(f"{headline(comparison, summaries)} {reason(comparison, summaries)}".strip())
