"""``tensorserve transform`` under a scheduler: what Ray, Dask and others have in common.

:func:`make_plan` divides a job into entries and writes the plan into its output. Any number of
processes, on any machines, then take entries by their numbers:

    plan = make_plan(arguments)
    with EntryProcess(arguments) as process:
        for entry in plan.pending:
            print(process.run(entry.number))

Each entry is read, run, published and marked as done as a whole, so a lost one is simply run again.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorserve.binary import VARIABLE, find_binary
from tensorserve.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import TracebackType

#: Variables by which schedulers name a shard. Entries are distributed here in place of shards.
SHARD_VARIABLES = (
    "AWS_BATCH_JOB_ARRAY_INDEX",
    "JOB_COMPLETION_INDEX",
    "SLURM_ARRAY_TASK_COUNT",
    "SLURM_ARRAY_TASK_ID",
    "TENSORSERVE_SHARDS",
)
# Lines of a process's errors that are kept.
_KEPT_LINES = 20
_STOP_TIMEOUT = 30.0


class PlannedEntry(NamedTuple):
    """An entry of a plan that is not done yet."""

    number: int
    bytes: int
    #: The objects that begin in it: 0 for later ranges of a large object.
    objects: int


@dataclass(frozen=True)
class Plan:
    """What a job consists of."""

    entries: int
    objects: int
    bytes: int
    #: The entries that are ranges of large objects, whose parts have to be joined.
    ranges: int
    #: The numbers of the entries that are done.
    done: frozenset[int]
    #: Those that are not, the largest first.
    pending: tuple[PlannedEntry, ...]


class TransformError(Error):
    """The program ended: ``status`` is its exit status, negative for a signal."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def make_plan(
    arguments: Sequence[str], env: Mapping[str, str] | None = None, is_frozen: bool = False
) -> Plan:
    """Writes the plan of a job into its output, or reads the one that is there.

    ``arguments`` are those of ``tensorserve transform``. ``is_frozen`` reads the plan that is there
    without listing the inputs again: what of it is done by now. Errors of the program appear on
    stderr as it writes them, and raise :class:`TransformError`.
    """
    more = ["--plan-only", *(["--entries-from-stdin"] if is_frozen else [])]
    command = [find_binary(), "transform", *more, *arguments]
    # Its stdin is that of this process: `--files-from -` reads it.
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, env=child_environment(env), check=False, encoding="utf-8"
    )
    if ended.returncode != 0:
        raise TransformError("no plan could be made", ended.returncode)
    found = json.loads(ended.stdout)
    return Plan(
        entries=found["entries"],
        objects=found["objects"],
        bytes=found["bytes"],
        ranges=found["ranges"],
        done=frozenset(found["done"]),
        pending=tuple(PlannedEntry(*entry) for entry in found["pending"]),
    )


def child_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process and ``env``, without what would choose a shard."""
    variables = {**os.environ, **(env or {})}
    for name in (*SHARD_VARIABLES, VARIABLE):
        variables.pop(name, None)
    return variables


class EntryProcess:
    """A process with a loaded model, which runs entries of a plan.

    It ends with this one, however this one ends. Errors of it go to stderr, too.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str] | None = None,
        directory: str | None = None,
    ) -> None:
        command = [find_binary(), "transform", "--entries-from-stdin", "--progress=none"]
        self._results: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._errors: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        started: queue.Queue[subprocess.Popen[str] | OSError] = queue.Queue()
        how = ([*command, *arguments], child_environment(env), directory, started)
        # The kernel kills the process when the thread that has started it ends: it is the one
        # that reads until the end.
        threading.Thread(target=self._read, args=how, daemon=True).start()
        popen = started.get()
        if isinstance(popen, OSError):
            raise Error(f"{command[0]} cannot be started: {popen}") from popen
        self._popen = popen

    def send(self, numbers: Iterable[int]) -> None:
        """Gives it entries. It takes each when it has a free entry thread."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._stdin.write("".join(f"{number}\n" for number in numbers))
            self._stdin.flush()

    def receive(self, timeout: float | None = None) -> list[dict[str, Any]]:
        """Waits until at least one entry is done or has failed, and returns all that have.

        Each is what the program has printed: ``entry``, and ``objects`` with ``records``, ``bad``,
        ``out_bytes`` and ``error``. Returns nothing after ``timeout`` seconds. Raises
        :class:`TransformError` when the process has ended.
        """
        try:
            found = [self._results.get(timeout=timeout)]
        except queue.Empty:
            return []
        with contextlib.suppress(queue.Empty):
            while found[-1] is not None:
                found.append(self._results.get_nowait())
        if found[-1] is not None:
            return [result for result in found if result is not None]
        # For the next call, too.
        self._results.put(None)
        results = [result for result in found if result is not None]
        if results:
            return results
        raise self.error()

    def run(self, number: int) -> dict[str, Any]:
        """Runs one entry, and returns what has become of it."""
        self.send([number])
        return self.receive()[0]

    def finish(self) -> int:
        """Lets it end, and returns its exit status. It joins the parts of large objects first."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        return self._popen.wait()

    def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Ends it after the batches that it runs; entries under way are not published."""
        if self._popen.poll() is None:
            self._popen.terminate()
            # A process that waits for entries does not look at signals.
            with contextlib.suppress(BrokenPipeError):
                self._stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout)
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def error(self) -> TransformError:
        """How it has ended, with the last lines of its errors."""
        status = self._popen.wait()
        ended = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        text = "\n  ".join([f"the process ended with {ended}", *self._errors])
        return TransformError(text, status)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    def __enter__(self) -> EntryProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self.stop()

    @property
    def _stdin(self) -> Any:
        return self._popen.stdin

    def _read(
        self,
        command: list[str],
        env: dict[str, str],
        directory: str | None,
        started: queue.Queue[Any],
    ) -> None:
        guard = str(Path(__file__).with_name("with_parent.py"))
        try:
            popen = subprocess.Popen(
                # Without site packages it starts in 10 ms.
                [sys.executable, "-I", "-S", guard, str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                cwd=directory,
                encoding="utf-8",
                errors="replace",
                # Ctrl-C is for the scheduler.
                start_new_session=True,
            )
        except OSError as error:
            started.put(error)
            return
        errors = threading.Thread(target=self._read_errors, args=(popen.stderr,), daemon=True)
        errors.start()
        started.put(popen)
        for line in popen.stdout or ():
            self._results.put(json.loads(line))
        popen.wait()
        # Before the end is known, so that its reasons are.
        errors.join(timeout=5)
        self._results.put(None)

    def _read_errors(self, stderr: Any) -> None:
        for line in stderr:
            self._errors.append(line.rstrip("\n"))
            sys.stderr.write(line)
