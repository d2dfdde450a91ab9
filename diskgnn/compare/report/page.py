"""The page of a comparison's report: sentences, figures, tables, and where they come from."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from plotly.offline import get_plotlyjs

from diskgnn.compare.comparability import OURS
from diskgnn.compare.comparison_record import Comparison
from diskgnn.compare.headline import headline, reason
from diskgnn.compare.loader_summary import LoaderSummary, summarize
from diskgnn.compare.metric import ACCURACY, Metric
from diskgnn.compare.report import bar_figures, line_figures
from diskgnn.compare.report.figures import DASHES, INK, SYMBOLS, Figure, Series
from diskgnn.compare.report.tables import (
    Table,
    cost_table,
    facts,
    missing_table,
    reading_table,
    score_table,
    time_table,
)
from diskgnn.compare.report.timelines import LEGEND, timeline
from diskgnn.compare.variants import LOADERS, find
from diskgnn.loading.tracing import write_trace
from diskgnn.units import format_size, format_value

_TRACE_EVENTS = 20_000  # of one loader within the page, some 300 KB


def document(comparison: Comparison) -> str:
    """Returns the whole page, of template page.html.jinja."""
    summaries = summarize(comparison.results)
    metric = summaries[0].metric if summaries else ACCURACY  # all have the task's
    score_lines, figures = _figures(comparison, summaries, metric)
    timelines = list(_timelines(summaries))
    drawn = [*(figure for group in figures.values() for figure in group), *(figure for figure, _ in timelines)]
    scripts = [get_plotlyjs(), _asset("page.js")] if drawn else []
    hashes = " ".join(_source_hash(script) for script in scripts) or "'none'"
    pages = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return pages.from_string(_asset("page.html.jinja")).render(
        # Whatever might slip into the page: the browser runs these two scripts and no other, and asks no network.
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}",
        scripts=scripts,
        style=_asset("page.css"),
        specs="{" + ",\n".join(f'"{figure.key}": {_spec(figure)}' for figure in drawn) + "}",
        comparison=comparison,
        headline=headline(comparison, summaries),
        reason=reason(comparison, summaries),
        conditions=list(_conditions(comparison)),
        notes=[note[:1].upper() + note[1:] for note in _notes(comparison, summaries)],
        metric=metric,
        figures=figures,
        score_lines=score_lines,
        tables=_tables(summaries, metric, has_lines=bool(score_lines)),
        timelines=timelines,
        timeline_legend=LEGEND,
        loaders=_designs(summaries),
        origin=list(_origin(comparison)),
        ours=OURS,
        ink=INK,
        dashes=DASHES,
        symbols=SYMBOLS,
    )


def _source_hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("diskgnn.compare.report").joinpath(name).read_text(encoding="utf-8")


def _spec(figure: Figure) -> str:
    """Returns the figure as JSON that may stand inside a script element."""
    plots = {"wide": figure.plot, **({"narrow": figure.narrow} if figure.narrow else {})}
    spec = {name: json.loads(plot.to_json()) for name, plot in plots.items()}
    return json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")


def _conditions(comparison: Comparison) -> Iterable[str]:
    graph, settings = comparison.graph, comparison.settings
    if "name" in graph:
        yield str(graph["name"])
    if "feature_bytes" in graph:
        yield f"{format_size(graph['feature_bytes'])} of features"
    if "memory_bytes" in settings:
        yield f"{format_size(settings['memory_bytes'])} of memory{'' if comparison.memory_capped else ', not capped'}"
    if settings.get("max_batches") and settings.get("batch_size") and graph.get("num_train_in_all"):
        in_all = -(-graph["num_train_in_all"] // settings["batch_size"])
        yield f"{min(settings['max_batches'], in_all):,} of an epoch's {in_all:,} minibatches"
    for name, words in (("fanouts", "fanouts"), ("batch_size", "seeds a minibatch"), ("model", "model")):
        if settings.get(name) is not None:
            text = _fanouts(settings[name]) if name == "fanouts" else format_value(name, settings[name])
            yield f"{text} {words}" if name == "batch_size" else f"{words} {text}"


def _fanouts(fanouts: Any) -> str:
    """Returns the fanouts of all edge types, or of each."""
    if isinstance(fanouts, Mapping):
        return ", ".join(f"{edge_type}={_fanouts(each)}" for edge_type, each in fanouts.items())
    return ",".join(map(str, fanouts))


def _notes(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> Iterable[str]:
    """Yields what a reader must know before believing the figures."""
    if not comparison.memory_capped:
        yield (
            "Memory was not capped: the page cache could use all that the machine has, so loaders that live by it look "
            "faster than they would under the limit."
        )
    if not comparison.cache_dropped:
        yield "The page cache was not dropped before each loader: what one left there the next may have read."
    free = [one.name for one in summaries if one.ok and not one.capped]
    if comparison.memory_capped and free:
        yield f"Without the memory cap that the others ran under: {', '.join(free)}."
    yield from comparison.warnings


def _figures(
    comparison: Comparison, summaries: Sequence[LoaderSummary], metric: Metric
) -> tuple[Sequence[Series], dict[str, list[Figure]]]:
    """Returns the lines that plots of scores have in common, and the figures of each section."""
    lines = line_figures.scores(summaries, metric)
    loaders = {variant.name: variant.loader for variants in LOADERS.values() for variant in variants}
    found: dict[str, list[Figure | None]] = {
        "speed": [bar_figures.epoch_times(summaries), bar_figures.loading_times(summaries)],
        "scores": [replace(one, series=()) for one in lines] if lines else [bar_figures.scores(summaries, metric)],
        "reached": [bar_figures.seconds_to_score(summaries, metric)],
        "reading": [bar_figures.read_bytes(summaries), line_figures.cache_sweep(comparison.sweep, loaders)],
        "preparation": list(bar_figures.preparation(summaries)),
    }
    if not lines:  # both are bars, side by side
        found["scores"] += found.pop("reached")
        found["reached"] = []
    figures = {section: [figure for figure in group if figure] for section, group in found.items()}
    return lines[0].series if lines else (), figures


def _tables(summaries: Sequence[LoaderSummary], metric: Metric, *, has_lines: bool) -> dict[str, Table | None]:
    has_scores = has_lines or any(one.other_scores for one in summaries)
    return {
        "speed": time_table(summaries),
        "missing": missing_table(summaries),
        "scores": score_table(summaries, metric) if has_scores else None,
        "reading": reading_table(summaries),
        "cost": cost_table(summaries),
    }


def _designs(summaries: Sequence[LoaderSummary]) -> list[tuple[str, str]]:
    """Returns a sentence or two on each loader's design."""
    known = {variant.name: variant.about for variants in LOADERS.values() for variant in variants}
    about = {one.name: find(one.loader, one.variant).about for one in summaries if ":" in one.variant} | known
    return [(one.name, about[one.name]) for one in summaries if about.get(one.name)]


@dataclass(frozen=True)
class _Trace:
    """A file within the page, to be downloaded."""

    name: str
    packed: str  # gzip, in base 64


def _timelines(summaries: Sequence[LoaderSummary]) -> Iterable[tuple[Figure, _Trace]]:
    for number, one in enumerate(summaries):
        if figure := timeline(one, f"timeline-{number}"):
            yield figure, _trace(one)


def _trace(summary: LoaderSummary) -> _Trace:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        write_trace(summary.trace[:_TRACE_EVENTS], file)
        packed = base64.b64encode(gzip.compress(file.read_bytes(), mtime=0)).decode()
    name = "".join(letter if letter.isalnum() else "-" for letter in summary.name)
    return _Trace(f"{name}-trace.json.gz", packed)


def _origin(comparison: Comparison) -> Iterable[tuple[str, list[tuple[str, str]]]]:
    """Yields lists of facts: where these figures come from."""
    rates = {
        "sequential_bytes_per_second": comparison.sequential_bytes_per_second,
        "random 4 KiB reads per second": comparison.random_reads_per_second,
        "memory_bytes_per_second": comparison.memory_bytes_per_second or None,
    }
    yield "Machine", facts(comparison.machine)
    yield "Limits measured in the same run", facts(rates)
    yield "Graph", facts(comparison.graph)
    yield "Settings", facts({**comparison.settings, "diskgnn": comparison.diskgnn_version})
