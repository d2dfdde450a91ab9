"""Checks that features and classes mean what they meant when a model was trained, which their widths do not tell."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

from diskgnn.errors import ConfigError, DataWarning, callers_level
from diskgnn.specs.feature_columns import FeatureColumn, difference
from diskgnn.specs.schema import EdgeType, SourceSchema, TableColumn, edge_type_name

_Columns = tuple[FeatureColumn, ...]
_NAMES_SHOWN = 8
_FACTS_SHOWN = 3


def check_features(
    model: object, trained: SourceSchema, found: Mapping[str | EdgeType, _Columns | None], source: object
) -> None:
    """Refuse features that were made from other columns than those that a model was trained on, or otherwise.

    Args:
        model: what messages call the model.
        trained: what it was trained on.
        found: the columns of each type that has features, see `SourceSchema.known_columns`.
        source: where these are, for messages.

    Warns:
        DataWarning: features were made from columns on one side, and given as an array on the other.

    Raises:
        ConfigError: names the first feature that differs.
    """
    for name, old, new in _pairs(trained, found):
        called = f"{'node' if isinstance(name, str) else 'edge'} type {_type_words(name)}"
        if old is not None and new is not None:
            if (told := difference(old, new, str(source))) is not None:
                raise ConfigError(
                    f"{source} has other features than {model} was trained on: {called}, {told}; convert its tables "
                    f"with `diskgnn convert --encoding-of GRAPH`, where GRAPH is what the model was trained on"
                )
        elif old is not None or new is not None:
            with_columns, without = (model, source) if new is None else (source, model)
            names = [repr(column.name) for column in old or new or ()]
            shown = ", ".join(names[:_NAMES_SHOWN]) + ", ..." * (len(names) > _NAMES_SHOWN)
            warnings.warn(
                f"{called}: features of {with_columns} were made from columns of a table ({shown}), those of {without} "
                f"were given as an array: make sure that they are the same, encoded alike",
                DataWarning,
                stacklevel=callers_level(),
            )


def differing_facts(old: SourceSchema, new: SourceSchema) -> tuple[list[str], list[str]]:
    """Returns what only one of two sources that differ says of its minibatches, and what only the other does: some of
    it each."""
    of_old, of_new = _facts(old), _facts(new)
    found = _some(of_old, without=of_new), _some(of_new, without=of_old)
    return found if any(found) else (["types, columns and segments in one order"], ["the same in another order"])


def _some(facts: list[str], without: list[str]) -> list[str]:
    left = [each for each in facts if each not in without]
    return left[:_FACTS_SHOWN] + [f"{len(left) - _FACTS_SHOWN} more differences"] * (len(left) > _FACTS_SHOWN)


def _facts(schema: SourceSchema) -> list[str]:
    """Returns what a schema says, but for the columns of features, in some words each."""
    classes = "" if schema.classes is None else f" {', '.join(map(str, schema.classes[:_NAMES_SHOWN]))}"
    facts = [
        f"seeds of type {_type_words(schema.target)}",
        f"{schema.num_outputs} outputs of each ({schema.target_kind}{classes})",
    ]
    for name, count, width in schema.node_types:
        facts.append(f"{count:,} nodes of type {name} with {_width_text(width)}")
    facts += [f"edges of type {_type_words(name)} with {_width_text(width)}" for name, width in schema.edge_types]
    facts += [f"a segment {name} of {width} numbers" for name, width in schema.segments]
    for name, columns in schema.tables:
        facts += [f"a column {name}.{each.name} ({_column_text(each)})" for each in columns]
    if schema.timed is not None:
        facts.append(f"times of {', '.join(schema.timed) or 'seeds'} in {schema.time_unit or 'no unit that is known'}")
    return facts


def _column_text(column: TableColumn) -> str:
    values = "" if column.num_values is None else f"{column.num_values} values {column.values_digest or ''}".strip()
    null = "with null" if column.may_be_null else ""
    said = column.kind, column.dtype, f"{column.width} wide", values, column.embedder or "", null
    return ", ".join(each for each in said if each)


def _width_text(width: int | None) -> str:
    return "no features" if width is None else f"{width} features"


def check_classes(model: object, trained: SourceSchema, found: SourceSchema, source: object) -> None:
    """Refuse labels whose classes are numbered otherwise than those that a model was trained on.

    Warns:
        DataWarning: only one of both says what its classes are called.

    Raises:
        ConfigError: shows the first class that differs.
    """
    if (trained.target_kind, trained.num_outputs) != (found.target_kind, found.num_outputs):
        return  # refused as such
    old, new = trained.classes, found.classes
    if old is None or new is None:
        if old is not None or new is not None:
            named, numbered = (model, source) if new is None else (source, model)
            warnings.warn(
                f"classes of {named} are called {', '.join(map(str, (old or new or ())[:_NAMES_SHOWN]))}, those of "
                f"{numbered} have numbers only: make sure that these mean the same",
                DataWarning,
                stacklevel=callers_level(),
            )
        return
    for number, (was, now) in enumerate(zip(old, new, strict=True)):
        if was != now:
            raise ConfigError(
                f"{source} has other classes than {model} was trained on: class {number} is {now!r} there, and {was!r} "
                f"in training; convert its tables with `diskgnn convert --encoding-of GRAPH`, where GRAPH is what the "
                f"model was trained on, or prepare seeds of tables with `diskgnn prepare --target-classes`"
            )


def _type_words(name: str | EdgeType) -> str:
    return name if isinstance(name, str) else edge_type_name(name)


def _pairs(
    trained: SourceSchema, found: Mapping[str | EdgeType, _Columns | None]
) -> Iterator[tuple[str | EdgeType, _Columns | None, _Columns | None]]:
    """Yields the types that have features on both sides; or the only one, whatever each side calls it."""
    for name, old in trained.known_columns.items():
        of_kind = [other for other in found if isinstance(other, str) == isinstance(name, str)]
        other = of_kind[0] if not trained.is_typed and len(of_kind) == 1 else name
        if other in found:
            yield other, old, found[other]
