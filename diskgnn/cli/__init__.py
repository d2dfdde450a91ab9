"""The `diskgnn` command. Commands parse, call the library and render; nothing here decides anything."""

from __future__ import annotations

import click

from diskgnn.cli import caching, comparison, graphs, inference, inspection, preparing, propagating, stores, training
from diskgnn.cli.command import Group
from diskgnn.version import VERSION


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, message="%(prog)s %(version)s")
def main() -> None:
    """Train graph neural networks whose features do not fit in memory, from packed files on disk.

    \b
    diskgnn convert graph --edges edges.npy --features x.npy --labels y.npy --train train.npy
    diskgnn prepare graph packed --fanouts 10,10,10 --epochs 4 --cpu-cache 2GiB
    diskgnn train packed --model sage --epochs 20

    Exit codes: 0 all is well, 1 something unexpected, 2 an argument that cannot work, 3 source data that is no
    valid graph, 4 a directory that is missing, damaged or made from something else, 5 the output exists, 6 too
    little disk space, 7 training diverged, 8 the disk or the store failed to read, 9 Ray lost its workers,
    10 the disk failed to write, 129 hung up, 130 interrupted, 143 terminated.
    """


for _command in (
    graphs.convert, graphs.relink, graphs.generate, inspection.inspect, preparing.sample, preparing.pack,
    preparing.prepare, propagating.propagate, training.train, training.evaluate, inference.infer, inference.predict,
    comparison.compare, inspection.verify, stores.fetch, stores.push, caching.cache, inspection.doctor,
):  # fmt: skip
    main.add_command(_command)
