"""Which partitions are in memory when, and which training nodes are used then: MariusGNN's orders, as pure functions.

Waleffe et al., MariusGNN: Resource-Efficient Out-of-Core Training of Graph Neural Networks, EuroSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from diskgnn.errors import ConfigError
from diskgnn.sampling import batch_key, permutation

ORDERS = ("comet", "dispersed", "cached")


@dataclass(frozen=True)
class BufferPlan:
    """One epoch: buffer states in turn, and the seeds of each minibatch.

    A slot keeps its partition for as long as that is resident. `slots` has `group` columns more than partitions are
    resident: those that are free in one state take what the next one needs.
    """

    slots: npt.NDArray[np.int64]  # [states, slots] the partition in each slot; -1: none
    batch_state: npt.NDArray[np.int64]  # [T] the state in which each minibatch is sampled, ascending
    batches: tuple[npt.NDArray[np.int64], ...]  # per minibatch, positions in the list of training nodes


class Draws:
    """A stream of shuffles that follow from a key."""

    def __init__(self, key: int) -> None:
        self._key = key

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """[count] the next shuffled order."""
        self._key = (self._key + 0x9E3779B97F4A7C15) % 2**64
        return permutation(count, self._key)


def group_size(num_partitions: int, resident: int) -> int:
    """Physical partitions in a logical one: so many that two logical ones, or few more, fill the buffer.

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


def plan_epoch(
    train_partition: npt.NDArray[np.int64],
    *,
    order: str,
    num_partitions: int,
    resident: int,
    batch_size: int,
    seed: int,
    epoch: int,
) -> BufferPlan:
    """The buffer states of one epoch and its minibatches.

    Every training node is used once, in a state drawn from those in which its partition is resident (the paper's
    deferred assignment). Every epoch has the same number of minibatches, `num_batches`.

    Args:
        train_partition: [n] the partition of each training node.
        order: 'comet', 'dispersed', or 'cached' (one state: the first partitions, which have all training nodes, and
            others at random).
        num_partitions: p.
        resident: c, partitions in memory.
        batch_size: seeds per minibatch, at most.
        seed, epoch: all that is random follows from them.

    Raises:
        ConfigError: 'cached', and the partitions that have training nodes do not fit.
    """
    draws = Draws(batch_key(seed, "train/partitions", epoch))
    group = group_size(num_partitions, resident)
    if order == "cached":
        cached = int(train_partition.max()) + 1
        if cached > resident:
            raise ConfigError(
                f"order='cached': training nodes fill {cached} of {num_partitions} partitions, only {resident} are "
                f"resident; raise resident, or use order='comet'"
            )
        others = cached + draws.permutation(num_partitions - cached)[: resident - cached]
        slots = np.concatenate([np.arange(cached), others])[None, :]
    else:
        make = comet_states if order == "comet" else dispersed_states
        logical = make(num_partitions // group, resident // group, draws)
        members = draws.permutation(num_partitions).reshape(-1, group)  # of each logical partition, drawn every epoch
        slots = _assign_slots([members[state].reshape(-1) for state in logical], group)
    state_of_node = _assign_nodes(train_partition, slots, num_partitions, draws)
    batch_state, batches = [], []
    sizes = np.bincount(state_of_node, minlength=len(slots))
    for state, count in enumerate(_batches_per_state(sizes, batch_size)):
        nodes = np.flatnonzero(state_of_node == state)
        nodes = nodes[draws.permutation(len(nodes))]
        batches += np.array_split(nodes, count) if count else []
        batch_state += [state] * count
    return BufferPlan(slots, np.array(batch_state, np.int64), tuple(batches))


def num_states(order: str, num_partitions: int, resident: int) -> int:
    """Buffer states in an epoch."""
    if order == "cached":
        return 1
    group = group_size(num_partitions, resident)
    make = comet_states if order == "comet" else dispersed_states
    return len(make(num_partitions // group, resident // group, Draws(0)))


def num_batches(num_nodes: int, batch_size: int, states: int) -> int:
    """Minibatches in an epoch, the same in all: as many as there can be when states do not fill their last ones."""
    return min(num_nodes, -(-num_nodes // batch_size) + states - 1)


def _assign_slots(states: list[npt.NDArray[np.int64]], group: int) -> npt.NDArray[np.int64]:
    """[states, slots] such that what stays keeps its slot, and nobody enters a slot that was left in the same step."""
    num_slots = len(states[0]) + (group if len(states) > 1 else 0)
    slots = np.full((len(states), num_slots), -1, np.int64)
    slots[0, : len(states[0])] = states[0]
    for number in range(1, len(states)):
        before, now = slots[number - 1], slots[number]
        stays = np.isin(before, states[number])
        now[stays] = before[stays]
        entering = states[number][~np.isin(states[number], before)]
        now[np.flatnonzero(before < 0)[: len(entering)]] = entering
    return slots


def _assign_nodes(
    train_partition: npt.NDArray[np.int64], slots: npt.NDArray[np.int64], num_partitions: int, draws: Draws
) -> npt.NDArray[np.int64]:
    """[n] a state for each training node, in turn among those that hold its partition, in a shuffled order."""
    state_of_node = np.empty(len(train_partition), np.int64)
    for partition in range(num_partitions):
        nodes = np.flatnonzero(train_partition == partition)
        states = np.flatnonzero((slots == partition).any(axis=1))
        assert len(states) or not len(nodes)
        if len(nodes):
            state_of_node[nodes] = states[draws.permutation(len(nodes)) % len(states)]
    return state_of_node


def _batches_per_state(sizes: npt.NDArray[np.int64], batch_size: int) -> npt.NDArray[np.int64]:
    """[states] minibatches of each; those to spare go where minibatches are largest."""
    counts = -(-sizes // batch_size)
    for _ in range(num_batches(int(sizes.sum()), batch_size, len(sizes)) - int(counts.sum())):
        counts[np.argmax(sizes / np.maximum(counts, 1))] += 1
    return counts
