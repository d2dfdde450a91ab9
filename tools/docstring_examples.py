"""For the site: the code below `Example:` of a docstring is shown as code. mkdocs.yml names this file."""

from __future__ import annotations

import re
from textwrap import dedent, indent
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n)+)", re.MULTILINE)


class Examples(griffe.Extension):
    """Puts fences around examples before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """For each function, class, attribute and module."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(_fenced, obj.docstring.value + "\n").rstrip("\n")


def _fenced(example: re.Match[str]) -> str:
    return "Example:\n" + indent(f"```python\n{dedent(example[1]).strip()}\n```", "    ") + "\n\n"
