"""Draws minibatches by a function of the user's, and checks each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from diskgnn.errors import DiskGNNError, InputError
from diskgnn.formats.graph_config import id_dtype
from diskgnn.graph.graph import Graph
from diskgnn.sampling.neighbourhood import Neighbourhood
from diskgnn.specs.schema import EdgeType, edge_type_name
from diskgnn.specs.user_sampler import UserSampler

Array = npt.NDArray[Any]

# What samplers return, native ones too: input nodes of each node type, trees of each, blocks outermost first by edge
# type, [layers + 1, node types] counts of nodes
DrawnArrays = tuple[
    list[Array],
    list[npt.NDArray[np.int32]] | None,
    list[list[tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Array | None]]],
    npt.NDArray[np.int32],
]


class UserDraws:
    """Draws the minibatches of a plan by a `UserSampler`.

    Args:
        sampler: called as `neighbourhood` says; by several threads.
        graph: whose minibatches are drawn.
        id_dtype: of node ids.
        positions: the edge types whose blocks say where their edges lie.

    Raises:
        ConfigError: the function cannot be imported.
    """

    def __init__(
        self, sampler: UserSampler, graph: Graph, id_dtype: npt.DTypeLike, positions: Sequence[EdgeType]
    ) -> None:
        self._name, self._function = sampler.name, sampler.load()
        self._graph, self._id_dtype, self._positions = graph, id_dtype, set(positions)

    def draw(self, name: str, seeds_by_type: Sequence[Array], key: int, number: int, num_layers: int) -> DrawnArrays:
        """Draws one minibatch; see `PlannedMinibatch` for `key` and `number`.

        Args:
            name: which minibatch it is, for people.
            seeds_by_type: of each node type of the graph, in its order.
            key, number: with these, the function's randomness begins.
            num_layers: blocks that are expected.

        Raises:
            InputError: the function raised an error, or returned what is no neighbourhood of these seeds; names the
                minibatch.
        """
        by_type = dict(zip(self._graph.nodes, seeds_by_type, strict=True))
        copies = {node_type: ids.copy() for node_type, ids in by_type.items()}  # which the function may change
        try:
            found = self._function(
                copies if self._graph.is_typed else next(iter(copies.values())), np.random.default_rng([key, number])
            )
            return self._checked(found, by_type, num_layers)
        except _Unfit as error:
            raise InputError(f"sampler {self._name}: of {name}, {error}") from error
        except DiskGNNError as error:
            raise InputError(f"sampler {self._name} failed on {name}: {error}") from error
        except Exception as error:
            raise InputError(f"sampler {self._name} failed on {name}: {error!r}") from error

    def _checked(self, found: object, seeds: Mapping[str, Array], num_layers: int) -> DrawnArrays:
        _require(isinstance(found, Neighbourhood), f"expected a diskgnn.Neighbourhood, found {type(found).__name__}")
        assert isinstance(found, Neighbourhood)
        _require(len(found.blocks) == num_layers, f"expected {num_layers} blocks, found {len(found.blocks)}")
        nodes, blocks = self._by_type(found)
        for name, ids in nodes.items():
            self._check_nodes(name, ids, seeds[name])
        counts = self._counts(found, nodes, blocks, seeds)
        layers = [
            [
                self._block(edge_type, layer.get(edge_type), f"block {number}", counts[number], counts[number + 1])
                for edge_type in self._graph.edges
            ]
            for number, layer in enumerate(blocks)
        ]
        table = [count[name] for count in counts for name in nodes]
        return [ids.astype(self._id_dtype) for ids in nodes.values()], None, layers, np.array(table, np.int32)

    def _by_type(self, found: Neighbourhood) -> tuple[dict[str, Array], list[Mapping[EdgeType, Sequence[Array]]]]:
        """Returns the nodes of all types, in the order of the graph, and blocks by edge type."""
        blocks: list[Mapping[EdgeType, Sequence[Array]]]
        if not self._graph.is_typed:
            (node_type,), (edge_type,) = self._graph.nodes, self._graph.edges
            _require(not isinstance(found.nodes, Mapping), "expected an array of nodes, found nodes by type")
            blocks = [{edge_type: block} for block in found.blocks if not isinstance(block, Mapping)]
            _require(len(blocks) == len(found.blocks), "expected blocks of arrays, found blocks by type")
            return {node_type: np.asarray(found.nodes)}, blocks
        _require(isinstance(found.nodes, Mapping), "expected nodes by type, found an array")
        assert isinstance(found.nodes, Mapping)
        _require_known("node type", found.nodes, self._graph.nodes)
        blocks = []
        for block in found.blocks:
            _require(isinstance(block, Mapping), "expected blocks by edge type, found arrays")
            assert isinstance(block, Mapping)
            _require_known("edge type", block, self._graph.edges)
            blocks.append(block)
        return {name: np.asarray(found.nodes.get(name, np.empty(0, np.int64))) for name in self._graph.nodes}, blocks

    def _check_nodes(self, name: str, ids: Array, seeds: Array) -> None:
        num_nodes = self._graph.nodes[name].num_nodes
        _require_whole(f"{name} nodes", ids)
        if len(ids):
            outside = ids[(ids < 0) | (ids >= num_nodes)]
            _require(not len(outside), f"{name} nodes are 0 to {num_nodes - 1}, found {outside[:1].tolist()}")
        _require(
            np.array_equal(ids[: len(seeds)], seeds), f"expected the first {len(seeds)} {name} nodes to be the seeds"
        )
        _require(len(np.unique(ids)) == len(ids), f"{name} nodes are expected once each, some are there twice")

    def _counts(
        self,
        found: Neighbourhood,
        nodes: Mapping[str, Array],
        blocks: Sequence[Mapping[EdgeType, Sequence[Array]]],
        seeds: Mapping[str, Array],
    ) -> list[dict[str, int]]:
        """Returns [layers + 1] nodes of each type, outermost first."""
        if found.counts is None:
            _require(len(nodes) == 1, "expected `counts` of the nodes of each type, found none")
            (name,) = nodes
            lengths = [max(len(next(iter(block.values()))[0]) - 1, 0) for block in blocks]
            counts = [{name: count} for count in (len(nodes[name]), *lengths)]
        else:
            counts = [{name: int(count.get(name, 0)) for name in nodes} for count in found.counts]
        _require(len(counts) == len(blocks) + 1, f"expected {len(blocks) + 1} counts of nodes, found {len(counts)}")
        for name, ids in nodes.items():
            told = [count[name] for count in counts]
            expected = f"{len(ids)} nodes first and {len(seeds[name])} seeds last, none more than the one before"
            is_fit = told[0] == len(ids) and told[-1] == len(seeds[name]) and told == sorted(told, reverse=True)
            _require(is_fit, f"expected counts of {name} nodes from all {expected}; found {told}")
        return counts

    def _block(
        self,
        edge_type: EdgeType,
        arrays: Sequence[Array] | None,
        where: str,
        sources: Mapping[str, int],
        destinations: Mapping[str, int],
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Array | None]:
        num_edges, num_dst, num_src = (
            self._graph.edges[edge_type].num_edges, destinations[edge_type[2]], sources[edge_type[0]],
        )  # fmt: skip
        wanted = edge_type in self._positions
        where = f"{where}, {edge_type_name(edge_type)}" if self._graph.is_typed else where
        if arrays is None:
            arrays = (np.zeros(num_dst + 1, np.int32), np.empty(0, np.int32), np.empty(0, np.int32))
        _require(
            len(arrays) in (2, 3) and (len(arrays) == 3 or not wanted),
            f"{where}: expected indptr, indices{' and positions' if wanted else ''}, found {len(arrays)} arrays",
        )
        indptr, indices = np.asarray(arrays[0]), np.asarray(arrays[1])
        _require_whole(f"{where}: indptr", indptr)
        _require_whole(f"{where}: indices", indices)
        is_indptr = len(indptr) == num_dst + 1 and indptr[0] == 0 and indptr[-1] == len(indices)
        _require(
            bool(is_indptr and (np.diff(indptr) >= 0).all()),
            f"{where}: expected an indptr of {num_dst + 1} numbers that ascend from 0 to {len(indices)}, found "
            f"{len(indptr)} of them",
        )
        _require_below(f"{where}: indices", indices, num_src)
        if not wanted:
            return indptr.astype(np.int32), indices.astype(np.int32), None
        positions = np.asarray(arrays[2])
        _require_whole(f"{where}: positions", positions)
        _require(len(positions) == len(indices), f"{where}: expected a position for each edge, found {len(positions)}")
        _require_below(f"{where}: positions", positions, num_edges)
        return indptr.astype(np.int32), indices.astype(np.int32), positions.astype(id_dtype(num_edges))


class _Unfit(Exception):  # noqa: N818  # becomes an InputError that names the minibatch
    """Tells that what a function returned is no neighbourhood."""


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise _Unfit(message)


def _require_known(what: str, found: Mapping[Any, Any], known: Mapping[Any, Any]) -> None:
    if unknown := [each for each in found if each not in known]:
        raise _Unfit(f"the graph has no {what} {unknown[0]!r}, only {', '.join(map(str, known))}")


def _require_whole(what: str, values: Array) -> None:
    _require(
        values.ndim == 1 and (values.dtype.kind in "iu" or not len(values)),
        f"{what}: expected whole numbers [n], found {values.dtype} {list(values.shape)}",
    )


def _require_below(what: str, values: Array, limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        outside = values[(values < 0) | (values >= limit)]
        raise _Unfit(f"{what}: expected numbers from 0 to {limit - 1}, found {outside[0]}")
