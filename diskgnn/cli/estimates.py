"""How `prepare --estimate` is shown: what the settings given would take, and all settings in one table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from diskgnn.cli.rendering import Output
from diskgnn.preparing.alternatives import RowSetEstimate, SettingEstimate
from diskgnn.preparing.estimate import Estimate
from diskgnn.units import format_seconds, format_size

if TYPE_CHECKING:
    from diskgnn.propagation.choice import Way

_MANY_EPOCHS = 50
_NOT_SHOWN = ("settings", "recommended")
_LEGEND = (
    "rows and bytes: from disk in an epoch of training · ±: what rows may be off by, nothing where all was counted · "
    "*: no measurement shows that accuracy holds (docs/guide/accuracy.md)"
)


def show(output: Output, estimate: Estimate, graph: Path, out: Path) -> None:
    """Prints it for people."""
    given = {name: value for name, value in vars(estimate).items() if name not in _NOT_SHOWN}
    output.fields(f"preparing {graph} would take", given)
    if len(estimate.settings[0].row_sets) > 1:
        columns = ["type", "rows as", "static", "cpu tier", "rows a minibatch", "from disk", "±", "bytes from disk"]
        output.table("feature rows of each type, with these settings", columns, _types(estimate.settings[0].row_sets))
    asked = estimate.settings[0]
    columns = ["rows", "±", "bytes", "packed", "epoch", ""]
    drawn = [each for each in estimate.settings if each.feature_dtype == asked.feature_dtype]
    output.table("with other draws", ["draws", *columns], [[_draws(each), *_line(each)] for each in drawn])
    narrower = [each for each in estimate.settings if _draws(each) == _draws(asked)]
    output.table("with rows of fewer bits", ["rows as", *columns],
                 [[each.feature_dtype, *_line(each)] for each in narrower])  # fmt: skip
    output.paragraph(_LEGEND)
    if estimate.missing_memory_bytes:
        least = format_size(estimate.prepare_memory_bytes)
        output.warn(f"prepare would refuse this --memory: expected at least {least}")
    if missing := estimate.missing_disk_bytes:
        output.warn(f"it does not fit the disk under {out.absolute().parent}: {missing} bytes missing")
        output.text(_what_fits(estimate))


def show_ways(output: Output, ways: Sequence[Way]) -> None:
    """Compares sampling with propagating, for people; says nothing where there is no choice."""
    if not ways:
        return
    rows = [
        [way.name, format_seconds(way.once_seconds), format_seconds(way.epoch_seconds), format_size(way.once_bytes),
         format_size(way.epoch_bytes), format_seconds(way.once_seconds + _MANY_EPOCHS * way.epoch_seconds)]
        for way in ways
    ]  # fmt: skip
    columns = ["", "once", "an epoch", "on disk", "epoch reads", f"{_MANY_EPOCHS} epochs"]
    output.table("to sample or to propagate, about, without the model's own time", columns, rows)


def _draws(setting: SettingEstimate) -> str:
    period = f", period {setting.draw_period}" if setting.draw_period > 1 else ""
    groups = f", groups {setting.group_seeds}" if setting.group_seeds > 1 else ""
    return f"{setting.draws}{period}{groups}"


def _line(setting: SettingEstimate) -> list[int | str]:
    return [setting.disk_rows, _error(setting.disk_rows_error), format_size(setting.read_bytes),
            format_size(setting.packed_bytes), format_seconds(setting.epoch_seconds),
            "" if setting.accuracy_held else "*"]  # fmt: skip


def _types(row_sets: Sequence[RowSetEstimate]) -> list[list[int | str]]:
    """Returns one for each."""
    return [
        [each.name, each.feature_dtype, each.static_rows, each.cpu_rows, round(each.rows_per_minibatch),
         each.disk_rows, _error(each.disk_rows_error), format_size(each.read_bytes)]
        for each in row_sets
    ]  # fmt: skip


def _error(share: float) -> str:
    return "" if share == 0 else f"{max(0.01, share):.0%}"


def _what_fits(estimate: Estimate) -> str:
    """Names the setting that reads least of those that fit the disk; nobody has to be told that of one that fits."""
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
    said = f"what fits: {' '.join(how)}: {read} read in an epoch, {packed} packed"
    if best.feature_dtype in ("int8", "int4") and best.feature_dtype != estimate.settings[0].feature_dtype:
        said += f"; that accuracy holds with {best.feature_dtype} rows was shown on one graph: try it on yours"
    return said
