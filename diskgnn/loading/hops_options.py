"""Says how a `HopsLoader` reads, as a value that `diskgnn.train` and `diskgnn.evaluate` hand on to theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from diskgnn.files.read_engine import check_engine
from diskgnn.system.memory import memory_budget
from diskgnn.units import seed_number, whole_number


class RecordOptions(TypedDict, total=False):
    """Fields of `HopsOptions`, as keywords."""

    batch_size: int
    shuffle_seed: int | None
    memory: int | str
    prefetch: int
    engine: str
    verify: bool


@dataclass(frozen=True)
class HopsOptions:
    """Says how a `diskgnn.HopsLoader` reads.

    Attributes:
        batch_size: seeds in a minibatch, at most: those of an epoch are of one size, but for one seed. With 2, one may
            have 3: none has a single seed, unless all have.
        shuffle_seed: of the order of train records, which follows from it and the epoch, 0 to 2^64 - 1; 0 by default,
            and where `diskgnn.train` opens the directory, its seed. Other splits keep their order.
        memory: what records may take in memory, in bytes or as '2GiB', shared by the ranks of a machine. Where all
            train records fit, beside minibatches and what evaluation reads at a time, they are read once; otherwise in
            every epoch, in pieces of 1 MiB, of which some 200 are in memory, or ten minibatches if that is more.
            'auto' is half of what is available. Minibatches are the same.
        prefetch: minibatches made ahead of the user.
        engine: 'io_uring', 'threads', or 'auto': io_uring where it is allowed.
        verify: compare records with their checksums as they are read.

    Raises:
        ConfigError: a value that makes no sense.

    Example:
        diskgnn.train("hops", model="sign", loader_options=HopsOptions(batch_size=4096))
    """

    batch_size: int = 1024
    shuffle_seed: int | None = None
    memory: int | str = "auto"
    prefetch: int = 2
    engine: str = "auto"
    verify: bool = True

    def __post_init__(self) -> None:
        for name in ("batch_size", "prefetch"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        if self.shuffle_seed is not None:
            object.__setattr__(self, "shuffle_seed", seed_number(self.shuffle_seed, "shuffle_seed"))
        check_engine(self.engine)
        memory_budget(self.memory)
