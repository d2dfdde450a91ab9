"""The model of relational tables: encoders of rows by column, of times beside those of seeds, and typed layers.

Rows have what `batch.x` has of them (scaled numbers, truth values, a number for each value of a category of few values,
embeddings), and where a table kept its columns what x does not tell: nulls, categories of many values, calendars of
timestamps. As in RelBench's baseline, a graph network over encoded rows, with an encoding of how long before its seed a
row was (Robinson et al., RelBench: A Benchmark for Deep Learning on Relational Databases, NeurIPS 2024).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diskgnn.batches.minibatch import AnyMiniBatch, TypedMiniBatch
from diskgnn.errors import ConfigError
from diskgnn.nn.between import NORM_MODULES
from diskgnn.nn.block_models import relu_dropout
from diskgnn.nn.layer_types import LayerTypes, input_types, layer_types
from diskgnn.nn.model_spec import MOST_CATEGORIES, ModelSpec
from diskgnn.nn.typed_layers import RGCNLayer, TypedBlocks
from diskgnn.nn.typed_models import TypedLayers
from diskgnn.specs.feature_columns import FeatureColumn
from diskgnn.specs.schema import SourceSchema, TableColumn, TablesByType

_NULL, _UNKNOWN, _FIRST_CODE = 0, 1, 2  # rows of a table of categories
_DAY = 86_400 * 10**6  # microseconds
_PERIODS = (_DAY, 7 * _DAY, 31_556_952 * 10**6)  # of calendars: day, week, mean Gregorian year
_WAVES = 6  # of the logarithm of an age
AGE_WIDTH = 2 + 2 * _WAVES
_ENCODE_ALIKE = (
    "convert its tables with `diskgnn convert --encoding-of GRAPH`, where GRAPH is what the model was trained on, "
    "without keep_columns=false"
)


def age_features(times: Tensor, seed_times: Tensor) -> Tensor:
    """Encodes how long before its seed each row was, whatever the unit of times is.

    Ages span seconds to decades, so all is of their logarithm: itself, and sines and cosines of wavelengths from 2 to
    64.

    Args:
        times: [n] int64 of the rows; the smallest and the largest int64 are no time.
        seed_times: [n] int64 of their seeds.

    Returns:
        [n, AGE_WIDTH] float32: a 1 where there is no time, and all else 0 there.
    """
    limits = torch.iinfo(torch.int64)
    is_timed = (times != limits.min) & (times != limits.max)
    ages = seed_times.double() - times.double()
    logs = (ages.sign() * ages.abs().log1p()).float().unsqueeze(1)
    phases = logs * (math.pi / 2.0 ** torch.arange(_WAVES, device=logs.device))
    found = torch.cat([logs / 8, phases.sin(), phases.cos()], 1) * is_timed.unsqueeze(1)
    return torch.cat([found, (~is_timed).float().unsqueeze(1)], 1)


def calendar_features(timestamps: Tensor, null: Tensor | None) -> Tensor:
    """Encodes where in the day, the week and the year timestamps are: [n] int64 microseconds since 1970 to [n, 6]
    float32 sines and cosines, 0 where they are null.
    """
    shares = [torch.remainder(timestamps, period).double() / period for period in _PERIODS]
    phases = (torch.stack(shares, 1) * (2 * math.pi)).float()
    found = torch.cat([phases.sin(), phases.cos()], 1)
    return found if null is None else found.masked_fill(null.unsqueeze(1), 0)


class RowEncoder(nn.Module):
    """Makes rows [U, hidden] of the input nodes of one type: the sum of what encodes each column, normalised, and a
    layer of a perceptron on top, added to it.

    Linear maps of several columns are one of all of them: the weights of a category's features are the vectors of its
    values. A type without features has a learnt vector, the same for all nodes.

    Args:
        width: D of x; None: no features.
        columns: that the table kept; none of vectors.
        in_x: names of the categories that are in x.
        is_timed: there are times of rows and seeds.
        hidden: columns of the result.
        norm: 'none', 'batch' or 'layer'.
        dropout: probability in training, of what the perceptron adds.
        dates: numbers of the features of timestamps in x, if the times of seeds are in seconds: timestamps are encoded
            against these then, and not by these features. Dates only grow, so all that comes later lies beyond what a
            model was trained on.
    """

    def __init__(
        self, width: int | None, columns: Sequence[TableColumn], in_x: frozenset[str], is_timed: bool, hidden: int,
        norm: str, dropout: float, dates: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.width, self.dropout = width, dropout
        self.columns = tuple(columns)
        self.null_names = [each.name for each in columns if each.may_be_null]
        self.timestamp_names = [each.name for each in columns if each.kind == "timestamp"]
        self.category_names = [each.name for each in columns if each.num_values is not None and each.name not in in_x]
        self.features = None if width is None else nn.Linear(width, hidden)
        self.constant = nn.Parameter(torch.randn(hidden)) if width is None else None
        self.nulls = nn.Linear(len(self.null_names), hidden, bias=False) if self.null_names else None
        calendar_width = 2 * len(_PERIODS) * len(self.timestamp_names)
        self.calendars = nn.Linear(calendar_width, hidden, bias=False) if calendar_width else None
        self.categories = nn.ModuleList(
            _table_of(each, hidden) for each in columns if each.name in self.category_names
        )  # fmt: skip
        self.age = nn.Linear(AGE_WIDTH, hidden, bias=False) if is_timed else None
        self.dates: Tensor | None  # follows the model to its device, and is in no checkpoint: the schema says it
        self.register_buffer("dates", torch.tensor(dates) if dates else None, persistent=False)
        dated_width = AGE_WIDTH * len(self.timestamp_names) if dates is not None else 0
        self.dated = nn.Linear(dated_width, hidden, bias=False) if dated_width else None
        self.norm = NORM_MODULES[norm](hidden)
        self.mixed = nn.Linear(hidden, hidden)

    def forward(
        self, num_nodes: int, x: Tensor | None, columns: Mapping[str, Tensor], nulls: Mapping[str, Tensor],
        times: Tensor | None = None, seed_times: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """Returns [U, hidden].

        Args:
            num_nodes: U.
            x: [U, D] features.
            columns, nulls: [U, ...] of the minibatch.
            times: [U] int64 of the rows.
            seed_times: [U] int64 of the seeds that they were drawn for.
        """
        dtype = self.mixed.weight.dtype
        if self.features is None:
            assert self.constant is not None
            rows = self.constant.expand(num_nodes, -1)
        else:
            assert x is not None
            x = x.to(dtype)
            if self.columns:
                x = torch.where(x.isnan(), 0, x)  # null of numbers as they are
            if self.dates is not None:
                x = x.index_fill(1, self.dates, 0)
            rows = self.features(x)
        if self.nulls is not None:
            rows = rows + self.nulls(torch.stack([nulls[name] for name in self.null_names], 1).to(dtype))
        if self.calendars is not None:
            found = [calendar_features(columns[name], nulls.get(name)) for name in self.timestamp_names]
            rows = rows + self.calendars(torch.cat(found, 1).to(dtype))
        for name, table in zip(self.category_names, self.categories, strict=True):
            rows = rows + _category_rows(table, columns[name], nulls.get(name))
        if self.age is not None:
            assert times is not None
            assert seed_times is not None
            rows = rows + self.age(age_features(times, seed_times).to(dtype))
        if self.dated is not None:
            assert seed_times is not None
            found = [_seconds(columns[name], nulls.get(name)) for name in self.timestamp_names]
            rows = rows + self.dated(torch.cat([age_features(each, seed_times) for each in found], 1).to(dtype))
        rows = self.norm(rows)
        out: Tensor = rows + F.dropout(self.mixed(F.relu(rows)), self.dropout, self.training)
        return out


def _seconds(timestamps: Tensor, null: Tensor | None) -> Tensor:
    """Returns [n] int64 since 1970, the smallest int64 where they are null."""
    found = torch.div(timestamps, 10**6, rounding_mode="floor")
    return found if null is None else found.masked_fill(null, torch.iinfo(torch.int64).min)


def _date_features(columns: Sequence[TableColumn], features: Sequence[FeatureColumn]) -> list[int]:
    """Returns the numbers of the features of timestamps in x."""
    timestamps = {each.name for each in columns if each.kind == "timestamp"}
    first, found = 0, list[int]()
    for each in features:
        if each.name in timestamps:
            found += range(first, first + each.width)
        first += each.width
    return found


def _table_of(column: TableColumn, hidden: int) -> nn.Embedding:
    """Returns vectors of the most frequent values. That of all others is 0 until training meets one of them."""
    assert column.num_values is not None
    table = nn.Embedding(_FIRST_CODE + min(column.num_values, MOST_CATEGORIES), hidden)
    with torch.no_grad():
        table.weight[_UNKNOWN] = 0
    return table


def _category_rows(table: Any, codes: Tensor, null: Tensor | None) -> Tensor:
    """Returns [n, hidden] vectors of codes [n], which are in the order of their values' frequency; of lists of codes
    [n, width] the mean of those that are not -1."""
    places = codes.long() + _FIRST_CODE
    places = torch.where((codes >= 0) & (places < table.num_embeddings), places, _UNKNOWN)
    if codes.dim() == 2:
        is_there = (codes >= 0).to(table.weight.dtype)
        shares = is_there / is_there.sum(1, keepdim=True).clamp(min=1)
        return F.embedding_bag(places, table.weight, mode="sum", per_sample_weights=shares)
    rows: Tensor = table(places if null is None else places.masked_fill(null, _NULL))
    return rows


class RelationalLayer(RGCNLayer):
    """Computes what `RGCNLayer` does, plus for each edge type r a vector c_r times log(1 + number of neighbours by r):
    means do not tell how many there are.

    Args:
        in_channels, out_channels, types: as `RGCNLayer` has them.
    """

    def __init__(self, in_channels: int, out_channels: int, types: LayerTypes) -> None:
        super().__init__(in_channels, out_channels, types)
        self.counts = nn.Parameter(torch.zeros(len(types.edges), out_channels))

    def forward(self, blocks: TypedBlocks, x: Mapping[str, Tensor], counts: Mapping[str, int]) -> dict[str, Tensor]:
        """Maps, by node type, [num_src, in_channels] to [num_dst, out_channels]. See `RGCNLayer.forward`."""
        out = super().forward(blocks, x, counts)
        for name in self.types.destinations:
            for number, edge_type in self.types.followed(blocks, name):
                degrees = blocks[edge_type].in_degrees.to(self.counts.dtype).log1p()
                out[name] = out[name] + degrees.unsqueeze(1) * self.counts[number]
        return out


class RelationalModel(TypedLayers):
    """Takes minibatches as they are (`takes_batch`): of one type of nodes and edges or several, of tables or vectors.

    Args:
        spec: with a number of layers and a norm.
        schema: of the minibatches.
        out_channels: columns of the output.
    """

    takes_batch = True

    def __init__(self, spec: ModelSpec, schema: SourceSchema, out_channels: int) -> None:
        assert spec.num_layers is not None
        assert spec.norm is not None
        types = layer_types(schema, spec.num_layers)
        tables, known, inputs = dict(schema.tables), dict(schema.columns), dict[str, nn.Module]()
        for name, _, width in input_types(schema, spec.num_layers):
            columns, features = tables.get(name, ()), known.get(name, ())
            in_x = frozenset(each.name for each in features if each.encoding == "category")
            inputs[name] = RowEncoder(
                width, columns, in_x, name in (schema.timed or ()), spec.hidden, spec.norm, spec.dropout,
                _date_features(columns, features) if schema.time_unit == "s" else None,
            )  # fmt: skip
        layers = [RelationalLayer(spec.hidden, spec.hidden, each) for each in types]
        super().__init__(
            inputs, layers, spec.hidden, relu_dropout, spec.dropout, norm=spec.norm, skip=True,
            head=nn.Linear(spec.hidden, out_channels), follows_last=True,
        )  # fmt: skip
        self.time_unit = schema.time_unit
        self.one_type = None if schema.is_typed else (schema.node_types[0][0], schema.edge_types[0][0])

    @property
    def encoders(self) -> dict[str, RowEncoder]:
        """Returns the encoders of rows, by node type."""
        found: Any = self.inputs
        return dict(zip(self.node_types, found, strict=True))

    @property
    def takes_times(self) -> bool:
        """Returns True if it computes with times of rows and seeds."""
        return any(each.age is not None or each.dated is not None for each in self.encoders.values())

    def forward(self, batch: AnyMiniBatch) -> dict[str, Tensor] | Tensor:
        """Returns rows of the seeds [B, out_channels], on a graph of several types by node type.

        Raises:
            ConfigError: the minibatch does not have what the model takes.
        """
        if isinstance(batch, TypedMiniBatch):
            return self._rows_of(batch)
        if self.one_type is None:
            raise ConfigError("model takes minibatches of several types, found one of one type; make one for its graph")
        return self._rows_of(batch.by_type(*self.one_type))[self.one_type[0]]

    def _rows_of(self, batch: TypedMiniBatch) -> dict[str, Tensor]:
        self.check_types(batch.blocks, batch.node_counts[0])
        h = {}
        for name, encoder in self.encoders.items():
            columns, nulls = ((each or {}).get(name, {}) for each in (batch.columns, batch.nulls))
            _check_columns(name, encoder, batch.x.get(name), columns)
            times = (batch.times or {}).get(name)
            seed_times = (
                None if batch.seed_times is None or batch.trees is None else batch.seed_times[batch.trees[name]]
            )
            _check_times(name, encoder, times, seed_times)
            h[name] = encoder(batch.node_counts[0][name], batch.x.get(name), columns, nulls, times, seed_times)
        return self.rows(batch.blocks, h)


def _check_columns(name: str, encoder: RowEncoder, x: Tensor | None, columns: Mapping[str, Tensor]) -> None:
    found = None if x is None else x.shape[1]
    if encoder.width is not None and encoder.width != found:
        raise ConfigError(
            f"model takes {name} nodes with {encoder.width} features, minibatch has {found or 'none'}; make one for "
            "its graph"
        )
    if missing := [each.name for each in encoder.columns if each.name not in columns]:
        raise ConfigError(
            f"model takes columns of {name} that the minibatch does not have: {', '.join(missing)}; convert the tables "
            "without keep_columns=false, as those that it was trained on (`diskgnn convert --encoding-of GRAPH`)"
        )


def _check_times(name: str, encoder: RowEncoder, times: Tensor | None, seed_times: Tensor | None) -> None:
    if (encoder.age is not None and (times is None or seed_times is None)) or (
        encoder.dated is not None and seed_times is None
    ):
        what = f"timestamps of {name} were" if encoder.age is None else f"a row of {name} was"
        raise ConfigError(
            f"model takes how long before its seed {what}, and the minibatch has no such times; draw minibatches by "
            "their times, as those that it was trained on, with keep_times=True (`diskgnn prepare --keep-times`)"
        )


def require_time_unit(net: nn.Module, time_unit: str | None, source: object) -> None:
    """Refuses to apply a relational model that computes with times to those of another unit than it was trained on.

    Args:
        net: any model.
        time_unit: of the times of `source`.
        source: for the message.

    Raises:
        ConfigError: names both units.
    """
    if isinstance(net, RelationalModel) and net.takes_times and net.time_unit != time_unit:
        trained, has = ("no unit" if unit is None else unit for unit in (net.time_unit, time_unit))
        raise ConfigError(
            f"{source} has times in {has}, and the model was trained on times in {trained}; convert its tables with "
            "times as those that it was trained on have them"
        )


def require_tables(net: nn.Module, found: TablesByType, source: object) -> None:
    """Refuses to apply a relational model to tables with other columns than it was trained on.

    Args:
        net: any model.
        found: what `source` has.
        source: for the message.

    Raises:
        ConfigError: names a column that differs.
    """
    if not isinstance(net, RelationalModel):
        return
    there = dict(found)
    for name, encoder in net.encoders.items():
        kept = {each.name: each for each in there.get(name, ())}
        for column in encoder.columns:
            other = kept.get(column.name)
            if other is not None and _shape(other) == _shape(column) and other.values_digest != column.values_digest:
                raise ConfigError(
                    f"{source} has other values of {name}.{column.name} than the model was trained on, or numbers them "
                    f"otherwise; {_ENCODE_ALIKE}"
                )
            if other is None or _shape(other) != _shape(column):
                has = "no such column" if other is None else _column_words(other)
                raise ConfigError(
                    f"{source} has other columns than the model was trained on: {name}.{column.name} is "
                    f"{_column_words(column)} in training, and {source} has {has}; {_ENCODE_ALIKE}"
                )


def _shape(column: TableColumn) -> tuple[object, ...]:
    return column.kind, column.width, column.num_values, column.may_be_null


def _column_words(column: TableColumn) -> str:
    values = "" if column.num_values is None else f" of {column.num_values} values"
    width = "" if column.width == 1 else f" of {column.width} numbers"
    null = "or null" if column.may_be_null else "never null"
    return f"{column.kind}{values}{width}, {null}"
