"""The library names arguments in its messages; the command line shows them as the flags of the command that was called.

There are four ways in which a message names an argument, and no other is looked for:

    epochs: expected at least 1, found 0                  --epochs: expected at least 1, found 0
    make room, or choose another `checkpoint`             make room, or choose another --checkpoint
    use num_layers=2; pass resume=True; device='cpu'      use --layers 2; pass --resume; --device cpu
    leave the column out (`exclude`, users.age)           leave the column out (--exclude users.age)

The last is of one thing among those that an argument maps or lists: it is quoted as a shell needs it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable

import click

_NAMED = re.compile(
    r"""^(?P<first>\w+)(?=:[ ])
      | (?<=\()`(?P<owner>\w+)`,[ ](?P<part>(?=(?:[^()]|\([^()]*\))*?[=.])(?:[^()]|\([^()]*\))+)(?=\))
      | `(?P<quoted>\w+)`
      | (?<![\w.'"])(?P<name>\w+)=(?P<value>'[^']*' | \[[^]]*\] | [^\s,;:()]*[^\s,;:().])""",
    re.VERBOSE,
)


def with_flags(
    message: str,
    parameters: Iterable[click.Parameter],
    unnamed: Collection[str] = (),
    typed: Iterable[str] = (),
    others: Iterable[click.Parameter] = (),
) -> str:
    """Returns `message` with the arguments among `parameters` as flags; other names stay as they are.

    An option of several names is called as it was `typed`, which are the words of the command line.

    What is wrong with one of the `unnamed` is not wrong with a flag: something else has it, such as a data set its
    labels.

    Values of arguments that the command does not take are shown as flags of the `others` that do, where these call them
    alike: "trained with temporal='last'".
    """
    options, of_others = _by_name(parameters), _by_name(others)
    words = {word.partition("=")[0] for word in typed}

    def shown(match: re.Match[str]) -> str:
        if match["first"] in unnamed:
            return match[0]
        option = options.get(match["first"] or match["owner"] or match["quoted"] or match["name"])
        if option is None and match["name"] is not None:
            option = of_others.get(match["name"])
        if option is None:
            return match[0]
        if match["owner"]:
            return f"{_option_name(option, words)} {shlex.quote(match['part'])}"
        if match["name"] is None:
            return _option_name(option, words)
        return _with_value(option, match["value"], words) or match[0]

    return _NAMED.sub(shown, message)


def _by_name(parameters: Iterable[click.Parameter]) -> dict[str | None, click.Option]:
    """Returns options by the names of arguments, without those that several commands call differently."""
    found = dict[str | None, click.Option]()
    ambiguous = set[str | None]()
    for each in parameters:
        if isinstance(each, click.Option) and found.setdefault(each.name, each).opts != each.opts:
            ambiguous.add(each.name)
    return {name: option for name, option in found.items() if name not in ambiguous}


def _option_name(option: click.Option, words: Collection[str]) -> str:
    return next((name for name in option.opts if name in words), option.opts[0])


def _with_value(option: click.Option, value: str, words: Collection[str]) -> str | None:
    """Returns how `option` is given `value`, written as Python has it; None if it cannot be."""
    if value == "None":
        return None
    if option.is_flag:
        flags = option.opts if value == "True" else option.secondary_opts
        return flags[0] if flags else None
    return f"{_option_name(option, words)} {value.strip(chr(39) + '[]').replace(', ', ',')}"
