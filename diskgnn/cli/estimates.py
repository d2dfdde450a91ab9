"""How `prepare --estimate` is shown: what the settings given would take, and all settings in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diskgnn.cli.rendering import Output
from diskgnn.preparing.alternatives import RowSetEstimate, SettingEstimate
from diskgnn.preparing.estimate import Estimate
from diskgnn.units import format_seconds, format_size

_NOT_SHOWN = ("settings", "recommended")
_LEGEND = (
    "rows and bytes: from disk in an epoch of training · ±: what rows may be off by, nothing where all was counted · "
    "*: no measurement shows that accuracy holds, so it is not recommended (docs/guide/accuracy.md)"
)


def show(output: Output, estimate: Estimate, graph: Path, out: Path) -> None:
    """For people."""
    given = {name: value for name, value in vars(estimate).items() if name not in _NOT_SHOWN}
    output.fields(f"preparing {graph} would take", given)
    if len(estimate.settings[0].row_sets) > 1:
        columns = ["type", "rows as", "static", "cpu tier", "rows a minibatch", "from disk", "±", "bytes from disk"]
        output.table("feature rows of each type, with these settings", columns, _types(estimate.settings[0].row_sets))
    dtypes = list(dict.fromkeys(setting.feature_dtype for setting in estimate.settings))
    columns = ["draws", "period", "groups", "rows", "±", *dtypes, f"packed, {dtypes[0]}", "epoch"]
    output.table("all settings", columns, _lines(estimate.settings, dtypes))
    output.paragraph(_LEGEND)
    if missing := estimate.missing_disk_bytes:
        output.warn(f"it does not fit the disk under {out.absolute().parent}: {missing} bytes missing")
    output.text(_recommendation(estimate))


def _lines(settings: Sequence[SettingEstimate], dtypes: Sequence[str]) -> list[list[int | str]]:
    """One for each way of drawing; bytes read for each dtype."""
    lines = []
    for first in (setting for setting in settings if setting.feature_dtype == dtypes[0]):
        same = [each for each in settings if _way(each) == _way(first)]
        read = [format_size(each.read_bytes) + ("" if each.accuracy_held else " *") for each in same]
        period = first.draw_period if first.draws == "coordinated" else ""
        groups = first.group_seeds if first.group_seeds > 1 else ""
        packed, epoch = format_size(first.packed_bytes), format_seconds(first.epoch_seconds)
        rows = first.disk_rows, _error(first.disk_rows_error)
        lines.append([first.draws, period, groups, *rows, *read, packed, epoch])
    return lines


def _types(row_sets: Sequence[RowSetEstimate]) -> list[list[int | str]]:
    """One for each."""
    return [
        [each.name, each.feature_dtype, each.static_rows, each.cpu_rows, round(each.rows_per_minibatch),
         each.disk_rows, _error(each.disk_rows_error), format_size(each.read_bytes)]
        for each in row_sets
    ]  # fmt: skip


def _error(share: float) -> str:
    return "" if share == 0 else f"{max(0.01, share):.0%}"


def _way(setting: SettingEstimate) -> tuple[str, int, int]:
    return setting.draws, setting.draw_period, setting.group_seeds


def _recommendation(estimate: Estimate) -> str:
    best = estimate.recommended
    if best is None:
        return "no setting fits the disk: take fewer epochs, smaller fanouts or a larger cache"
    how = [f"--draws {best.draws}"]
    if best.draws == "coordinated":
        how.append(f"--draw-period {best.draw_period}")
    if best.group_seeds > 1:
        how.append(f"--group-seeds {best.group_seeds}")
    if best.feature_dtype != estimate.settings[0].feature_dtype:
        how.append(f"on a graph from `diskgnn convert --quantise {best.feature_dtype}`")
    read, packed = format_size(best.read_bytes), format_size(best.packed_bytes)
    said = f"recommended: {' '.join(how)}: {read} read in an epoch, {packed} packed"
    if best.feature_dtype in ("int8", "int4") and best.feature_dtype != estimate.settings[0].feature_dtype:
        said += f"; that accuracy holds with {best.feature_dtype} rows was shown on one graph: try it on yours"
    return said
