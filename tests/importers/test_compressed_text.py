"""Compressed tables that Arrow's threads read, when the process ends before they have read all."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as pacsv


def printed(program: str, path: Path) -> list[str]:
    """Words of a Python that has imported little: each of its children takes all of that apart at its end."""
    command = [sys.executable, "-c", program, path]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


ENDING = """
import os, signal, sys
from pathlib import Path
from diskgnn.importers.tables.csv_parts import CsvPart

found = []
for number in range(16):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        batches = CsvPart("edges", Path(sys.argv[1]), None, None, {}).batches(["src", "dst"], 1 << 16)
        for _ in range(number % 4 + 1):
            next(batches)
        batches.close()
        sys.exit(0)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*found)
"""


def test_a_process_that_stops_reading_ends_by_itself(tmp_path: Path) -> None:
    ends, text = np.random.default_rng(0).integers(10_000, 100_000, (1_000_000, 2)), pa.BufferOutputStream()
    pacsv.write_csv(pa.table({"src": ends[:, 0], "dst": ends[:, 1]}), text)
    (tmp_path / "edges.csv.gz").write_bytes(gzip.compress(text.getvalue(), 6))
    found = printed(ENDING, tmp_path / "edges.csv.gz")
    assert found == ["0"] * 16, f"{-signal.SIGABRT}: a thread of Arrow's aborts it; {-signal.SIGALRM}: it hangs"


FAILING = """
import os, signal, sys
from pathlib import Path
from diskgnn.errors import InputError
from diskgnn.importers.tables.csv_parts import CsvPart

found = []
for number in range(4):
    if (child := os.fork()) == 0:
        signal.alarm(60)
        try:
            for _ in CsvPart("nodes", Path(sys.argv[1]), None, None, {}).batches(["id", "name"], 1 << 16):
                pass
        except InputError:
            sys.exit(3)
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*found)
"""


def test_a_process_whose_table_cannot_be_read_ends_by_itself(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "nodes.csv.gz", "wb", 6) as file:
        file.write(b'id,name\n1,"')  # a quote that is never closed
        for _ in range(200):
            file.write(b"a" * (1 << 20))
    found = printed(FAILING, tmp_path / "nodes.csv.gz")
    assert found == ["3"] * 4, f"{-signal.SIGABRT}: a thread of Arrow's aborts it; {-signal.SIGALRM}: it hangs"
