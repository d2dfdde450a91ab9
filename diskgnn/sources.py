"""Sources of graphs that are more than a path or an array: databases, as `diskgnn.convert(source=...)` takes them."""

from diskgnn.importers.source_formats.relational_source import KeyedTable, RelationalSource, TaskTables

__all__ = ["KeyedTable", "RelationalSource", "TaskTables"]
