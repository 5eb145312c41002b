"""Models that mix rows, behind many connections: every answer is the one that the request gets alone."""

from __future__ import annotations

import http.client
import json
import random
import subprocess
import threading
from pathlib import Path

from server import ROOT, Running, environment

# Folders with models, and the requests for each of them.
FOLDERS = [ROOT / "tests/data/rows", ROOT / "tests/data/platforms/onnx/mixing"]
# What is independent, and must still be joined.
INDEPENDENT = ["text_of_length", "independent"]
STARTS = 10
CONNECTIONS = 16
REQUESTS = 5008
# Its answers differ from each other by nature.
RANDOM = "random_noise"
# Of the largest value of an answer: what another order of summation may change.
TOLERANCE = 1e-5


def run(bounds) -> int:
    """For each model: its number of wrong answers, and the mean number of requests in a run."""
    for folder in FOLDERS:
        check(folder, bounds)
    return bounds.missed


def check(folder: Path, bounds) -> None:
    requests = json.loads((folder / "requests.json").read_text())
    bodies = {
        name: [json.dumps({"instances": rows}).encode() for rows in made]
        for name, made in requests.items()
    }
    right = answers_alone(folder, bodies)
    totals = {name: [0, 0, 0.0] for name in bodies}
    for _ in range(STARTS):
        with Started(folder, "--batching", "auto") as server:
            for name, made in bodies.items():
                sent, wrong = storm(server, name, made, right[name])
                totals[name][0] += sent
                totals[name][1] += wrong
                totals[name][2] = max(totals[name][2], sent / runs(server, name))
    for name, (sent, wrong, most) in sorted(totals.items()):
        bounds.row(f"{name}: {sent} requests", f"{wrong} wrong", "0", wrong == 0)
        independent = name in INDEPENDENT
        kept = most > 1.2 if independent else most <= 1
        bounds.row("  requests in a run", f"{most:.2f}", "> 1.2" if independent else "1", kept)


class Started:
    """A server with the models, until the end of the block."""

    def __init__(self, folder: Path, *arguments: str):
        command = ["serve", str(folder), "--http-port", "0", "--grpc-port", "0", *arguments]
        self.running = Running(command, environment(), stderr=subprocess.DEVNULL)
        threading.Thread(target=self.running.process.stdout.read, daemon=True).start()
        host, port = self.running.url.removeprefix("http://").split(":")
        self.http = (host, int(port))

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.process.terminate()
        self.running.process.wait(timeout=60)


def ask(connection: http.client.HTTPConnection, name: str, body: bytes) -> list:
    connection.request("POST", f"/v1/models/{name}:predict", body)
    response = connection.getresponse()
    content = json.loads(response.read())
    if response.status != 200:
        raise ValueError(f"{name}: status {response.status}: {content}")
    return content["predictions"]


def answers_alone(folder: Path, bodies: dict[str, list[bytes]]) -> dict[str, list]:
    with Started(folder, "--batching", "off") as server:
        connection = http.client.HTTPConnection(*server.http)
        return {
            name: [ask(connection, name, body) for body in made] for name, made in bodies.items()
        }


def storm(server: Started, name: str, bodies: list[bytes], right: list) -> tuple[int, int]:
    wrong = []
    start = threading.Barrier(CONNECTIONS)

    def client(seed: int) -> None:
        rng = random.Random(seed)
        connection = http.client.HTTPConnection(*server.http)
        start.wait()
        for _ in range(REQUESTS // CONNECTIONS):
            index = rng.randrange(len(bodies))
            answer = ask(connection, name, bodies[index])
            if name != RANDOM and not same(answer, right[index]):
                wrong.append((index, answer))

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return REQUESTS // CONNECTIONS * CONNECTIONS, len(wrong)


def same(a: list, b: list) -> bool:
    x, y = flat(a), flat(b)
    scale = max((abs(value) for value in y), default=0.0)
    return len(x) == len(y) and all(
        abs(one - other) <= TOLERANCE * scale for one, other in zip(x, y, strict=True)
    )


def flat(value: object) -> list[float]:
    if isinstance(value, list):
        return [number for part in value for number in flat(part)]
    return [float(value)]


def runs(server: Started, name: str) -> float:
    """The runs of the model, by the server's metrics."""
    connection = http.client.HTTPConnection(*server.http)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    of_model = [line for line in lines if f'model="{name}"' in line]
    metric = "tensorserve_run_duration_seconds_count"
    return max(sum(float(it.rsplit(" ", 1)[1]) for it in of_model if it.startswith(metric)), 1)
