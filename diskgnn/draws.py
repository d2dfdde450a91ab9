"""What randomness is made of: keys and orders that are pure functions of (seed, split, epoch, ...).

So the bytes of every stage depend neither on the number of threads nor on what was done before.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt


def batch_key(seed: int, split: str, epoch: int) -> int:
    """The 64-bit key from which all draws of one epoch of one split derive."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{split}/{epoch}".encode(), digest_size=8).digest(), "little")


def slice_start(seed: int, split: str, epoch: int, number: int) -> int:
    """Where coordinated draws begin on the circle of 64-bit hashes, in one minibatch: anywhere."""
    return batch_key(seed, f"{split}/slice/{number}", epoch)


def moving_slice_start(seed: int, split: str, position: int, period: int) -> int:
    """The same where it moves on with every minibatch, and goes round once in `period` of them.

    Args:
        position: of the minibatch, counted on over all epochs.
    """
    return (batch_key(seed, f"{split}/slice", 0) + (position << 64) // period) % (1 << 64)


def permutation(count: int, key: int) -> npt.NDArray[np.int64]:
    """[count] a shuffled order of 0 to count - 1, the same on every machine and with every NumPy.

    Sorts by SplitMix64 of the position.
    """
    state = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state += np.uint64(key)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.argsort(state ^ (state >> np.uint64(31)), kind="stable")
