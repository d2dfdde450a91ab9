"""Functions of the user's own, by the names under which they are recorded: 'module:function'."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from diskgnn.errors import ConfigError


def require_function_name(name: str, of: str) -> None:
    """Checks that a name is one of a function.

    Raises:
        ConfigError: it is not; begins with what it is `of`.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise ConfigError(f"{of}: expected 'module:function', found {name!r}")


def imported_function(name: str, of: str) -> Callable[..., Any]:
    """Returns the function 'module:function'.

    Raises:
        ConfigError: it cannot be imported; begins with what it is `of`.
    """
    require_function_name(name, of)
    module, _, path = name.partition(":")
    try:
        found: Any = import_module(module)
        for each in path.split("."):
            found = getattr(found, each)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{of}: {name} cannot be imported here ({error}); run where its module can be found"
        ) from error
    if not callable(found):
        raise ConfigError(f"{of}: expected {name} to be a function, found {found!r}")
    function: Callable[..., Any] = found
    return function


def version_of(function: Callable[..., Any]) -> str:
    """Returns what its attribute `version` says; '' without one."""
    return str(getattr(function, "version", ""))
