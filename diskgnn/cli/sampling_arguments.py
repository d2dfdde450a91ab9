"""What options say of sampling, as the library takes it: fanouts by edge type, and what the seeds are."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from diskgnn.errors import ConfigError
from diskgnn.specs.fanouts import Fanouts
from diskgnn.specs.schema import ClassValue
from diskgnn.specs.targets import NodeTarget, Target, as_target
from diskgnn.specs.time_windows import Windows

T = TypeVar("T")

FanoutsOption = tuple[str | None, list[int]]  # an edge type, or None for all of them
WindowOption = tuple[str | None, str]  # as of fanouts
SeedsOption = tuple[str | None, str | Path]  # a split, or None where a column names it; and a table
_LINK_OPTIONS = ("negatives", "eval_negatives", "negatives_by", "avoid", "exclude", "reverse_edge_type",
                 "message_edges")  # fmt: skip


def sampling_arguments(arguments: dict[str, Any], graph: Path) -> dict[str, Any]:
    """Returns keywords of `diskgnn.sample` and `prepare` from what `options.sampling` found, others as they are.

    Raises:
        ConfigError: fanouts with and without edge types, options of links where the seeds are nodes, or of seeds in
            tables where there are none.
        InputError: tables of seeds that cannot be read.
    """
    if arguments.get("sampler") is not None:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    links = {name: value for name in _LINK_OPTIONS if (value := arguments.pop(name)) is not None}
    given = {name: arguments.pop(name) for name in ("seeds", "columns", "task", "classes")}
    target = _target(arguments["target"], links)
    return arguments | {
        **{name: fanouts_argument(name, arguments[name]) for name in ("fanouts", "eval_fanouts")},
        "temporal_window": _window_argument("temporal_window", arguments["temporal_window"]),
        "target": _with_seeds(target, graph, **given),
    }


def fanouts_argument(name: str, given: tuple[FanoutsOption, ...]) -> Fanouts | None:
    """Returns what a repeated option says; None if it was left out.

    Raises:
        ConfigError: fanouts with and without edge types.
    """
    return _by_type(name, given, "list", "N,N,...")  # type: ignore[return-value]  # SamplingSpec parses the names


def _window_argument(name: str, given: tuple[WindowOption, ...]) -> Windows | None:
    return _by_type(name, given, "window", "WINDOW")  # type: ignore[return-value]


def _by_type(
    name: str, given: tuple[tuple[str | None, T], ...], what: str, form: str
) -> T | dict[str | None, T] | None:
    """Returns what a repeated option says of all edge types, or of each."""
    if not given:
        return None
    by_type = dict(given)
    if len(by_type) != len(given):
        raise ConfigError(f"{name}: expected each edge type once, and one {what} without an edge type")
    if None not in by_type:
        return by_type
    if len(by_type) > 1:
        raise ConfigError(
            f"{name}: expected one {what} for all edge types, or each as SOURCE:NAME:DESTINATION={form}; found both"
        )
    return by_type[None]


def _target(given: str | None, links: dict[str, Any]) -> Target:
    target = NodeTarget() if given is None else as_target(given)
    if links and isinstance(target, NodeTarget):
        raise ConfigError(f"{next(iter(links))}: only for links; pass target='SOURCE:NAME:DESTINATION' with it")
    return replace(target, **links)


def _with_seeds(
    target: Target, graph: Path, seeds: tuple[SeedsOption, ...], columns: tuple[tuple[str, str], ...],
    task: str | None, classes: str | None,
) -> Target:  # fmt: skip
    """Returns `target` with the seeds in tables."""
    if not seeds:
        of_tables = {"columns": columns, "task": task, "classes": classes}
        if useless := [name for name, value in of_tables.items() if value]:
            raise ConfigError(f"{useless[0]}: only for seeds in tables; pass `seeds` with it")
        return target
    from diskgnn.cli.table_columns import table_columns
    from diskgnn.importers.seed_tables import read_target

    by_split = dict(seeds)
    if len(by_split) < len(seeds) or (None in by_split and len(seeds) > 1):
        raise ConfigError("seeds: expected one table with a column of splits, or each split once as SPLIT=PATH")
    tables: Any = by_split.get(None, by_split)
    given: dict[str, Any] = {
        "columns": table_columns(columns), "task": task, "classes": None if classes is None else _values(classes),
    }  # fmt: skip
    if isinstance(target, NodeTarget):
        return read_target(graph, tables, node_type=target.node_type, **given)
    found = read_target(graph, tables, edge_type=target.edge_type, **given)
    return replace(target, seeds=found.seeds, times=found.times, labels=found.labels, num_classes=found.num_classes,
                   classes=found.classes)  # fmt: skip


def _values(classes: str) -> list[ClassValue]:
    """Returns what `--target-classes` lists: truth values, whole numbers, or otherwise text."""
    words = [word.strip() for word in classes.split(",")]
    if {word.lower() for word in words} <= {"true", "false"}:
        return [word.lower() == "true" for word in words]
    return [int(word) for word in words] if all(word.isdecimal() for word in words) else [*words]
