"""A sampler of the user's own: a Python function, by the name under which it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from diskgnn.errors import ConfigError


@dataclass(frozen=True)
class UserSampler:
    """A function `(seeds, rng) -> Neighbourhood`, see `diskgnn.sampling.neighbourhood`. Two are equal whose names and
    versions are: their code is not compared.

    Raises:
        ConfigError: the name is not 'module:function'.
    """

    name: str  # 'module:function'
    version: str = ""  # the function's attribute `version`
    function: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        module, colon, function = self.name.partition(":")
        if not (module and colon and function):
            raise ConfigError(f"sampler: expected 'module:function', found {self.name!r}")

    @staticmethod
    def of(given: AnySampler | None) -> UserSampler | None:
        """Returns the sampler that is a function, or has the name 'module:function'; None of None.

        Raises:
            ConfigError: it is neither, or cannot be imported.
        """
        if given is None or isinstance(given, UserSampler):
            return given
        if isinstance(given, str):
            function = UserSampler(given).load()
            return UserSampler(given, str(getattr(function, "version", "")), function)
        if not callable(given):
            raise ConfigError(f"sampler: expected a function or its name 'module:function', found {given!r}")
        named = given if hasattr(given, "__qualname__") else type(given)
        return UserSampler(f"{named.__module__}:{named.__qualname__}", str(getattr(given, "version", "")), given)

    def load(self) -> Callable[..., Any]:
        """Returns the function; imported by its name where only that is known.

        Raises:
            ConfigError: it cannot be imported.
        """
        if self.function is not None:
            return self.function
        module, _, path = self.name.partition(":")
        try:
            found: Any = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"sampler: {self.name} cannot be imported here ({error}); run where its module can be found"
            ) from error
        if not callable(found):
            raise ConfigError(f"sampler: expected {self.name} to be a function, found {found!r}")
        function: Callable[..., Any] = found
        return function


AnySampler = Callable[..., Any] | UserSampler | str
