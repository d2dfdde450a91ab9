"""Lists what a source has while a format reads it: everything is read as something, or left out for a reason."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats.source_contents import LeftOutItem, ReadItem, SourceContents
from diskgnn.specs.schema import ONE_NODE_TYPE

Listed = str  # an option that is names with commas between; `convert` takes a list of them, too
AUTO = "auto"  # the value of an option that lets the format choose
UNDIRECTED = "the word undirected"  # in a source whose edges may stand in one direction only
EXCLUDED = "excluded by you"  # a reason
_NAMES_SHOWN = 12  # of one reason, in a warning


class SourceListing:
    """Collects what was read and what was left out. A format fills one while it reads."""

    def __init__(self) -> None:
        self._read: dict[ReadItem, None] = {}
        self._left_out: dict[tuple[str, str], LeftOutItem] = {}

    def read(
        self, of: str, name: str, use: str, how: str = "", width: int | None = None, null_share: float | None = None
    ) -> None:
        """Notes that `name` of the type `of` is read as `use`, in the words of the format's options; see `ReadItem`."""
        self._read[ReadItem(of, name, use, how, width, null_share)] = None

    def leave_out(self, of: str, name: str, reason: str, *, expected: bool = False) -> None:
        """Notes why `name` is not read. The first reason counts. `expected` items need no warning."""
        self._left_out.setdefault((of, name), LeftOutItem(of, name, reason, expected))

    def contents(self) -> SourceContents:
        """Returns everything noted so far."""
        return SourceContents(tuple(self._read), tuple(self._left_out.values()))


class Attributes:
    """The attributes of one type of nodes or edges. What nobody takes is left out, and listed so.

    Args:
        listing: where it is noted.
        of: the type.
        values: the attributes by name.
    """

    def __init__(self, listing: SourceListing, of: str, values: Mapping[str, Any]) -> None:
        self.listing, self.of, self.values = listing, of, values
        self._taken: set[str] = set()
        self._left_out: set[str] = set()

    def take(self, name: str | None, use: str) -> Any:
        """Returns the attribute `name`, noted as read as `use`; None if there is none, or it was left out."""
        if name is None or self.values.get(name) is None or name in self._left_out:
            return None
        self._taken.add(name)
        self.listing.read(self.of, name, use)
        return self.values[name]

    def leave_out(self, name: str, reason: str, *, expected: bool = False) -> None:
        """Notes why `name` is not read, if there is such an attribute and nobody took it."""
        if self.values.get(name) is not None and name not in self._taken:
            self.listing.leave_out(self.of, name, reason, expected=expected)
            self._left_out.add(name)

    def is_taken(self, name: str) -> bool:
        """Returns True if `name` was taken."""
        return name in self._taken

    def leave_rest(self, reason: str) -> None:
        """Notes the same reason for all attributes that were neither taken nor left out."""
        for name in self.values:
            self.leave_out(name, reason)


def require_named(contents: SourceContents, options: Mapping[str, Any]) -> None:
    """Checks that each of `options`, which name something of the source, did find it.

    Raises:
        ConfigError: nothing of that name was read for that option; lists the names that there are.
    """
    for option, name in options.items():
        if name in (None, AUTO) or any((item.use, item.name) == (option, name) for item in contents.read):
            continue
        names: dict[str, list[str]] = {}
        there: list[ReadItem | LeftOutItem] = [*contents.read, *contents.left_out]
        for item in there:
            names.setdefault(item.of or "the source", []).append(item.name)
        told = "; ".join(f"{of} has {', '.join(dict.fromkeys(known))}" for of, known in names.items())
        raise ConfigError(f"options: {option}: found nothing called {name!r} that can be that; {told or 'no names'}")


def replaced(contents: SourceContents, arguments: Sequence[str]) -> SourceContents:
    """Returns `contents` where `arguments` of `convert` say the same: what was read for them is left out, as asked."""
    taken = [item for item in contents.read if item.use.partition(",")[0] in arguments and item.of == ONE_NODE_TYPE]
    said = [item for item in contents.left_out if item.name == UNDIRECTED and "reverse" in arguments]
    return SourceContents(
        tuple(item for item in contents.read if item not in taken)
        + tuple(ReadItem(item.of, item.name, "reverse edges") for item in said),
        tuple(item for item in contents.left_out if item not in said)
        + tuple(LeftOutItem(item.of, item.name, f"other {item.use} were given", True) for item in taken),
    )


def warn_of_left_out(contents: SourceContents) -> None:
    """Warns of what was left out although the user did not ask for that, with the reasons."""
    by_reason: dict[str, list[str]] = {}
    for item in contents.left_out:
        if not item.expected:
            by_reason.setdefault(item.reason, []).append((item.name or "''") + (f" of {item.of}" if item.of else ""))
    if by_reason:
        told = "; ".join(f"{_shortened(names)} ({reason})" for reason, names in by_reason.items())
        warnings.warn(f"left out of the graph: {told}", DataWarning, stacklevel=callers_level())


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
