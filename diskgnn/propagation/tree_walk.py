"""The order in which a panel computes a tree, and which of its slices are in memory at a time.

Depth first, so that these are slices along one branch. A slice goes when the last child is made of it; so the branch
that takes most comes last. Slices take the places of those that went: two places are enough for a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diskgnn.propagation.hop_tree import HopTree


@dataclass(frozen=True)
class Step:
    """A slice that is computed."""

    node: int  # of the tree
    place: int  # where it is
    parent_place: int | None  # of the slice that it is made of; None: features are loaded


@dataclass(frozen=True)
class Walk:
    """The slices of one root, in their order."""

    steps: tuple[Step, ...]
    place_rows: tuple[int, ...]  # the rows that each place has room for
    overwritten_rows: int  # of the features, the first ones, whose place other slices take in the end


def walk(tree: HopTree, root: int, num_rows: Sequence[int]) -> Walk:
    """Returns the order of the tree nodes below `root`, of so many rows each."""
    order = _order(tree, root, num_rows)
    last_use = {number: at for at, number in enumerate(order)}  # when the last slice is made of it
    for at, number in enumerate(order):
        if (parent := tree.nodes[number].parent) is not None:
            last_use[parent] = max(last_use[parent], at)
    held, place_rows, steps, places = dict[int, int](), list[int](), list[Step](), dict[int, int]()
    for at, number in enumerate(order):
        free = [place for place in range(len(place_rows)) if last_use[held[place]] < at]
        rows = num_rows[number]
        fitting = [place for place in free if place_rows[place] >= rows]
        if fitting:
            place = min(fitting, key=place_rows.__getitem__)
        elif free:
            place = max(free, key=place_rows.__getitem__)
            place_rows[place] = rows
        else:
            place = len(place_rows)
            place_rows.append(rows)
        held[place], places[number] = number, place
        parent = tree.nodes[number].parent
        steps.append(Step(number, place, None if parent is None else places[parent]))
    overwritten = [num_rows[step.node] for step in steps[1:] if step.place == steps[0].place]
    return Walk(tuple(steps), tuple(place_rows), min(num_rows[root], max(overwritten, default=0)))


def _order(tree: HopTree, root: int, num_rows: Sequence[int]) -> list[int]:
    """Returns the tree nodes depth first, of the children of one that which takes most rows last."""
    most, order = dict[int, int](), dict[int, list[int]]()  # rows at a time from each on, itself in memory
    for number in reversed(tree.below(root)):
        children = sorted(tree.children[number], key=lambda child: (most[child], child))
        own = num_rows[number]
        before = [own + most[child] for child in children[:-1]]  # while these are computed, this one stays
        last = [max(own + num_rows[child], most[child]) for child in children[-1:]]
        most[number] = max([own, *before, *last])
        order[number] = [number, *(each for child in children for each in order[child])]
    return order[root]
