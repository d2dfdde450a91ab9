"""Run the whole job inside a memory cgroup, page cache included: generate, prepare, train and evaluate.

    python tools/out_of_core.py --folder data/out-of-core --nodes 16000000 --width 128 --limit 2GiB

Prints, for each command, seconds, the cgroup's peak usage, and whether the kernel killed anything. Needs root for the
cgroup (v1 or v2); with --limit none the commands run without one.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from diskgnn.units import format_size, parse_size

ROOT = Path("/sys/fs/cgroup")


class MemoryCgroup:
    """A cgroup of its own for each command; removed afterwards."""

    def __init__(self, limit_bytes: int) -> None:
        self.is_v1 = (ROOT / "memory" / "memory.limit_in_bytes").exists()
        self.path = (ROOT / "memory" if self.is_v1 else ROOT) / f"diskgnn-out-of-core-{os.getpid()}"
        self.path.mkdir()
        (self.path / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit_bytes))

    def join(self) -> None:
        """Move this process in (called in the child, before exec)."""
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak_bytes(self) -> int:
        """The most that was in use, page cache included."""
        return int((self.path / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")).read_text())

    def remove(self) -> None:
        """Delete the cgroup."""
        self.path.rmdir()


def run(name: str, arguments: list[str], limit: int | None) -> dict[str, object]:
    """Run `diskgnn ARGUMENTS` and say what it took."""
    command = [sys.executable, "-m", "diskgnn", *arguments]
    print("$ diskgnn", " ".join(arguments), flush=True)
    cgroup = None if limit is None else MemoryCgroup(limit)
    started = time.perf_counter()
    finished = subprocess.run(
        command, preexec_fn=None if cgroup is None else cgroup.join, stdout=subprocess.PIPE, text=True, check=False
    )
    record: dict[str, object] = {"stage": name, "seconds": time.perf_counter() - started}
    if cgroup is not None:
        record["peak_bytes"] = cgroup.peak_bytes()
        cgroup.remove()
    if finished.returncode != 0:
        sys.exit(f"{name} failed with exit code {finished.returncode}: {finished.stdout}")
    record["result"] = json.loads(finished.stdout)
    return record


def main() -> None:
    """Parse arguments, run the stages, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is written; deleted in the end")
    parser.add_argument("--nodes", type=int, default=16_000_000)
    parser.add_argument("--degree", type=float, default=12.5)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--train-fraction", default="0.02")
    parser.add_argument("--eval-fraction", default="0.001")
    parser.add_argument("--fanouts", default="10,10,10")
    parser.add_argument("--batch-size", default="1024")
    parser.add_argument("--cpu-cache", default="10%")
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--epochs", default="1", help="prepared and trained")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--json", type=Path, help="write the records here, too")
    options = parser.parse_args()
    limit = None if options.limit == "none" else parse_size(options.limit)
    graph, packed, checkpoint = (str(options.folder / name) for name in ("graph", "packed", "checkpoint"))
    options.folder.mkdir(parents=True)
    stages = [
        ("generate", ["generate", graph, "--num-nodes", str(options.nodes), "--avg-degree", str(options.degree),
                      "--feature-width", str(options.width), "--train-fraction", options.train_fraction,
                      "--valid-fraction", options.eval_fraction, "--test-fraction", options.eval_fraction]),
        ("prepare", ["prepare", graph, packed, "--fanouts", options.fanouts, "--batch-size", options.batch_size,
                     "--epochs", options.epochs, "--cpu-cache", options.cpu_cache]),
        ("train", ["train", packed, "--epochs", options.epochs, "--checkpoint", checkpoint]),
        ("evaluate", ["evaluate", packed, "--checkpoint", checkpoint]),
    ]  # fmt: skip
    try:
        records = [run(name, [*arguments, "--json"], limit) for name, arguments in stages]
    finally:
        if not options.keep:
            shutil.rmtree(options.folder)
    print(f"\n{'stage':<10}{'seconds':>10}{'peak':>12}   (limit {options.limit}, page cache included)")
    for record in records:
        peak = record.get("peak_bytes")
        shown = format_size(int(str(peak))) if peak is not None else "-"
        print(f"{record['stage']:<10}{record['seconds']:>10.1f}{shown:>12}")
    if options.json:
        options.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
