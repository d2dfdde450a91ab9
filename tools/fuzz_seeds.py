"""What native/fuzz/ begins with: packed directories of our own, as those targets take them.

python tools/fuzz_seeds.py FOLDER
"""

from __future__ import annotations

import itertools
import struct
import sys
from pathlib import Path

import numpy as np

from diskgnn.formats import artifacts
from diskgnn.formats.packed import Packed
from fuzz_targets import sound_directories

PAGE_BYTES = 4096
MOST_EXTENTS = 4


def directory_seed(path: Path, split: str, num_extents: int) -> bytes:
    """The first extents of a split, as `take_directory` of native/fuzz/packed_directory.h takes them.

    Of their headers it has what native code reads, addresses and admissions: small inputs are tried faster.
    """
    packed = Packed.open(path)
    index, data = packed.index(split), (path / artifacts.extents_file(split)).read_bytes()
    seed = struct.pack("<BB", len(packed.config.row_sets), num_extents)
    for row_set, schedule in zip(packed.config.row_sets, packed.config.splits[split].row_sets, strict=True):
        seed += struct.pack("<HBBB", row_set.rows.row_bytes, 0, row_set.num_static, schedule.cpu_rows)
        seed += np.arange(schedule.cpu_rows, dtype=np.int8).tobytes()
    extents, rows, headers = index.extents[:num_extents].copy(), index.rows[:num_extents].copy(), []
    for extent, records in zip(extents, rows, strict=True):
        header = b""
        for record in records:
            for name, count_name, item_bytes in (("addresses", "num_inputs", 4), ("admissions", "num_admissions", 8)):
                first = int(extent["offset"]) + int(record[f"{name}_offset"])
                record[f"{name}_offset"] = len(header)
                header += data[first:][: int(record[count_name]) * item_bytes]
        extent["header_bytes"] = len(header)
        headers.append(header)
    ends = [*(int(offset) for offset in index.extents["offset"][1:]), len(data)]
    num_pages = ends[num_extents - 1] // PAGE_BYTES
    return b"".join([seed, struct.pack("<I", num_pages), extents.tobytes(), rows.tobytes(), *headers])


def main() -> None:
    """Write them."""
    folder, directories = Path(sys.argv[1]), sound_directories()
    for target in ("extents", "pipeline"):
        (folder / target).mkdir(parents=True)
        for name, count in itertools.product(("packed", "links"), range(1, MOST_EXTENTS + 1)):
            (folder / target / f"{name}-{count}").write_bytes(directory_seed(directories / name, "train", count))


if __name__ == "__main__":
    main()
