"""What randomness is made of: keys and orders that are pure functions of (seed, split, epoch, ...).

So the bytes of every stage depend neither on the number of threads nor on what was done before.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def batch_key(seed: int, split: str, epoch: int) -> int:
    """Returns the 64-bit key from which all draws of one epoch of one split derive."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{split}/{epoch}".encode(), digest_size=8).digest(), "little")


def slice_start(seed: int, split: str, epoch: int, number: int) -> int:
    """Returns where coordinated draws begin on the circle of 64-bit hashes, in one minibatch: anywhere."""
    return batch_key(seed, f"{split}/slice/{number}", epoch)


def moving_slice_start(seed: int, split: str, position: int, period: int) -> int:
    """Returns the same where it moves on with every minibatch, and goes round once in `period` of them.

    Args:
        position: of the minibatch, counted on over all epochs.
    """
    return (batch_key(seed, f"{split}/slice", 0) + (position << 64) // period) % (1 << 64)


def random_bits(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns 64 random bits for each counter: SplitMix64, the same on every machine and with every NumPy."""
    state = counters * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def random_below(bits: npt.NDArray[np.uint64], bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns uniform numbers in [0, bound) from 64 bits each: the high half of bits * bound (Lemire)."""
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    wide = bounds.astype(np.uint64)
    high_bits, low_bits = bits >> half, bits & low
    high_bound, low_bound = wide >> half, wide & low
    middle = high_bits * low_bound + (low_bits * low_bound >> half)
    other = low_bits * high_bound + (middle & low)
    found: npt.NDArray[np.uint64] = high_bits * high_bound + (middle >> half) + (other >> half)
    return found.astype(np.int64)


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """Returns [count] a shuffled order of 0 to count - 1, the same on every machine and with every NumPy.

    Sorts by random bits of the position: no two have the same, so all ways to sort them agree.
    """
    return np.argsort(random_bits(key, np.arange(count, dtype=np.uint64)))


def shuffled_seeds(count: int, group_size: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Returns [count] positions of train seeds in the order of one epoch: groups of so many are shuffled as wholes."""
    size = min(group_size, count)
    groups = permutation(-(-count // size), batch_key(seed, "train/shuffle", epoch))
    positions = (groups[:, None] * size + np.arange(size)).ravel()
    return positions[positions < count]  # the last group may be smaller
