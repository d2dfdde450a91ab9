"""What command-line options have in common: sizes, fanouts, and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from diskgnn.errors import ConfigError
from diskgnn.specs.caches import DEFAULT_CPU_CACHE
from diskgnn.specs.engines import ENGINES
from diskgnn.specs.near_names import near_name
from diskgnn.specs.sampling import DRAWS, TEMPORAL
from diskgnn.specs.schema import SPLITS
from diskgnn.specs.targets import AVOIDED, EXCLUSIONS, MESSAGE_EDGES, NEGATIVES_BY, SEED_TASKS
from diskgnn.stores.locations import is_database, located
from diskgnn.units import parse_size

Command = TypeVar("Command", bound=Callable[..., Any])


class Place(click.Path):
    """A path of this machine, or with `urls` also the URL of an object store: as text, if `as_text`."""

    def __init__(self, *, exists: bool = False, urls: bool, as_text: bool = False) -> None:
        super().__init__(exists=exists, path_type=Path)
        self.urls, self.as_text = urls, as_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns a `Path`, a `StoredPath`, or text."""
        try:
            found = located(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if isinstance(found, Path):
            return super().convert(found, param, ctx)
        if not self.urls:
            self.fail(
                f"expected a path of this machine, found the URL {value}; `diskgnn fetch` copies it here", param, ctx
            )
        return str(found) if self.as_text else found


class DataSet(Place):
    """A path of this machine, or the URL of a database, which is nothing but text here."""

    def __init__(self) -> None:
        super().__init__(urls=False)  # a database that was fetched need not be there any more

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns a `Path`, or text."""
        return value if is_database(value) else super().convert(value, param, ctx)


# The library checks what is there: its messages name the command that makes it.
ARTIFACT = Place(urls=True)
OUTPUT = LOCAL = Place(urls=False)
EXISTING = Place(exists=True, urls=False)
DATA_SET = DataSet()  # of convert
PACKED = Place(urls=True, as_text=True)  # of what trains, which reads a store only when asked to
SOURCE = Place(exists=True, urls=True, as_text=True)  # of convert


class Size(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Bytes: 512MiB, 2GB, 4096. `words` and, with `share`, percentages such as 10% are passed on as they are."""

    name = "size"

    def __init__(self, *words: str, share: bool = False) -> None:
        self.words, self.share = words, share

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        """Returns the bytes as an int, or the text that is passed on."""
        if value in self.words or (self.share and str(value).endswith("%")):
            return str(value)
        try:
            return parse_size(value)
        except ConfigError as error:
            choices = "".join(f" or '{word}'" for word in self.words)
            self.fail(f"{error}{choices}", param, ctx)


class TypedFanouts(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Comma-separated fanouts, from the seeds outwards, of all edge types or of one: 10,10 or author:writes:paper=10,5.
    -1 takes all neighbours.
    """

    name = "[type=]n,n,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, list[int]]:
        """Returns (edge type or None, the numbers); what they may be is the library's business."""
        if isinstance(value, tuple):
            return value
        edge_type, equals, fanouts = str(value).rpartition("=")
        try:
            return edge_type if equals else None, [int(part) for part in fanouts.split(",")]
        except ValueError:
            self.fail(f"expected whole numbers separated by commas, such as 10,10,10; found {fanouts!r}", param, ctx)


class TypedWindow(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A window of time, of all edge types or of one: 180d or orders:of:users=180d."""

    name = "[type=]window"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str | None, str]:
        """Returns (edge type or None, the window); what it may be is the library's business."""
        if isinstance(value, tuple):
            return value
        edge_type, equals, window = str(value).rpartition("=")
        return edge_type if equals else None, window


class Column(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """ROLE=NAME: what the column of a table is called."""

    name = "role=name"

    def __init__(self, *roles: str) -> None:
        self.roles = (*roles, "names", "delimiter", "types")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Returns (role, name)."""
        if isinstance(value, tuple):
            return value
        role, equals, name = str(value).partition("=")
        if role not in self.roles or not equals or not name:
            self.fail(f"expected ROLE=NAME with a role of {', '.join(self.roles)}; found {value!r}", param, ctx)
        return role, name


COLUMN = Column("src", "dst", "id", "features", "label", "split", "time", "weight")


class SplitSource(Place):
    """A table with a column of splits, or SPLIT=PATH."""

    name = "[split=]path"

    def __init__(self) -> None:
        super().__init__(exists=True, urls=True, as_text=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns (split or None, a `Path` or the text of a URL)."""
        if isinstance(value, tuple):
            return value
        split, equals, path = str(value).partition("=")
        if equals and split in SPLITS:
            return split, super().convert(path, param, ctx)
        if equals and split.isalpha() and not Path(str(value)).exists():
            self.fail(
                f"expected a file, or SPLIT=PATH with a split of {', '.join(SPLITS)}; found {split!r} before the ="
                f"{near_name(split, SPLITS)}", param, ctx,
            )  # fmt: skip
        return None, super().convert(value, param, ctx)


class Rows(Place):
    """A path of a file with a row for each node, or raw:DTYPE:WIDTH:PATH."""

    def __init__(self) -> None:
        super().__init__(exists=True, urls=True, as_text=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path, or the text that is passed on; the library looks for its file."""
        return value if str(value).startswith("raw:") else super().convert(value, param, ctx)


ROWS = Rows()


class Setting(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Returns (name, value)."""
        if isinstance(value, tuple):
            return value
        name, equals, setting = str(value).partition("=")
        if not name or not equals:
            self.fail(f"expected NAME=VALUE, found {value!r}", param, ctx)
        return name, setting


SETTING = Setting()


class Choice(click.Choice):  # type: ignore[type-arg]  # it takes one since click 8.2
    """One of several words; the one that was meant is told of a wrong one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the word, as click does."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise click.BadParameter(
                error.message.rstrip(".") + (near_name(value, self.choices) or "."), ctx, param
            ) from None


class Option(click.Option):
    """A click option that --help lists under the title of its `section`."""

    def __init__(self, *args: Any, section: str = "Options", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


class FormatOption(Option):
    """An option whose help names the source formats, which are imported only for --help."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Returns (the option, its help)."""
        from diskgnn.importers.source_formats.registry import FORMATS

        record = super().get_help_record(ctx)
        return None if record is None else (record[0], record[1].format(formats=", ".join(FORMATS)))


# The last section before the common options: what somebody needs who has measured, and nobody else.
EXPERTS = "For experts (the defaults are right until a measurement says otherwise)"


def section(title: str) -> Callable[..., Callable[[Command], Command]]:
    """Returns a `click.option` for one section of --help."""
    return partial(click.option, cls=Option, section=title)


def combined(*decorators: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Returns one decorator that applies several, the first one listed first in --help."""

    def apply(command: Command) -> Command:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return apply


memory = click.option(
    "--memory", type=Size("auto"), default="auto", show_default=True,
    help="Memory that the stage may use; 'auto' is half of what this process has (a cgroup's limit counts).",
)  # fmt: skip
disk = click.option(
    "--disk", type=Size(),
    help="What files may take at any time, samples and scratch included.  [default: what is free]",
)  # fmt: skip
output_disk = click.option(
    "--disk", type=Size(), help="What files may take at any time, scratch included.  [default: what is free]"
)
threads = click.option(
    "--threads", type=click.IntRange(min=1), help="Threads to use.  [default: as many as there are cores]"
)
overwrite = click.option("--overwrite", is_flag=True, help="Replace the output if it exists.")
engine = combined(
    click.option(
        "--engine", type=Choice(ENGINES), default=ENGINES[0], show_default=True,
        help="ray: by the workers of a cluster, which see GRAPH and OUT at the same paths. The bytes are the same.",
    ),
    click.option(
        "--address",
        help="With --engine ray: of a running Ray.  [default: the one that Ray finds, or a new one on this machine]",
    ),
)  # fmt: skip
seed = click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bytes.")

serve = click.option(
    "--serve", type=click.IntRange(0, 65535), metavar="PORT",
    help="Show progress on a page at 127.0.0.1:PORT while this runs; 0 takes any port that is free.",
)  # fmt: skip

_sampling = section("Sampling")
_types = section("Types, times and links")
_experts = section(EXPERTS)
_seeds = section("Seeds of your own, with times and labels")
minibatches = combined(
    _sampling("--fanouts", type=TypedFanouts(), multiple=True, required=True,
              help="Neighbours drawn per layer, from the seeds outwards: 10,10,10 is a three-layer model. Of one edge "
                   "type: author:writes:paper=10,5; repeat it for others, those left out are not followed."),
    _sampling("--batch-size", type=click.IntRange(min=1), default=1024, show_default=True, help="Seeds per minibatch."),
    _sampling("--eval-fanouts", type=TypedFanouts(), multiple=True,
              help="Fanouts of the validation and test splits.  [default: as --fanouts]"),
    _sampling("--draws", type=Choice(DRAWS), default="independent", show_default=True,
              help="Coordinated: all nodes of a minibatch agree on which neighbours to draw; it needs fewer rows."),
    _experts("--draw-period", type=click.IntRange(min=1), default=1, show_default=True,
              help="With --draws coordinated: minibatches in which draws move round all neighbours; 1 draws anew."),
    _experts("--group-seeds", type=click.IntRange(min=1), default=1, show_default=True,
              help="Train on seeds in groups of so many that are near each other; it needs fewer rows."),
    _types("--target", metavar="TYPE",
           help="What the seeds are: nodes of a type, or for link prediction the seed edges of an edge type, "
                "author:writes:paper.  [default: the only node type with a train split]"),
    _types("--temporal", type=Choice(TEMPORAL),
           help="Of a graph with times, which has to say it: draw nothing later than the seed, uniformly or the last "
                "ones; or ignore times, so that seeds see what comes after them."),
    _types("--temporal-window", type=TypedWindow(), multiple=True,
           help="With --temporal: only edges of so long before the seed, such as 180d, or a number as the graph's times"
                " are. For edges with times, and in a database those towards the row referred to; or of one edge type: "
                "orders:of:users=30d; repeat it for others."),
    _types("--strict-time/--no-strict-time", default=None,
           help="With --temporal: nothing of the time of the seed either.  [default: so for links only]"),
    _types("--weighted", is_flag=True, help="Draw in proportion to weights, where edges have them."),
    _types("--edge-ids", is_flag=True, help="Keep which edges were drawn: `edge_ids` of blocks."),
    _types("--keep-times", is_flag=True,
           help="Keep times of input nodes, and with --temporal of seeds: `times` and `seed_times` of minibatches."),
    _types("--negatives", type=click.IntRange(min=0),
           help="Of links: pairs without an edge for each seed edge in training; 0: those of the batch.  [default: 1]"),
    _types("--eval-negatives", type=click.IntRange(min=0), help="The same in the other splits.  [default: 100]"),
    _types("--avoid", type=Choice(AVOIDED),
           help="Of links: what negatives are not; seed edges of any split, all known edges (filtered ranks), or none "
                "as in PyG.  [default: seeds]"),
    _types("--negatives-by", type=Choice(NEGATIVES_BY),
           help="Of links: draw destinations uniformly, or in proportion to the train edges that they have.  "
                "[default: uniform]"),
    _types("--message-edges", type=Choice(MESSAGE_EDGES),
           help="Of links: what neighbourhoods are drawn from; the graph without the seed edges of valid and test and "
                "their reverses, or all of it: then evaluation sees its own answers.  [default: train]"),
    _types("--exclude", type=Choice(EXCLUSIONS),
           help="Of links: what a train minibatch does not draw; its seed edges themselves, or the reverse ones too.  "
                "[default: reverse]"),
    _types("--reverse-edge-type", metavar="TYPE",
           help="Of links: the type of the reverse edges.  [default: rev_NAME, if the graph has it]"),
)  # fmt: skip
given_seeds = combined(
    _seeds("--target-seeds", "seeds", type=SplitSource(), multiple=True, metavar="[SPLIT=]PATH",
           help="Train on these in place of the graph's splits: a table with a column `split`, or one for each, "
                "train=FILE; repeat it. Parquet or CSV, a file or a folder of parts."),
    _seeds("--target-column", "columns", type=Column("id", "src", "dst", "time", "label", "split"), multiple=True,
           help="What a column of them is called, such as time=day; label=NAME may come several times.  [default: id, "
                "of edge types src and dst, time, label and split; there need be no times and no labels]"),
    _seeds("--target-task", "task", type=Choice(SEED_TASKS),
           help="What their labels are.  [default: class of whole numbers and truth values, multilabel of several of "
                "them for each seed, regression of other numbers]"),
    _seeds("--target-classes", "classes", metavar="VALUE,VALUE,...",
           help="Classes 0, 1, ... of their labels as in training, for seeds that a trained model is applied to.  "
                "[default: the values that there are, in ascending order]"),
)  # fmt: skip
without = _types(
    "--without",
    multiple=True,
    metavar="TYPE.COLUMN",
    help="Leave out a column that a table keeps, such as one that labels are made from; repeat it.",
)
sampling = combined(
    minibatches,
    given_seeds,
    without,
    _experts("--sampler", metavar="MODULE:FUNCTION",
              help="A Python function that draws in place of ours, from the current folder or where Python finds it; "
                   "--fanouts are then -1 for each layer."),
    _sampling("--epochs", type=click.IntRange(min=1), default=1, show_default=True,
              help="Training epochs to sample; training for more starts over with the first. 4 mostly learn as well as "
                   "fresh ones, and take 4 times the disk space."),
)  # fmt: skip
CACHE = Size(share=True)
_caches = section("Caches")
caches = combined(
    _caches("--cpu-cache", type=CACHE, default=DEFAULT_CPU_CACHE, show_default=True,
            help="Main memory for feature rows while training: 2GiB, or 10% of all rows."),
    _experts("--static-cache", type=Size("auto", share=True), default="auto", show_default=True,
            help="The hottest rows, which stay in GPU memory or pinned host memory while training; 'auto' is nothing "
                 "without a GPU, and with one the least of half of its free memory, a quarter of --memory and 4 GiB."),
    _experts("--eval-cpu-cache", type=CACHE,
            help="Main memory for feature rows while evaluating.  [default: a quarter of --cpu-cache]"),
    _experts("--keep-input-nodes", is_flag=True, help="Also store which node each row belongs to."),
)  # fmt: skip
