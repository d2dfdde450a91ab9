"""What a user gives for each split: seeds in place of a graph's own, and their times and labels."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from diskgnn.errors import ConfigError
from diskgnn.specs.near_names import near_name
from diskgnn.specs.null_times import MISSING
from diskgnn.specs.schema import SPLITS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


_TIMES = "whole numbers or datetime64 [n]"


class SplitArrays(Mapping[str, Any]):
    """An array for each split, in the order given: int64, or of labels. Two are equal if their digests are.

    The config of an artifact has only the digest; its arrays lie beside it (`work.seed_files`).

    Attributes:
        digest: names the arrays by their content.
        were_dates: some were datetime64 when they were given, and are seconds since 1970.
    """

    were_dates = False

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]], digest: str | None = None) -> None:
        self._arrays = {split: arrays[split] for split in SPLITS if split in arrays}
        self.digest = _digest(self._arrays) if digest is None else digest

    @staticmethod
    def of(name: str, given: Any, row_shape: tuple[int, ...] = ()) -> SplitArrays:
        """Checks the ids that a user gives.

        Args:
            name: of the argument, for messages.
            given: arrays, tensors or sequences of whole numbers [n, *row_shape], 0 or more, by split.
            row_shape: of one row.

        Raises:
            ConfigError: something else, an unknown split, or nothing.
        """
        if isinstance(given, SplitArrays):
            return given
        return SplitArrays(
            {split: _ids(f"{name}[{split!r}]", each, row_shape) for split, each in _by_split(name, given).items()}
        )

    @staticmethod
    def of_times(given: Any) -> SplitArrays:
        """Checks the times that a user gives.

        Args:
            given: arrays, tensors or sequences [n] of whole numbers, negative ones too, or of datetime64, which becomes
                seconds since 1970, rounded down; by split.

        Raises:
            ConfigError: something else, a missing time (NaT), an unknown split, or nothing.
        """
        if isinstance(given, SplitArrays):
            return given
        arrays = {split: _array(f"times[{split!r}]", each, _TIMES) for split, each in _by_split("times", given).items()}
        found = SplitArrays({split: _times(f"times[{split!r}]", array) for split, array in arrays.items()})
        found.were_dates = any(array.dtype.kind == "M" for array in arrays.values())
        return found

    @staticmethod
    def of_labels(given: Any) -> SplitArrays:
        """Labels that a user gives.

        Args:
            given: by split, classes [n] (whole numbers from 0 on, or truth values), several labels [n, C] (0 and 1), or
                numbers [n] or [n, C], NaN for none. Kept as int64, uint8 and float32.

        Raises:
            ConfigError: something else, or splits with labels of several kinds.
        """
        if isinstance(given, SplitArrays):
            return given
        if not isinstance(given, Mapping) or not given or set(given) - set(SPLITS):
            raise ConfigError("labels: expected a mapping such as {'train': labels}, with the splits of the seeds")
        found = SplitArrays({split: _checked_labels(f"labels[{split!r}]", each) for split, each in given.items()})
        if len(kinds := {(array.dtype.name, array.shape[1:]) for array in found.values()}) > 1:
            raise ConfigError(f"labels: expected the same kind in all splits, found {sorted(map(str, kinds))}")
        return found

    def __getitem__(self, split: str) -> npt.NDArray[Any]:
        return self._arrays[split]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitArrays) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(array)} {split}" for split, array in self._arrays.items())
        return f"SplitArrays({sizes or self.digest})"


def _by_split(name: str, given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{name}: expected a mapping such as {{'train': ids}}, found {type(given).__name__}")
    if not given or (unknown := [split for split in given if split not in SPLITS]):
        found = "none" if not given else repr(unknown[0])
        near = near_name(unknown[0], SPLITS) if given else ""
        raise ConfigError(f"{name}: expected ids for some of {', '.join(SPLITS)}, found {found}{near}")
    return given


def _array(name: str, given: Any, expected: str) -> npt.NDArray[Any]:
    import numpy as np  # the command line imports this module, and starts without NumPy

    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{name}: expected {expected}, found {type(given).__name__} ({error})") from error


def _ids(name: str, given: Any, row_shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    rows = f"[n, {', '.join(map(str, row_shape))}]" if row_shape else "[n]"
    array = _array(name, given, f"whole numbers {rows}")
    if array.dtype.kind == "b":
        raise ConfigError(f"{name}: expected ids, found a mask; pass numpy.flatnonzero(mask)")
    array = _whole_numbers(name, array, row_shape, f"whole numbers {rows}")
    if array.min() < 0:
        raise ConfigError(f"{name}: expected numbers of 0 or more, found {array.min()} to {array.max()}")
    return array


def _times(name: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    import numpy as np

    if array.dtype.kind == "M":
        array = array.astype("datetime64[s]").astype(np.int64)
    array = _whole_numbers(name, array, (), _TIMES)
    if array.min() == MISSING:
        raise ConfigError(f"{name}: expected a time for each, found none at {array.argmin()} (from 0)")
    return array


def _whole_numbers(
    name: str, array: npt.NDArray[Any], row_shape: tuple[int, ...], expected: str
) -> npt.NDArray[np.int64]:
    import numpy as np

    if array.shape[1:] != row_shape or array.ndim != 1 + len(row_shape) or (
        array.dtype.kind not in "iu" and array.size
    ):  # fmt: skip
        raise ConfigError(f"{name}: expected {expected}, found {array.dtype} {list(array.shape)}")
    if len(array) == 0:
        raise ConfigError(f"{name}: expected at least one, found none; leave the split out")
    if array.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"{name}: expected numbers below 2^63, found {array.max()}")
    return np.ascontiguousarray(array, np.int64).copy()


def _checked_labels(name: str, given: Any) -> npt.NDArray[Any]:
    import numpy as np

    array = _array(name, given, "numbers")
    if array.dtype.kind not in "biuf" or array.ndim not in (1, 2) or 0 in array.shape:
        raise ConfigError(f"{name}: expected numbers [n] or [n, C], found {array.dtype} {list(array.shape)}")
    if array.dtype.kind == "f":
        if np.isinf(array).any():
            raise ConfigError(f"{name}: expected finite numbers, or NaN for none, found an infinite one")
        return np.ascontiguousarray(array, np.float32).copy()
    least, most = int(array.min()), int(array.max())
    if array.ndim == 2 and not 0 <= least <= most <= 1:
        raise ConfigError(f"{name}: expected 0 and 1 for each of {array.shape[1]} labels, found {least} to {most}")
    if least < 0:
        raise ConfigError(f"{name}: expected classes of 0 or more, found {least}; leave seeds without a label out")
    return np.ascontiguousarray(array, np.int64 if array.ndim == 1 else np.uint8).copy()


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    found = hashlib.blake2b(digest_size=16)
    for split, array in arrays.items():
        dtype = "" if array.dtype.kind == "i" else f" {array.dtype.name}"
        found.update(f"{split} {array.shape}{dtype}".encode())
        found.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return found.hexdigest()
