"""Describes a model that is given by name, checked once. Needs no torch, so that `compare` can say it, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

from diskgnn.errors import ConfigError
from diskgnn.nn.layer_types import input_types
from diskgnn.specs.schema import SourceSchema
from diskgnn.units import counted, format_size, parse_size, whole_number

ONE_TYPE_MODELS = ("sage", "gat", "gcn")
TYPED_MODELS = ("rgcn", "rgat", "hgt")
RELATIONAL = "relational"  # of one type or several, which sees columns and times
HOP_MODELS = ("sign", "sgc", "sehgnn")  # of hop features, without blocks
MODELS = (*ONE_TYPE_MODELS, *TYPED_MODELS, RELATIONAL, *HOP_MODELS)
AGGREGATIONS = ("mean", "sum", "max")
NORMS = ("none", "batch", "layer")
EMBEDDINGS = ("memory", "disk")
DECODERS = ("dot", "distmult", "mlp")
_WITH_BLOCKS = ONE_TYPE_MODELS + TYPED_MODELS
_WITH_SEGMENTS = ("sign", "sehgnn")
_WITH_LAYERS = (*_WITH_BLOCKS, RELATIONAL, *_WITH_SEGMENTS)
ONLY_OF: dict[str, tuple[str, ...]] = {  # models that have an option; all others refuse it
    "aggregation": ("sage",), "heads": ("gat", "rgat", "hgt"), "num_bases": ("rgcn",), "skip": _WITH_BLOCKS,
    "hidden": _WITH_LAYERS, "dropout": _WITH_LAYERS, "norm": _WITH_LAYERS,
}  # fmt: skip
_HOP_LAYERS = 2
MOST_CATEGORIES = 1 << 16  # of a column that 'relational' has vectors for; rarer values share one
EMBEDDING_COPIES = 4  # of each number of a vector: itself, Adam's two moments, and the weights of the best epoch


class ModelOptions(TypedDict, total=False):
    """Holds the fields of `ModelSpec` but the name, as keywords."""

    hidden: int
    num_layers: int | None
    heads: int
    dropout: float
    num_bases: int | None
    decoder: str | None
    embedding_memory: int | str
    embeddings: str
    aggregation: str
    norm: str | None
    skip: bool


def _one_of(names: tuple[str, ...]) -> str:
    return " or ".join(filter(None, (", ".join(map(repr, names[:-1])), repr(names[-1]))))


@dataclass(frozen=True)
class ModelSpec:
    """Describes the shape of a model that is given by name.

    Attributes:
        name: 'sage', 'gat' or 'gcn'; on a graph with several types 'rgcn', 'rgat' or 'hgt'; on either 'relational'; of
            hop features 'sign', 'sgc' or 'sehgnn'. The first by default, of hop features along paths 'sehgnn'.
        hidden: width between layers, that of all heads together; of the nodes' vectors that predict links.
        num_layers: of the model; as many as a minibatch has blocks by default, and no other number fits. Of 'sign' and
            'sehgnn', behind what each segment has for itself, 2 by default.
        heads: attention heads of 'gat', 'rgat' and 'hgt'.
        dropout: share of activations that are dropped in training, in [0, 1).
        num_bases: of 'rgcn', whose edge types mix their weights from so many. By default each has its own.
        decoder: of pairs of nodes, 'dot', 'distmult' or 'mlp'; 'dot' by default for links, 'mlp' for pairs with labels.
        embedding_memory: what the vectors of nodes without features may take in training: 16 bytes for each number;
            of 'relational', those of values of categories.
        embeddings: where these vectors lie, 'memory' or 'disk': in the folder of the checkpoint, of any size.
        aggregation: of 'sage', what is made of the neighbours' rows: their 'mean', 'sum' or 'max', column by column.
        norm: of the rows between layers, 'none', 'batch' or 'layer'; 'batch' by default for 'sign' and 'sehgnn',
            'layer' for 'relational', else 'none'.
        skip: add a layer's input to its output; the last layer's is not. 'relational' always does, in all layers.

    Raises:
        ConfigError: a value that makes no sense.
    """

    name: str | None = None
    hidden: int = 256
    num_layers: int | None = None
    heads: int = 4
    dropout: float = 0.5
    num_bases: int | None = None
    decoder: str | None = None
    embedding_memory: int | str = "2GiB"
    embeddings: str = "memory"
    aggregation: str = "mean"
    norm: str | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "num_layers", "heads", "num_bases"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, whole_number(name, value))
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout: expected a number in [0, 1), found {self.dropout}")
        if self.name not in (None, *MODELS):
            names = ", ".join(MODELS)
            raise ConfigError(f"model: expected one of {names}, found {self.name!r}")
        if self.decoder not in (None, *DECODERS):
            raise ConfigError(f"decoder: expected one of {', '.join(DECODERS)}, found {self.decoder!r}")
        if self.embeddings not in EMBEDDINGS:
            raise ConfigError(f"embeddings: expected one of {', '.join(EMBEDDINGS)}, found {self.embeddings!r}")
        if self.aggregation not in AGGREGATIONS:
            raise ConfigError(f"aggregation: expected one of {', '.join(AGGREGATIONS)}, found {self.aggregation!r}")
        if self.norm not in (None, *NORMS):
            raise ConfigError(f"norm: expected one of {', '.join(NORMS)}, found {self.norm!r}")
        parse_size(self.embedding_memory)

    def check_heads(self) -> None:
        """Refuses heads that do not share the hidden width evenly.

        Raises:
            ConfigError: they do not.
        """
        if self.hidden % self.heads:
            raise ConfigError(
                f"{self.name}: expected a hidden width that is a multiple of heads={self.heads}, found {self.hidden}"
            )

    def checked_depth(self, num_layers: int) -> int:
        """Returns `num_layers`, or that of the minibatches.

        Raises:
            ConfigError: another number was asked for.
        """
        if self.num_layers is not None and self.num_layers != num_layers:
            raise ConfigError(
                f"the model has {counted(self.num_layers, 'layer')}, but the minibatches were sampled with "
                f"{counted(num_layers, 'fanout')}: use num_layers={num_layers}, or prepare again with "
                f"{counted(self.num_layers, 'fanout')}"
            )
        return num_layers

    def fitted(self, schema: SourceSchema, num_layers: int) -> ModelSpec:
        """Returns the same with the name and the depth that minibatches of `schema` with so many blocks ask for.

        Raises:
            ConfigError: it is of another depth, or of the other kind of graph; or vectors of nodes without features
                take more memory than they may.
        """
        if schema.segments:
            return self._fitted_to_hops(schema)
        num_layers = self.checked_depth(num_layers)
        names = (*(TYPED_MODELS if schema.is_typed else ONE_TYPE_MODELS), RELATIONAL)
        kind = "several types" if schema.is_typed else "one type"
        name = self._name_of(names, f"a graph with {kind} of nodes and edges")
        is_relational = name == RELATIONAL
        types = input_types(schema, num_layers) if schema.is_typed and not is_relational else ()
        without_features = {name: nodes for name, nodes, width in types if width is None}
        self._refuse_without_effect(name, schema, has_embeddings=bool(without_features))
        norm = self.norm or ("layer" if is_relational else "none")
        spec = replace(self, name=name, num_layers=num_layers, decoder=self.decoder_for(schema), norm=norm)
        if is_relational:
            spec._check_categories(schema)
        elif self.embeddings == "memory":
            spec._check_embeddings(without_features)
        return spec

    def _refuse_without_effect(self, name: str, schema: SourceSchema, *, has_embeddings: bool) -> None:
        """Refuses what this model does not have, rather than training another one than was asked for."""
        for option, models in ONLY_OF.items():
            if (value := getattr(self, option)) != getattr(ModelSpec, option) and name not in models:
                raise ConfigError(f"{option}: only for model={_one_of(models)}, found {value!r} with {name!r}")
        if self.decoder is not None and isinstance(schema.target, str):
            raise ConfigError(
                f"decoder: only for pairs of nodes, found {self.decoder!r} for seeds that are nodes of type "
                f"{schema.target!r}; leave it out"
            )
        if self.embeddings != ModelSpec.embeddings and not has_embeddings:
            raise ConfigError(
                f"embeddings: only for vectors of nodes without features, found {self.embeddings!r} where the model "
                "has none; leave it out"
            )

    def _fitted_to_hops(self, schema: SourceSchema) -> ModelSpec:
        along_paths = schema.has_paths
        names = ("sehgnn", "sign") if along_paths else HOP_MODELS
        if along_paths and self.name == "sgc":
            raise ConfigError(
                "model: sgc takes the last hop of one operator, found means along paths of edge types; use sehgnn or "
                "sign"
            )
        name = self._name_of(names, "hop features")
        self._refuse_without_effect(name, schema, has_embeddings=False)
        if name == "sgc":
            operators = dict.fromkeys(segment.split("/")[0] for segment, _ in schema.segments[1:])
            if len(operators) > 1:
                raise ConfigError(
                    f"model: sgc takes the last hop of one operator, found hops of {' and '.join(operators)}; "
                    f"`diskgnn propagate` with one of them, or use sign"
                )
            if self.num_layers not in (None, 1):
                raise ConfigError(f"num_layers: sgc has 1, found {self.num_layers}")
        num_layers = 1 if name == "sgc" else self.num_layers or _HOP_LAYERS
        norm = self.norm or ("none" if name == "sgc" else "batch")
        return replace(self, name=name, num_layers=num_layers, decoder=self.decoder_for(schema), norm=norm)

    def _name_of(self, names: tuple[str, ...], of: str) -> str:
        """Returns the name that was asked for, or the first of `names`.

        Raises:
            ConfigError: it is none of `names`.
        """
        name = self.name or names[0]
        if name not in names:
            raise ConfigError(f"model: expected one of {', '.join(names)} for {of}, found {name!r}")
        return name

    def decoder_for(self, schema: SourceSchema) -> str:
        """Returns the decoder that was asked for, or the usual one of what `schema` is for."""
        has_labels = not isinstance(schema.target, str) and schema.target_kind != "link"
        return self.decoder or ("mlp" if has_labels else "dot")

    def _check_categories(self, schema: SourceSchema) -> None:
        assert self.num_layers is not None
        used = {name for name, _, _ in input_types(schema, self.num_layers)}
        num_vectors = {
            f"{name}.{column.name}": min(column.num_values, MOST_CATEGORIES)
            for name, columns in schema.tables if name in used
            for column in columns if column.num_values is not None
        }  # fmt: skip
        needed_bytes = sum(num_vectors.values()) * self.hidden * 4 * EMBEDDING_COPIES
        if needed_bytes > (budget_bytes := parse_size(self.embedding_memory)):
            most = max(num_vectors, key=lambda name: num_vectors[name])
            raise ConfigError(
                f"embedding_memory: vectors of {self.hidden} numbers for the {sum(num_vectors.values())} values of "
                f"categories (most of them of {most}) take {format_size(needed_bytes)} in training, and may take "
                f"{format_size(budget_bytes)}: allow more, use a smaller hidden width, or convert without such columns"
            )

    def _check_embeddings(self, without: Mapping[str, int]) -> None:
        needed_bytes = sum(without.values()) * self.hidden * 4 * EMBEDDING_COPIES
        if needed_bytes > (budget_bytes := parse_size(self.embedding_memory)):
            raise ConfigError(
                f"embedding_memory: vectors of {self.hidden} numbers for the {sum(without.values())} nodes without "
                f"features ({', '.join(without)}) take {format_size(needed_bytes)} in training, and may take "
                f"{format_size(budget_bytes)}: allow more, keep them on disk with embeddings='disk', use a smaller "
                "hidden width, or give these nodes features"
            )
