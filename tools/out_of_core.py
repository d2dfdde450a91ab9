"""Run the whole job inside a memory cgroup, page cache included: generate, prepare, train and evaluate.

    python tools/out_of_core.py --folder data/out-of-core --nodes 16000000 --width 128 --limit 2GiB

Prints, for each command, seconds, the cgroup's peak usage, and whether the kernel killed anything. Needs root for the
cgroup (v1 or v2); with --limit none the commands run without one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

from diskgnn.system.memory_cgroup import MemoryCgroup
from diskgnn.units import format_size, parse_size


def run(name: str, arguments: list[str], limit: int | None) -> dict[str, object]:
    """Run `diskgnn ARGUMENTS` and say what it took."""
    command = [sys.executable, "-m", "diskgnn", *arguments]
    print("$ diskgnn", " ".join(arguments), flush=True)
    started = time.perf_counter()
    with nullcontext() if limit is None else MemoryCgroup(limit) as cgroup:
        inside = command if cgroup is None else cgroup.command(command)
        finished = subprocess.run(inside, stdout=subprocess.PIPE, text=True, check=False)
        record: dict[str, object] = {"stage": name, "seconds": time.perf_counter() - started}
        if cgroup is not None:
            record |= {"peak_bytes": cgroup.peak_bytes(), "oom_kills": cgroup.oom_kills()}
    if finished.returncode != 0:
        sys.exit(f"{name} failed with exit code {finished.returncode}: {finished.stdout}")
    record["result"] = json.loads(finished.stdout)
    return record


def main() -> None:
    """Parse arguments, run the stages, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where everything is written; deleted in the end")
    parser.add_argument("--nodes", type=int, default=16_000_000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--limit", default="2GiB")
    parser.add_argument("--json", type=Path, help="write the records here, too")
    options = parser.parse_args()
    limit = None if options.limit == "none" else parse_size(options.limit)
    graph, packed, checkpoint = (str(options.folder / name) for name in ("graph", "packed", "checkpoint"))
    options.folder.mkdir(parents=True)
    stages = [
        ("generate", ["generate", graph, "--num-nodes", str(options.nodes), "--avg-degree", "12.5",
                      "--num-features", str(options.width), "--train-fraction", "0.02",
                      "--valid-fraction", "0.001", "--test-fraction", "0.001"]),
        ("prepare", ["prepare", graph, packed, "--fanouts", "10,10,10", "--batch-size", "1024",
                     "--cpu-cache", "10%"]),
        ("train", ["train", packed, "--epochs", "1", "--checkpoint", checkpoint]),
        ("evaluate", ["evaluate", packed, "--checkpoint", checkpoint]),
    ]  # fmt: skip
    try:
        records = [run(name, [*arguments, "--json"], limit) for name, arguments in stages]
    finally:
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
