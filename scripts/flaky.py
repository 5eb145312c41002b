"""Finds tests that depend on the speed of the machine: `make flaky`.

    scripts/flaky.py                    all Rust tests, five times
    scripts/flaky.py 2 --test it        the integration tests, twice; cargo test takes the other arguments

Runs the tests beside as many busy loops as the machine has cores, times two, and prints which test failed in
each round; at the end how often each did, with its output in the first failure. The exit status is 1 if one did.
RUST_TEST_THREADS=6 runs more tests at the same time: each is slower.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

ROUNDS = 5
# On two cores, four: each test has a third of a core.
LOOPS_PER_CORE = 2

FAILED = re.compile(r"^test (\S+) \.\.\. FAILED$")
OUTPUT = re.compile(r"^---- (\S+) stdout ----$")
# After the outputs libtest lists the names of the tests that failed.
END_OF_OUTPUTS = "failures:"


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Failures:
    """What the rounds found."""

    def __init__(self) -> None:
        self.counts: collections.Counter[str] = collections.Counter()
        self.outputs: dict[str, list[str]] = {}

    def read(self, lines: list[str]) -> list[str]:
        """Adds what the output of a round says, and returns the tests that failed."""
        found: list[str] = []
        output: list[str] | None = None
        for line in lines:
            if failed := FAILED.match(line):
                found.append(failed[1])
            elif begun := OUTPUT.match(line):
                output = self.outputs.setdefault(begun[1], [])
                # Only the first failure of a test is shown.
                output = output if not output else None
            elif line == END_OF_OUTPUTS:
                output = None
            elif output is not None:
                output.append(line)
        self.counts.update(found)
        return found

    def print(self, rounds: int) -> None:
        for name, count in self.counts.most_common():
            print(f"\n{name} failed in {count} of {rounds} rounds:")
            print("\n".join(self.outputs.get(name, [])))


def one_round(arguments: list[str]) -> tuple[int, list[str]]:
    command = ["cargo", "test", "--locked", "--no-fail-fast", *arguments]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, check=False, text=True, **streams)
    return ran.returncode, ran.stdout.splitlines()


def main(arguments: list[str]) -> int:
    rounds = ROUNDS
    if arguments and arguments[0].isdigit():
        rounds = int(arguments.pop(0))
    if not arguments:
        arguments = ["--workspace"]
    # Compiling beside the loops would only take longer.
    subprocess.run(["cargo", "test", "--locked", "--no-run", *arguments], check=True)
    failures = Failures()
    incomplete = False
    with busy_loops(LOOPS_PER_CORE * (os.cpu_count() or 1)):
        for number in range(1, rounds + 1):
            begun = time.monotonic()
            status, lines = one_round(arguments)
            found = failures.read(lines)
            minutes = (time.monotonic() - begun) / 60
            print(
                f"round {number} of {rounds}: {len(found)} failed, {minutes:.1f} min",
                *found,
                sep="\n  ",
                flush=True,
            )
            if status != 0 and not found:
                # A process that ended before its tests did, or an error of cargo.
                incomplete = True
                print("\n".join(lines[-40:]))
    failures.print(rounds)
    return 1 if incomplete or failures.counts else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
