"""A sampler of the user's own: a Python function, by the name under which it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.specs.named_functions import imported_function, require_function_name, version_of


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
        require_function_name(self.name, "sampler")

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
            return UserSampler(given, version_of(function), function)
        if not callable(given):
            raise ConfigError(f"sampler: expected a function or its name 'module:function', found {given!r}")
        named = given if hasattr(given, "__qualname__") else type(given)
        return UserSampler(f"{named.__module__}:{named.__qualname__}", version_of(given), given)

    def load(self) -> Callable[..., Any]:
        """Returns the function; imported by its name where only that is known.

        Raises:
            ConfigError: it cannot be imported.
        """
        return imported_function(self.name, "sampler") if self.function is None else self.function


AnySampler = Callable[..., Any] | UserSampler | str
