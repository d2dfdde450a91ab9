"""Comparisons of loaders from Python: what `diskgnn compare` does, its results read again, its page written anew."""

from diskgnn.compare.compare import compare
from diskgnn.compare.comparison_record import Comparison, LoaderResult, from_json
from diskgnn.compare.report.write import write_report
from diskgnn.compare.settings import ComparisonSettings

__all__ = ["Comparison", "ComparisonSettings", "LoaderResult", "compare", "from_json", "write_report"]
