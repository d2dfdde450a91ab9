"""A graph that is to be made of what the user gave: opened, held against memory and disk, and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from diskgnn.graph.csc import least_memory_bytes
from diskgnn.importers.graph_input import GraphInput
from diskgnn.importers.graph_writing import OpenGraph, WrittenGraph, open_graph, write_graph
from diskgnn.importers.ids.replacing_ids import LEAST_ID_BYTES, STAGE, replace_user_ids
from diskgnn.importers.ids.user_ids import UserIds, default_owner, find_user_ids
from diskgnn.importers.tables.table import is_table
from diskgnn.specs.schema import EdgeType
from diskgnn.system.resources import Need, Resources
from diskgnn.work.required_space import require_space
from diskgnn.work.runner import Work
from diskgnn.work.writer import ArtifactWriter

_ARRAY_BYTES, TABLE_BYTES = 8 << 20, 32 << 20  # of what is read at once
TABLES_FOLDER = "tables"  # beside the files of a graph, while it is made of the tables of a database


@dataclass(frozen=True)
class GivenGraph:
    """Holds what a graph is made of, its sources looked at.

    Args:
        described: the sources.
        typed: the graph was described by types, which messages name.
        user_ids: ids in them that are the user's own.
        owner_of: what messages call a type of "node" or "edge".
        opened: the sources, to be streamed; None where ids are to be replaced first: nobody knows how many nodes there
            are.
    """

    described: GraphInput
    typed: bool
    user_ids: UserIds
    owner_of: Callable[[str, str | EdgeType], str]
    opened: OpenGraph | None

    @staticmethod
    def of(described: GraphInput, *, typed: bool) -> GivenGraph:
        """Look at the sources.

        Raises:
            ConfigError: what is given does not go together.
            InputError: what is given is no graph.
        """
        owner_of = default_owner(typed)
        user_ids = find_user_ids(described, owner_of)
        described = _with_ids(described, user_ids.guessed)
        opened = None if user_ids.types else open_graph(described, typed=typed)
        return GivenGraph(described, typed, user_ids, owner_of, opened)

    def resources(self, resources: Resources, *, is_data_set: bool) -> Resources:
        """Returns what writing may spend, beside what reading takes: pieces of the sources, and what Arrow has on the
        way.

        Args:
            resources: what this process may have, once the sources are open.
            is_data_set: the sources are those of a data set in a format of others.

        Raises:
            ConfigError: less than it takes at least; with the figure.
        """
        least_bytes, what = LEAST_ID_BYTES, "replace ids"
        if self.opened is not None:
            lists = [each.list for each in self.opened.edges.values()]
            needed = (least_memory_bytes(each.num_nodes) + each.source_time_bytes for each in lists)
            least_bytes = max(needed, default=0)
            what = "sort edges"
        inputs = (*self.described.nodes.values(), *self.described.edges.values())
        reads_tables = is_data_set or any(is_table(value) for each in inputs for value in vars(each).values())
        reading_bytes = self.described.reading_bytes + (TABLE_BYTES if reads_tables else _ARRAY_BYTES)
        return resources.within(Need(f"to read the sources and {what}", reading_bytes, least_bytes))

    def write(self, writer: ArtifactWriter, resources: Resources, what: str) -> tuple[OpenGraph, WrittenGraph]:
        """Write it, with dense ids; what was read for it, and what was written. `what` it is called in messages.

        Raises:
            InputError: the data is no graph; says where.
            DiskFullError: too little disk space.
        """

        def stage(work: Work) -> tuple[OpenGraph, WrittenGraph]:
            opened = self.opened
            if opened is None:
                dense = replace_user_ids(work, self.described, self.user_ids, self.owner_of, writer, resources)
                opened = open_graph(dense.given, typed=self.typed, topologies=dense.topologies)
            # Ids and tables are read while the graph is written.
            require_space(writer, opened.needed_bytes, what, but=[f"{STAGE}.", TABLES_FOLDER])
            return opened, write_graph(writer, opened, resources)

        return Work(writer, STAGE).run(stage)


def _with_ids(described: GraphInput, columns: Mapping[str, str]) -> GraphInput:
    """Returns the graph with these columns of ids, by node type, of tables that nobody named one of."""
    nodes = {
        name: replace(given, columns=replace(given.columns, id=columns[name])) if name in columns else given
        for name, given in described.nodes.items()
    }
    return replace(described, nodes=nodes)
