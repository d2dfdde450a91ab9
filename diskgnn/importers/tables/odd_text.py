"""Text that people read as numbers or dates, and that is neither here: it would become categories unnoticed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from diskgnn.importers.tables.times import conversion_of, is_time, looks_like_date

SAMPLE = 1000  # of more texts, to say what they are
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_SEPARATED = r"\d{1,3}([., '\u2019\u00a0\u202f]\d{3})+([.,]\d+)?|\d+,\d+|\d+\.?\d*"
_WRITTEN = re.compile(rf"[%$€£¥]?\s*[+-]?({_SEPARATED})\s*[%$€£¥]?")
_RARELY = 5  # plain numbers, or times, of which one in so many is something else


def read_by_people(values: Sequence[str]) -> str:
    """Returns what these different texts are to people, and how to write it; "" of mere words.

    Dates such as 31/12/2020 and numbers such as 1,5 or 12 % are told where they are more than half of the texts. Plain
    numbers are told where a few others are among them, which make all of them text, and times with or without others.
    """
    texts = [value.strip() for value in values]
    if _share(texts, looks_like_date) > 1 / 2:
        told = {text: conversion_of(text) for text in filter(looks_like_date, texts)}
        clearest = min(told, key=lambda text: told[text].count("%d"))  # 31/12/2020 says more than 01/02/2020
        return f"dates such as {clearest!r}: {told[clearest]}"
    if any(map(_is_odd, texts)) and _share(texts, _is_written) > 1 / 2:
        return f"numbers such as {_first(texts, _is_odd)!r}: write them like 1.5, without other signs"
    if texts and all(map(is_time, texts)):
        return (
            f"dates or times such as {texts[0]!r}: they may say when rows appear (`times` of a database, `time` of "
            "other tables); encoded as time, they are a number"
        )
    for what, is_one in (("numbers", _is_plain), ("dates or times", is_time)):
        if 1 - 1 / _RARELY <= _share(texts, is_one) < 1:
            odd = next(text for text in texts if not is_one(text))
            return f"{what} such as {_first(texts, is_one)!r}, but for others such as {odd!r}: correct or empty these"
    return ""


def _is_plain(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _is_written(text: str) -> bool:
    return _WRITTEN.fullmatch(text) is not None


def _is_odd(text: str) -> bool:
    return _is_written(text) and not _is_plain(text)


def _share(texts: Sequence[str], is_one: Callable[[str], bool]) -> float:
    return sum(map(is_one, texts)) / max(1, len(texts))


def _first(texts: Sequence[str], is_one: Callable[[str], bool]) -> str:
    return next(filter(is_one, texts))
