"""Outputs with a URL: a function writes to scratch of this machine, and what it writes is sent while it is made."""

from __future__ import annotations

import inspect
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from diskgnn.errors import OutputExistsError
from diskgnn.storage.artifacts import MANIFEST
from diskgnn.storage.object_stores import StoredPath, located
from diskgnn.storage.outbox import sent_to
from diskgnn.storage.pushing import push
from diskgnn.storage.replacing import artifact_at, require_replaceable_there

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def published(format: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:  # noqa: A002
    """Let a function that writes an artifact `out` of `format` take a URL for it: it writes to scratch, which is sent.

    The function takes `overwrite` and `reporter` as well.
    """

    def decorate(make: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(make)

        @wraps(make)
        def wrapped(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs)
            target = located(bound.arguments["out"])
            if not isinstance(target, StoredPath):
                return make(*args, **kwargs)
            bound.apply_defaults()
            overwrite, reporter = bound.arguments["overwrite"], bound.arguments["reporter"]
            with _made_here(target, format, overwrite=overwrite) as scratch:
                bound.arguments["out"] = scratch
                # What is there stays until what replaces it is complete.
                sending = nullcontext() if artifact_at(target) else sent_to(scratch, target)
                with sending:
                    made = make(*bound.args, **bound.kwargs)
                if scratch.exists():
                    with _saying_what_is_kept(scratch, target):
                        push(scratch, target, overwrite=overwrite, reporter=reporter)
            return made

        return wrapped

    return decorate


@contextmanager
def _made_here(target: StoredPath, format: str, *, overwrite: bool) -> Iterator[Path]:  # noqa: A002
    """Where to make what is to be sent to `target`; gone in the end, unless what is complete there can be gone on with.

    Raises:
        OutputExistsError: something is at `target`; or an earlier run has made it, but not sent it.
        ConfigError: there is no such bucket.
    """
    require_replaceable_there(target, format, None, overwrite=overwrite)
    scratch = target.scratch
    scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if (scratch / MANIFEST).exists() and not overwrite:
        raise OutputExistsError(
            f"an earlier run made {target} in {scratch} and could not send it: send that with `diskgnn push {scratch} "
            f"{target}`, or remove it to make it again"
        )
    yield scratch
    shutil.rmtree(scratch.parent, ignore_errors=True)


@contextmanager
def _saying_what_is_kept(made: Path, target: StoredPath) -> Iterator[None]:
    try:
        yield
    except BaseException:
        warnings.warn(f"what was made is kept: `diskgnn push {made} {target}` goes on with sending it", stacklevel=4)
        raise
