#!/usr/bin/env python3
"""Runs the release server under attack, for long, or in a damaged environment. CONTRIBUTING.md
describes the runs.

    tests/soak/soak.py attack 10m      attacks and honest clients, 1 GiB of memory
    tests/soak/soak.py soak 1h         every protocol, reloads, kills of workers
    tests/soak/soak.py chaos [NAME]    full disk, no descriptors, little memory, stops
    tests/soak/soak.py overload 60s    twice the capacity, a tenth of it with high priority
    tests/soak/soak.py endless 1000    1000 runs that do not end, of each runtime
    tests/soak/soak.py rows            models that mix rows: no answer depends on other requests

Prints a table. The exit status is 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import signal
import sys
import threading
import time

import chaos
import endless
import overload
import rows
from attacks import ATTACKS, DISTURBANCES, Attackers, table
from endless import ENDLESS
from files import CHANGES, Disturber, Health, OpenStreams
from memory import MEMORY_ATTACKS
from messages import MIB
from server import ROOT, Sampler, Server
from traffic import ATTACKED_MIX, EVERY_PROTOCOL, Traffic

PROCESS_MEMORY = 1024 * MIB
# The last part of the attacks asks for runs that do not end: its share of the time, and the time limit of a run in
# seconds. Then how many milliseconds an honest request may take meanwhile, and the most threads of the pool of such
# runs, which stay.
ENDLESS_PART, RUN_SECONDS, LONGEST_WAIT, STARTED_THREADS = (
    0.25,
    10,
    500,
    2 * (os.cpu_count() or 1) + 2,
)
ALONE_SECONDS = 20
# The longest that an answer about health, and a stop with idle streams, may take, in seconds.
HEALTH_SECONDS, STOP_SECONDS = 1, 5
# Requests per second of each honest client.
RATE = 5
# A short soak still shows growth: memory settles in its first quarter.
MAX_SLOPE = 1 * MIB
MAX_NEW_THREADS = 8
MAX_NEW_DESCRIPTORS = 16
# What the request for the metrics holds itself.
METRICS_REQUEST = 16 * 1024
REFUSED_PART = 0.01
SLOWER = 5


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", choices=("attack", "soak", "chaos", "overload", "endless", "rows"))
    parser.add_argument(
        "value",
        nargs="?",
        help="duration, such as 30s or 1h; for chaos, a name; for endless, a number",
    )
    args = parser.parse_args()
    if args.run == "chaos":
        return chaos.run(args.value)
    if args.run == "rows":
        return min(rows.run(Bounds()), 1)
    if args.run == "endless":
        return min(endless.run(int(args.value or 1000), Bounds()), 1)
    seconds = duration(args.value or "1m")
    if args.run == "overload":
        return overload.run(seconds, Bounds())
    return attack(seconds) if args.run == "attack" else soak(seconds)


def duration(text: str) -> float:
    match = re.fullmatch(r"(\d+)([smh])", text)
    if not match:
        sys.exit(f"{text}: not a duration; use a number with s, m or h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


class Bounds:
    """A table of figures, some with a bound."""

    def __init__(self):
        self.missed = 0

    def row(self, name: str, value: str, bound: str = "", holds: bool = True) -> None:
        self.missed += not holds
        mark = "" if not bound else "ok" if holds else "MISSED"
        print(f"{name:<44} {value:>14}  {bound:<16} {mark}", flush=True)


def honest_rows(bounds: Bounds, traffic: Traffic) -> None:
    total = max(1, traffic.total())
    part = traffic.refused / total
    bounds.row("honest requests", str(traffic.total()))
    bounds.row("  answered correctly", str(len(traffic.seconds)), "> 0", bool(traffic.seconds))
    refused = f"{traffic.refused} = {100 * part:.2f} %"
    bounds.row("  refused (503)", refused, "at most 1 %", part <= REFUSED_PART)
    bounds.row("  interrupted by a worker's kill", str(traffic.interrupted))
    failures = traffic.failures
    bounds.row("  lost, failed or wrong", str(len(failures)), "0", not failures)
    for failure in failures[:10]:
        print(f"    {failure}")


def memory_rows(bounds: Bounds, server: Server, sampler: Sampler, limit: int | None) -> None:
    bounds.row("peak resident memory", mib(server.status("VmHWM")))
    held = sampler.peak_request_memory
    bound = mib(limit) if limit else ""
    bounds.row("peak request memory", mib(held), bound, not limit or held <= limit)
    rest = at_rest(server)
    bounds.row("request memory at rest", f"{rest:.0f} B", "0 B", rest <= 0)
    panics = server.metric("tensorserve_panics_total")
    bounds.row("panics", f"{panics:.0f}", "0", panics == 0)


def at_rest(server: Server) -> float:
    """Request memory when all clients have left: connections may take a moment to notice."""
    held = 0.0
    for _ in range(60):
        held = server.metric("tensorserve_request_memory_bytes") - METRICS_REQUEST
        if held <= 0:
            break
        time.sleep(0.5)
    return held


def mib(size: float) -> str:
    return f"{size / MIB:.1f} MiB"


def attack(seconds: float) -> int:
    limit = 256 * MIB
    limits = {resource.RLIMIT_DATA: PROCESS_MEMORY}
    arguments = ["--max-request-memory", "256MiB", "--request-timeout", f"{RUN_SECONDS}s"]
    arguments += ["--poll-interval", "100ms"]
    server = Server(*arguments, limits=limits, loops=True)
    print("memory of the process: 1 GiB by RLIMIT_DATA")
    idle = server.status("VmRSS")
    alone = measured(server, min(ALONE_SECONDS, seconds))
    health = Health(server)
    health.start()
    attackers = Attackers(server.http, server.grpc, {**ATTACKS, **MEMORY_ATTACKS})
    disturbers = [Disturber(server, change, pause) for change, pause in CHANGES.items()]
    sampler = Sampler(server, 0.5)
    for thread in (sampler, *disturbers):
        thread.start()
    traffic = measured(server, seconds * (1 - ENDLESS_PART))
    for disturber in disturbers:
        disturber.stop()
    results = attackers.stop()
    threads = server.status("Threads") if server.alive() else 0
    attackers = Attackers(server.http, server.grpc, ENDLESS)
    beside_endless = measured(server, seconds * ENDLESS_PART)
    results |= attackers.stop()
    sampler.stop()
    health.stop()
    bounds = Bounds()
    print(f"attacks for {seconds:.0f} s:\n{table(results)}")
    local_rows(bounds, disturbers, health)
    alive = server.alive()
    bounds.row("the process lives", str(alive), "True", alive)
    honest_rows(bounds, traffic)
    endless_rows(bounds, beside_endless, server, threads)
    ratio = traffic.percentile(0.99) / max(alone.percentile(0.99), 0.001)
    bounds.row("p50 alone / under attack, ms", both(alone, traffic, 0.5))
    bounds.row("p99 alone / under attack, ms", both(alone, traffic, 0.99), "5x", ratio <= SLOWER)
    bounds.row("resident memory before", mib(idle))
    if not alive:
        print(server.log_tail())
        return 1
    memory_rows(bounds, server, sampler, limit)
    streams = OpenStreams(server)
    begin = time.monotonic()
    failed = end(server, bounds)
    stop_seconds = time.monotonic() - begin
    streams.close()
    holds = stop_seconds <= STOP_SECONDS
    bounds.row("stop with idle streams, s", f"{stop_seconds:.1f}", f"{STOP_SECONDS} s", holds)
    return failed or min(bounds.missed, 1)


def local_rows(bounds: Bounds, disturbers: list[Disturber], health: Health) -> None:
    """What was done to the server from its own machine, and whether it said that it is healthy meanwhile."""
    for disturber in disturbers:
        failures = disturber.failures
        name = disturber.change.__name__.replace("_", " ")
        bounds.row(name, str(disturber.done), f"{len(failures)} failures", not failures)
        for failure in failures[:5]:
            print(f"    {failure}")
    slowest = f"{health.longest:.2f}"
    in_time = health.longest <= HEALTH_SECONDS
    bounds.row("slowest answer about health, s", slowest, f"{HEALTH_SECONDS} s", in_time)
    bounds.row("  failed", str(health.failures), "0", not health.failures)


def endless_rows(bounds: Bounds, traffic: Traffic, server: Server, threads: int) -> None:
    """Beside runs that do not end. They compete for the cores, but no request waits for one of them."""
    print("beside endless runs:")
    honest_rows(bounds, traffic)
    p99 = traffic.percentile(0.99)
    bounds.row(
        "p99 beside endless runs, ms", f"{p99:.1f}", f"{LONGEST_WAIT} ms", p99 <= LONGEST_WAIT
    )
    finish = time.monotonic() + 4 * RUN_SECONDS
    while server.alive() and time.monotonic() < finish:
        if server.status("Threads") <= threads + STARTED_THREADS:
            break
        time.sleep(0.2)
    left = server.status("Threads") if server.alive() else 0
    holds = left <= threads + STARTED_THREADS
    bounds.row("threads before / after them", f"{threads} / {left}", f"+{STARTED_THREADS}", holds)


def measured(server: Server, seconds: float) -> Traffic:
    traffic = Traffic(server, ATTACKED_MIX, RATE)
    wait(server, seconds)
    return traffic.stop()


def wait(server: Server, seconds: float) -> None:
    finish = time.monotonic() + seconds
    while time.monotonic() < finish and server.alive():
        time.sleep(0.2)


def both(alone: Traffic, attacked: Traffic, part: float) -> str:
    return f"{alone.percentile(part):.1f} / {attacked.percentile(part):.1f}"


def end(server: Server, bounds: Bounds) -> int:
    failure = server.stop()
    bounds.row("exit status at SIGTERM", "0" if not failure else "failed", "0", not failure)
    if failure:
        print(failure)
    return 1 if bounds.missed else 0


def soak(seconds: float) -> int:
    server = Server("--poll-interval", "200ms")
    attackers = Attackers(server.http, server.grpc, DISTURBANCES)
    traffic = Traffic(server, EVERY_PROTOCOL, RATE)
    sampler = Sampler(server, max(0.2, min(5, seconds / 200)))
    sampler.start()
    ended = threading.Event()
    done = {"swaps": 0, "kills": 0}
    helpers = [
        threading.Thread(target=swap_versions, args=(server, ended, done)),
        threading.Thread(target=kill_workers, args=(server, ended, done, traffic)),
    ]
    for helper in helpers:
        helper.start()
    wait(server, seconds)
    ended.set()
    for helper in helpers:
        helper.join()
    traffic.stop()
    sampler.stop()
    results = attackers.stop()
    print(f"disturbances for {seconds:.0f} s:\n{table(results)}")
    bounds = Bounds()
    alive = server.alive()
    bounds.row("the process lives", str(alive), "True", alive)
    if not alive:
        print(server.log_tail())
        return 1
    bounds.row("version swaps", str(done["swaps"]), "> 0", done["swaps"] > 0)
    bounds.row("workers killed", str(done["kills"]), "> 0", done["kills"] > 0)
    honest_rows(bounds, traffic)
    bounds.row("p50 / p99, ms", f"{traffic.percentile(0.5):.1f} / {traffic.percentile(0.99):.1f}")
    growth_rows(bounds, sampler, seconds)
    memory_rows(bounds, server, sampler, None)
    return end(server, bounds)


def growth_rows(bounds: Bounds, sampler: Sampler, seconds: float) -> None:
    """Over the last three quarters. Less than 5 minutes show how a process settles, not its growth."""
    samples = sampler.samples[len(sampler.samples) // 4 :]
    judged = seconds >= 300
    slope = sampler.slope()
    bound = f"{mib(MAX_SLOPE)}/min" if judged else ""
    bounds.row("growth of memory per minute", mib(slope), bound, not judged or slope <= MAX_SLOPE)
    bounds.row("resident memory, first and last", f"{mib(samples[0][1])} {mib(samples[-1][1])}")
    for name, column, most in (
        ("descriptors", 2, MAX_NEW_DESCRIPTORS),
        ("threads", 3, MAX_NEW_THREADS),
    ):
        first, last = halves(samples, column)
        text = f"{first:.0f}, {last:.0f}"
        bounds.row(f"{name}, mean of each half", text, f"+{most}", last - first <= most)


def halves(samples: list, column: int) -> tuple[float, float]:
    middle = len(samples) // 2
    means = [
        sum(sample[column] for sample in part) / max(1, len(part))
        for part in (samples[:middle], samples[middle:])
    ]
    return means[0], means[1]


def swap_versions(server: Server, ended: threading.Event, done: dict[str, int]) -> None:
    """Puts a new version of half_plus_two into place, and removes the one before the last."""
    model = server.models["half_plus_two"]
    version = 1
    while not ended.wait(3):
        version += 1
        copied = server.folder / "copied"
        shutil.copytree(ROOT / "models/half_plus_two/1", copied)
        copied.rename(model / str(version))
        if version > 2:
            shutil.rmtree(model / str(version - 2))
        done["swaps"] += 1


def kill_workers(
    server: Server, ended: threading.Event, done: dict[str, int], traffic: Traffic
) -> None:
    while not ended.wait(5):
        workers = server.workers()
        if not workers:
            continue
        traffic.kills.append(time.monotonic())
        os.kill(random.choice(workers), signal.SIGKILL)
        done["kills"] += 1


if __name__ == "__main__":
    sys.exit(main())
