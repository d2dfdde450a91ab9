"""A folder that `prepare` made for several ranks, and which of its packed directories is for this process."""

from __future__ import annotations

import os

from diskgnn.errors import ArtifactError, ConfigError
from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from diskgnn.specs.shard import Shard
from diskgnn.stores.locations import AnyPath, Location, located, names_in


def shard_of_environment() -> Shard | None:
    """Returns what torchrun says of this process in RANK and WORLD_SIZE; None where it did not start it.

    Raises:
        ConfigError: they are no numbers, or no rank of so many.
    """
    found = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if None in found:
        return None
    try:
        rank, world_size = (int(str(value)) for value in found)
    except ValueError as error:
        raise ConfigError(f"RANK and WORLD_SIZE: expected whole numbers, found {found}") from error
    return Shard(rank, world_size)


def local_ranks() -> int:
    """Returns how many processes of this kind run here: LOCAL_WORLD_SIZE, which torchrun sets, or 1.

    Raises:
        ConfigError: it is no number of processes.
    """
    found = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not found.isdecimal() or int(found) < 1:
        raise ConfigError(f"LOCAL_WORLD_SIZE: expected a whole number, at least 1, found {found!r}")
    return int(found)


def ranks_in(path: AnyPath) -> list[Shard]:
    """Returns the ranks whose packed directories the folder `path` has; none where it is no such folder."""
    folder = located(path)
    if not folder.is_dir() or (folder / artifacts.MANIFEST).exists():
        return []
    found = filter(None, map(artifacts.rank_named, names_in(folder)))
    return [Shard(rank, world_size) for rank, world_size in sorted(found, key=lambda of: of[::-1]) if rank < world_size]


def rank_directories(path: AnyPath) -> list[Location]:
    """Returns the directories of all ranks in the folder `path`, by rank; none where it is no such folder.

    Raises:
        ArtifactError: one is missing.
    """
    if not (found := ranks_in(path)):
        return []
    world_size, folder = found[0].world_size, located(path)
    wanted = [Shard(rank, world_size) for rank in range(world_size)]
    if missing := [each for each in wanted if each not in found]:
        raise _missing(folder / artifacts.rank_directory(missing[0].rank, world_size), world_size)
    return [folder / artifacts.rank_directory(each.rank, each.world_size) for each in found]


def _missing(directory: Location, world_size: int) -> ArtifactError:
    return ArtifactError(
        f"{directory} is not there: copy it here, or make it with the same `diskgnn prepare --ranks {world_size}` as "
        f"the others, which leaves those as they are"
    )


def open_rank(path: AnyPath | Packed, shard: Shard | None = None, *, stream: bool = False) -> Packed:
    """Returns the packed directory of one rank, or one that is for a process alone.

    Args:
        path: a folder of ranks, or a packed directory. One that is open is returned as it is.
        shard: which rank; by default what torchrun says. A packed directory of a rank is opened in any process, unless
            a rank is asked for.
        stream: they may lie on a store; see `Packed.open`.

    Raises:
        ConfigError: the folder was prepared for another number of ranks, or the directory for another one; there are
            several ranks and nothing says which; a process of several asks for minibatches that are for one alone.
        ArtifactError: the rank's directory is missing, or no packed directory.
    """
    if isinstance(path, Packed):
        return path
    wanted = shard_of_environment() if shard is None else shard
    ranks = ranks_in(path)
    if not ranks:
        packed = Packed.open(path, stream=stream)
        found = packed.config.samples.spec.shard
        if found.world_size > 1 and shard is None:
            return packed
        if wanted is not None and wanted != found and (wanted.world_size, found.world_size) != (1, 1):
            raise ConfigError(
                f"{path} was prepared for {_shard_words(found)}, this is {_shard_words(wanted)}: "
                f"{_remedy(wanted.world_size)}"
            )
        return packed
    sizes = sorted({each.world_size for each in ranks})
    if wanted is None or (wanted.world_size == 1 and shard is None):
        (first, *_) = sizes
        raise ConfigError(
            f"{path} was prepared for {first} ranks that train together: start them with `torchrun --nproc-per-node "
            f"{first} -m diskgnn train {path}`, or name one: {path}/rank-0-of-{first}"
        )
    if wanted.world_size not in sizes:
        raise ConfigError(
            f"{path} was prepared for {' and '.join(map(str, sizes))} ranks, this is {_shard_words(wanted)}: start "
            f"{sizes[0]} processes, or {_remedy(wanted.world_size)}"
        )
    directory = located(path) / artifacts.rank_directory(wanted.rank, wanted.world_size)
    if wanted not in ranks:
        raise _missing(directory, wanted.world_size)
    packed = Packed.open(directory, stream=stream)
    if (found := packed.config.samples.spec.shard) != wanted:
        raise ArtifactError(f"{directory} was prepared for {_shard_words(found)}: it was renamed; prepare it again")
    return packed


def _shard_words(shard: Shard) -> str:
    return "one process" if shard.world_size == 1 else f"rank {shard.rank} of {shard.world_size}"


def _remedy(world_size: int) -> str:
    return f"prepare it with `diskgnn prepare --ranks {world_size}`" if world_size > 1 else "prepare it for one process"
