"""What options say of sampling, as the library takes it: fanouts by edge type, and what the seeds are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.fanouts import Fanouts
from diskgnn.targets import LinkTarget, NodeTarget, Target

FanoutsOption = tuple[str | None, list[int]]  # an edge type, or None for all of them
_LINK_OPTIONS = ("negatives", "eval_negatives", "negatives_by", "avoid", "exclude", "reverse_edge_type")


def sampling_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `diskgnn.sample` and `diskgnn.prepare` from what `options.sampling` found, others as they are.

    Raises:
        ConfigError: fanouts with and without edge types, or options of links where the seeds are nodes.
    """
    if arguments.get("sampler") is not None:
        sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    links = {name: value for name in _LINK_OPTIONS if (value := arguments.pop(name)) is not None}
    eval_fanouts = arguments["eval_fanouts"]
    return arguments | {
        "fanouts": fanouts_argument("fanouts", arguments["fanouts"]),
        "eval_fanouts": fanouts_argument("eval_fanouts", eval_fanouts) if eval_fanouts else None,
        "target": _target(arguments["target"], links),
    }


def fanouts_argument(name: str, given: tuple[FanoutsOption, ...]) -> Fanouts:
    """What a repeated option says.

    Raises:
        ConfigError: fanouts with and without edge types.
    """
    by_type = dict(given)
    if len(by_type) != len(given):
        raise ConfigError(f"{name}: expected each edge type once, and one list without an edge type")
    if None not in by_type:
        return by_type  # type: ignore[return-value]  # SamplingSpec parses the names
    if len(by_type) > 1:
        raise ConfigError(
            f"{name}: expected one list for all edge types, or each as SOURCE:NAME:DESTINATION=N,N,...; found both"
        )
    return by_type[None]


def _target(given: str | None, links: dict[str, Any]) -> Target:
    if given is not None and ":" in given:
        return LinkTarget(given, **links)  # type: ignore[arg-type]  # it parses the name
    if links:
        raise ConfigError(f"{next(iter(links))}: only for links; pass target='SOURCE:NAME:DESTINATION' with it")
    return NodeTarget(given)
