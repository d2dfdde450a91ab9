"""How variants of diskgnn can draw their minibatches: what stands behind 'one' in 'diskgnn:one:coordinated:16'."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diskgnn.errors import ConfigError
from diskgnn.specs.sampling import SamplingSpec


@dataclass(frozen=True)
class Drawing:
    """Says how neighbours are drawn and seeds are grouped."""

    draws: str = "independent"
    draw_period: int = 1
    group_seeds: int = 1

    @staticmethod
    def parse(text: str) -> Drawing:
        """Reads DRAWS, DRAWS:PERIOD or DRAWS:PERIOD:GROUP: `draws`, `draw_period` and `group_seeds`.

        Raises:
            ConfigError: it is none of them.
        """
        draws, *numbers = text.split(":")
        try:
            drawing = Drawing(draws, *map(int, numbers))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"loaders: expected DRAWS:PERIOD:GROUP such as coordinated:16:32 in diskgnn:one:coordinated:16:32, "
                f"found {text!r}"
            ) from error
        SamplingSpec([1], 1, **drawing.arguments)  # refuses what makes no sense
        return drawing

    @property
    def arguments(self) -> dict[str, Any]:
        """Returns it as `prepare` takes it."""
        return vars(self)

    @property
    def words(self) -> str:
        """Says it for people."""
        words = [f"{self.draws} draws"]
        if self.draw_period > 1:
            words.append(f"period {self.draw_period}")
        if self.group_seeds > 1:
            words.append(f"groups of {self.group_seeds}")
        return ", ".join(words)
