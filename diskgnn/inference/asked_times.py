"""When a model is asked about its seeds: predictions draw as training did, so nothing that is later than a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from torch import nn

from diskgnn.draws import shuffled_seeds
from diskgnn.errors import ArtifactError, ConfigError, InputError
from diskgnn.formats.artifacts import given_file
from diskgnn.formats.packed import Packed
from diskgnn.graph.graph import Graph
from diskgnn.importers.tables.times import Moment, column_of, counted, is_number, moment
from diskgnn.paths import PathLike
from diskgnn.progress.reporter import Reporter, say
from diskgnn.sampling.timed_types import timed_types
from diskgnn.specs.sampling import SamplingSpec
from diskgnn.specs.targets import LinkTarget, NodeTarget
from diskgnn.specs.time_windows import unit_of_dates
from diskgnn.training.checkpoints import load_checkpoint

_CHOICES = (
    "give `at`, one time for all, or seeds with times (`times` in Python; of a table the column `time`, or what "
    "`columns` says), or pass ignore_times=True to draw what is later, too"
)


def trained_sampling(model: nn.Module | PathLike) -> Mapping[str, Any] | None:
    """Returns how the minibatches of a checkpoint were drawn: see `formats.samples_config.drawing_to_json`.

    None: nobody knows, of a module, or of minibatches from a source of the user's own.

    Raises:
        ArtifactError: as `load_checkpoint`.
    """
    if isinstance(model, nn.Module):
        return None
    found: Mapping[str, Any] | None = load_checkpoint(model)["config"]["sampling"]
    return found


def as_trained(graph: Graph, model: nn.Module | PathLike) -> Graph:
    """Returns the graph without the columns that the minibatches of a checkpoint were without.

    Raises:
        ArtifactError: as `load_checkpoint`.
    """
    left_out = (trained_sampling(model) or {}).get("without", ())
    return graph.without([each for each in left_out if each in graph.kept_columns])


def is_temporal(sampling: Mapping[str, Any] | None) -> bool:
    """Returns True if draws went by times."""
    return sampling is not None and sampling["temporal"] in ("uniform", "last")


@dataclass(frozen=True)
class SeedTimes:
    """A time for each seed.

    Attributes:
        counted: [n] what draws go by: whole numbers as the graph's times are.
        as_given: [n] what tables of predictions say, so that they can be joined with what was asked.
    """

    counted: npt.NDArray[np.int64]
    as_given: pa.Array | pa.ChunkedArray


def prepared_times(
    packed: Packed, split: str, seeds: npt.NDArray[np.int64], reporter: Reporter
) -> SeedTimes | None:  # fmt: skip
    """Returns the times that the seeds of a packed directory were given with, as whole numbers like the graph's; None
    if there are none that draws went by.

    Args:
        packed: the directory.
        split: whose seeds they are.
        seeds: [n] nodes, in the order of the minibatches of its first epoch.
        reporter: told where it is not known which time is whose.

    Raises:
        ArtifactError: the files of seeds are damaged, or others than those of the minibatches.
    """
    spec, name = packed.config.samples.spec, given_file("times", split)
    if not isinstance(spec.target, NodeTarget) or not spec.is_temporal or name not in packed.manifest.files:
        return None
    times, given = (packed.manifest.checked_array(given_file(each, split)) for each in ("times", "seeds"))
    if split == "train" and spec.shuffle:
        if spec.group_seeds > 1:
            say(reporter, lambda: (
                f"rows have no times: train seeds of {packed.location} are in an order that only the graph tells, as "
                "they were grouped; `predict` of the graph writes them"
            ))  # fmt: skip
            return None
        order = shuffled_seeds(len(times), 1, spec.seed, spec.first_epoch)
        times, given = times[order], given[order]
    if not np.array_equal(given, seeds):
        raise ArtifactError(
            f"{packed.location}: expected the seeds of its minibatches in {given_file('seeds', split)}, found others; "
            "prepare it again"
        )
    return SeedTimes(times, pa.array(times))


@dataclass(frozen=True)
class Draws:
    """Says how neighbourhoods of the seeds that are asked about are drawn.

    Attributes:
        spec: with neither seeds nor their times.
        at: the time of all seeds; None: `by_seed` has them.
        by_seed: a time for each; None, too: the nodes' own, or none count.
    """

    spec: SamplingSpec
    at: int | None = None
    by_seed: SeedTimes | None = None

    def times(self, num_seeds: int) -> npt.NDArray[np.int64] | None:
        """Returns [num_seeds] of the seeds, in their order; None where none were given."""
        if self.at is not None:
            return np.full(num_seeds, self.at, np.int64)
        return None if self.by_seed is None else self.by_seed.counted


@dataclass(frozen=True)
class AskedTimes:
    """Holds what `predict` was asked for: its arguments of these names.

    Raises:
        ConfigError: several of them, or no times.
    """

    times: npt.ArrayLike | None = None
    at: Moment | None = None
    ignore_times: bool = False

    def __post_init__(self) -> None:
        if self.at is not None:
            moment("at", self.at)
        found = {"times": self.times is not None, "at": self.at is not None, "ignore_times": self.ignore_times}
        given = [name for name, is_given in found.items() if is_given]
        if len(given) > 1:
            raise ConfigError(f"{given[0]}: expected one of times, at and ignore_times, found {' and '.join(given)}")

    def draws(
        self,
        graph: Graph,
        sampling: Mapping[str, Any] | None,
        spec: SamplingSpec,
        target: NodeTarget | LinkTarget,
        num_seeds: int,
        of_table: SeedTimes | None,
        reporter: Reporter,
    ) -> Draws:
        """Returns how to draw around `num_seeds` seeds.

        Args:
            graph: they are of.
            sampling: how the model was trained, see `trained_sampling`.
            spec: of draws that do not look at times.
            target: what the seeds are, with the type named; not which.
            of_table: [n] their times in the table that names them; None: it has none.
            reporter: told where seeds are asked at times of their own.

        Raises:
            ConfigError: draws have to go by times and nobody says by which; not one time for each seed; or dates and
                timestamps where the graph's times are in minutes or longer units.
        """
        ignored = replace(spec, temporal="ignore", **_as_in_training(graph, sampling))
        temporal = sampling["temporal"] if sampling is not None and is_temporal(sampling) else "uniform"
        in_time = replace(ignored, temporal=temporal, strict_time=bool(sampling and sampling["strict_time"]),
                          temporal_window=sampling.get("temporal_window") if sampling else None,
                          weighted=ignored.weighted and temporal != "last")  # fmt: skip
        if self.ignore_times:
            return Draws(ignored)
        unit = graph.config.time_unit
        if self.at is not None:
            return Draws(in_time, moment("at", self.at, "s" if is_number(self.at) else unit_of_dates("at", unit)))
        if self.times is not None:
            return Draws(in_time, by_seed=_seed_times(self.times, num_seeds, unit))
        if sampling is not None and not is_temporal(sampling):
            return Draws(ignored)
        if is_temporal(sampling) and of_table is not None:
            if len(of_table.counted) != num_seeds:
                raise ConfigError(f"times: expected one for each of {num_seeds} seeds, found {len(of_table.counted)}")
            return Draws(in_time, by_seed=of_table)
        timed = timed_types(graph, target, [np.array(spec.fanouts_by_type("test", tuple(graph.edges)), np.int32)])
        if not timed:
            return Draws(ignored)
        if sampling is None:
            raise ConfigError(
                f"times: {', '.join(timed)} of {graph.manifest.path} have times, and the model does not say how its "
                f"minibatches were drawn (a checkpoint of `diskgnn train` does): {_CHOICES}"
            )
        if "times" not in sampling["target"] and _have_times(graph, target):
            say(reporter, lambda: "each seed is asked at its own time in the graph, as in training; `at` says another")
            return Draws(in_time)
        raise ConfigError(
            f"times: the model was trained with temporal={temporal!r}, and {', '.join(timed)} of {graph.manifest.path} "
            f"have times: {_CHOICES}"
        )


def _seed_times(times: npt.ArrayLike, num_seeds: int, unit: str | None) -> SeedTimes:
    """Returns the times that were given for seeds.

    Raises:
        ConfigError: not one for each.
    """
    found = np.asarray(times)
    expected = f"times: expected a whole number, a date or a timestamp for each of {num_seeds} seeds"
    if found.shape != (num_seeds,) or found.dtype.kind not in "iuMOU":
        raise ConfigError(f"{expected}, found {found.dtype} {list(found.shape)}")
    try:
        given = column_of(found)
        numbers = counted(given, "times", unit)
    except (InputError, pa.ArrowException, OverflowError, TypeError) as error:
        raise ConfigError(f"{expected}, found others ({error})") from error
    if numbers.null_count:
        place = int(np.asarray(numbers.is_null()).argmax())
        raise ConfigError(f"{expected}, found none at {place} (from 0)")
    return SeedTimes(np.asarray(numbers), given)


def _as_in_training(graph: Graph, sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the kind of draws; weights count where this graph has some."""
    if sampling is None:
        return {}
    has_weights = any(edges.config.has_weights for edges in graph.edges.values())
    return {"draws": sampling["draws"], "weighted": sampling["weighted"] and has_weights}


def _have_times(graph: Graph, target: NodeTarget | LinkTarget) -> bool:
    if isinstance(target, LinkTarget):
        return any(graph.nodes[end].config.has_times for end in (target.edge_type[0], target.edge_type[2]))
    return graph.nodes[str(target.node_type)].config.has_times
