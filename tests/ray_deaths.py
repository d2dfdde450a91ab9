"""Arms a worker of `ray_cluster`'s nodes, which import this when they start: at some points it dies.

Where a file of `deaths` has the name of a point, it takes its node along, once; where one of `crashes` has, it dies
alone, again and again.
"""

import os
import signal
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from diskgnn.files import faults

FOLDER = "DISKGNN_TEST_DEATHS"  # the variable that says where `deaths` and `crashes` are
# Where a node or a worker dies: while it samples, when a unit has left it, while it places, when all is placed, while
# it packs, when it has published; before it computes a window of `infer`.
POINTS = (
    "sample.minibatch", "worker.unit",
    "pack.schedule", "worker.placed",
    "pack.window", "worker.packed",
    "infer.window",
)  # fmt: skip


def die(folder: Path, point: str) -> None:
    if (folder / "crashes" / point).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    death = folder / "deaths" / point
    try:
        death.rename(death.with_name(f"{point}.{os.getpid()}"))
    except FileNotFoundError:
        return
    os.kill(int(os.environ["RAY_RAYLET_PID"]), signal.SIGKILL)  # the node: it goes down with its other workers
    os.kill(os.getpid(), signal.SIGKILL)


if FOLDER in os.environ:
    armed = ExitStack()  # as long as the worker lives
    for point in POINTS:
        armed.enter_context(faults.armed(point, partial(die, Path(os.environ[FOLDER]), point)))
