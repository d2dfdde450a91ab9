"""Which partitions are in memory when, and which training nodes are used then: MariusGNN's orders, as pure functions.

Waleffe et al., MariusGNN: Resource-Efficient Out-of-Core Training of Graph Neural Networks, EuroSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn.draws import batch_key, permutation
from diskgnn.errors import ConfigError

ORDERS = ("comet", "dispersed", "cached")


@dataclass(frozen=True)
class BufferSpec:
    """A partition buffer, and what it is used for.

    Raises:
        ConfigError: no such order, or a number of resident partitions that cannot work.
    """

    order: str  # one of ORDERS
    num_partitions: int  # p
    resident: int  # c, partitions that are sampled from at a time
    batch_size: int  # seeds per minibatch, at most

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ConfigError(f"order: expected one of {', '.join(ORDERS)}, found {self.order!r}")
        if not (2 <= self.resident <= self.num_partitions or self.resident == self.num_partitions):
            raise ConfigError(f"resident: expected 2 to {self.num_partitions} partitions, found {self.resident}")

    @property
    def group(self) -> int:
        """Returns physical partitions in a logical one: see `group_size`."""
        return group_size(self.num_partitions, self.resident)

    @property
    def num_logical(self) -> int:
        """Returns logical partitions."""
        return self.num_partitions // self.group

    @property
    def capacity(self) -> int:
        """Returns logical partitions that are resident."""
        return self.resident // self.group

    @property
    def num_slots(self) -> int:
        """Places for partitions: see `num_slots`."""
        return num_slots(self.order, self.num_partitions, self.resident)


@dataclass(frozen=True)
class EpochOrder:
    """One epoch: buffer states in turn, and the seeds of each minibatch.

    A slot keeps its partition for as long as that is resident. `num_slots` leaves some free in each state, which take
    what the next one needs.
    """

    slots: npt.NDArray[np.int64]  # [states, slots] the partition in each slot; -1: none
    batch_state: npt.NDArray[np.int64]  # [T] the state in which each minibatch is sampled, ascending; none is left out
    batches: tuple[npt.NDArray[np.int64], ...]  # per minibatch, positions in the list of training nodes

    def enters_free_slots(self, state: int) -> bool:
        """Returns True if `state` overwrites nothing of the state before it."""
        before, now = self.slots[state - 1 : state + 1]
        return bool((before[(now >= 0) & (now != before)] < 0).all())


@dataclass(frozen=True)
class EpochShape:
    """Holds what all epochs have in common."""

    rounds: int  # of `round_states`; 0: the order's own states, all of them
    num_batches: int


class Draws:
    """A stream of shuffles that follow from a key."""

    def __init__(self, key: int) -> None:
        self._key = key

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Returns [count] the next shuffled order."""
        self._key = (self._key + 0x9E3779B97F4A7C15) % 2**64
        return permutation(count, self._key)


def group_size(num_partitions: int, resident: int) -> int:
    """Returns physical partitions in a logical one: so many that two logical ones, or few more, fill the buffer.

    The paper's rule is 2 * num_partitions / resident logical partitions; here also a divisor of both numbers.
    """
    if resident == num_partitions:
        return num_partitions
    return max(d for d in range(1, resident // 2 + 1) if num_partitions % d == 0 and resident % d == 0)


def num_slots(order: str, num_partitions: int, resident: int) -> int:
    """Places for partitions: those of a state, and as many as are read ahead of the next one."""
    reads_ahead = resident < num_partitions and order != "cached"  # that has one state an epoch
    return resident + (group_size(num_partitions, resident) if reads_ahead else 0)


def comet_states(num_logical: int, capacity: int, draws: Draws) -> list[list[int]]:
    """Sets of `capacity` logical partitions such that every pair meets, each set one swap from the one before.

    All but one stay while the last slot sees everything on disk; then those have met everybody, and are replaced.
    """
    everyone = draws.permutation(num_logical).tolist()
    buffer, disk = everyone[:capacity], everyone[capacity:]
    states = [list(buffer)]
    while disk:
        buffer = [buffer[i] for i in draws.permutation(len(buffer))]
        disk = [disk[i] for i in draws.permutation(len(disk))]
        for i, admitted in enumerate(disk):
            disk[i], buffer[-1] = buffer[-1], admitted
            states.append(list(buffer))
        disk = [disk[i] for i in draws.permutation(len(disk))]
        for i, admitted in enumerate(disk[: capacity - 1]):
            buffer[i] = admitted
            states.append(list(buffer))
        disk = disk[capacity - 1 :]
    return states


def dispersed_states(num_logical: int, capacity: int, draws: Draws) -> list[list[int]]:
    """Sets of `capacity` logical partitions in which each enters once, one swap from the set before."""
    everyone = draws.permutation(num_logical).tolist()
    buffer, disk = everyone[:capacity], everyone[capacity:]
    states = [list(buffer)]
    for admitted in disk:
        buffer = [buffer[i] for i in draws.permutation(capacity)]
        buffer[-1] = admitted
        states.append(list(buffer))
    return states


_ORDER_STATES = {"comet": comet_states, "dispersed": dispersed_states}


def round_states(num_logical: int, capacity: int, rounds: int, draws: Draws) -> list[list[int]]:
    """Sets of `capacity` logical partitions: in each round, everyone is in one (and some in two, to fill the last one).

    Sorted, so that one stays while its partners pass by, as in COMET's order, which has all pairs.
    """
    states: list[list[int]] = []
    for _ in range(rounds):
        everyone = draws.permutation(num_logical)
        for first in range(0, num_logical, capacity):
            states.append(sorted(everyone.take(range(first, first + capacity), mode="wrap").tolist()))
    return sorted(states)


def epoch_shape(train_partition: npt.NDArray[np.int64], buffer: BufferSpec) -> EpochShape:
    """Returns how many states are worth visiting, and the minibatches of an epoch; arguments as those of `order_epoch`.

    The fewest rounds in which no state can have more seeds than a minibatch; the order's own states where those are no
    more. Minibatches are as many as there can be, whatever the epoch draws.
    """
    num_nodes, num_logical, capacity = len(train_partition), buffer.num_logical, buffer.capacity
    states, rounds, appearances = 1, 0, 1  # each partition with seeds is in so many states, at least
    if buffer.order != "cached" and capacity < num_logical:
        states = len(_ORDER_STATES[buffer.order](num_logical, capacity, Draws(0)))
        appearances = -(-(num_logical - 1) // (capacity - 1)) if buffer.order == "comet" else 1
        per_round = -(-num_logical // capacity)
        for number in range(1, -(-states // per_round)):
            if _most_seeds(train_partition, buffer.resident, number) <= buffer.batch_size:
                states, rounds, appearances = number * per_round, number, number
                break
    # At worst, all states but one end with a minibatch of a single seed; but none has more than its most seeds fill.
    most = -(-_most_seeds(train_partition, buffer.resident, appearances) // buffer.batch_size)
    return EpochShape(rounds, min(num_nodes, -(-num_nodes // buffer.batch_size) + states - 1, states * most))


def order_epoch(train_partition: npt.NDArray[np.int64], buffer: BufferSpec, *, seed: int, epoch: int) -> EpochOrder:
    """Returns the buffer states of one epoch and its minibatches.

    Every training node is used once, in a state drawn from those in which its partition is resident (the paper's
    deferred assignment). States are those of `epoch_shape`, without those that no training node was drawn for; every
    epoch has its number of minibatches.

    Args:
        train_partition: [n] the partition of each training node.
        buffer: its order 'cached' has one state: the first partitions, which have all training nodes, and others at
            random.
        seed, epoch: all that is random follows from them.

    Raises:
        ConfigError: 'cached', and the partitions that have training nodes do not fit.
    """
    draws = Draws(batch_key(seed, "train/partitions", epoch))
    shape = epoch_shape(train_partition, buffer)
    if buffer.order == "cached":
        states = _cached_state(train_partition, buffer, draws)
    else:
        if shape.rounds:
            logical = round_states(buffer.num_logical, buffer.capacity, shape.rounds, draws)
        else:
            logical = _ORDER_STATES[buffer.order](buffer.num_logical, buffer.capacity, draws)
        # Members of each logical partition, drawn every epoch.
        members = draws.permutation(buffer.num_partitions).reshape(-1, buffer.group)
        states = members[np.array(logical)].reshape(len(logical), buffer.resident)
    state_of_node = _assign_nodes(train_partition, states, buffer.num_partitions, draws)
    used, state_of_node = np.unique(state_of_node, return_inverse=True)
    batch_state, batches = [], []
    counts = _batches_per_state(np.bincount(state_of_node), buffer.batch_size, shape.num_batches)
    for state, count in enumerate(counts):
        nodes = np.flatnonzero(state_of_node == state)
        batches += np.array_split(nodes[draws.permutation(len(nodes))], count)
        batch_state += [state] * count
    slots = _assign_slots(states[used], buffer.num_slots)
    return EpochOrder(slots, np.array(batch_state, np.int64), tuple(batches))


def _cached_state(train_partition: npt.NDArray[np.int64], buffer: BufferSpec, draws: Draws) -> npt.NDArray[np.int64]:
    """Returns [1, c] the only state of order 'cached'."""
    cached = int(train_partition.max()) + 1
    if cached > buffer.resident:
        raise ConfigError(
            f"order='cached': training nodes fill {cached} of {buffer.num_partitions} partitions, only "
            f"{buffer.resident} are resident; raise resident, or use order='comet'"
        )
    others = cached + draws.permutation(buffer.num_partitions - cached)[: buffer.resident - cached]
    return np.concatenate([np.arange(cached), others])[None, :]


def _most_seeds(train_partition: npt.NDArray[np.int64], resident: int, appearances: int) -> int:
    """Returns how many seeds a state may have if each partition's are dealt out evenly to at least `appearances`
    states."""
    shares = -(-np.bincount(train_partition) // appearances)
    return int(np.sort(shares)[-resident:].sum())


def _assign_slots(states: npt.NDArray[np.int64], slots_in_all: int) -> npt.NDArray[np.int64]:
    """Returns [states, slots] such that what stays keeps its slot, and what enters takes those that were free,
    first."""
    slots = np.full((len(states), slots_in_all), -1, np.int64)
    slots[0, : states.shape[1]] = states[0]
    for before, now, state in zip(slots, slots[1:], states[1:], strict=False):
        stays = np.isin(before, state)
        now[stays] = before[stays]
        entering = state[~np.isin(state, before)]
        vacant = np.concatenate([np.flatnonzero(before < 0), np.flatnonzero((before >= 0) & ~stays)])
        now[vacant[: len(entering)]] = entering
    return slots


def _assign_nodes(
    train_partition: npt.NDArray[np.int64], states: npt.NDArray[np.int64], num_partitions: int, draws: Draws
) -> npt.NDArray[np.int64]:
    """Returns [n] a state for each training node, in turn among those that hold its partition, in a shuffled order."""
    state_of_node = np.empty(len(train_partition), np.int64)
    for partition in range(num_partitions):
        nodes = np.flatnonzero(train_partition == partition)
        if len(nodes):
            holding = np.flatnonzero((states == partition).any(axis=1))
            state_of_node[nodes] = holding[draws.permutation(len(nodes)) % len(holding)]
    return state_of_node


def _batches_per_state(sizes: npt.NDArray[np.int64], batch_size: int, total: int) -> npt.NDArray[np.int64]:
    """Returns [states] minibatches of each; those to spare go where minibatches are largest."""
    counts = -(-sizes // batch_size)
    for _ in range(total - int(counts.sum())):
        counts[np.argmax(sizes / counts)] += 1
    return counts
