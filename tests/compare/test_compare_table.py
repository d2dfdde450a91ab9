"""What `diskgnn compare` prints in a terminal."""

import dataclasses

from comparisons import cost, result
from rich.console import Console

from diskgnn.cli.rendering import Output
from diskgnn.compare.comparison_record import LoaderResult
from diskgnn.compare.loader_summary import summarize
from diskgnn.compare.terminal_columns import cost_columns, rows, speed_columns
from diskgnn.compare.variants import select


def test_tables_are_read_in_80_columns(capsys):
    repeated = dataclasses.replace(cost(754.3, 1.0), repeats_seconds=(700.0, 754.3, 801.0))
    results = [
        dataclasses.replace(
            result("cached-reads, LRU", seed), name=variant.name, training=repeated, prepare_seconds=745.0,
            peak_disk_bytes=100 << 30, peak_cgroup_bytes=100 << 30,
        )
        for variant in select("all")
        for seed in range(2)
    ]  # fmt: skip
    summaries = summarize(results)
    output = Output(as_json=False)
    output.results.width = 80
    for columns in (speed_columns(), cost_columns()):
        output.table("title", ["", *columns], rows(columns, summaries))
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2 + len(summaries)  # none is broken
        assert max(map(len, lines)) <= 80
        for one, line in zip(summaries, lines[2:], strict=True):
            assert line.strip().startswith(one.name)
        assert "…" not in "".join(lines)


def test_a_spread_is_the_slowest_by_the_fastest():
    repeated = dataclasses.replace(cost(30.0, 1.0), repeats_seconds=(20.0, 30.0, 40.0))
    once, thrice = summarize([
        result("ginex"), dataclasses.replace(result("in-memory"), training=repeated),
    ])  # fmt: skip
    assert speed_columns()["spread"](once) is None
    assert speed_columns()["spread"](thrice) == "2.00×"


def test_rows_are_fastest_first_and_other_work_below_a_heading():
    partitions = result("partition-buffer")
    partitions = dataclasses.replace(
        partitions, training=dataclasses.replace(partitions.training, requested_rows=4_000_000, seconds=3.0)
    )
    broken = LoaderResult("dgl", "dgl", "", status="unavailable")
    runs = [result("mmap"), broken, partitions, result("ginex"), result("diskgnn, one epoch reused")]
    shown = rows(speed_columns(), summarize(runs))
    assert [row[0] for row in shown] == [
        "diskgnn, one epoch reused", "ginex", "mmap", "dgl", "These do other work:", "partition-buffer",
    ]  # fmt: skip
    assert set(shown[4][1:]) == {""}
    assert {len(row) for row in shown} == {1 + len(speed_columns())}


def test_a_terminals_lines_end_between_words(capsys):
    output = Output(as_json=False)
    output.results = Console(width=30, force_terminal=True)
    words = [f"word{number}" for number in range(40)]
    output.paragraph(" ".join(words))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 30
    assert " ".join(line.strip() for line in lines).split() == words
