"""The stages, each measured in a process of its own: `python -m benchmarks.stages NAME SETTINGS.json` prints JSON.

A stage and its limit take turns; what is compared is the pair of one turn, and the median over the turns is reported.
"""

import json
import sys
from pathlib import Path

from benchmarks.loading import loader
from benchmarks.making import generate, prepare
from benchmarks.propagating import hops, propagate
from benchmarks.random_reads import random_reads
from benchmarks.rows import rows
from benchmarks.sampling import sampling
from benchmarks.settings import Settings, Stage
from benchmarks.training import training

STAGES: dict[str, Stage] = {
    "generate": generate,
    "prepare": prepare,
    "loader": loader,
    "rows": rows,
    "sampling": sampling,
    "training": training,
    "random_reads": random_reads,
    "propagate": propagate,
    "hops": hops,
}  # in the order in which they run

if __name__ == "__main__":
    found = Settings(**json.loads(Path(sys.argv[2]).read_text()))
    print(json.dumps(STAGES[sys.argv[1]](found)))
