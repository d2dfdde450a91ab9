"""The loaders that can be compared: how each prepares, how each is opened, and what limits it at best.

Memory is shared out alike. All run under one cap, page cache included. Those with a cache of rows get the same
`cache_bytes`; what the cap leaves beyond that is everybody's for minibatches, the model, and (through the page cache)
topology or memory-mapped features. Preparing may use half of the cap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diskgnn.errors import ConfigError
from diskgnn.minibatch import BatchSource

SEQUENTIAL, RANDOM, MEMORY = "sequential reads", "random reads", "memory"
MAX_SEVERAL_EPOCHS = 4  # that 'diskgnn:several' prepares


@dataclass(frozen=True)
class Setting:
    """What the loaders of a comparison have in common, and where one of them may write."""

    graph: str  # directory; its train split is trained on, and there is no other
    folder: str  # empty, and the loader's own, from preparing until it was measured; on the scratch disk
    fanouts: tuple[int, ...]
    batch_size: int
    seed: int
    epochs: int  # that will be trained
    cache_bytes: int  # for rows in main memory
    memory_bytes: int  # the cap
    device: str = "cpu"

    @property
    def sampling(self) -> dict[str, object]:
        """What decides the minibatches, as all sources take it."""
        return {"fanouts": self.fanouts, "batch_size": self.batch_size, "seed": self.seed}


@dataclass(frozen=True)
class Variant:
    """One row of the comparison."""

    loader: str
    variant: str  # '' where a loader has but one
    name: str  # as shown
    open: Callable[[Setting], BatchSource]
    bound: str  # SEQUENTIAL, RANDOM or MEMORY: what its design cannot beat
    prepare: Callable[[Setting], None] | None = None  # writes to the setting's folder
    cached: bool = False  # whether it keeps rows in `cache_bytes`: then Belady's bound is a bound for it
    modules: tuple[str, ...] = ()  # beyond diskgnn's own: without them it is unavailable
    uncapped: bool = False  # runs without the cap, too, where it does not fit: the upper bound


def _in_memory(setting: Setting) -> BatchSource:
    from diskgnn.baselines.in_memory import InMemory

    return InMemory(setting.graph, "train", **setting.sampling)  # type: ignore[arg-type]


def _prepare_epochs(num_epochs: Callable[[Setting], int]) -> Callable[[Setting], None]:
    def prepare(setting: Setting) -> None:
        from diskgnn.preparation import prepare

        prepare(
            setting.graph,
            _packed(setting),
            **setting.sampling,  # type: ignore[arg-type]
            epochs=num_epochs(setting),
            cpu_cache=setting.cache_bytes,
            static_cache=0,
            memory=setting.memory_bytes // 2,
        )

    return prepare


def _packed(setting: Setting) -> Path:
    return Path(setting.folder) / "packed"


def _loader(setting: Setting) -> BatchSource:
    from diskgnn.loader import Loader

    return Loader(_packed(setting), "train", device=setting.device)


LOADERS: dict[str, tuple[Variant, ...]] = {
    "in-memory": (Variant("in-memory", "", "in memory", _in_memory, MEMORY, uncapped=True),),
    "diskgnn": (
        Variant("diskgnn", "one", "diskgnn, one epoch reused", _loader, SEQUENTIAL,
                _prepare_epochs(lambda _: 1), cached=True),
        Variant("diskgnn", "several", "diskgnn, several epochs", _loader, SEQUENTIAL,
                _prepare_epochs(lambda setting: min(setting.epochs, MAX_SEVERAL_EPOCHS)), cached=True),
    ),
}  # fmt: skip


def find(loader: str, variant: str) -> Variant:
    """The variant of those names.

    Raises:
        ConfigError: there is none.
    """
    for found in LOADERS.get(loader, ()):
        if found.variant == variant:
            return found
    raise ConfigError(f"--loaders: expected 'all' or some of {', '.join(_names())}, found {loader}:{variant}")


def select(names: str | Sequence[str]) -> list[Variant]:
    """The variants that `names` stands for: 'all', or a list such as 'diskgnn,cached-reads:sieve,mmap'.

    A loader's name alone stands for all its variants. Each comes once, in the order of `names`.

    Raises:
        ConfigError: a name is none of a loader, or of a variant.
    """
    parts = [part.strip() for part in (names.split(",") if isinstance(names, str) else names)]
    selected: list[Variant] = []
    for part in parts:
        loader, colon, variant = part.partition(":")
        if part == "all":
            found = [variant for variants in LOADERS.values() for variant in variants]
        elif colon:
            found = [find(loader, variant)]
        else:
            found = list(LOADERS.get(loader, ()))
        if not found:
            raise ConfigError(f"--loaders: expected 'all' or some of {', '.join(_names())}, found {part!r}")
        selected += [variant for variant in found if variant not in selected]
    return selected


def _names() -> list[str]:
    names = []
    for loader, variants in LOADERS.items():
        names.append(loader)
        names += [f"{loader}:{variant.variant}" for variant in variants if variant.variant]
    return names
