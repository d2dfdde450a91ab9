"""Predicts static rows and cpu tiers from forecasts of all row sets, divided as `split_placer` divides them."""

from __future__ import annotations

from collections.abc import Sequence

from diskgnn.formats.row_format import FeatureFile
from diskgnn.packing.row_forecast import RowForecast, SequenceForecast, UncachedForecast
from diskgnn.packing.tier_budgets import Demand, divide_cpu_rows, divide_static_rows


def predict_static_rows(
    forecasts: Sequence[SequenceForecast], features: Sequence[FeatureFile], budget_bytes: int
) -> tuple[int, ...]:
    """Returns [K] static rows of each row set, by the first sequence.

    If that sequence is not known completely, static rows may include some that no sampled minibatch needs: what is left
    of the budget goes to all row sets alike.
    """
    widths = [file.row_bytes for file in features]
    counted = [(each.histogram(), width) for each, width in zip(forecasts, widths, strict=True)]
    rows = divide_static_rows(counted, budget_bytes).rows
    if all(each.is_exact for each in forecasts):
        return rows
    unseen = [file.num_rows - found for file, found in zip(features, rows, strict=True)]
    left_bytes = budget_bytes - sum(found * width for found, width in zip(rows, widths, strict=True))
    unseen_bytes = sum(found * width for found, width in zip(unseen, widths, strict=True))
    if unseen_bytes > left_bytes:
        unseen = [found * left_bytes // unseen_bytes for found in unseen]
    return tuple(found + more for found, more in zip(rows, unseen, strict=True))


def predict_rows(
    forecasts: Sequence[UncachedForecast], features: Sequence[FeatureFile], budget_bytes: int, *, threads: int = 1
) -> list[RowForecast]:
    """Returns [K] rows of each row set of one sequence, whose cpu tier has `budget_bytes`."""
    if len(forecasts) == 1:  # nothing to divide, and to count for it
        slots = tuple(min(budget_bytes // file.row_bytes, file.num_rows) for file in features)
    else:
        demands = [Demand(each, file.row_bytes) for each, file in zip(forecasts, features, strict=True)]
        slots = divide_cpu_rows(demands, budget_bytes, threads=threads).rows
    return [each.rows(num_rows) for each, num_rows in zip(forecasts, slots, strict=True)]
