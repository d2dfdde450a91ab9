"""Finds the name that was meant where one is given that there is not."""

from __future__ import annotations

from collections.abc import Iterable


def near_name(found: object, names: Iterable[str]) -> str:
    """Says which of `names` is most like `found`, capitals aside, for the end of a message; "" if none is.

    Example:
        >>> near_name("Usrs", ["orders", "users"])
        "; did you mean 'users'?"
    """
    from difflib import get_close_matches  # the command line starts without it

    if not isinstance(found, str):
        return ""
    folded = {name.casefold(): name for name in names}
    close = get_close_matches(found.casefold(), folded, n=1)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""
