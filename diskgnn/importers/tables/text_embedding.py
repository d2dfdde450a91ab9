"""Text as vectors: words and parts of words, hashed; or what a function of the user's own makes of it.

An embedder is named 'hash:D', D numbers, or 'module:function'. docs/FORMAT.md says what hashes are, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from diskgnn._native import hash_texts
from diskgnn.errors import ConfigError, InputError
from diskgnn.importers.tables.strings import string_content
from diskgnn.specs.feature_columns import HASH_STEPS
from diskgnn.specs.named_functions import imported_function, version_of

HASH = "hash"
_MOST_NUMBERS = 4096  # of a hashed text
_TRIED = 8  # texts that tell how many numbers a function returns
_ASCII = 0x80

Function = Callable[[list[str]], Any]


def is_embedder(encoding: str) -> bool:
    """Returns True if an encoding that was asked for is the name of an embedder."""
    return ":" in encoding


def is_function(name: str) -> bool:
    """Returns True for an embedder that is a function of the user's."""
    return name.partition(":")[0] != HASH


def named_embedder(name: str, where: str) -> str:
    """Returns the name under which an embedder is recorded: with the version of a function that has one.

    Raises:
        ConfigError: there is no such embedder; begins with `where` it was asked for.
    """
    if hash_width(name, where) is not None:
        return name
    function, _, version = name.partition("@")
    if function.partition(":")[2].isdecimal():  # a misspelt hash
        raise ConfigError(f"{where}: expected hash:D, such as hash:256, or module:function, found {function!r}")
    found = version_of(imported_function(function, where))
    if version and version != found:
        raise ConfigError(f"{where}: expected version {version!r} of {function}, found {found!r}")
    return f"{function}@{found}" if found else function


def require_same_embedder(name: str, where: str) -> None:
    """Checks that an embedder that was recorded is there, and in that version.

    Raises:
        ConfigError: it is not.
    """
    if (found := named_embedder(name, where)) != name:
        raise ConfigError(f"{where}: expected the embedder {name}, as it was recorded, found {found}")


def hash_width(name: str, where: str) -> int | None:
    """Returns how many numbers 'hash:D' asks for; None for a function.

    Raises:
        ConfigError: D is no number of these.
    """
    kind, _, width = name.partition(":")
    if kind != HASH:
        return None
    if not (width.isascii() and width.isdecimal() and 1 <= int(width) <= _MOST_NUMBERS):
        raise ConfigError(f"{where}: expected hash:D with 1 to {_MOST_NUMBERS} numbers, such as hash:256, found {name}")
    return int(width)


def embedded_width(name: str, texts: pa.Array, where: str) -> int:
    """Returns how many numbers an embedder makes of a text, by what it makes of the first of `texts`."""
    width = hash_width(name, where)
    return vectors(name, texts[:_TRIED], None, where).shape[1] if width is None else width


def vectors(name: str, texts: pa.Array, width: int | None, where: str) -> npt.NDArray[np.float32]:
    """Returns [n, width] what an embedder makes of `texts` [n]; null is the empty text.

    Raises:
        InputError: a function returns something else; or values that are no text.
    """
    texts = as_text(texts, where)
    if (hashed := hash_width(name, where)) is not None:
        return np.divide(hashes(texts, hashed, where), np.float32(HASH_STEPS), dtype=np.float32)
    found = _as_numbers(_function(name.partition("@")[0], where)(texts.to_pylist()), name, where)
    if found.ndim != 2 or len(found) != len(texts) or not found.shape[1] or found.shape[1] != (width or found.shape[1]):
        raise InputError(
            f"{where}: expected [{len(texts)}, {width or 'D'}] numbers of {name}, found {list(found.shape)}"
        )
    if not np.isfinite(found).all():
        raise InputError(f"{where}: {name} returned numbers that are not finite")
    return found


def _as_numbers(found: Any, name: str, where: str) -> npt.NDArray[np.float32]:
    if hasattr(found, "detach"):  # a tensor, wherever it is
        found = found.detach().float().cpu()
    try:
        array = np.asarray(found)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"they are {array.dtype}")
        return array.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{where}: expected numbers of {name}, found {type(found).__name__} ({error})") from error


def hashes(
    texts: pa.Array, width: int, where: str = "text", out: npt.NDArray[np.int8] | None = None
) -> npt.NDArray[np.int8]:
    """Returns int8 [n, width] of texts [n] without null: 127 times vectors of length 1, or zeros without words.

    They are written to `out`, if that is given, which may be a column of records.

    Raises:
        InputError: one is no UTF-8; begins with `where` it is.
    """
    strings = texts.cast(pa.large_string())
    if _is_beyond_ascii(strings):
        try:
            strings = pc.utf8_lower(pc.utf8_normalize(strings, form="NFC"))
        except pa.ArrowInvalid as error:
            raise InputError(f"{where}: expected text in UTF-8, found other bytes ({error})") from error
    found = np.empty((len(strings), width), np.int8) if out is None else out
    hash_texts(*string_content(strings), found)
    return found


@lru_cache(maxsize=8)
def _function(name: str, where: str) -> Function:
    return imported_function(name, where)


def as_text(values: pa.Array, where: str) -> pa.Array:
    """Returns text, null as the empty one.

    Raises:
        InputError: it is none.
    """
    if pa.types.is_null(values.type):
        values = values.cast(pa.string())
    if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
        raise InputError(f"{where}: expected text, found {values.type}")
    return values.fill_null("")


def _is_beyond_ascii(strings: pa.Array) -> bool:
    offsets, content = string_content(strings)
    return bool((content[offsets[0] : offsets[-1]] >= _ASCII).any())
