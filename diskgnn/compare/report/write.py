"""The report of a comparison: one HTML file with everything in it, for any screen, light or dark, and for paper."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from diskgnn.compare.comparison_record import Comparison
from diskgnn.errors import ConfigError
from diskgnn.files.own_files import open_new_file
from diskgnn.training.result_files import writing
from diskgnn.work.overwriting import refuse_inside_artifact


def check_report_possible() -> None:
    """Raises now if `write_report` will not find the library that draws, before a comparison of hours.

    Raises:
        ConfigError: Plotly or Jinja is not installed.
    """
    if find_spec("plotly") is None or find_spec("jinja2") is None:
        raise ConfigError(
            "a report was asked for, but Plotly and Jinja, which draw it, are not installed: "
            "pip install 'diskgnn[report]'"
        )


def write_report(comparison: Comparison, path: Path) -> None:
    """Write `comparison` as one HTML file that needs no network: about 5 MB, most of it Plotly's code.

    What there is no data for is left out. Missing folders are made; a file at `path` is replaced only by a whole one.

    Raises:
        ConfigError: Plotly or Jinja is not installed, or `path` cannot be written.
        DiskFullError: the disk is full.

    Example:
        write_report(from_json(json.loads(Path("comparison.json").read_text())), Path("report.html"))
    """
    check_report_possible()
    from diskgnn.compare.report.page import document

    content = document(comparison)
    refuse_inside_artifact(path, "report")
    with writing(path, "report"):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        with open_new_file(partial) as file:
            file.write(content.encode())
        partial.replace(path)
