"""Do to every stage what may happen to it in production, and count what was not as docs/RELIABILITY.md promises.

Prints what went wrong, with the seed that does it again, then a table. Ends with 1 if anything went wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from torturing.aims import aims_of, hit
from torturing.children import Deadline, in_child
from torturing.disks import compile_library, run_on_failing_disk
from torturing.flips import flip_some, made_by
from torturing.harms import KINDS
from torturing.kills import Undisturbed, killed, undisturbed
from torturing.stages import READERS, STAGES, in_few_minibatches, make_inputs

ROOT = Path(__file__).parents[2]
FLIPS_AT_ONCE = 40
FUZZED = ("header", "typed_header", "npy", "manifest", "forged_manifest", "journal")
FUZZED_NATIVELY = tuple(sorted(path.stem for path in (ROOT / "native" / "fuzz").glob("*.cpp")))


@dataclass
class Count:
    """One line of the table."""

    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)

    def add(self, failure: str | None, again: str) -> None:
        """One attempt more."""
        self.tried += 1
        if failure is not None:
            self.failures.append(failure)
            print(f"FAILED: {self.what}: {failure}\n  again: {again}", flush=True)


class Torture:
    """Attempts with numbers: number and seed say all of one.

    Args:
        arguments: of the command line.
        folder: for inputs and attempts.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self._arguments, self._folder, self._inputs = arguments, folder, folder / "inputs"
        gc.freeze()  # what is imported already is not looked through, nor copied, for each attempt
        self._left, self.counts, self.harms = Deadline(arguments.seconds), list[Count](), Counter[str]()
        made = in_child(lambda: make_inputs(self._inputs))
        assert made.ended, made

    @cache  # noqa: B019  (there is one)
    def _wholes(self, name: str) -> list[Undisturbed]:
        aimed_at = self._arguments.aims > 0 and name in (self._arguments.stage or STAGES)
        return undisturbed(STAGES[name], self._inputs, self._folder / "whole", with_files=aimed_at)

    def _each(self, counts: dict[str, Count], number: int, option: str, attempt: Callable[..., str | None]) -> None:
        """`number` attempts, in turn at each of `counts`, as far as there is time."""
        self.counts += counts.values()
        first, names = self._arguments.first, list(counts)
        for i in range(first, first + number):
            if not self._left:
                break
            random, name = np.random.default_rng([self._arguments.seed, i]), names[i % len(names)]
            again = f"tools/torture --seed {self._arguments.seed} --first {i} --{option} 1"
            counts[name].add(attempt(name, self._folder / f"{option}-{i}", random), again)

    def kill(self) -> None:
        """Stages in turn."""
        if not self._arguments.kills:
            return

        def attempt(name: str, folder: Path, random: np.random.Generator) -> str | None:
            return killed(STAGES[name], self._wholes(name), self._inputs, folder, random)

        counts = {name: Count(f"`{name}`, killed") for name in STAGES}
        self._each(counts, self._arguments.kills, "kills", attempt)

    def aim(self) -> None:
        """Each kind of file that each stage leaves, so many times."""
        if not self._arguments.aims:
            return
        seed, first, stages = self._arguments.seed, self._arguments.first, self._arguments.stage or list(STAGES)
        kinds = self._arguments.kind or KINDS
        aims = [aim for name in stages for aim in aims_of(name, self._wholes(name)) if aim.kind in kinds]
        counts = {kind: Count(f"{kind} of what a kill left, damaged") for kind in KINDS}
        for time_of_all in range(first, first + self._arguments.aims):
            for aim in aims:
                if not self._left:
                    break
                left, number = self._folder / "aimed", time_of_all + aim.number
                random = np.random.default_rng([seed, time_of_all, aim.number])
                chosen = f"--stage '{aim.stage}' --kind {aim.kind}"
                again = f"tools/torture --seed {seed} --first {time_of_all} --aims 1 {chosen}"
                for found in hit(aim, STAGES[aim.stage], self._wholes(aim.stage), self._inputs, left, random, number):
                    counts[aim.kind].add(found.failure and f"`{aim.stage}`, {found.failure}", again)
                    self.harms[found.harm] += 1
        self.counts += counts.values()

    def flip(self) -> None:
        """Directories in turn."""
        if not self._arguments.flips:
            return
        with in_few_minibatches():
            self._flip_bits()

    def _flip_bits(self) -> None:
        inputs, expected = self._folder / "inputs-to-flip", {}
        made = in_child(lambda: make_inputs(inputs))
        assert made.ended, made
        for directory, reader in READERS.items():
            outcome = in_child(lambda reader=reader: made_by(reader, inputs, self._folder / "whole"))
            assert outcome.ended, outcome
            expected[directory] = str(outcome.result)
            shutil.rmtree(self._folder / "whole", ignore_errors=True)
        counts = {name: Count(f"`{reader}`, a bit of {name} flipped") for name, reader in READERS.items()}
        self.counts += counts.values()
        seed, first, names = self._arguments.seed, self._arguments.first, list(READERS)
        for begin in range(first, first + self._arguments.flips, FLIPS_AT_ONCE):
            if not self._left:
                break
            numbers = range(begin, min(begin + FLIPS_AT_ONCE, first + self._arguments.flips))
            attempts = [(names[i % len(names)], np.random.default_rng([seed, i])) for i in numbers]
            failures = flip_some(inputs, self._folder / "flips", expected, attempts)
            for i, (name, _), failure in zip(numbers, attempts, failures, strict=True):
                counts[name].add(failure, f"tools/torture --seed {seed} --first {i} --flips 1")

    def fail_disks(self) -> None:
        """Each operation of each stage, or some of them, fails."""
        counts: dict[str, Count] = {}
        if not self._arguments.faults:
            return
        seed, times = self._arguments.seed, self._arguments.faults
        again = f"tools/torture --seed {seed} --faults {times}"
        library = self._folder / "failing_disk.so"
        compile_library(library)
        for found in run_on_failing_disk(library, self._inputs, self._folder, seed, times):
            count = counts.setdefault(found.stage, Count(f"{found.stage}, failing"))
            count.add(found.failure and f"{found.what}: {found.failure}", again)
            if not self._left:
                break
        self.counts += counts.values()

    def fuzz(self) -> None:
        """All targets, one after the other."""
        seconds, findings = self._arguments.fuzz_seconds, self._folder / "findings"
        seeded = "--findings", str(findings), "--seed", str(self._arguments.seed)
        commands = [[sys.executable, str(ROOT / "tools" / "fuzz.py"), target, *seeded] for target in FUZZED]
        commands += [[str(ROOT / "tools" / "fuzz_native"), target, *seeded] for target in FUZZED_NATIVELY]
        for command in commands if seconds else ():
            if not self._left:
                break
            ended = subprocess.run(
                [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False,
            )  # fmt: skip
            runs = [line.split()[-1] for line in ended.stderr.splitlines() if "number_of_executed_units" in line]
            count = Count(f"fuzzing, {command[-5]}", int(runs[0]) if runs else 0)
            if ended.returncode:
                kept = Path("findings").absolute()
                if findings.is_dir():
                    shutil.copytree(findings, kept, dirs_exist_ok=True)
                count.failures.append(ended.stderr[-2000:])
                print(f"FAILED: {count.what}: see {kept}\n{ended.stderr[-2000:]}")
            self.counts.append(count)


def table(counts: list[Count]) -> str:
    """As docs/RELIABILITY.md has it."""
    lines = ["| what | tried | failures |", "|---|---:|---:|"]
    lines += [f"| {count.what} | {count.tried:,} | {len(count.failures)} |" for count in counts]
    total = sum(count.tried for count in counts), sum(len(count.failures) for count in counts)
    return "\n".join([*lines, f"| **all** | {total[0]:,} | {total[1]} |"])


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="tools/torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=0, metavar="N", help="runs to kill, over all stages in turn")
    aims = "times that each kind of file which each killed stage leaves is damaged before the next run"
    parser.add_argument("--aims", type=int, default=0, metavar="N", help=aims)
    parser.add_argument("--stage", action="append", choices=STAGES, help="for --aims: of this stage, not of all")
    parser.add_argument("--kind", action="append", choices=KINDS, help="for --aims: files of this kind, not of all")
    parser.add_argument("--flips", type=int, default=0, metavar="N", help="bits to flip, over all directories in turn")
    faults = "operations of each kind that fail, of each file and stage: the first, others at random"
    parser.add_argument("--faults", type=int, default=0, metavar="N", help=faults)
    parser.add_argument(
        "--fuzz-seconds", type=int, default=0, metavar="S", help="of each target; takes atheris, and clang"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), metavar="S", help="begin nothing after this time"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill or flip")
    arguments = parser.parse_args()
    if not (arguments.kills or arguments.aims or arguments.flips or arguments.faults or arguments.fuzz_seconds):
        parser.error("nothing to do: try --kills 20 --flips 50 --faults 2")
    os.environ["OMP_NUM_THREADS"] = "1"
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="diskgnn-torture-") as folder:
        torture = Torture(arguments, Path(folder))
        try:
            for part in (torture.kill, torture.aim, torture.flip, torture.fail_disks, torture.fuzz):
                part()
        except KeyboardInterrupt:
            print("stopped")
    damage = ", ".join(f"{harm} {number}" for harm, number in torture.harms.items())
    print(f"\n{table(torture.counts)}\n\n{damage and f'damage: {damage}; '}{time.monotonic() - started:.0f} s")
    sys.exit(any(count.failures for count in torture.counts))


if __name__ == "__main__":
    main()
