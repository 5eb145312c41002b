"""The actor: it holds one process with the model, on one node."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray

from tensorserve.errors import Error
from tensorserve.transform import EntryProcess, TransformError

# The most failures of an entry that are reported by name.
_NAMED = 10
_PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "SAGEMAKER_", "TENSORSERVE_", "TF_")
_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "RUST_LOG", "SSL_CERT_DIR", "SSL_CERT_FILE")
# What says where things are on a machine, or how a container gets its own credentials.
_OF_THE_MACHINE = (
    "AWS_BATCH_",
    "AWS_CONTAINER_",
    "TENSORSERVE_BINARY",
    "TENSORSERVE_LIB",
    "TENSORSERVE_MODEL_CACHE_DIR",
)


@dataclass(frozen=True)
class Work:
    """What the process of an actor is started with."""

    arguments: list[str]
    #: Batches at the same time.
    concurrency: int
    #: Variables of the driver.
    env: dict[str, str]
    #: The contents of the driver's files, by their paths.
    files: dict[str, str] = field(default_factory=dict)
    #: The directory of the driver: relative paths mean the same on a shared file system.
    directory: str = "."


class EntryResult(NamedTuple):
    """What has become of an entry: counters, however many objects it has."""

    entry: int
    records: int
    bad: int
    out_bytes: int
    failed: int
    #: Keys and reasons of the first failures.
    failures: list[tuple[str, str]]


class Ended(NamedTuple):
    """The process has ended, or did not start: its status, and why."""

    status: int
    reason: str


def passed_environment() -> dict[str, str]:
    """The variables of this process that the processes on the nodes get: those of stores and models.

    What only says where something is on this machine stays here.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if (name.startswith(_PREFIXES) or name.upper() in _NAMES or name.startswith("STORAGE_"))
        and not name.startswith(_OF_THE_MACHINE)
    }


class Actor:
    """Runs entries in a process of its own, which dies with the actor."""

    def __init__(self) -> None:
        self._process: EntryProcess | None = None
        self._folder: Any = None

    def start(self, work: Work) -> str | Ended:
        """Starts the process, and returns the name of the node. The model is loaded meanwhile."""
        arguments = [*work.arguments, f"--concurrency={work.concurrency}"]
        try:
            arguments = self._with_files(arguments, work.files)
            directory = work.directory if os.path.isdir(work.directory) else None
            self._process = EntryProcess(arguments, work.env, directory)
        except Error as error:
            return Ended(3, str(error))
        return socket.gethostname()

    def run(self, entries: list[int]) -> list[EntryResult] | Ended:
        """Gives entries to the process, and waits until at least one, of any call, is done."""
        process = self._running()
        process.send(entries)
        try:
            return [_counted(marker) for marker in process.receive()]
        except TransformError as error:
            return Ended(error.status, str(error))

    def finish(self) -> Ended:
        """Lets the process end. It joins what is left of the parts of large objects."""
        process = self._running()
        process.finish()
        error = process.error()
        return Ended(error.status, str(error))

    def stop(self) -> None:
        """Ends the process after the batches that it runs."""
        if self._process is not None:
            self._process.stop()

    def pid(self) -> int:
        """The process id of the process."""
        return self._running().pid

    def _running(self) -> EntryProcess:
        if self._process is None:
            raise Error("the actor has not been started")
        return self._process

    def _with_files(self, arguments: list[str], files: dict[str, str]) -> list[str]:
        """The arguments with the places of copies of the driver's files."""
        if not files:
            return arguments
        self._folder = tempfile.TemporaryDirectory(prefix="tensorserve-")
        for number, (path, text) in enumerate(files.items()):
            copy = Path(self._folder.name) / str(number)
            copy.write_text(text, encoding="utf-8")
            arguments = [
                f"{argument.split('=')[0]}={copy}" if argument.endswith(f"={path}") else argument
                for argument in arguments
            ]
        return arguments


def _counted(marker: dict[str, Any]) -> EntryResult:
    objects = marker["objects"]
    failures = [(each["key"], each["error"]) for each in objects if each.get("error")]
    return EntryResult(
        entry=marker["entry"],
        records=sum(each["records"] for each in objects),
        bad=sum(each["bad"] for each in objects),
        out_bytes=sum(each["out_bytes"] for each in objects),
        failed=len(failures),
        failures=failures[:_NAMED],
    )


class Holder:
    """Holds the output of a job while its driver lives: two drivers would do everything twice."""

    def __init__(self, who: str) -> None:
        self._who = who

    def who(self) -> str:
        """The driver."""
        return self._who


def end_quietly(handle: Any) -> None:
    """Ends an actor, wherever it is by now."""
    with contextlib.suppress(Exception):
        ray.kill(handle)
