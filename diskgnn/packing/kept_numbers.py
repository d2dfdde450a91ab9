"""Adds to minibatches what headers keep of the graph and samples lack: times of nodes, and the user's ids of edges.

Where these are not in memory, they are read from front to back for a group of minibatches, as many as have room: each
minibatch's own would be read at random, a page for each number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.files.traffic import Traffic
from diskgnn.formats.artifacts import EDGE_IDS, TIMES
from diskgnn.formats.sampled_minibatch import SampledBlock, SampledMinibatch
from diskgnn.formats.samples_config import SamplesConfig
from diskgnn.graph.graph import Graph
from diskgnn.packing.stored_ints import INT_BYTES, LOOKUP_BYTES, StoredInts

_Ints = npt.NDArray[np.int64]
_Answers = Callable[[npt.NDArray[Any]], _Ints]


def kept_files(graph: Graph, samples: SamplesConfig) -> dict[str, int]:
    """Returns the files of `graph` whose numbers headers keep, and what each takes in memory, in bytes."""
    files = {graph.nodes[name].file(TIMES): INT_BYTES * graph.nodes[name].num_nodes for name in samples.layout.times}
    if samples.spec.edge_ids:
        files |= {
            edges.file(EDGE_IDS): INT_BYTES * edges.num_edges for edges in graph.edges.values() if edges.config.has_ids
        }
    return files


class KeptNumbers:
    """The times of the input nodes of some types, and the ids of sampled edges, as far as headers keep them.

    Args:
        graph: the graph that was sampled.
        samples: config of the samples, which says what headers keep.
        loaded: the `kept_files` that are loaded. The others are read again and again.
        group_bytes: what the minibatches may take whose numbers are read together, these numbers included; one more
            minibatch may be there.
        traffic: gets the bytes that are read.

    Raises:
        ArtifactError: what is loaded is damaged.
        ReadError: the disk failed.
    """

    def __init__(
        self, graph: Graph, samples: SamplesConfig, *, loaded: Collection[str], group_bytes: int, traffic: Traffic
    ) -> None:
        names = kept_files(graph, samples)

        def stored(name: str) -> StoredInts | None:
            if name not in names:
                return None
            return StoredInts(graph.manifest, name, in_memory=name in loaded, traffic=traffic)

        # By type: where its numbers are, and what gives the positions that minibatches want.
        self._lookups = (
            ([stored(nodes.file(TIMES)) for nodes in graph.nodes.values()], _nodes),
            ([stored(edges.file(EDGE_IDS)) for edges in graph.edges.values()], _positions),
        )
        self._has_times, self._has_ids = bool(samples.layout.times), samples.spec.edge_ids
        self.group_bytes = group_bytes if len(names) > len(loaded) else 0

    def added_to(self, minibatches: Iterable[SampledMinibatch]) -> Generator[SampledMinibatch, None, None]:
        """Yields the minibatches with their times and edge ids.

        Raises:
            ArtifactError: the numbers are damaged.
            ReadError: the disk failed.
        """
        for group in self._groups(minibatches):
            yield from self._with_numbers(group)

    def _groups(self, minibatches: Iterable[SampledMinibatch]) -> Iterator[list[SampledMinibatch]]:
        """Yields minibatches that follow each other, which whoever takes them takes out of their list."""
        group, num_bytes = list[SampledMinibatch](), 0
        for minibatch in minibatches:
            group.append(minibatch)
            num_bytes += self._bytes_of(minibatch) if self.group_bytes else 0
            del minibatch  # or it would stay while the next ones are there
            if num_bytes >= self.group_bytes:
                yield group
                group, num_bytes = [], 0
        if group:
            yield group

    def _bytes_of(self, minibatch: SampledMinibatch) -> int:
        num_lookups = sum(
            len(positions)
            for files, wanted in self._lookups
            for number, stored in enumerate(files)
            if stored is not None and not stored.is_loaded
            for positions in wanted([minibatch], number)
        )
        return minibatch.num_bytes + LOOKUP_BYTES * num_lookups

    def _with_numbers(self, group: list[SampledMinibatch]) -> Iterator[SampledMinibatch]:
        times, ids = (
            [None if stored is None else _answers(stored, wanted(group, number)) for number, stored in enumerate(files)]
            for files, wanted in self._lookups
        )

        def with_ids(block: SampledBlock, of_type: _Answers | None) -> SampledBlock:
            assert block.positions is not None
            # The positions themselves, if the user gave no ids.
            found = block.positions.astype(np.int64) if of_type is None else of_type(block.positions)
            return replace(block, edge_ids=found)

        while group:
            minibatch = group.pop(0)
            if self._has_times:
                of_types = zip(times, minibatch.input_nodes, strict=True)
                found = tuple(None if of_type is None else of_type(nodes) for of_type, nodes in of_types)
                minibatch = replace(minibatch, times=found)
            if self._has_ids:
                blocks = tuple(tuple(map(with_ids, blocks, ids)) for blocks in minibatch.blocks)
                minibatch = replace(minibatch, blocks=blocks)
            yield minibatch


def _answers(stored: StoredInts, wanted: list[npt.NDArray[Any]]) -> _Answers:
    """Returns what gives the numbers at the positions of a group, when called with each of `wanted` in their order."""
    if stored.is_loaded:  # only when they are asked for: the memory of a group has no room for those of all
        return lambda positions: stored.at([positions])[0]
    found = iter(stored.at(wanted))
    return lambda _: next(found)


def _nodes(group: list[SampledMinibatch], t: int) -> list[npt.NDArray[Any]]:
    return [minibatch.input_nodes[t] for minibatch in group]


def _positions(group: list[SampledMinibatch], e: int) -> list[npt.NDArray[Any]]:
    """Returns those of each layer of each minibatch. Samples have those of all types if headers keep ids."""
    found = [blocks[e].positions for minibatch in group for blocks in minibatch.blocks]
    return [positions for positions in found if positions is not None]
