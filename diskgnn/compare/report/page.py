"""The page of a comparison's report: sentences, figures, tables, and where they come from."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from diskgnn.compare.comparability import OURS
from diskgnn.compare.headline import headline, reason
from diskgnn.compare.loader_summary import LoaderSummary, summarize
from diskgnn.compare.metric import ACCURACY
from diskgnn.compare.registry import LOADERS, find
from diskgnn.compare.report import bar_figures, line_figures, timelines
from diskgnn.compare.report.figures import DASHES, INK, SYMBOLS, Figure, Series
from diskgnn.compare.report.html_tables import (
    cost_table,
    facts,
    missing_table,
    reading_table,
    score_table,
    time_table,
)
from diskgnn.compare.results import Comparison
from diskgnn.loading.tracing import write_trace
from diskgnn.units import format_size, format_value

_TRACE_EVENTS = 20_000  # of one loader within the page, some 300 KB
_ABOUT = (
    "A loader brings minibatches of a graph to the model: seed nodes, their sampled neighbours, and the feature "
    "vectors of all. Here each feeds the same model on the same graph, within the same memory."
)
_TIMES = (
    "Epoch in all: a training epoch with its share of preparing and opening. Least possible: what the same reads take "
    "at the full speed of this disk, or for in-memory the same copies at the full speed of memory."
)
_READING = (
    "One epoch without a model, from empty caches. Rows read include those that fill caches at the start. Fewest "
    "possible: by a cache of the same size that knows all that comes (Belady). From ...: shares of the rows needed."
)


def document(comparison: Comparison) -> str:
    """The whole page."""
    summaries = summarize(comparison.results)
    figures: list[Figure] = []
    body = "\n".join([_header(comparison, summaries), *_sections(comparison, summaries, figures), _origin(comparison)])
    specs = ",\n".join(f'"{figure.key}": {_spec(figure)}' for figure in figures)
    scripts = [get_plotlyjs(), _asset("page.js")] if figures else []
    hashes = " ".join(_source_hash(script) for script in scripts) or "'none'"
    # Whatever might slip into the page: the browser runs these two scripts and no other, and asks no network.
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
    title = escape(f"diskgnn compare: {comparison.graph.get('name', 'graph')}")
    return "\n".join([
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">',
        f"<title>{title}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n{body}\n</main>",
        f'<script type="application/json" id="figures">{{{specs}}}</script>',
        *(f"<script>{script}</script>" for script in scripts),
        "</body>\n</html>\n",
    ])  # fmt: skip


def _source_hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _asset(name: str) -> str:
    return files("diskgnn.compare.report").joinpath(name).read_text(encoding="utf-8")


def _spec(figure: Figure) -> str:
    """The figure as JSON that may stand inside a script element."""
    plots = {"wide": figure.plot, **({"narrow": figure.narrow} if figure.narrow else {})}
    spec = {name: json.loads(plot.to_json()) for name, plot in plots.items()}
    return json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")


def _header(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> str:
    told = f'<p class="reason">{escape(reason(comparison, summaries))}</p>'
    conditions = "".join(f"<li>{escape(text)}</li>" for text in _conditions(comparison))
    notes = "".join(f"<p>{escape(note[:1].upper() + note[1:])}</p>" for note in _notes(comparison, summaries))
    if notes:
        notes = f'<aside class="notes">{notes}</aside>'
    return (
        f'<header><p class="eyebrow">diskgnn compare · {escape(comparison.started)}</p>'
        f'<h1>{escape(headline(comparison, summaries))}</h1>{told}<p class="caption">{escape(_ABOUT)} '
        '<a href="#loaders">What each of them is.</a></p>'
        f'<ul class="conditions">{conditions}</ul>{notes}</header>'
    )


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
    """Of all edge types, or of each."""
    if isinstance(fanouts, Mapping):
        return ", ".join(f"{edge_type}={_fanouts(each)}" for edge_type, each in fanouts.items())
    return ",".join(map(str, fanouts))


def _notes(comparison: Comparison, summaries: Sequence[LoaderSummary]) -> Iterable[str]:
    """What a reader must know before believing the figures."""
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


def _sections(comparison: Comparison, summaries: Sequence[LoaderSummary], figures: list[Figure]) -> Iterable[str]:
    """The page's sections between header and origin; those with nothing to show are left out."""

    def shown(*candidates: Figure | None) -> str:
        found = [figure for figure in candidates if figure]
        figures.extend(found)
        return "\n".join(_figure(figure) for figure in found)

    def grid(*candidates: Figure | None, kind: str = "two") -> str:
        inside = shown(*candidates)
        return f'<div class="grid {kind}">{inside}</div>' if inside else ""

    times = [bar_figures.epoch_times(summaries), bar_figures.loading_times(summaries)]
    yield _section("Speed", shown(*times), _explained(time_table(summaries), _TIMES))
    yield _section("No result", missing_table(summaries))
    metric = summaries[0].metric if summaries else ACCURACY  # all have the task's
    lines, reached = line_figures.scores(summaries, metric), bar_figures.seconds_to_score(summaries, metric)
    if lines:
        unlisted = [replace(one, series=()) for one in lines]  # one list for both
        grids = grid(*unlisted, kind="two on-paper"), shown(reached)
        yield _section(metric.title, _series(lines[0].series), *grids, score_table(summaries, metric))
    else:
        others = score_table(summaries, metric) if any(one.other_scores for one in summaries) else ""
        yield _section(metric.title, grid(bar_figures.scores(summaries, metric), reached), others)
    loaders = {variant.name: variant.loader for variants in LOADERS.values() for variant in variants}
    sweep = line_figures.cache_sweep(comparison.sweep, loaders)
    yield _section(
        "Reading", grid(bar_figures.read_bytes(summaries), sweep), _explained(reading_table(summaries), _READING)
    )
    yield _section("Preparation, space and memory", grid(*bar_figures.preparation(summaries)), cost_table(summaries))
    yield _section("What each thread did", _timelines(summaries, figures))
    yield _section("What the loaders are", _loaders(summaries))


def _loaders(summaries: Sequence[LoaderSummary]) -> str:
    """A sentence or two on each loader's design."""
    known = {variant.name: variant.about for variants in LOADERS.values() for variant in variants}
    about = {one.name: find(one.loader, one.variant).about for one in summaries if ":" in one.variant} | known
    rows = "".join(
        f"<dt>{escape(one.name)}</dt><dd>{escape(about[one.name])}</dd>" for one in summaries if about.get(one.name)
    )
    return f'<dl id="loaders">{rows}</dl>' if rows else ""


def _explained(table: str, words: str) -> str:
    return f'<p class="caption">{escape(words)}</p>{table}' if table else ""


def _section(title: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def _figure(figure: Figure, extra: str = "") -> str:
    return (
        f'<figure class="figure" id="{figure.key}"><figcaption><h3>{escape(figure.title)}</h3>'
        f'<p class="caption">{escape(figure.caption)}{extra}</p></figcaption>{_legend(figure.legend)}'
        f'{_series(figure.series)}<div class="drawing" data-figure="{figure.key}" role="img" '
        f'aria-label="{escape(figure.title)}"></div></figure>'
    )


def _legend(entries: Sequence[tuple[str, str]], kind: str = "legend") -> str:
    """Swatches: a colour, or the name of a style of the style sheet."""
    items = "".join(
        f'<li><span class="swatch" style="--color:{style}"></span>{escape(text)}</li>'
        if style.startswith("#")
        else f'<li><span class="swatch {style}"></span>{escape(text)}</li>'
        for style, text in entries
    )
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _series(series: Sequence[Series]) -> str:
    """A list of lines, each with its colour, dash and symbol."""
    items = ""
    for one in series:
        emphasis = ' class="ours"' if one.name.startswith(OURS) else ""
        color = "var(--ink)" if one.color == INK else one.color
        dash, mark = DASHES[one.dash], SYMBOLS.get(one.symbol, "")
        items += (
            f'<li{emphasis}><svg class="stroke" viewBox="-20 -7 40 14" style="color:{color}">'
            f'<path d="M-20 0h40" stroke-dasharray="{dash}"/><path class="mark" d="{mark}"/></svg>'
            f"{escape(one.name)}</li>"
        )
    return f'<ul class="series">{items}</ul>' if items else ""


def _timelines(summaries: Sequence[LoaderSummary], figures: list[Figure]) -> str:
    inside = ""
    for number, one in enumerate(summaries):
        figure = timelines.timeline(one, f"timeline-{number}")
        if figure:
            figures.append(figure)
            inside += _figure(figure, _trace_link(one))
    if not inside:
        return ""
    about = (
        "A row per thread, during some minibatches of training. Each loader has its own scale. The trace files open in "
        "ui.perfetto.dev."
    )
    return f'<p class="caption">{about}</p>{_legend(timelines.LEGEND)}<div class="grid two on-paper">{inside}</div>'


def _trace_link(summary: LoaderSummary) -> str:
    """A download of the loader's trace, within the page itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        write_trace(summary.trace[:_TRACE_EVENTS], file)
        packed = base64.b64encode(gzip.compress(file.read_bytes(), mtime=0)).decode()
    name = "".join(letter if letter.isalnum() else "-" for letter in summary.name)
    link = f'href="data:application/gzip;base64,{packed}" download="{name}-trace.json.gz"'
    return f' <a class="screen-only" {link}>trace file</a>'


def _origin(comparison: Comparison) -> str:
    """Where these figures come from, and how to get them again."""
    rates = {
        "sequential_bytes_per_second": comparison.sequential_bytes_per_second,
        "random 4 KiB reads per second": comparison.random_reads_per_second,
        "memory_bytes_per_second": comparison.memory_bytes_per_second or None,
    }
    lists = [
        facts("Machine", comparison.machine),
        facts("Limits measured in the same run", rates),
        facts("Graph", comparison.graph),
        facts("Settings", {**comparison.settings, "diskgnn": comparison.diskgnn_version}),
    ]
    again = f"<p>To run it again:</p><pre><code>{escape(comparison.command)}</code></pre>"
    return _section("Where and how", again, f'<div class="columns">{"".join(lists)}</div>')
