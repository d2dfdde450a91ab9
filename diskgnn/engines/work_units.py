"""Units of a step, as engines hand them to whoever makes them, and take them back."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from diskgnn.progress.reporter import Advance
from diskgnn.system.resources import Resources


class Unit(Protocol):
    """A piece of a step that depends on no other one: a few words, hashable and picklable."""

    @property
    def files(self) -> Sequence[str]:
        """Returns the names of the files that it leaves. Units do not share any."""
        ...

    @property
    def amount(self) -> int:
        """Returns how much of the step it is, as progress counts."""
        ...

    @property
    def disk_share(self) -> int:
        """Returns what its files take of the disk, above 0: bytes in whole pages, or anything in proportion."""
        ...


AnyUnit = TypeVar("AnyUnit", bound=Unit)


@dataclass(frozen=True)
class MadeUnit(Generic[AnyUnit]):
    """A unit whose files are complete. Picklable."""

    unit: AnyUnit
    checksums: Mapping[str, int]  # by name of each file, its CRC-32C


Made = TypeVar("Made", bound=MadeUnit[Any])
# Makes units in a folder: takes what all of them are made from, units, the folder, what it may spend, and whom to tell
# how much is done. Units may be asked for ahead, and come in any order; what it returns is told once at its end.
# The files depend on what is given and on the unit alone. A function that can be pickled by its name.
Make = Callable[[Any, Iterator[Any], Path, Resources, Advance], Generator[Made, None, Any]]
