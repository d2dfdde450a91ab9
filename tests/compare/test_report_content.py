"""What the report of a comparison holds, whatever the records are."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
import re
import subprocess
import sys

import pytest
from comparisons import comparison, cost, result
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from diskgnn.compare.comparability import ordered, ours
from diskgnn.compare.comparison_record import EpochPoint, LoaderResult
from diskgnn.compare.loader_summary import summarize
from diskgnn.compare.report.page import document
from diskgnn.compare.report.write import check_report_possible, write_report
from diskgnn.compare.variants import find
from diskgnn.errors import ConfigError
from diskgnn.loading.tracing import TraceEvent, read_trace

SECONDS = st.just(0.0) | st.floats(1e-9, 1e6)  # clocks count nanoseconds
COSTS = st.builds(
    lambda rows, seconds, size, kernel, minibatches: dataclasses.replace(
        cost(seconds, seconds / 3, rows, size), device_read_bytes=kernel, minibatches=minibatches
    ),
    st.integers(0, 10**10), SECONDS, st.integers(0, 4096), st.none() | st.integers(0, 10**13), st.integers(0, 10**6),
)  # fmt: skip
ACCURACIES = st.none() | st.floats(0, 1)
RESULTS = st.builds(
    LoaderResult,
    name=st.sampled_from(["diskgnn", "diskgnn, two", "in-memory", "ginex", "ä<"]),
    loader=st.sampled_from(["diskgnn", "in-memory", "ginex"]),
    variant=st.sampled_from(["", "two"]),
    status=st.sampled_from(["ok", "ok", "failed", "out of memory"]),
    message=st.text(max_size=9),
    prepare_seconds=SECONDS,
    prepared_bytes=st.integers(0, 10**14),
    peak_disk_bytes=st.integers(0, 10**14),
    loading=st.none() | COSTS,
    training=st.none() | COSTS,
    row_bytes=st.integers(0, 4096),
    belady_rows=st.none() | st.integers(0, 10**10),
    bound=st.sampled_from(["", "memory", "random reads"]),
    bound_seconds=SECONDS,
    epochs=st.lists(
        st.builds(EpochPoint, st.integers(0, 3), SECONDS, st.floats(), ACCURACIES, ACCURACIES,
                  st.dictionaries(st.sampled_from(["test_accuracy", "test_roc_auc", "valid_r2"]), st.floats())),
        max_size=4,
    ).map(tuple),
    trace=st.lists(
        st.tuples(st.sampled_from(["disk", "train", "x"]), st.text(max_size=5), st.integers(0, 10**10),
                  st.integers(0, 10**10)), max_size=4,
    ).map(lambda events: tuple(TraceEvent(*names, -1, start, start + length) for *names, start, length in events)),
)  # fmt: skip


@settings(max_examples=15, deadline=None, phases=set(Phase) - {Phase.shrink})
@given(st.lists(RESULTS, max_size=6), st.sampled_from([None, 5]))
def test_any_records_make_a_page(results, max_batches):
    made = comparison(results=tuple(results), settings={"max_batches": max_batches})
    text = document(made)
    assert text.count("<script") == 3
    assert {one.name for one in results if one.status != "ok"} <= {one.name for one in summarize(results)}
    figures = re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1]
    json.loads(figures, parse_constant=pytest.fail)  # NaN and infinities, which are no JSON


def test_the_trace_can_be_taken_out_of_the_page(page, tmp_path):
    links = re.findall(r'href="data:application/gzip;base64,([^"]+)" download="([^"]+)"', page.read_text())
    traced = {one.name: one for one in comparison().results if one.trace}
    assert len(links) == len(traced)
    content, name = links[list(traced).index("diskgnn, one epoch reused")]
    assert name == "diskgnn--one-epoch-reused-trace.json.gz"
    (tmp_path / "trace.json").write_bytes(gzip.decompress(base64.b64decode(content)))
    events = traced["diskgnn, one epoch reused"].trace
    start = min(event.start_ns for event in events)
    shifted = {
        dataclasses.replace(event, start_ns=event.start_ns - start, end_ns=event.end_ns - start) for event in events
    }
    assert set(read_trace(tmp_path / "trace.json")) == shifted


def test_plotly_is_asked_for_by_name_and_only_for_a_report(monkeypatch):
    imported = "import sys, diskgnn, diskgnn.cli, diskgnn.compare.report.write; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(ConfigError, match=r"pip install 'diskgnn\[report\]'"):
        check_report_possible()


def test_a_report_that_cannot_be_written_costs_nothing(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(ConfigError, match="report: cannot write"):
        write_report(comparison(), path / "report.html")
    write_report(comparison(), path)
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def test_missing_folders_of_a_report_are_made(tmp_path):
    write_report(comparison(results=(), sweep=()), tmp_path / "new" / "folder" / "report.html")
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["report.html"]


def sections(made):
    return re.findall(r"<h2>(.*?)</h2>", document(made))


def test_what_is_asked_for_first_comes_first():
    assert sections(comparison()) == [
        "Speed", "No result", "Accuracy", "Reading", "Preparation, space and memory", "What each thread did",
        "What the loaders are", "Where and how",
    ]  # fmt: skip


def test_each_loader_is_explained():
    made = comparison(results=(result("in-memory"), result("diskgnn, one epoch reused")))
    explained = re.search(r'<dl id="loaders">(.*?)</dl>', document(made))[1]
    for variant in (find("in-memory", ""), find("diskgnn", "one")):
        assert f"<dt>{variant.name}</dt><dd>{variant.about}</dd>" in explained


def test_words_of_this_project_alone_are_not_used():
    text = re.sub(r"<script.*?</script>|<style>.*?</style>|<[^>]*>", " ", document(comparison()), flags=re.DOTALL)
    for word in ("own bound", "segment", " tier", "cgroup", "amplification", "idle consumer"):
        assert word not in text


def test_loaders_that_do_other_work_are_told_apart():
    other = result("partition-buffer")
    doubled = dataclasses.replace(other.training, minibatches=2 * other.training.minibatches)
    made = comparison(results=(result("diskgnn, one epoch reused"), dataclasses.replace(other, training=doubled)))
    table = re.search(r"<h2>Speed</h2>.*?<tbody>(.*?)</tbody>", document(made), flags=re.DOTALL)[1]
    assert re.findall(r'<th scope="row(?:group)?"[^>]*>(.*?)</th>', table) == [
        "diskgnn, one epoch reused", "These do other work:", "partition-buffer",
    ]  # fmt: skip
    assert "other work" not in document(comparison())


def test_a_variant_that_draws_otherwise_is_told_apart_and_explained():
    """However fast it is: its minibatches have other rows."""
    plain, memory = result("diskgnn, one epoch reused"), result("in-memory")
    drawn = find("diskgnn", "one:coordinated:16")
    quick = dataclasses.replace(plain.training, seconds=plain.training.seconds / 100)
    other = dataclasses.replace(plain, name=drawn.name, variant=drawn.variant, training=quick, belady_rows=None)
    summaries = summarize([plain, other, memory])
    assert ours(summaries).name == plain.name
    alike, apart = ordered(summaries)
    assert [one.name for one in apart] == [drawn.name]
    assert {one.name for one in alike} == {plain.name, memory.name}
    assert ours(summarize([other, memory])).name == drawn.name
    page = document(comparison(results=(plain, other, memory)))
    assert "These do other work:" in page
    assert f"<dt>{drawn.name}</dt><dd>{drawn.about}</dd>" in page
