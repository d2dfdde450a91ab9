"""The sizes of a packed directory's files, which are known exactly once all rows have their places."""

from __future__ import annotations

from diskgnn.formats import artifacts
from diskgnn.packing.placed import STAGE, Placed, PlacedSplit

_NPY_HEADER_BYTES = 128
_MANIFEST_BYTES, _MANIFEST_ENTRY_BYTES = 8 << 10, 512  # at most, about: of the config, and of each file


def file_sizes(placed: Placed) -> dict[str, int]:
    """Returns the bytes of each file of the directory; an upper bound for the manifest."""
    sizes = {}
    for split in placed.splits:
        index = split.index
        sizes[artifacts.extents_file(split.name)] = index.num_bytes
        sizes[artifacts.index_file(split.name)] = _NPY_HEADER_BYTES + index.extents.nbytes
        sizes[artifacts.rows_file(split.name)] = _NPY_HEADER_BYTES + index.rows.nbytes
    for number, row_set in enumerate(placed.row_sets):
        name = row_set.config.name
        sizes[artifacts.static_file(name)] = _NPY_HEADER_BYTES + len(placed.static_nodes[number]) * row_set.row_bytes
        for split in placed.splits:
            rows = split.row_sets[number]
            initial_bytes = len(rows.initial_cpu_nodes) * row_set.row_bytes
            sizes[artifacts.initial_cpu_rows_file(split.name, name)] = _NPY_HEADER_BYTES + initial_bytes
            sizes[artifacts.next_cycle_slots_file(split.name, name)] = _NPY_HEADER_BYTES + rows.next_cycle_slots.nbytes
        if (quantisation := row_set.features.quantisation) is not None:
            sizes[artifacts.packed_codes_file(name)] = _NPY_HEADER_BYTES + quantisation.to_array().nbytes
    sizes = {name: size for name, size in sizes.items() if placed.wants(name)}
    sizes[artifacts.MANIFEST] = _MANIFEST_BYTES + len(sizes) * _MANIFEST_ENTRY_BYTES
    return sizes


def sizes_with_records(placed: Placed) -> dict[str, int]:
    """Returns `file_sizes`, and the most that records more take, which say how far placing and packing are."""
    static_bytes = sum(nodes.nbytes for nodes in placed.static_nodes)  # with the split that chose them
    records_bytes = sum(map(_record_bytes, placed.splits), start=static_bytes)
    return file_sizes(placed) | {f"{STAGE}.": 2 * records_bytes}  # a new one is written before the old one goes


def _record_bytes(split: PlacedSplit) -> int:
    """Returns the most that records take for the split: where it is placed, and which rows are written."""
    index = split.index
    tiers_bytes = sum(rows.initial_cpu_nodes.nbytes + rows.next_cycle_slots.nbytes for rows in split.row_sets)
    return 2 * (index.extents.nbytes + index.rows.nbytes) + tiers_bytes
