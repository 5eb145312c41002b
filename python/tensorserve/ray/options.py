"""The options of ``tensorserve-ray transform``: some are for the driver, the rest is passed on."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from tensorserve.binary import find_binary
from tensorserve.errors import Error
from tensorserve.transform import child_environment

# The exit statuses besides 0, those of `tensorserve transform`.
SOME_FAILED = 1
WRONG_OPTIONS = 2
CANNOT_GO_ON = 3
INTERRUPTED = 130

# What a process on a node would do by itself, or cannot do there.
_REFUSED = {
    "--shard": "entries go to whatever actor is free, so there are no shards",
    "--entries-from-stdin": "the actors use it themselves",
    "--plan-only": "call `tensorserve transform --plan-only`",
    "--metrics-addr": "the processes of a node would share the address; use --progress json",
}
# What the program shows or prints without running the job: it does so here, without Ray.
_LOCAL = ("--dry-run", "--explain", "--version")

_DESCRIPTION = """\
Runs one job of `tensorserve transform` on all machines of a Ray cluster. All options that are not
listed here are those of `tensorserve transform`, and mean the same; see its --help.

The exit status is 0 if all objects are done, 1 if some have failed, 2 for wrong options, 3 if the
job could not go on, and 130 after Ctrl-C. The same command goes on where a job has ended."""


@dataclass
class Options:
    """What the user wants."""

    address: str
    actors: int | None
    gpus_per_actor: float | None
    cpus_per_actor: float | None
    entry_retries: int
    output: str
    progress: str
    concurrency: int | None
    max_bad_records: str | None
    #: The arguments of the program that makes the plan.
    plan: list[str] = field(default_factory=list)
    #: The arguments of the programs on the nodes.
    entries: list[str] = field(default_factory=list)
    #: Files of the driver's machine that the nodes need: the contents by their paths.
    files: dict[str, str] = field(default_factory=dict)


def parse(arguments: list[str]) -> Options:
    """Reads the command line. Ends the process for ``--help``, ``--dry-run``, ``--explain`` and wrong options."""
    command, parser = _parsers()
    command.parse_args(arguments[:1])
    given, passed = parser.parse_known_args(arguments[1:])
    for option, why in _REFUSED.items():
        if any(argument.split("=")[0] == option for argument in passed):
            parser.error(f"{option} is not for tensorserve-ray: {why}")
    if any(argument in _LOCAL for argument in passed):
        _become_program([*passed, *_written(given, ("output", "job_file", "concurrency"))])
    if given.output is None:
        parser.error("no output: name a directory or a prefix of a store with --output")
    shared = [*passed, *_written(given, ("output", "job_file"))]
    plan = [*shared, *_written(given, ("concurrency", "max_bad_records"))]
    plan += ["--overwrite"] if given.overwrite else []
    return Options(
        address=given.address,
        actors=given.actors,
        gpus_per_actor=given.gpus_per_actor,
        cpus_per_actor=given.cpus_per_actor,
        entry_retries=given.entry_retries,
        output=given.output.rstrip("/"),
        progress=given.progress,
        concurrency=given.concurrency,
        max_bad_records=given.max_bad_records,
        plan=plan,
        entries=shared,
        files=_files(parser, given.job_file),
    )


def _files(parser: argparse.ArgumentParser, job_file: str | None) -> dict[str, str]:
    if job_file is None:
        return {}
    try:
        return {job_file: Path(job_file).read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--job-file {job_file}: {error}")


def _parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    name = "tensorserve-ray"
    command = argparse.ArgumentParser(name, description=_DESCRIPTION.split("\n\n", maxsplit=1)[0])
    command.add_argument("command", choices=["transform"], help="what runs on the cluster")
    parser = argparse.ArgumentParser(
        f"{name} transform",
        usage=f"{name} transform [OPTIONS] [OPTIONS OF tensorserve transform] MODEL",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation might mean an option of the program.
        allow_abbrev=False,
    )
    add = parser.add_argument
    address = os.environ.get("RAY_ADDRESS") or "auto"
    add(
        "--address",
        default=address,
        help="the cluster: HOST:PORT, auto, or local for this machine alone [%(default)s]",
    )
    add(
        "--actors",
        type=_positive(int),
        metavar="N",
        help="number of actors [one per GPU; without GPUs, one per node]",
    )
    add(
        "--gpus-per-actor",
        type=_number,
        metavar="G",
        help="GPUs of each actor, also a part such as 0.5 [1 if there are any]",
    )
    add(
        "--cpus-per-actor",
        type=_positive(float),
        metavar="C",
        help="CPUs that each actor reserves in Ray, and its --concurrency [reserves 1, uses its share of the node]",
    )
    add(
        "--entry-retries",
        type=_number_of_retries,
        default=3,
        metavar="N",
        help="how often an entry is run again whose process or node was lost [%(default)s]",
    )
    add(
        "--output",
        metavar="LOCATION",
        help="as in tensorserve transform; a place that all nodes reach",
    )
    add(
        "--progress",
        choices=["auto", "lines", "json", "none"],
        default="auto",
        help="a line on stderr every 10 s, or JSON on stdout every 5 s [lines]",
    )
    add(
        "--concurrency",
        type=_positive(int),
        metavar="N",
        help="batches at the same time in each actor [its CPUs]",
    )
    add("--max-bad-records", metavar="LIMIT", help="as in tensorserve transform, over all actors")
    add(
        "--job-file",
        metavar="FILE",
        help="as in tensorserve transform; only the driver needs the file",
    )
    add(
        "--overwrite",
        action="store_true",
        help="forget what an earlier run has done, and start again",
    )
    return command, parser


def _written(given: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """The options of these names as they are written."""
    values = [(name, getattr(given, name)) for name in names]
    return [f"--{name.replace('_', '-')}={value}" for name, value in values if value is not None]


def _become_program(arguments: list[str]) -> NoReturn:
    try:
        binary = find_binary()
        os.execve(binary, [binary, "transform", *arguments], child_environment())
    except (Error, OSError) as error:
        sys.exit(f"error: {error}")


def _positive(kind: type) -> type:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not more than 0")
        return value

    read.__name__ = "number"
    return read  # type: ignore[return-value]


def _number(text: str) -> float:
    value = float(text)
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return value


def _number_of_retries(text: str) -> int:
    return int(_number(text))
