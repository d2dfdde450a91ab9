"""Splits drawn at random among the nodes that have labels, the same ones whenever and wherever they are drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ConfigError
from diskgnn.importers.containers.rows import RowSource
from diskgnn.specs.schema import SPLITS

_BLOCK = 1 << 16  # labelled nodes that are shuffled together: what is in memory besides the splits


def parse_shares(given: str | Sequence[float]) -> tuple[float, ...]:
    """Returns the shares of train, valid and test, such as [0.8, 0.1, 0.1] or '0.8,0.1,0.1'.

    Raises:
        ConfigError: not three shares, or they are more than all; or nothing is of any.
    """
    try:
        shares = tuple(float(each) for each in (given.split(",") if isinstance(given, str) else given))
    except (TypeError, ValueError):
        shares = ()
    if len(shares) != len(SPLITS) or not all(0 <= each <= 1 for each in shares) or not 0 < sum(shares) <= 1.0001:
        raise ConfigError(
            f"random_split: expected shares of {', '.join(SPLITS)} that are 1 together or less, and not all 0, such as "
            "0.8,0.1,0.1; "
            f"found {given!r:.80}"
        )
    return shares


def random_splits(labels: RowSource, shares: Sequence[float]) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the nodes of each split in ascending order, of those whose label is not -1 or NaN. A split without nodes
    is left out.

    Args:
        labels: [N] or [N, C].
        shares: of train, valid and test, see `parse_shares`.
    """
    found: dict[str, list[npt.NDArray[np.int64]]] = {split: [] for split in SPLITS}
    for number, nodes in enumerate(_blocks(_labelled(labels))):
        shuffled = nodes[permutation(len(nodes), batch_key(0, "random split", number))]
        ends = np.round(np.cumsum(shares) * len(nodes)).astype(np.int64)
        for split, part in zip(SPLITS, np.split(shuffled, ends), strict=False):
            found[split].append(np.sort(part))
    splits = {split: np.concatenate([np.empty(0, np.int64), *parts]) for split, parts in found.items()}
    return {split: nodes for split, nodes in splits.items() if len(nodes)}


def _labelled(labels: RowSource) -> Iterator[npt.NDArray[np.int64]]:
    position = 0
    for chunk in labels.chunks():
        rows: npt.NDArray[Any] = chunk.reshape(len(chunk), -1)
        known = ~np.isnan(rows).all(axis=1) if rows.dtype.kind == "f" else (rows.astype(np.int64) >= 0).all(axis=1)
        yield np.flatnonzero(known) + position
        position += len(chunk)


def _blocks(pieces: Iterable[npt.NDArray[np.int64]]) -> Iterator[npt.NDArray[np.int64]]:
    """Yields the same nodes, so many at a time whatever the pieces are."""
    rest = np.empty(0, np.int64)
    for piece in pieces:
        rest = np.concatenate([rest, piece])
        while len(rest) >= _BLOCK:
            yield rest[:_BLOCK]
            rest = rest[_BLOCK:]
    if len(rest):
        yield rest
