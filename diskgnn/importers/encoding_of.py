"""How another graph encoded its tables: columns, means, deviations, categories and classes for tables of the same kind.

A model knows features by their place and scale. Rows that it is to be applied to later have to be encoded as those that
it was trained on were, and not by their own means and values.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.formats.record_format import RecordFormat
from diskgnn.graph.graph import Graph
from diskgnn.importers.class_labels import KnownClasses
from diskgnn.importers.source_formats.table_keys import type_word
from diskgnn.importers.tables.column_encoding import KnownColumns
from diskgnn.importers.tables.record_encoding import KnownRecords
from diskgnn.paths import PathLike
from diskgnn.specs.schema import EdgeType, edge_type_name


@dataclass(frozen=True)
class GivenEncoding:
    """Holds what `convert` is given as `encoding_of`.

    Args:
        opened: the graph.
    """

    opened: Graph

    @staticmethod
    def of(graph: PathLike | Graph) -> GivenEncoding:
        """Open the graph.

        Raises:
            ArtifactError: it is none.
            ConfigError: nothing of it was made from columns.
        """
        opened = graph if isinstance(graph, Graph) else Graph.open(graph)
        config = opened.config
        has_classes = any(nodes.target is not None and nodes.target.classes for nodes in config.node_types)
        if not has_classes and all(columns is None for columns in config.known_columns.values()):
            raise ConfigError(
                f"encoding_of: expected a graph whose features were made from columns of tables, found none in "
                f"{opened.manifest.path}; what was given as arrays, you have to encode alike yourself"
            )
        return GivenEncoding(opened)

    @property
    def graph(self) -> str:
        """Returns the path of the graph, for messages."""
        return str(self.opened.manifest.path)

    @property
    def digest(self) -> str:
        """Returns the digest of the graph."""
        return self.opened.manifest.digest

    @property
    def keeps_columns(self) -> bool:
        """Returns False if tables of the graph are vectors of numbers."""
        known = self.opened.config.known_columns
        nodes = [each.config for name, each in self.opened.nodes.items() if known.get(name) is not None]
        return all(isinstance(each.rows, RecordFormat) or each.is_constant for each in nodes)

    def without(self, exclude: Sequence[str]) -> GivenEncoding:
        """Returns the encoding without columns that tables of the graph keep and that are to be excluded, COLUMN or
        TABLE.COLUMN: for a model that was trained without them. The new tables need not have them."""
        kept = self.opened.kept_columns
        return GivenEncoding(
            self.opened.without([each for each in kept if any(_is_called(each, name) for name in exclude)])
        )

    def times(self) -> dict[str, str]:
        """Returns the columns that were taken as the times of rows, by node type."""
        return {item.of: item.name for item in self.opened.config.contents.read if item.use == "times"}

    def has_table(self, node_type: str) -> bool:
        """Returns True if the graph has such nodes: a model that knows them needs them, be there none yet."""
        return node_type in self.opened.nodes

    def leaves_out(self, name: str) -> bool:
        """Returns True if such a column is called `name`."""
        return any(_is_called(each, name) for each in self.opened.left_out)

    def columns(self, of: str | EdgeType, *, wanted: bool = True) -> KnownColumns | None:
        """Returns how to encode the table of a node or edge type; None: by itself, with a warning if features are
        `wanted`."""
        config = self.opened.config
        columns, name = config.known_columns.get(of), of if isinstance(of, str) else edge_type_name(of)
        if columns is None:
            if wanted:
                warnings.warn(
                    f"encoding_of: {self.graph} has no features of {name} that were made from columns: those of {name} "
                    f"are encoded by themselves",
                    DataWarning,
                    stacklevel=callers_level(),
                )
            return None
        left_out = {item.name: item.reason for item in config.contents.left_out if item.of == name}
        can_exclude = any(each.startswith(f"{name}.") for each in self.opened.kept_columns)
        return KnownColumns(self.graph, columns, left_out, excludable=name if can_exclude else None)

    def records(self, node_type: str, *, wanted: bool = True) -> KnownRecords | None:
        """Returns how to encode the table of a node type whose rows keep their columns; None: by itself, with a
        warning if it is `wanted`.

        Raises:
            ConfigError: the rows of the graph are vectors.
        """
        known = self.columns(node_type, wanted=wanted)
        if known is None:
            return None
        nodes = self.opened.nodes[node_type]
        if not isinstance(nodes.config.rows, RecordFormat) and not nodes.config.is_constant:
            raise ConfigError(
                f"keep_columns: the rows of {node_type} in {self.graph} are vectors, as which these tables are to be "
                "encoded; leave keep_columns=true out"
            )
        return KnownRecords(known.graph, known.columns, known.left_out, nodes, excludable=known.excludable)

    def classes(self, node_type: str, task: str) -> KnownClasses | None:
        """Returns how to number the labels of a node type; None: by themselves.

        Raises:
            ConfigError: these labels are for another task.
        """
        target = next((each.target for each in self.opened.config.node_types if each.name == node_type), None)
        if target is None:
            return None
        if target.kind != task:
            raise ConfigError(
                f"encoding_of: the labels of {node_type} nodes in {self.graph} are for task {target.kind!r}, found "
                f"{task!r}; leave the labels out, or say the same task in a `schema`"
            )
        return KnownClasses(self.graph, target.num_outputs, target.classes) if task == "class" else None


def _is_called(column: str, name: str) -> bool:
    """Returns True if `name` is that of a column TYPE.COLUMN of a graph, with or without its table, which may be called
    as by its database."""
    table, dot, rest = name.rpartition(".")
    return name in (column, column.partition(".")[2]) or bool(dot and column == f"{type_word(table)}.{rest}")
