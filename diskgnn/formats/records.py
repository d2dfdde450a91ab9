"""Frozen dataclasses as JSON objects, and back: what a manifest may say is written once, as their fields.

A field stands under its own name, in the order of the class, as its type says: text, numbers and truth values as they
are, `X | None` as null, `tuple[X, ...]` as a list, `Mapping[str, X]` as an object, an `EdgeType` as 'a:b:c', a
dataclass as an object. `Annotated` says what else holds:

    places: Annotated[bool, LEFT_OUT] = False       # not written where it is the default
    rows: Annotated[RowFormat | None, INLINE]       # its members stand among those of the object; None has none
    dtype: Annotated[str, Key("feature_dtype")]     # its name in JSON
    num_rows: Annotated[int, whole(1)]              # a `Codec`, in place of what the type says

Anybody may have written what is read. So nothing is converted: a bool is no int, and an int is no float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from diskgnn.specs.schema import EdgeType, edge_type_name, parse_edge_type

T = TypeVar("T")
AnyRecord = TypeVar("AnyRecord", bound="Record")

MOST_32_BITS, MOST_64_BITS = (1 << 31) - 1, (1 << 63) - 1


@dataclass(frozen=True)
class Codec(Generic[T]):
    """Says how values of one kind stand in JSON. `read` raises ValueError or KeyError for what `write` would not
    write."""

    write: Callable[[T], Any]
    read: Callable[[Any], T]
    first_key: str = ""  # of an object


class Place(Enum):
    """Says where a field stands, if not always under its own name."""

    LEFT_OUT = "left out where it is the default"
    INLINE = "its members stand in its place"


LEFT_OUT, INLINE = Place.LEFT_OUT, Place.INLINE


@dataclass(frozen=True)
class Key:
    """The name of a field in JSON, where that is another."""

    name: str


class Record:
    """Base of dataclasses that stand in manifests."""

    def to_json(self) -> dict[str, Any]:
        """Returns it as it stands in a manifest."""
        written: dict[str, Any] = codec_of(type(self)).write(self)
        return written

    @classmethod
    def parse(cls: type[AnyRecord], config: Any) -> AnyRecord:
        """Reads what `to_json` returned.

        Raises:
            ValueError, KeyError: it is something else.
        """
        parsed: AnyRecord = codec_of(cls).read(config)
        return parsed

    def check_parsed(self) -> None:
        """Raises ValueError for what no manifest says, although each field is of its type."""


def record_codec(kind: type[T], order: Sequence[str] | None = None, **hints: Any) -> Codec[T]:
    """Returns how objects of a dataclass stand in JSON.

    Args:
        kind: the dataclass.
        order: the fields that are written; when it is read, the others are their defaults. By default all of them.
        hints: of fields, in place of their types: for classes that know nothing of manifests.
    """
    defaults = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(kind)  # type: ignore[arg-type]
    }
    hints = {**get_type_hints(kind, include_extras=True), **hints}
    members = [_Member.of(name, hints[name], defaults[name]) for name in order or defaults]

    def write(value: T) -> dict[str, Any]:
        return {key: each for member in members for key, each in member.write(getattr(value, member.name)).items()}

    def read(config: Any) -> T:
        found = typed(config, dict)
        parsed = kind(**{member.name: member.read(found) for member in members})
        if isinstance(parsed, Record):
            parsed.check_parsed()
        return parsed

    return Codec(write, read, members[0].key)


@dataclass(frozen=True)
class _Member:
    name: str  # of the field
    key: str  # in JSON
    codec: Codec[Any]
    place: Place | None
    default: Any

    @staticmethod
    def of(name: str, hint: Any, default: Any) -> _Member:
        said = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        place = next((each for each in said if isinstance(each, Place)), None)
        key = next((each.name for each in said if isinstance(each, Key)), name)
        return _Member(name, key, codec_of(hint, is_inline=place is INLINE), place, default)

    def write(self, value: Any) -> dict[str, Any]:
        if self.place is INLINE:
            members: dict[str, Any] = self.codec.write(value)
            return members
        return {} if self.place is LEFT_OUT and value == self.default else {self.key: self.codec.write(value)}

    def read(self, config: dict[str, Any]) -> Any:
        if self.place is LEFT_OUT and self.key not in config:
            return self.default
        if self.place is LEFT_OUT and config[self.key] is None:
            raise ValueError(f"{self.key} is null, and would be left out")
        return self.codec.read(config if self.place is INLINE else config[self.key])


def codec_of(hint: Any, *, is_inline: bool = False) -> Codec[Any]:
    """Returns how values of a type stand in JSON: alone, or as members of an object."""
    if get_origin(hint) is Annotated:
        hint, *said = get_args(hint)
        return next((each for each in said if isinstance(each, Codec)), None) or codec_of(hint, is_inline=is_inline)
    kinds = get_args(hint)
    if hint == EdgeType:
        return Codec(edge_type_name, lambda name: parse_edge_type(typed(name, str)))
    if NoneType in kinds:
        (kind,) = (each for each in kinds if each is not NoneType)
        return or_none(codec_of(kind), is_inline=is_inline)
    if get_origin(hint) is UnionType:
        return Codec(lambda value: value, lambda value: _any_of(value, kinds))
    if get_origin(hint) is tuple:
        return _list_of(codec_of(kinds[0]))
    if get_origin(hint) is Mapping:
        return _object_of(codec_of(kinds[0]), codec_of(kinds[1]))
    if is_dataclass(hint):
        return _codec_of_class(hint)  # type: ignore[arg-type]
    return Codec(lambda value: value, lambda value: typed(value, hint))


@cache
def _codec_of_class(kind: type[Any]) -> Codec[Any]:
    return record_codec(kind)


def or_none(codec: Codec[Any], *, is_inline: bool = True) -> Codec[Any]:
    """Returns how the same values stand, or None: as no members of an object, or as null."""
    if is_inline:
        return Codec(
            lambda value: {} if value is None else codec.write(value),
            lambda config: codec.read(config) if codec.first_key in config else None,
        )
    return Codec(
        lambda value: None if value is None else codec.write(value),
        lambda value: None if value is None else codec.read(value),
    )


def _list_of(codec: Codec[Any]) -> Codec[tuple[Any, ...]]:
    return Codec(
        lambda values: [codec.write(value) for value in values],
        lambda values: tuple(codec.read(value) for value in typed(values, list)),
    )


def _object_of(keys: Codec[Any], codec: Codec[Any]) -> Codec[Mapping[Any, Any]]:
    return Codec(
        lambda values: {keys.write(key): codec.write(value) for key, value in values.items()},
        lambda values: {keys.read(key): codec.read(value) for key, value in typed(values, dict).items()},
    )


def _any_of(value: Any, kinds: tuple[Any, ...]) -> Any:
    if type(value) not in kinds:
        raise ValueError(f"expected one of {', '.join(kind.__name__ for kind in kinds)}, found {str(value)[:80]!r}")
    return value


def whole(least: int = 0, most: int = MOST_32_BITS) -> Codec[int]:
    """Returns whole numbers in [least, most]."""

    def read(value: Any) -> int:
        if not least <= typed(value, int) <= most:
            raise ValueError(f"expected a number from {least} to {most}, found {str(value)[:80]}")
        return int(value)

    return Codec(int, read)


def one_of(*choices: str) -> Codec[str]:
    """Returns one of these texts."""

    def read(value: Any) -> str:
        if typed(value, str) not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}, found {value[:80]!r}")
        return str(value)

    return Codec(str, read)


def typed(value: Any, kind: type[T]) -> T:
    """Returns `value`, if JSON gave exactly this type (a bool is no int).

    Raises:
        ValueError: it is of another type.
    """
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, found {str(value)[:80]!r}")
    return value
