"""The server in a damaged environment: short scenarios, each with what must hold."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import pathlib
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator

from attacks import ManyStrings, WideJson
from messages import MIB
from server import ROOT, Server, new_folder
from traffic import EVERY_PROTOCOL, SIMPLE_MIX, Traffic

RATE = 5


class SkippedError(Exception):
    """This machine cannot run the scenario."""


@contextlib.contextmanager
def started(*arguments: str, **options) -> Iterator[Server]:
    server = Server(*arguments, **options)
    try:
        yield server
    except (AssertionError, OSError):
        print(server.log_tail(), file=sys.stderr)
        raise
    finally:
        failure = server.stop()
    assert not failure, failure


def serves(server: Server, seconds: float, mix: list = SIMPLE_MIX) -> str:
    """Sends honest requests; all must succeed."""
    traffic = Traffic(server, mix, RATE)
    time.sleep(seconds)
    return succeeded(server, traffic.stop())


def succeeded(server: Server, traffic: Traffic) -> str:
    assert server.alive(), "the process ended"
    assert not traffic.failures, traffic.failures[:3]
    assert not traffic.refused, f"{traffic.refused} requests were refused"
    assert traffic.seconds, "no request was answered"
    return f"{len(traffic.seconds)} requests answered, 0 lost"


def run_mount(*arguments: str, **options) -> None:
    done = subprocess.run(
        ["mount", *arguments], check=False, capture_output=True, text=True, **options
    )
    if done.returncode:
        raise SkippedError(f"cannot mount: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(path: pathlib.Path, *arguments: str, **options) -> Iterator[None]:
    run_mount(*arguments, str(path), **options)
    try:
        yield
    finally:
        subprocess.run(["umount", "--force", "--lazy", str(path)], check=False)


def disk_full() -> str:
    """The file system of the request log has 256 KiB."""
    folder = new_folder()
    log = folder / "log"
    log.mkdir()
    with mounted(log, "-t", "tmpfs", "-o", "size=256k", "tmpfs"):
        arguments = ("--request-log", str(log), "--request-log-sampling-rate", "1")
        with started(*arguments, folder=folder) as server:
            body = json.dumps({"instances": [1.0] * 10_000}).encode()
            url = f"{server.running.url}/v1/models/half_plus_two:predict"
            for _ in range(20):
                urllib.request.urlopen(url, body, timeout=30).close()
            result = serves(server, 5)
            logged = server.metric("tensorserve_logged_requests_total")
            failed = server.metric(r'tensorserve_logged_requests_total\{.*result="failed".*\}')
            assert failed > 0, f"{logged} requests logged, none failed"
            return f"{result}; {failed:.0f} records failed"


def descriptors() -> str:
    """64 descriptors, and 200 connections that stay open."""
    with started(limits={resource.RLIMIT_NOFILE: 64}) as server:
        before = serves(server, 2)
        with contextlib.ExitStack() as stack:
            for _ in range(200):
                connection = stack.enter_context(socket.socket())
                connection.settimeout(2)
                with contextlib.suppress(OSError):
                    connection.connect(server.http)
            time.sleep(3)
            assert server.alive(), "the process ended"
        time.sleep(1)
        return f"before: {before}; after: {serves(server, 3)}"


def large_requests(server: Server) -> str:
    """Requests of 60 MB beside honest ones."""
    answers = [kind(server.http, server.grpc).once() for kind in (WideJson, ManyStrings, WideJson)]
    assert server.alive(), f"the process ended; answers: {answers}"
    return f"{serves(server, 5)}; large requests: {' '.join(answers)}"


def idle(field: str) -> int:
    with started() as server:
        serves(server, 2)
        return server.status(field)


def address_space() -> str:
    """`ulimit -v` of 512 MiB above what the idle process has."""
    limit = idle("VmPeak") + 512 * MIB
    limits = {resource.RLIMIT_AS: limit}
    with started("--max-request-memory", "64MiB", limits=limits) as server:
        return f"{limit // MIB} MiB: {large_requests(server)}"


def little_memory() -> str:
    """Memory of 1.2 times what the idle process has, by RLIMIT_DATA."""
    limit = idle("VmData") * 12 // 10
    limits = {resource.RLIMIT_DATA: limit}
    with started("--max-request-memory", "32MiB", limits=limits) as server:
        return f"{limit // MIB} MiB: {large_requests(server)}"


def stopped() -> str:
    """SIGSTOP, and SIGCONT after 10 s."""
    with started() as server:
        traffic = Traffic(server, EVERY_PROTOCOL, RATE)
        time.sleep(2)
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(10)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(5)
        return succeeded(server, traffic.stop())


def clock_jump() -> str:
    """The clock goes a day forward, then two back."""
    places = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
    found = [path for place in places for path in glob.glob(place)]
    library = os.environ.get("LIBFAKETIME") or (found[0] if found else None)
    if not library:
        raise SkippedError(
            "libfaketime is not installed (Debian: libfaketime); LIBFAKETIME names it"
        )
    folder = new_folder()
    clock = folder / "clock"
    clock.write_text("+0\n")
    variables = {
        "LD_PRELOAD": library,
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with started(folder=folder, variables=variables) as server:
        traffic = Traffic(server, EVERY_PROTOCOL, RATE)
        for offset in ("+1d", "-1d"):
            time.sleep(3)
            clock.write_text(f"{offset}\n")
        time.sleep(3)
        return succeeded(server, traffic.stop())


def hanging_directory() -> str:
    """A FUSE file system without a daemon lies over a model's directory: each access waits."""
    with started("--poll-interval", "200ms") as server:
        if not os.access("/dev/fuse", os.R_OK | os.W_OK):
            raise SkippedError("cannot open /dev/fuse")
        device = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={device},rootmode=40000,user_id=0,group_id=0"
        mount = ("-i", "-t", "fuse", "-o", options, "nothing")
        try:
            with mounted(server.models["pictures"], *mount, pass_fds=(device,)):
                time.sleep(2)
                result = serves(server, 5)
                swap = swapped(server)
        finally:
            # Ends the accesses that wait.
            os.close(device)
        if swap is None:
            after = ready_after(server)
            assert after is not None, "other models get no new versions, not even afterwards"
            raise AssertionError(f"other models get no new versions until {after:.1f} s afterwards")
        return f"{result}; a new version of another model after {swap:.1f} s"


def hanging_file() -> str:
    """The file of a new version is a pipe that nobody writes: its load waits."""
    with started("--poll-interval", "200ms") as server:
        version = server.models["pictures"] / "2"
        version.mkdir()
        pipe = version / "saved_model.pb"
        os.mkfifo(pipe)
        time.sleep(2)
        result = serves(server, 5)
        swap = swapped(server)
        # Ends a load that waits, so that the server can stop.
        with contextlib.suppress(OSError):
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        assert swap is not None, "other models get no new versions"
        return f"{result}; a new version of another model after {swap:.1f} s"


def swapped(server: Server) -> float | None:
    """Puts version 2 of half_plus_two into place, and returns what `ready_after` does."""
    copied = server.folder / "copied"
    shutil.copytree(ROOT / "models/half_plus_two/1", copied)
    copied.rename(server.models["half_plus_two"] / "2")
    return ready_after(server)


def ready_after(server: Server) -> float | None:
    """Seconds until version 2 of half_plus_two is ready; None after 20."""
    begin = time.monotonic()
    url = f"{server.running.url}/v1/models/half_plus_two/versions/2"
    while time.monotonic() < begin + 20:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as response:
            if b"AVAILABLE" in response.read():
                return time.monotonic() - begin
        time.sleep(0.1)
    return None


SCENARIOS: dict[str, Callable[[], str]] = {
    scenario.__name__: scenario
    for scenario in (
        disk_full,
        descriptors,
        address_space,
        little_memory,
        stopped,
        clock_jump,
        hanging_directory,
        hanging_file,
    )
}


def run(name: str | None) -> int:
    if name and name not in SCENARIOS:
        sys.exit(f"{name}: not a scenario; there are {', '.join(SCENARIOS)}")
    failed = 0
    for scenario in [SCENARIOS[name]] if name else SCENARIOS.values():
        try:
            result = f"ok       {scenario()}"
        except SkippedError as reason:
            result = f"skipped  {reason}"
        except (AssertionError, OSError, RuntimeError) as error:
            failed += 1
            result = f"FAILED   {error}"
        print(f"{scenario.__name__:<18} {result}", flush=True)
    return 1 if failed else 0
