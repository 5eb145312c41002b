"""Requests whose runs do not end: 2^60 iterations of a loop, in each runtime, in the server and isolated."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import random

from attacks import JSON, PREDICT, Attack, model
from files import Health, answers
from messages import GrpcConnection, http_head, predict_request
from server import LOOPS, Server, reached
from traffic import SIMPLE_MIX, Traffic

ITERATIONS = 1 << 60
INT64 = 9


class Endless(Attack):
    """A run that does not end, after a few short ones, which make the server expect a short run."""

    def once(self) -> str:
        path = model(random.choice(list(LOOPS)))
        for _ in range(10):
            self.post(path, b'{"inputs": 3}')
        return self.post(path, b'{"inputs": %d}' % ITERATIONS)


class EndlessGrpc(Attack):
    """A run that does not end, asked for over gRPC."""

    def once(self) -> str:
        count = ITERATIONS.to_bytes(8, "little")
        message = predict_request(random.choice(list(LOOPS)), "n", INT64, [], count)
        with GrpcConnection(self.grpc) as connection:
            return f"gRPC {connection.call(PREDICT, message)[0]}"


class EndlessLeft(Attack):
    """Clients that leave at once."""

    def once(self) -> str:
        path, body = model(random.choice(list(LOOPS))), b'{"inputs": %d}' % ITERATIONS
        with self.connect() as connection:
            connection.sendall(http_head(path, len(body), f"Content-Type: {JSON}") + body)
        return "left"


# The pause in seconds after each request.
ENDLESS: dict[type[Attack], float] = {Endless: 0, EndlessGrpc: 0, EndlessLeft: 1}

# The clients of `run`, and how often a second an honest one asks.
CLIENTS, RATE = 16, 5
# How long the process may take to be as it was.
SETTLES_IN = 60
# What a process may have more than before: threads that runs start stay, as memory does that is kept for the next.
MORE_THREADS, MORE_MEMORY = 16, 128 << 20


def run(requests: int, bounds) -> int:
    """`requests` requests to each model of LOOPS, one model after the other."""
    server = Server("--request-timeout", "500ms", loops=True)
    for name in LOOPS:
        bounds.row(f"{name} answers", "", "three iterations", answers(server, name))
        ask(server, name, CLIENTS)
    settle(server, server.status("Threads"), server.status("VmRSS"))
    health, honest = Health(server), Traffic(server, SIMPLE_MIX, RATE)
    health.start()
    for name in LOOPS:
        threads, memory = server.status("Threads"), server.status("VmRSS")
        statuses = ask(server, name, requests)
        counts = ", ".join(f"{count} x {status}" for status, count in sorted(statuses.items()))
        bounds.row(name, str(sum(statuses.values())), "503 or 504", set(statuses) <= {"503", "504"})
        print(f"    {counts}")
        flat = settle(server, threads, memory)
        now = f"{server.status('Threads')}, {server.status('VmRSS') >> 20} MiB"
        bounds.row("  threads and memory", now, f"{threads}, {memory >> 20} MiB", flat)
        bounds.row(
            "  answers again",
            "",
            "three iterations",
            reached(functools.partial(answers, server, name), SETTLES_IN),
        )
    honest.stop()
    health.stop()
    bounds.row("honest requests", str(honest.total()))
    lost = len(honest.failures) + honest.refused
    bounds.row("  lost, refused or wrong", str(lost), "0", not lost)
    for failure in honest.failures[:10]:
        print(f"    {failure}")
    bounds.row(
        "slowest answer about health, s", f"{health.longest:.2f}", "1 s", health.longest <= 1
    )
    failure = server.stop()
    bounds.row("exit status at SIGTERM", failure or "0", "0", not failure)
    return bounds.missed


def ask(server: Server, name: str, requests: int) -> collections.Counter:
    """The statuses of `requests` requests that do not end."""
    attack = Endless(server.http, server.grpc)
    body = b'{"inputs": %d}' % ITERATIONS
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
        return collections.Counter(
            clients.map(lambda _: attack.post(model(name), body), range(requests))
        )


def settle(server: Server, threads: int, memory: int) -> bool:
    """Waits until the process has about as many threads and as much memory as before."""

    def is_as_before() -> bool:
        grown = server.status("VmRSS") - memory
        return server.status("Threads") <= threads + MORE_THREADS and grown <= MORE_MEMORY

    return reached(is_as_before, SETTLES_IN)
