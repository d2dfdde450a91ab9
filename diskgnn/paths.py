"""Paths as users give them, and the files that they lead to."""

import os
from pathlib import Path

PathLike = str | os.PathLike[str]


def resolved(path: PathLike) -> Path:
    """Returns the absolute path without symbolic links, as `Path.resolve` does.

    Of links that go in a circle, it returns a path that cannot be opened, which an OSError then names; `Path.resolve`
    raises a RuntimeError before Python 3.13.
    """
    return Path(os.path.realpath(path))
