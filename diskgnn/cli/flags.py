"""The library names arguments in its messages; the command line shows them as the flags of the command that was called.

There are three ways in which a message names an argument, and no other is looked for:

    epochs: expected at least 1, found 0                  --epochs: expected at least 1, found 0
    make room, or choose another `checkpoint`             make room, or choose another --checkpoint
    use num_layers=2; pass resume=True; device='cpu'      use --layers 2; pass --resume; --device cpu
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

import click

_NAMED = re.compile(
    r"""^(?P<first>\w+)(?=:[ ])
      | `(?P<quoted>\w+)`
      | (?<![\w.'"])(?P<name>\w+)=(?P<value>'[^']*' | \[[^]]*\] | [^\s,;:()]*[^\s,;:().])""",
    re.VERBOSE,
)


def with_flags(message: str, parameters: Iterable[click.Parameter], unnamed: Collection[str] = ()) -> str:
    """Returns `message` with the arguments among `parameters` as flags; other names stay as they are.

    What is wrong with one of the `unnamed` is not wrong with a flag: something else has it, such as a data set its
    labels.
    """
    options = {option.name: option for option in parameters if isinstance(option, click.Option)}

    def shown(match: re.Match[str]) -> str:
        if match["first"] in unnamed:
            return match[0]
        option = options.get(match["first"] or match["quoted"] or match["name"])
        if option is None:
            return match[0]
        if match["name"] is None:
            return option.opts[0]
        return _with_value(option, match["value"]) or match[0]

    return _NAMED.sub(shown, message)


def _with_value(option: click.Option, value: str) -> str | None:
    """Returns how `option` is given `value`, written as Python has it; None if it cannot be."""
    if value == "None":
        return None
    if option.is_flag:
        flags = option.opts if value == "True" else option.secondary_opts
        return flags[0] if flags else None
    return f"{option.opts[0]} {value.strip(chr(39) + '[]').replace(', ', ',')}"
