"""One set of static rows for all ranks that train together: those of a machine have them in memory once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from diskgnn.formats import artifacts
from diskgnn.formats.manifest import read_manifest
from diskgnn.formats.packed import Packed
from diskgnn.formats.rank_directories import ranks_in
from diskgnn.formats.samples import Samples
from diskgnn.packing.row_sets import row_sets_of
from diskgnn.packing.static_choice import Nodes, choose_static_of_all
from diskgnn.preparing.prepare_request import PrepareRequest


def with_one_static_set(folder: PrepareRequest, unfinished: Sequence[PrepareRequest]) -> list[PrepareRequest]:
    """Returns `unfinished`, the ranks of `folder` which are sampled, with the rows that all of them together need most
    often.

    Ranks that are finished have decided that already: then the others follow them.
    """
    if not unfinished:
        return []
    to_be_made = {each.out for each in unfinished}
    out = folder.destination.there
    names = [artifacts.rank_directory(each.rank, each.world_size) for each in ranks_in(out)]
    finished = [out / name for name in names if folder.out / name not in to_be_made]
    if finished:
        chosen = _chosen_by(Packed(read_manifest(finished[0])), unfinished[0])
    else:
        samples = (Samples.open(each.samples_path) for each in unfinished)
        chosen = choose_static_of_all(folder.graph, samples, folder.tiers)
    for name, nodes in chosen.items():
        np.save(folder.scratch / artifacts.static_nodes_file(name), nodes)
    return [replace(each, static_from=folder.scratch) for each in unfinished]


def _chosen_by(packed: Packed, request: PrepareRequest) -> dict[str, Nodes]:
    names = [row_set.config.name for row_set in row_sets_of(request.graph, request.plan.config())]
    return {name: packed.static_nodes(name) for name in names}
