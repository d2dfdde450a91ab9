"""Windows of time, and the units that they and the times of graphs are in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.specs.schema import EdgeType, edge_type_name, parse_edge_type
from diskgnn.units import whole_number

MAX_WINDOW = (1 << 63) - 1
# A whole number in the unit of the graph's times, or text such as '180d'. Of each edge type, or one.
Window = int | str
Windows = Window | Mapping[EdgeType, Window]

_SECOND = 10**9
# Nanoseconds. Years are not all of one length, so nothing but years becomes years.
_LENGTHS: dict[str, int | None] = {
    "ns": 1, "us": 10**3, "ms": 10**6, "s": _SECOND, "min": 60 * _SECOND, "h": 3600 * _SECOND, "d": 86400 * _SECOND,
    "w": 7 * 86400 * _SECOND, "y": None,
}  # fmt: skip
TIME_UNITS = tuple(_LENGTHS)
OF_DATES = ("s", "ms", "us", "ns")  # units in which dates and timestamps are whole numbers
_FORMS = "a whole number as the graph's times are, or one with a unit, such as 180d or 12h"
_WINDOW = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")


def checked_time_unit(unit: str | None) -> str | None:
    """Returns `unit`, if times may be in it; None if nobody says.

    Raises:
        ConfigError: no unit of `TIME_UNITS`.
    """
    if unit is None or unit in TIME_UNITS:
        return unit
    raise ConfigError(f"time_unit: expected one of {', '.join(TIME_UNITS)}, found {unit!r}")


def checked_windows(name: str, given: Any) -> Windows | None:
    """Returns windows as they were given, edge types as triples.

    Args:
        name: of the argument, for messages.
        given: None, a window, or a mapping of edge types, which may be names, to windows.

    Raises:
        ConfigError: something else, or a window below 0.
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return _checked(name, given)
    if not given:
        raise ConfigError(f"{name}: expected a window of some edge type, found none; leave it out")
    return {parse_edge_type(each, name): _checked(f"{name} of {each}", window) for each, window in given.items()}


def window_in_unit(window: Window, unit: str | None, where: str) -> int:
    """Returns the length of a window in the unit of a graph's times.

    Args:
        window: one of `checked_windows`.
        unit: of the times; None: nobody knows.
        where: the graph is, for messages.

    Raises:
        ConfigError: the window has a unit and the times have none, or it is no whole number of theirs.
    """
    number, of_window = _parsed(window)
    if not of_window:
        return number
    if unit is None:
        raise ConfigError(
            f"temporal_window: found {window!r}, and nobody said what the times of {where} are: convert it again and "
            "say the time unit (`diskgnn convert --time-unit s` if they are seconds), or give a whole number as they "
            "are"
        )
    if of_window != unit:
        length, of_graph = _LENGTHS[of_window], _LENGTHS[unit]
        if length is None or of_graph is None or number * length % of_graph:
            raise ConfigError(
                f"temporal_window: expected a whole number of the times of {where}, which are in {unit}; found "
                f"{window!r}"
            )
        number = number * length // of_graph
    return _limited("temporal_window", number, window)


def unit_of_dates(where: str, unit: str | None) -> str:
    """Returns what dates and timestamps are counted in, to be compared with the times of a graph: their unit, from 1970
    on.

    Args:
        where: they stand, for messages.
        unit: of the graph's times; None: nobody knows, and dates are seconds.

    Raises:
        ConfigError: a unit that says neither which moment in it is meant, nor since when it counts.
    """
    if unit is None:
        return "s"
    if unit not in OF_DATES:
        raise ConfigError(
            f"{where}: expected whole numbers, as the graph's times are in {unit}; found a date or timestamp, which is "
            f"a number only where times are in {', '.join(OF_DATES)}"
        )
    return unit


def named_windows(windows: Mapping[EdgeType, int], unit: str | None) -> dict[EdgeType, Window]:
    """Returns windows in `unit` as configs keep them: as text with the unit, as numbers where nobody knows it."""
    return {edge_type: length if unit is None else f"{length}{unit}" for edge_type, length in windows.items()}


def windows_text(windows: Windows) -> str:
    """Returns windows for people.

    Example:
        >>> windows_text({("orders", "of", "users"): "30d"})
        'orders:of:users=30d'
    """
    if not isinstance(windows, Mapping):
        return str(windows)
    return ", ".join(f"{edge_type_name(each)}={window}" for each, window in windows.items())


def _checked(name: str, window: Any) -> Window:
    if not isinstance(window, str):
        return _limited(name, whole_number(name, window, least=0), window)
    try:
        number, unit = _parsed(window)
    except ValueError:
        raise ConfigError(f"{name}: expected {_FORMS} (units are {', '.join(TIME_UNITS)}), found {window!r}") from None
    return window.strip() if unit else _limited(name, number, window)


def _parsed(window: Window) -> tuple[int, str]:
    """Returns (length, unit); no unit for that of the graph."""
    if not isinstance(window, str):
        return window, ""
    found = _WINDOW.fullmatch(window)
    if found is None or (found[2] and found[2] not in _LENGTHS):
        raise ValueError(window)
    return int(found[1]), found[2]


def _limited(name: str, number: int, given: Window) -> int:
    if number > MAX_WINDOW:
        raise ConfigError(f"{name}: expected at most 2^63 - 1 in the unit of the graph's times, found {given!r}")
    return number
