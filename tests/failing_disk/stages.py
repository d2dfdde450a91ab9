"""Run under failing_disk.so: let the disk fail below each input of each stage, and print what became of it as JSON.

Usage: stages.py LIBRARY FOLDER, where FOLDER holds graph/ and links/.
"""

import ctypes
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import diskgnn
from diskgnn.storage.manifest import open_artifact

FOR_EVER = -1
RECOVERS = 2  # reads that fail before one succeeds: fewer than are attempted

disk = ctypes.CDLL(sys.argv[1])
disk.failing_disk_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_long]
disk.failing_disk_left.restype = ctypes.c_long
folder = Path(sys.argv[2])
sampling = {"fanouts": [3, 2], "batch_size": 20, "seed": 3}


def outcome(run: Callable[[], object]) -> dict[str, str]:
    try:
        return {"result": str(run())}
    except Exception as error:  # whatever it is: the test looks at it
        return {"error": type(error).__name__, "message": str(error)}


def attempt(stage: str, inputs: Path, run: Callable[[Path], object]) -> None:
    """Run a stage undisturbed, then with each file of `inputs` failing for ever, and only at first."""
    undisturbed = outcome(lambda: run(folder / "undisturbed"))
    for file in sorted(inputs.iterdir()):
        for times in (FOR_EVER, RECOVERS):
            name = f"{inputs.name}/{file.name}"
            disk.failing_disk_arm(name.encode(), 0, times)
            output = folder / "output"
            found = outcome(lambda output=output: run(output))
            was_read = disk.failing_disk_left() != (2**63 - 1 if times == FOR_EVER else times)
            disk.failing_disk_arm(b"", 0, 0)
            again = outcome(lambda output=output: run(output)) if "error" in found else found
            print(json.dumps({
                "stage": stage, "file": name, "for_ever": times == FOR_EVER, "was_read": was_read, **found,
                "again": again == undisturbed,
            }))  # fmt: skip
            shutil.rmtree(output, ignore_errors=True)


def digest(output: Path) -> str:
    return open_artifact(output).digest


def sample(output: Path) -> str:
    diskgnn.sample(folder / "graph", output, **sampling)
    return digest(output)


def sweep(output: Path) -> str:
    diskgnn.sample(folder / "graph", output, memory="64KiB", **sampling)
    return digest(output)


def sample_links(output: Path) -> str:
    target = diskgnn.LinkTarget("user:likes:item")
    diskgnn.sample(folder / "links", output, target=target, temporal="uniform", weighted=True, **sampling)
    return digest(output)


def pack(output: Path) -> str:
    diskgnn.pack(folder / "graph", folder / "samples", output, cpu_cache="10%")
    return digest(output)


def load(output: Path) -> str:
    sums = []
    for split in ("train", "valid"):
        with diskgnn.Loader(folder / "packed", split) as loader:
            loader.load_state_dict(loader.state_dict())
            sums += [float(batch.x.sum()) for batch in loader]
    return str(sums)


def describe(output: Path) -> str:
    from diskgnn.graph.inspection import describe

    return str(describe(folder / "graph"))


warnings.simplefilter("ignore")
sample(folder / "samples")
pack(folder / "packed")
for stage, inputs, run in (
    ("sample", "graph", sample), ("sweep", "graph", sweep), ("sample links", "links", sample_links),
    ("pack", "graph", pack), ("pack", "samples", pack), ("load", "packed", load), ("inspect", "graph", describe),
):  # fmt: skip
    attempt(stage, folder / inputs, run)
    shutil.rmtree(folder / "undisturbed", ignore_errors=True)
