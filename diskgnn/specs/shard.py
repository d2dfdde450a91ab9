"""Which minibatches one of several ranks has."""

from __future__ import annotations

from dataclasses import dataclass

from diskgnn.errors import ConfigError
from diskgnn.units import whole_number


@dataclass(frozen=True)
class Shard:
    """The minibatches of one of several ranks that train together: in each epoch, of each split, those whose numbers
    are `rank`, `rank + world_size`, `rank + 2 * world_size`, ... So step t of all ranks is what one rank has at
    positions t * world_size to (t + 1) * world_size - 1.

    Raises:
        ConfigError: no rank of so many.

    Example:
        >>> list(Shard(1, 4).numbers(10))
        [1, 5, 9]
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        world_size = whole_number("world_size", self.world_size)
        rank = whole_number("rank", self.rank, least=0)
        if rank >= world_size:
            raise ConfigError(f"rank: expected less than the world size {world_size}, found {rank}")
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "world_size", world_size)

    @staticmethod
    def given(rank: int | None, world_size: int | None) -> Shard | None:
        """Returns the rank that both name; None if neither was given.

        Raises:
            ConfigError: one was given without the other, or it is no rank of so many.
        """
        if (rank is None) != (world_size is None):
            raise ConfigError("rank and world_size: expected both, or none of them")
        return None if rank is None or world_size is None else Shard(rank, world_size)

    def numbers(self, num_batches: int) -> range:
        """Returns which of the `num_batches` minibatches of an epoch these are."""
        return range(self.rank, num_batches, self.world_size)
