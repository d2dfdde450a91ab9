"""What inference does, decided beforehand: passes over files, how many columns and rows at a time, bytes and memory.

The schedule. Sums over in-neighbours do not mix columns. So a *panel*, some columns of the rows of all sources, is read
into memory; edges pass by in the order in which the graph has them; and sums are written from front to back. Rows are
multiplied by weights in other passes, from front to back, too. Nothing is read at random, so how many bytes are moved
does not depend on how the graph is connected. Only edges are read again for each panel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from diskgnn.files.disk_space import file_bytes
from diskgnn.graph.graph import Graph
from diskgnn.inference.layer_steps import ArrayName, Panel
from diskgnn.inference.network import FLOAT_BYTES, Network, NetworkLayer
from diskgnn.inference.sizes import CHUNK_ROWS, PassSizes
from diskgnn.system.resources import Need, Resources


@dataclass(frozen=True)
class Stored:
    """Rows of all nodes of a type, in a file for each window."""

    name: str
    node_type: str
    columns: int  # of 4 bytes

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of one node."""
        return self.columns * FLOAT_BYTES


@dataclass(frozen=True)
class RowPass:
    """Makes rows that enter layer `layer` and stores what it needs of them; or those that come out, after the last."""

    layer: int
    node_type: str
    reads: tuple[Stored, ...]
    writes: tuple[Stored, ...]
    reads_features: bool  # of the nodes
    drops: tuple[Stored, ...]  # what nobody reads afterwards


@dataclass(frozen=True)
class SumPass:
    """Sums a panel of layer `layer` over the in-neighbours of a node type."""

    layer: int
    node_type: str
    panel: int
    sources: tuple[tuple[ArrayName, Stored], ...]  # in memory
    beside: tuple[tuple[str, Stored], ...]
    writes: tuple[Stored, ...]
    drops: tuple[Stored, ...]


@dataclass(frozen=True)
class DegreePass:
    """Counts the edges from each node."""

    writes: tuple[Stored, ...]
    drops: tuple[Stored, ...] = ()


AnyPass = RowPass | SumPass | DegreePass


@dataclass(frozen=True)
class InferencePlan:
    """All passes, in order. The last one makes the output."""

    graph: Graph
    network: Network
    workers: int  # windows at a time
    window_rows: int  # a multiple of CHUNK_ROWS
    panels: tuple[tuple[Panel, ...], ...]  # of each layer
    passes: tuple[AnyPass, ...]
    steps: tuple[range, ...]  # of passes but the last one, by their numbers: those of a step are done side by side
    memory_bytes: int  # at most, beside what the process has already
    scratch_bytes: int  # on disk at most, beside the output

    def num_windows(self, node_type: str) -> int:
        """Returns how many a node type has."""
        return -(-self.graph.nodes[node_type].num_nodes // self.window_rows)

    def window(self, node_type: str, number: int) -> tuple[int, int]:
        """Returns [first, last) rows of a window."""
        first = number * self.window_rows
        return first, min(first + self.window_rows, self.graph.nodes[node_type].num_nodes)

    def windows(self, each: RowPass | SumPass, wanted: Sequence[int] | None) -> Sequence[int]:
        """Returns those that a pass makes if only `wanted` ones of the last layer's sums are needed; None: all."""
        last_layer = len(self.network.layers) - isinstance(each, SumPass)
        return wanted if wanted is not None and each.layer == last_layer else range(self.num_windows(each.node_type))


def make_plan(
    graph: Graph, network: Network, resources: Resources, reserved_bytes: int = 0, *, together: bool = False
) -> InferencePlan:
    """Returns the plan that fits in memory.

    Args:
        graph: the graph.
        network: what to compute.
        resources: memory for it; threads to compute with: one window more is read or written meanwhile.
        reserved_bytes: of that memory, what the passes leave for others.
        together: passes that do not depend on each other are one step. It takes more disk, and nothing else follows.

    Raises:
        ConfigError: it takes more memory; names the smallest budget that works.
    """
    resources = resources.within(Need("to infer", reserved_bytes, _least_bytes(graph, network)))
    free_bytes = resources.memory_bytes
    for sizes, window_rows in _tries(graph, network, free_bytes, resources.threads):
        panels = [sizes.panels(layer, window_rows, free_bytes) for layer in network.layers]
        needed_bytes = sizes.memory_bytes(panels, window_rows)
        if needed_bytes <= free_bytes:
            break
    else:
        resources.require("to infer", needed_bytes)
    passes = tuple(_with_drops(list(_passes(graph, network, panels))))
    workers, steps = sizes.workers, tuple(_steps(passes[:-1], together=together))
    scratch_bytes = _peak_bytes(graph, passes, steps, workers, window_rows, at_once=not together)
    return InferencePlan(
        graph, network, workers, window_rows, tuple(map(tuple, panels)), passes, steps, needed_bytes, scratch_bytes
    )  # fmt: skip


def _least_bytes(graph: Graph, network: Network) -> int:
    """Returns what the last of `_tries` takes."""
    sizes = PassSizes(graph, network, 1)
    return sizes.memory_bytes([sizes.panels(layer, CHUNK_ROWS, 0) for layer in network.layers], CHUNK_ROWS)


def _tries(graph: Graph, network: Network, free_bytes: int, threads: int) -> Iterator[tuple[PassSizes, int]]:
    """Yields windows side by side and their rows to try: what is worth most first, what takes least memory last."""
    for workers in dict.fromkeys([threads + 1, 1]):
        sizes = PassSizes(graph, network, workers)
        window_rows = sizes.window_rows(free_bytes)
        yield sizes, window_rows
        while window_rows > CHUNK_ROWS:
            window_rows = window_rows // 2 // CHUNK_ROWS * CHUNK_ROWS or CHUNK_ROWS
            yield sizes, window_rows


def _passes(graph: Graph, network: Network, panels: Sequence[Sequence[Panel]]) -> Iterator[AnyPass]:
    """Yields the passes in order, without what each drops."""
    degrees: tuple[Stored, ...] = ()
    if any(layer.steps.uses_degrees for layer in network.layers):
        degrees = (Stored("degrees", network.node_type, 1),)
        yield DegreePass(degrees)
    for number, layer in enumerate(network.layers):
        for name in layer.node_types:
            stored = [each for array in layer.arrays if array[0] == name
                      for each in _by_panel(layer, number, array, panels[number])]  # fmt: skip
            stored += _own(graph, layer, number, name)
            read = (*_row_reads(graph, network, panels, number, name), *(degrees if layer.steps.uses_degrees else ()))
            if stored:
                yield RowPass(number, name, read, tuple(stored), _reads_features(graph, network, number, name), ())
        for place in range(len(panels[number])):
            for name in layer.destinations:
                if layer.edge_types(name):
                    yield _sum_pass(layer, number, name, panels[number], place)
    last = len(network.layers)
    name = network.node_type
    read = _row_reads(graph, network, panels, last, name)
    yield RowPass(last, name, read, (), _reads_features(graph, network, last, name), ())


def _sum_pass(layer: NetworkLayer, number: int, name: str, panels: Sequence[Panel], place: int) -> SumPass:
    def stored(array: ArrayName) -> Stored:
        return _by_panel(layer, number, array, panels)[place]

    return SumPass(
        number, name, place, tuple((array, stored(array)) for array in layer.steps.sources(name)),
        tuple((array, stored((name, array))) for array in layer.steps.beside(name)),
        (_sums(layer, number, name, panels)[place],), (),
    )  # fmt: skip


def _by_panel(layer: NetworkLayer, number: int, array: ArrayName, panels: Sequence[Panel]) -> list[Stored]:
    columns = layer.columns(array)
    return [
        Stored(f"{number}-{array[1]}-{array[0]}-{place}", array[0], panel.num_columns(columns))
        for place, panel in enumerate(panels)
    ]


def _sums(layer: NetworkLayer, number: int, name: str, panels: Sequence[Panel]) -> list[Stored]:
    width = layer.steps.width
    return [Stored(f"{number}-sum-{name}-{place}", name, each.num_columns(width)) for place, each in enumerate(panels)]


def _own(graph: Graph, layer: NetworkLayer, number: int, name: str) -> list[Stored]:
    """Returns the file of what a layer's `after` needs of nodes, if it has one by itself."""
    columns = layer.steps.own_columns(name)
    if name not in layer.destinations or not columns or layer.steps.own_array or layer.own_is_input(name, graph):
        return []
    return [Stored(f"{number}-own-{name}", name, columns)]


def _row_reads(
    graph: Graph, network: Network, panels: Sequence[Sequence[Panel]], number: int, name: str
) -> tuple[Stored, ...]:
    """Returns what makes rows of a type that enter layer `number`: own rows first, by panel or not, then sums."""
    if number == 0:
        return ()
    layer, found = network.layers[number - 1], panels[number - 1]
    own = _own(graph, layer, number - 1, name)
    if layer.steps.own_array and not layer.own_is_input(name, graph):
        own = _by_panel(layer, number - 1, (name, layer.steps.own_array), found)
    return (*own, *(_sums(layer, number - 1, name, found) if layer.edge_types(name) else []))


def _reads_features(graph: Graph, network: Network, number: int, name: str) -> bool:
    wanted = number == 0 or network.layers[number - 1].own_is_input(name, graph)
    return wanted and not network.is_embedded(name)


def _with_drops(passes: Sequence[AnyPass]) -> Iterator[AnyPass]:
    """Yields each pass with what it is the last one to read."""
    last_reader: dict[Stored, int] = {}
    for number, each in enumerate(passes):
        for stored in (*each.writes, *reads_of(each)):
            last_reader[stored] = number
    for number, each in enumerate(passes):
        drops = tuple(stored for stored, last in last_reader.items() if last == number)
        yield replace(each, drops=drops)


def reads_of(each: AnyPass) -> tuple[Stored, ...]:
    """Returns what a pass reads of what others stored."""
    if isinstance(each, RowPass):
        return each.reads
    if isinstance(each, SumPass):
        found = [stored for _, stored in (*each.sources, *each.beside)]
        return tuple(dict.fromkeys(found))
    return ()


def _steps(passes: Sequence[AnyPass], *, together: bool) -> Iterator[range]:
    """Yields passes one by one, or those of one kind and layer together."""
    kinds = [number if not together or isinstance(each, DegreePass) else (type(each), each.layer)
             for number, each in enumerate(passes)]  # fmt: skip
    first = 0
    for _, step in groupby(kinds):
        last = first + len(list(step))
        yield range(first, last)
        first = last


def _peak_bytes(
    graph: Graph, passes: Sequence[AnyPass], steps: Sequence[range], workers: int, window_rows: int, *, at_once: bool
) -> int:
    """Returns the most that is stored at a time, in whole pages. A step drops what it read at its end; or a `RowPass`,
    if it does so `at_once`, a window at a time.
    """

    def stored_bytes(stored: Stored, most_windows: int | None = None) -> int:
        whole, rest = divmod(graph.nodes[stored.node_type].num_nodes, window_rows)
        of_window, last = file_bytes(window_rows * stored.row_bytes), file_bytes(rest * stored.row_bytes)
        if most_windows is not None and most_windows <= whole:
            return most_windows * of_window
        return whole * of_window + last

    now = peak = 0
    for step in steps:
        made = [passes[number] for number in step]
        written = sum(stored_bytes(stored) for each in made for stored in each.writes)
        dropped = sum(stored_bytes(stored) for each in made for stored in each.drops)
        if at_once and isinstance(made[0], RowPass):
            under_way = sum(stored_bytes(stored, workers) for stored in made[0].writes)
            peak = max(peak, now + max(0, written - dropped) + under_way)
        else:
            peak = max(peak, now + written)
        now += written - dropped
    return peak
