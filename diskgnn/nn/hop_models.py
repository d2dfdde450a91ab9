"""Models of hop features: SGC, SIGN and SeHGNN. They see a seed's own record and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from diskgnn.errors import ConfigError
from diskgnn.nn.between import BatchNorm, Between
from diskgnn.nn.block_models import relu_dropout
from diskgnn.nn.model_spec import ModelSpec
from diskgnn.specs.schema import are_paths

Segments = Sequence[tuple[str, int]]  # (name, width)


class HopModel(nn.Module):
    """Standardises records of hop features by what those had that it was trained on, before anything else.

    Attributes:
        mean, deviation: [V] float32 of each number of a record; buffers, so that a checkpoint has them. 0 and 1 until
            they are `standardise`d.

    Args:
        segments: of a record, which has V numbers.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, segments: Segments) -> None:
        super().__init__()
        self.segments = tuple(segments)
        num_values = sum(width for _, width in self.segments)
        self.register_buffer("mean", torch.zeros(num_values))
        self.register_buffer("deviation", torch.ones(num_values))

    @property
    def has_paths(self) -> bool:
        """Returns True if its segments are of paths of edge types, in place of the hops of an operator."""
        return are_paths(self.segments)

    def standardise(self, mean: Any, deviation: Any) -> None:
        """Take means and deviations of train records, in the shape of a record of x: see `HopsLoader.statistics`."""
        with torch.no_grad():
            self.mean.copy_(_flat(mean, of_one=True)[0])
            self.deviation.copy_(_flat(deviation, of_one=True)[0])

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Returns rows of the seeds.

        Args:
            x: [B, H, D]; or by segment, [B, width].

        Returns:
            [B, out_channels].

        Raises:
            ConfigError: x is not as wide as the model's records.
        """
        return self.rows(self._standardised(x))

    def embed(self, x: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Returns the rows of the seeds that enter the last layer, [B, columns].

        Args:
            x: as `forward` takes it.

        Raises:
            ConfigError: the model has one layer, or x is not as wide as its records.
        """
        return self.rows_before_last(self._standardised(x))

    def rows(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, out_channels] of standardised segments, [B, width] each."""
        raise NotImplementedError

    def rows_before_last(self, segments: list[Tensor]) -> Tensor:
        """Returns the rows that enter the last layer, of standardised segments.

        Raises:
            ConfigError: the model has one layer.
        """
        raise ConfigError("what: a model of one layer has no rows before its last layer; ask for logits")

    def _standardised(self, x: Tensor | Mapping[str, Tensor]) -> list[Tensor]:
        """Returns [B, width] of each segment."""
        records = _flat(x)
        if records.shape[1] != len(self.mean):
            raise ConfigError(
                f"model takes records of {len(self.mean)} numbers ({', '.join(name for name, _ in self.segments)}), "
                f"found {records.shape[1]}; `diskgnn propagate` with the hops and operators that it was trained on"
            )
        records = (records - self.mean) / self.deviation
        return [*torch.split(records, [width for _, width in self.segments], 1)]


class SGC(HopModel):
    """Maps the last hop linearly (Wu et al., Simplifying Graph Convolutional Networks, ICML 2019).

    Args:
        segments: of a record.
        out_channels: columns of the output.
    """

    def __init__(self, segments: Segments, out_channels: int) -> None:
        super().__init__(segments)
        self.linear = nn.Linear(self.segments[-1][1], out_channels)

    def rows(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, out_channels] of the last segment."""
        found: Tensor = self.linear(segments[-1])
        return found


class SIGN(HopModel):
    """Maps each segment by a layer of its own, and all of them together by more layers (Frasca et al., SIGN: Scalable
    Inception Graph Neural Networks, 2020).

    Args:
        segments: of a record.
        hidden: width of what each segment becomes, and between the layers behind.
        out_channels: columns of the output.
        num_layers: behind the concatenated segments, at least 1.
        dropout: share of what leaves a layer that is dropped in training.
        norm: of what leaves a layer: 'none', 'batch' or 'layer'.
    """

    def __init__(
        self,
        segments: Segments,
        hidden: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str = "batch",
    ) -> None:
        super().__init__(segments)
        between = partial(_between, norm=norm, dropout=dropout)
        self.inputs = nn.ModuleList(nn.Linear(width, hidden) for _, width in self.segments)
        self.after_inputs = nn.ModuleList(between(width, hidden) for _, width in self.segments)
        widths = [hidden * len(self.segments), *[hidden] * (num_layers - 1)]
        self.layers = nn.ModuleList(nn.Linear(*each) for each in pairwise([*widths, out_channels]))
        self.between = nn.ModuleList(between(*each) for each in pairwise(widths))

    def rows(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, out_channels] of all segments."""
        found: Tensor = self.layers[-1](self.rows_before_last(segments))
        return found

    def rows_before_last(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, hidden] of all segments; of a model with one layer behind them, [B, H * hidden]."""
        of_segments = zip(self.inputs, self.after_inputs, segments, strict=True)
        h = torch.cat([after(layer(segment), segment) for layer, after, segment in of_segments], 1)
        return _through(self.layers[:-1], self.between, h)


class GroupedLinear(nn.Module):
    """Maps each of several segments linearly, by weights of its own.

    Args:
        num_segments: H.
        in_channels, out_channels: columns of each.
    """

    def __init__(self, num_segments: int, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_segments, in_channels, out_channels))
        self.bias = nn.Parameter(torch.zeros(num_segments, out_channels))
        for weight in self.weight:
            nn.init.xavier_uniform_(weight, gain=nn.init.calculate_gain("relu"))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, in_channels] to [B, H, out_channels]."""
        found: Tensor = torch.einsum("bhi,hio->bho", x, self.weight) + self.bias
        return found


class SegmentAttention(nn.Module):
    """Adds to each segment what it attends to among all, with a gate that is closed at first.

    Args:
        channels: columns of a segment.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(channels, max(1, channels // 4)) for _ in range(2))
        self.value = nn.Linear(channels, channels)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [B, H, channels] to the same shape."""
        query, key = self.query(x), self.key(x)
        shares = torch.softmax(query @ key.transpose(1, 2) / query.shape[-1] ** 0.5, -1)
        found: Tensor = x + self.gate * (shares @ self.value(x))
        return found


class SeHGNN(HopModel):
    """Maps segments of any widths to one width, lets them attend to each other, and maps all of them together (Yang et
    al., Simple and Efficient Heterogeneous Graph Neural Network, AAAI 2023). A seed's own features are added to that.

    Args:
        segments: of a record.
        hidden: width of what each segment becomes, and between the layers behind.
        out_channels: columns of the output.
        num_layers: behind the segments' fusion, at least 1.
        dropout: share of what leaves a layer that is dropped in training.
        norm: of what leaves a layer behind the fusion: 'none', 'batch' or 'layer'; with 'batch', of the output, too.
    """

    def __init__(
        self,
        segments: Segments,
        hidden: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str = "batch",
    ) -> None:
        super().__init__(segments)
        num_segments = len(self.segments)
        self.inputs = nn.ModuleList(nn.Linear(width, hidden, bias=False) for _, width in self.segments)

        def of_segments() -> list[nn.Module]:
            linear, dropped = GroupedLinear(num_segments, hidden, hidden), nn.Dropout(dropout)
            return [linear, nn.LayerNorm([num_segments, hidden]), nn.PReLU(), dropped]

        self.of_segments = nn.Sequential(*of_segments(), *of_segments())
        self.attention = SegmentAttention(hidden)
        self.together = nn.Linear(num_segments * hidden, hidden)
        has_own = self.segments[0][0] == "x"
        self.own = nn.Linear(hidden, hidden, bias=False) if has_own else None
        self.after_fusion = nn.Sequential(nn.PReLU(), nn.Dropout(dropout))
        widths = [hidden] * num_layers
        self.layers = nn.ModuleList(nn.Linear(*each) for each in pairwise([*widths, out_channels]))
        self.between = nn.ModuleList(_between(*each, norm, dropout) for each in pairwise(widths))
        self.norm = BatchNorm(out_channels) if norm == "batch" else nn.Identity()

    def rows(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, out_channels] of all segments."""
        found: Tensor = self.norm(self.layers[-1](self.rows_before_last(segments)))
        return found

    def rows_before_last(self, segments: list[Tensor]) -> Tensor:
        """Returns [B, hidden] of all segments."""
        embedded = [layer(segment) for layer, segment in zip(self.inputs, segments, strict=True)]
        fused = self.attention(self.of_segments(torch.stack(embedded, 1)))
        h: Tensor = self.together(fused.flatten(1))
        if self.own is not None:
            h = h + self.own(embedded[0])
        return _through(self.layers[:-1], self.between, self.after_fusion(h))


def _between(in_channels: int, out_channels: int, norm: str, dropout: float) -> Between:
    return Between(in_channels, out_channels, norm, relu_dropout, dropout, skip=False)


def _through(layers: Iterable[nn.Module], between: Iterable[nn.Module], h: Tensor) -> Tensor:
    for layer, after in zip(layers, between, strict=True):
        h = after(layer(h), h)
    return h


def make_hop_model(spec: ModelSpec, segments: Segments, out_channels: int) -> HopModel:
    """Makes the model that `spec`, which is fitted to hop features, means."""
    if spec.name == "sgc":
        return SGC(segments, out_channels)
    assert spec.num_layers is not None
    assert spec.norm is not None
    made = SeHGNN if spec.name == "sehgnn" else SIGN
    return made(segments, spec.hidden, out_channels, spec.num_layers, spec.dropout, spec.norm)


def _flat(x: Tensor | Mapping[str, Tensor], *, of_one: bool = False) -> Tensor:
    """Returns [B, V] of x [B, H, D], or of parts of it by segment; of the x of one record with a row in front."""
    parts = [*x.values()] if isinstance(x, Mapping) else [x]
    return torch.cat([(part[None] if of_one else part).flatten(1) for part in parts], 1)
