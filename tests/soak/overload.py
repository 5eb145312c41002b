"""The server at twice its capacity: requests of high priority keep their latency, every request is
answered, and the server does as much as it can.

The clients are an open loop: requests come at random times at a fixed mean rate, whether or not the
ones before them are answered. They run in this process and share the machine with the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import os
import pathlib
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clients"))
from running import ROOT as ROOT_PATH
from running import Running, environment

SAMPLE = pathlib.Path(ROOT_PATH) / "tests/data/platforms/xgboost/iris_softprob.json"
# The sample's trees, repeated: a row takes a few hundred microseconds.
TREES = 24_000
# What one request takes, by the number of its rows.
RUN_SECONDS = 0.010
CLOSED_CLIENTS = 16
CAPACITY_RUNS = 4
CAPACITY_SECONDS = 5
WARM_UP_SECONDS = 2
OVERLOAD = 2.0
HIGH_PART = 0.1
# As long as the server may take to answer (request_timeout), and a little more.
PATIENCE = 40
MAX_RATIO = 2.0
MIN_GOODPUT = 0.9


def model(folder: pathlib.Path) -> pathlib.Path:
    """A model whose runs take long and whose requests are small."""
    document = json.loads(SAMPLE.read_text())
    booster = document["learner"]["gradient_booster"]["model"]
    times = TREES // len(booster["trees"])
    trees = [tree | {"id": number} for number, tree in enumerate(booster["trees"] * times)]
    rounds = len(trees) // 3
    booster["trees"], booster["tree_info"] = trees, booster["tree_info"] * times
    booster["iteration_indptr"] = [3 * number for number in range(rounds + 1)]
    booster["gbtree_model_param"]["num_trees"] = str(len(trees))
    path = folder / "forest/1"
    path.mkdir(parents=True)
    (path / "model.json").write_text(json.dumps(document))
    return path.parent


class Connection(asyncio.Protocol):
    """One connection, which answers one request after the other."""

    def __init__(self):
        self.transport = None
        self.received = b""
        self.answer: asyncio.Future | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, end, body = self.received.partition(b"\r\n\r\n")
        if not end:
            return
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        if length is None or len(body) < int(length[1]):
            return
        self.received = b""
        answer, self.answer = self.answer, None
        answer.set_result(int(head[9:12]))

    def connection_lost(self, _error: Exception | None) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(0)
        self.transport = None

    def ask(self, request: bytes) -> asyncio.Future:
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answer


@dataclasses.dataclass
class Outcome:
    """One request: when it was due and when it was answered, and with which status; 0 for none."""

    high: bool
    due: float
    ended: float
    status: int

    def seconds(self) -> float:
        return self.ended - self.due


class Clients:
    """The clients of a server, and the connections that they share."""

    def __init__(self, address: tuple[str, int], rows: int):
        self.address = address
        self.idle: list[Connection] = []
        numbers = random.Random(1)
        table = [[round(numbers.uniform(0, 7), 1) for _ in range(4)] for _ in range(rows)]
        body = json.dumps({"instances": table}).encode()
        self.requests = {high: self.request(body, high) for high in (False, True)}

    @staticmethod
    def request(body: bytes, high: bool) -> bytes:
        priority = "X-Request-Priority: high\r\n" if high else ""
        head = (
            "POST /v1/models/forest:predict HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\n{priority}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def send(self, high: bool, due: float) -> Outcome:
        while self.idle and self.idle[-1].transport is None:
            self.idle.pop()
        try:
            connection = self.idle.pop() if self.idle else await self.connect()
            answer = connection.ask(self.requests[high])
            status = await asyncio.wait_for(answer, PATIENCE)
            self.idle.append(connection)
        except (TimeoutError, OSError):
            status = 0
        return Outcome(high, due, time.monotonic(), status)

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, *self.address))[1]

    async def closed(self, seconds: float, clients: int) -> list[Outcome]:
        """Each client sends its next request when it has the answer to the one before."""
        finish = time.monotonic() + seconds
        outcomes: list[Outcome] = []

        async def client() -> None:
            while time.monotonic() < finish:
                outcomes.append(await self.send(False, time.monotonic()))

        await asyncio.gather(*(client() for _ in range(clients)))
        return outcomes

    async def open(self, seconds: float, rate: float, high_part: float) -> list[Outcome]:
        """Requests at random times; returns when all are answered."""
        numbers = random.Random(2)
        start = time.monotonic()
        due, tasks = start, []
        while (due := due + numbers.expovariate(rate)) < start + seconds:
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(wait)
            sending = self.send(numbers.random() < high_part, due)
            tasks.append(asyncio.create_task(sending))
        return list(await asyncio.gather(*tasks))


def percentile(outcomes: list[Outcome], part: float) -> float:
    """Of the times of the answered requests, in milliseconds."""
    times = sorted(it.seconds() for it in outcomes if it.status == 200)
    return 1000 * times[min(len(times) - 1, int(part * len(times)))] if times else float("nan")


def times(outcomes: list[Outcome]) -> str:
    return " / ".join(f"{percentile(outcomes, part):.1f}" for part in (0.5, 0.99))


def count(outcomes: list[Outcome], status: int) -> int:
    return sum(it.status == status for it in outcomes)


def per_second(outcomes: list[Outcome], start: float, seconds: float) -> float:
    """Requests that were answered well within that time."""
    ended = (it.ended for it in outcomes if it.status == 200)
    return sum(start <= at < start + seconds for at in ended) / seconds


async def rows_for(clients: Clients, rows: int) -> int:
    """The rows of a request that takes RUN_SECONDS."""
    outcomes = await clients.closed(WARM_UP_SECONDS, 1)
    per_row = percentile(outcomes, 0.5) / 1000 / rows
    return max(1, round(RUN_SECONDS / per_row))


async def measure(address: tuple[str, int], pid: int, seconds: float, bounds) -> None:
    rows = await rows_for(Clients(address, 8), 8)
    clients = Clients(address, rows)
    await clients.closed(WARM_UP_SECONDS, CLOSED_CLIENTS)
    cores = Cores(pid)
    before = await capacities(clients)
    bounds.row("cores in a closed loop, server / clients", cores.text())
    bounds.row("rows of a request", str(rows))
    # Other work on the machine only ever makes it look smaller.
    rate = OVERLOAD * max(before)
    alone = await clients.open(max(10, seconds / 2), HIGH_PART * rate, 1.0)
    start, cores = time.monotonic(), Cores(pid)
    loaded = await clients.open(seconds, rate, HIGH_PART)
    bounds.row("cores in overload, server / clients", cores.text())
    goodput = per_second(loaded, start, seconds)
    capacity = before + await capacities(clients)
    report(alone, loaded, goodput, capacity, bounds)


class Cores:
    """The processor cores that the server and the clients use from now on: less than there are, if
    other work on the machine uses them."""

    def __init__(self, pid: int):
        self.pid = pid
        self.start = self.times()

    def times(self) -> tuple[float, float, float]:
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        server = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), server, time.process_time()

    def text(self) -> str:
        wall, *used = (now - before for now, before in zip(self.times(), self.start, strict=True))
        return " / ".join(f"{seconds / wall:.2f}" for seconds in used)


async def capacities(clients: Clients) -> list[float]:
    """Requests per second of a closed loop, measured a few times."""
    measured = []
    for _ in range(CAPACITY_RUNS):
        start = time.monotonic()
        closed = await clients.closed(CAPACITY_SECONDS, CLOSED_CLIENTS)
        measured.append(per_second(closed, start, CAPACITY_SECONDS))
    return measured


def report(alone: list, loaded: list, goodput: float, capacities: list, bounds) -> None:
    """`capacities` were measured before and after."""
    high = [it for it in loaded if it.high]
    others = [it for it in loaded if not it.high]
    bounds.row("requests in overload, high / others", f"{len(high)} / {len(others)}")
    for name, part in (("high", high), ("others", others)):
        statuses = f"{count(part, 200)} / {count(part, 503)}"
        bounds.row(f"  {name}: answered / refused", statuses)
    wrong = [it for it in alone + loaded if it.status not in (200, 503)]
    bounds.row("  lost, or answered otherwise", str(len(wrong)), "0", not wrong)
    refused = count(high, 503)
    bounds.row("  high: refused", str(refused), "0", not refused)
    capacity = statistics.median(capacities)
    spread = f"{capacity:.0f} ({min(capacities):.0f} to {max(capacities):.0f})"
    bounds.row("capacity, requests per second", spread)
    part = goodput / max(capacity, 1)
    bounds.row("goodput / capacity", f"{part:.2f}", f">= {MIN_GOODPUT}", part >= MIN_GOODPUT)
    bounds.row("others, p50 / p99 in overload, ms", times(others))
    bounds.row("high alone, p50 / p99, ms", times(alone))
    bounds.row("high in overload, p50 / p99, ms", times(high))
    ratio = percentile(high, 0.99) / percentile(alone, 0.99)
    bounds.row("high: p99 / p99 alone", f"{ratio:.2f}", f"<= {MAX_RATIO}", ratio <= MAX_RATIO)


def run(seconds: float, bounds) -> int:
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tensorserve-overload-"))
    try:
        arguments = ["serve", str(model(folder)), "--http-port", "0", "--grpc-port", "off"]
        arguments += ["--load-probe", "false"]
        with (folder / "server.log").open("wb") as log:
            server = Running(arguments, environment(), stderr=log)
        host, port = server.url.removeprefix("http://").split(":")
        # A collection would hold up all clients, and there is little to collect.
        gc.disable()
        try:
            asyncio.run(measure((host, int(port)), server.process.pid, seconds, bounds))
        finally:
            gc.enable()
            server.process.terminate()
        try:
            status = server.process.wait(60)
        except subprocess.TimeoutExpired:
            server.process.kill()
            status = server.process.wait()
        bounds.row("exit status at SIGTERM", str(status), "0", status == 0)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if bounds.missed else 0
