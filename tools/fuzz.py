"""Coverage-guided fuzzing of what reads files: python tools/fuzz.py header --seconds 600. Needs `pip install atheris`.

Begins with tests/corpus/TARGET/ and with sound files. An input that finds a bug is written to --findings; put it into
tests/corpus/TARGET/ when the bug is fixed: the tests run all that lies there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["diskgnn", "numpy.lib", "json"]):
    from fuzz_targets import TARGETS, sound_inputs

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"


def main() -> None:
    """Fuzz one target until the time is over or a bug is found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="0 for another one each time")
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    arguments = parser.parse_args()
    arguments.findings.mkdir(exist_ok=True)
    inputs = Path(tempfile.mkdtemp(prefix="diskgnn-corpus-"))
    for number, data in enumerate(sound_inputs()[arguments.target]):
        (inputs / f"sound-{number}").write_bytes(data)
    known = CORPUS / arguments.target
    atheris.Setup(
        [sys.argv[0], f"-max_total_time={arguments.seconds}", "-timeout=20", "-rss_limit_mb=4096",
         f"-seed={arguments.seed}", "-print_final_stats=1",
         f"-artifact_prefix={arguments.findings}/", str(inputs), *([str(known)] if known.is_dir() else [])],
        TARGETS[arguments.target],
    )  # fmt: skip
    atheris.Fuzz()


if __name__ == "__main__":
    main()
