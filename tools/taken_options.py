"""For the site: functions that take the fields of a dataclass as keywords are shown with them. mkdocs.yml names this
file. griffe reads the source, which says `**shape: Unpack[ModelOptions]`; the function itself tells them all.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import griffe


class TakenOptions(griffe.Extension):
    """Gives what `diskgnn.specs.keywords.takes_options` wraps the parameters and the docstring that it has."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """For each function, class, attribute and module; before the docstring is made anything of."""
        if isinstance(obj, griffe.Function):
            _show_taken(obj)


def _show_taken(func: griffe.Function) -> None:
    taking = next((each for each in func.parameters if str(each.annotation).startswith("Unpack[")), None)
    if taking is None or not any("takes_options" in str(each.value) for each in func.decorators):
        return
    found: Any = import_module(func.module.path)
    for name in func.path.removeprefix(f"{func.module.path}.").split("."):
        found = getattr(found, name)
    written = {each.name: each for each in func.parameters}
    func.parameters = griffe.Parameters(
        *(written.get(each.name) or _keyword(each) for each in inspect.signature(found).parameters.values())
    )
    if func.docstring is not None:
        func.docstring.value = inspect.getdoc(found) or ""


def _keyword(taken: inspect.Parameter) -> griffe.Parameter:
    default = None if taken.default is inspect.Parameter.empty else repr(taken.default)
    return griffe.Parameter(
        taken.name, annotation=taken.annotation, kind=griffe.ParameterKind.keyword_only, default=default
    )
