"""The sizes of a packed directory's files, which are known exactly once all rows have their places."""

from __future__ import annotations

from diskgnn.files.disk_space import allocated_bytes, file_bytes, free_bytes, require_free_bytes
from diskgnn.formats import artifacts
from diskgnn.packing.placed import STAGE, Placed, PlacedSplit
from diskgnn.work.writer import ArtifactWriter

_NPY_HEADER_BYTES = 128
_MANIFEST_BYTES, _MANIFEST_ENTRY_BYTES = 8 << 10, 512  # at most, about: of the config, and of each file


def require_space(writer: ArtifactWriter, placed: Placed, *, is_noted: bool) -> None:
    """Refuses what does not fit, now that all sizes are known. Files that a killed run wrote have their space already.

    Raises:
        DiskFullError: names the bytes missing.
    """
    needed_bytes = _missing_bytes(writer, placed)
    if is_noted:
        needed_bytes += _missing_record_bytes(writer, placed)
    writer.disk.look()
    require_free_bytes(writer.staging, needed_bytes, f"packing {writer.final}", exact=True, disk=writer.disk)


def _missing_bytes(writer: ArtifactWriter, placed: Placed) -> int:
    """Returns the bytes that the files of the directory still need."""
    sizes = file_sizes(placed)
    return sum(max(0, file_bytes(size) - allocated_bytes(writer.path(name))) for name, size in sizes.items())


def fits_disk(writer: ArtifactWriter, placed: Placed) -> bool:
    """Returns True if the whole directory has room here at once."""
    writer.disk.look()
    needed_bytes = _missing_bytes(writer, placed) + _missing_record_bytes(writer, placed)
    return needed_bytes <= free_bytes(writer.staging, writer.disk)


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


def _missing_record_bytes(writer: ArtifactWriter, placed: Placed) -> int:
    """Returns the bytes that two records more may take, beside what those of a killed run take already."""
    there = sum(allocated_bytes(path) for path in writer.staging.glob(f"{STAGE}.*.npz"))
    return max(0, 2 * sum(_record_bytes(split) for split in placed.splits) - there)


def _record_bytes(split: PlacedSplit) -> int:
    """Returns the most that records take for the split: where it is placed, and which rows are written."""
    index = split.index
    tiers_bytes = sum(rows.initial_cpu_nodes.nbytes + rows.next_cycle_slots.nbytes for rows in split.row_sets)
    return 2 * (index.extents.nbytes + index.rows.nbytes) + tiers_bytes
