"""A graph's types as a diagram in Mermaid, which GitHub, GitLab and many editors draw where Markdown has it."""

from __future__ import annotations

import re

from diskgnn.formats.record_format import RecordFormat
from diskgnn.formats.row_format import RowFormat
from diskgnn.graph.graph import Graph
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import EdgeType
from diskgnn.units import format_count

_MOST_COLUMNS = 12  # of a type that are drawn
_CODED = {"categorical": "category", "multicategorical": "categories"}  # columns of records that may be no features
_REVERSE = "rev_"
_KEYS = ("PK", "FK", "UK")  # words of the language


def diagram(graph: Graph) -> str:
    """Returns an entity-relationship diagram: node types with their columns, edge types with their numbers of edges.

    An edge type is left out if another one leads the other way with the same edges, as `reverse` makes them: it is
    called the same behind `rev_`.
    """
    lines = ["erDiagram"]
    for name, nodes in graph.nodes.items():
        described = nodes.config
        rows = _attributes(described.columns, described.rows)
        title = f"{name}: {format_count(nodes.num_nodes)} nodes{', with times' if described.has_times else ''}"
        lines += [f"    {_quoted(name)}[{_quoted(title)}] {{", *(f"        {row}" for row in rows), "    }"]
    for edge_type, edges in graph.edges.items():
        if not _is_reverse(edge_type, graph):
            source, relation, destination = edge_type
            told = (
                f"{relation}: {format_count(edges.num_edges)} edges{', with times' if edges.config.has_times else ''}"
            )
            lines.append(f"    {_quoted(source)} }}o--o{{ {_quoted(destination)} : {_quoted(told)}")
    return "\n".join(lines)


def _attributes(columns: tuple[FeatureColumn, ...] | None, rows: RowFormat | None) -> list[str]:
    drawn = [(column.encoding, column.name) for column in columns or ()]
    if isinstance(rows, RecordFormat):
        features = {name for _, name in drawn}
        drawn += [(_CODED[field.kind], field.name) for field in rows.fields
                  if field.name not in features and field.kind in _CODED]  # fmt: skip
    if drawn:
        shown = [f"{_word(what)} {_word(name)}" for what, name in drawn[:_MOST_COLUMNS]]
        more = len(drawn) - len(shown)
        return [*shown, *([f"more and_{more}_columns"] if more else [])]
    return (
        []
        if rows is None or columns is not None
        else [f"{rows.dtype} features {_quoted(f'{rows.num_features} numbers')}"]
    )


def _is_reverse(edge_type: EdgeType, graph: Graph) -> bool:
    source, relation, destination = edge_type
    forward = (destination, relation.removeprefix(_REVERSE), source)
    return relation.startswith(_REVERSE) and forward in graph.edges


def _word(name: str) -> str:
    """Returns a name as Mermaid takes it without quotes."""
    word = re.sub(r"\W", "_", name)
    return f"_{word}" if word[:1].isdigit() or word in _KEYS else word


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "'") + '"'
