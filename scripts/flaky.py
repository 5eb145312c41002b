"""Finds tests that depend on the speed of the machine: `make flaky`.

    scripts/flaky.py                    all Rust tests, five times
    scripts/flaky.py 2 --test it        the integration tests, twice; cargo test takes the other arguments

Runs the tests beside as many busy loops as the machine has cores, times two, and prints which tests failed in
each round, with the output of their first failure; at the end how often each did. The exit status is 1 if one did.
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


def failures_of(lines: list[str]) -> dict[str, list[str]]:
    """The tests that failed in a round, with their outputs."""
    found: dict[str, list[str]] = {}
    output: list[str] | None = None
    for line in lines:
        if failed := FAILED.match(line):
            found[failed[1]] = []
        elif begun := OUTPUT.match(line):
            output = found.setdefault(begun[1], [])
        elif line == END_OF_OUTPUTS:
            output = None
        elif output is not None:
            output.append(line)
    return found


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
    counts: collections.Counter[str] = collections.Counter()
    incomplete = False
    with busy_loops(LOOPS_PER_CORE * (os.cpu_count() or 1)):
        for number in range(1, rounds + 1):
            begun = time.monotonic()
            status, lines = one_round(arguments)
            found = failures_of(lines)
            minutes = (time.monotonic() - begun) / 60
            print(f"round {number} of {rounds}: {len(found)} failed, {minutes:.1f} min", flush=True)
            for name, output in found.items():
                # Now: the next rounds take long, and may be interrupted.
                print(f"  {name}", *(output if name not in counts else []), sep="\n", flush=True)
            counts.update(found.keys())
            if status != 0 and not found:
                # A process that ended before its tests did, or an error of cargo.
                incomplete = True
                print("\n".join(lines[-40:]))
    for name, count in counts.most_common():
        print(f"{name} failed in {count} of {rounds} rounds")
    return 1 if incomplete or counts else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main(sys.argv[1:]))
