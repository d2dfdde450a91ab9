"""Functions that take the fields of a dataclass as keywords: its defaults and what it says of them are written once."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from typing import Any, TypeVar, cast

Public = TypeVar("Public", bound=Callable[..., Any])


def takes_options(options: type, spec: Any) -> Callable[[Public], Public]:
    """Let a function that ends in `**name: Unpack[options]` show these fields of a dataclass in its signature, with
    their defaults, and in its docstring in place of what that says of `name`. Other names are a TypeError.

    Args:
        options: a TypedDict, some of the fields of `spec`.
        spec: the dataclass, whose docstring describes its attributes.

    Example:
        >>> @takes_options(DrawingOptions, SamplingSpec)
        ... def source(graph: PathLike, **drawing: Unpack[DrawingOptions]) -> SamplingSpec:
        ...     return SamplingSpec.of(**drawing)
    """

    def decorate(function: Public) -> Public:
        *own, last = inspect.signature(function).parameters.values()
        taken = [
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, annotation=each.type,
                default=_default_of(each),
            )
            for each in fields(spec) if each.name in options.__annotations__
        ]  # fmt: skip
        by_place = [each for each in own if each.kind is not inspect.Parameter.KEYWORD_ONLY]
        signature = inspect.Signature([*by_place, *taken, *own[len(by_place) :]])

        @wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__qualname__}: {error}") from None
            return function(*args, **kwargs)

        checked.__signature__ = signature  # type: ignore[attr-defined]
        checked.__doc__ = _described(function.__doc__, last.name, spec.__doc__, [each.name for each in taken])
        return cast(Public, checked)

    return decorate


def _described(doc: str | None, placeholder: str, spec_doc: str, names: Sequence[str]) -> str | None:
    """Returns `doc` with what `spec_doc` says of these attributes in place of what it says of `placeholder`."""
    cleaned = inspect.cleandoc(doc or "")
    found = re.search(rf"^    {placeholder}: .*\n(?: {{5,}}.*\n)*", cleaned, re.MULTILINE)
    if found is None:
        return doc
    attributes = re.findall(r"^(    (\w+): .*\n(?: {5,}.*\n)*)", inspect.cleandoc(spec_doc), re.MULTILINE)
    told = {name: text for text, name in attributes}
    return cleaned[: found.start()] + "".join(told[name] for name in names) + cleaned[found.end() :]


def _default_of(of_spec: Field[Any]) -> Any:
    """Returns the annotation that a signature shows."""
    if of_spec.default is not MISSING:
        return of_spec.default
    return inspect.Parameter.empty if of_spec.default_factory is MISSING else None
