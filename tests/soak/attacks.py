"""Requests that want to exhaust the server. Each attack is a process that repeats one of them."""

from __future__ import annotations

import collections
import contextlib
import json
import multiprocessing
import os
import random
import socket
import struct
import time
from collections.abc import Callable

from messages import (
    COMPLEX128,
    FLOAT,
    MIB,
    GrpcConnection,
    gzip_bomb,
    http_head,
    image_instances,
    npy,
    one_bit_png,
    predict_request,
)

LARGE = 60 * MIB
PREDICT = "/tensorflow.serving.PredictionService/Predict"
HEALTH = "/grpc.health.v1.Health/Check"
NPY, PROTOBUF, JSON = "application/x-npy", "application/x-protobuf", "application/json"
# The time for which connections are held that send or read nothing.
HOLD_SECONDS = 20


class Attack:
    """One kind of request. `once` returns what became of it: a status, or what the server did."""

    def __init__(self, http: tuple[str, int], grpc: tuple[str, int]):
        self.http, self.grpc = http, grpc

    def connect(self, timeout: float = 60) -> socket.socket:
        return socket.create_connection(self.http, timeout=timeout)

    def post(self, path: str, body: bytes, kind: str = JSON, *headers: str) -> str:
        with self.connect() as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(http_head(path, len(body), f"Content-Type: {kind}", *headers))
                connection.sendall(body)
            return status_of(connection)


def status_of(connection: socket.socket) -> str:
    try:
        line = connection.recv(65536).split(b"\r\n", 1)[0].split(b" ")
        # Reads the rest, as a client does that wants the answer.
        connection.settimeout(0.05)
        with contextlib.suppress(OSError):
            while connection.recv(1 << 20):
                pass
    except ConnectionError:
        return "reset"
    return line[1].decode() if len(line) > 1 else "closed"


def model(name: str) -> str:
    return f"/v1/models/{name}:predict"


def custom(name: str) -> str:
    return f"X-Amzn-SageMaker-Custom-Attributes: tfs-model-name={name}"


class EmptyArray(Attack):
    """A NumPy array of shape (2^40, 0)."""

    body = npy("(1099511627776, 0)", b"")

    def once(self) -> str:
        path = random.choice([model("echo_float32"), "/invocations"])
        accept = random.choice(["application/jsonlines", NPY, JSON])
        return self.post(path, self.body, NPY, custom("echo_float32"), f"Accept: {accept}")


class DeclaredShape(Attack):
    """Tensors that declare 2^28 elements and have no values."""

    def once(self) -> str:
        dtype = random.choice([FLOAT, COMPLEX128])
        body = predict_request("echo_float32", "x", dtype, [1 << 28], b"")
        return self.post(model("echo_float32"), body, PROTOBUF)


class DeclaredShapeGrpc(Attack):
    """Tensors over gRPC that declare 2^28 elements and have no values."""

    def once(self) -> str:
        dtype = random.choice([FLOAT, COMPLEX128])
        message = predict_request("echo_float32", "x", dtype, [1 << 28], b"")
        with GrpcConnection(self.grpc) as connection:
            return f"gRPC {connection.call(PREDICT, message)[0]}"


class GzipBomb(Attack):
    """60 KB that become 60 MiB."""

    def __init__(self, *addresses):
        super().__init__(*addresses)
        self.bodies = [gzip_bomb(text, LARGE) for text in (b"\0", b" ", b"1,", b"[")]

    def once(self) -> str:
        path = random.choice(["/invocations", model("half_plus_two"), "/", "/ping"])
        kind = random.choice([JSON, "application/octet-stream", PROTOBUF, NPY, "text/csv"])
        return self.post(path, random.choice(self.bodies), kind, "Content-Encoding: gzip")


class WideJson(Attack):
    """60 MB of numbers."""

    body = None

    def once(self) -> str:
        self.body = self.body or b'{"instances": [' + b"1.0," * (LARGE // 4) + b"1.0]}"
        return self.post(model("half_plus_two"), self.body)


class DeepJson(Attack):
    """60 MB of brackets."""

    body = None

    def once(self) -> str:
        self.body = self.body or b'{"instances": ' + b"[" * LARGE
        return self.post(model("half_plus_two"), self.body)


class ManyStrings(Attack):
    """60 MB of strings of one character."""

    body = None

    def once(self) -> str:
        self.body = self.body or b'{"instances": [' + b'"a",' * (LARGE // 4) + b'"a"]}'
        return self.post(model("text_normalizer"), self.body)


class SlowBodies(Attack):
    """Bodies of which a byte arrives each second."""

    def once(self) -> str:
        with contextlib.ExitStack() as stack:
            open_ones = [stack.enter_context(self.connect()) for _ in range(50)]
            for connection in open_ones:
                connection.sendall(http_head(model("half_plus_two"), 1000))
            for _ in range(HOLD_SECONDS):
                time.sleep(1)
                for connection in open_ones:
                    connection.sendall(b" ")
        return "left"


class NeverReads(Attack):
    """Clients that ask for large answers and never read them."""

    body = b'{"instances": [' + b"1.5," * 500_000 + b"1.5]}"

    def once(self) -> str:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                connection = stack.enter_context(socket.socket())
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.settimeout(10)
                connection.connect(self.http)
                with contextlib.suppress(OSError):
                    for _ in range(3):
                        connection.sendall(http_head(model("echo_float32"), len(self.body)))
                        connection.sendall(self.body)
            time.sleep(HOLD_SECONDS)
        return "left"


class FewDimensions(Attack):
    """Inputs of too few dimensions to a convolution."""

    bodies = (
        {"instances": [[1, 2, 3]]},
        {"inputs": []},
        {"instances": []},
        {"inputs": [[1.0] * 64]},
        {"inputs": 1.0},
    )

    def once(self) -> str:
        body = json.dumps(random.choice(self.bodies)).encode()
        return self.post(
            *random.choice([(model("conv1d"), body), ("/invocations", body)]),
            JSON,
            custom("conv1d"),
        )


class ImageBombs(Attack):
    """Small files of many pixels to a model with image steps, and to one that decodes images itself."""

    def __init__(self, *addresses):
        super().__init__(*addresses)
        large = one_bit_png(7070)
        self.bodies = [image_instances([large] * count) for count in (1, 8, 80)]

    def once(self) -> str:
        return self.post(model("pictures"), random.choice(self.bodies))


class HealthFlood(Attack):
    """Health messages of 4 MiB that do not end, on 100 streams of a connection."""

    def once(self) -> str:
        with GrpcConnection(self.grpc, timeout=10) as connection:
            streams = [connection.open_stream(HEALTH) for _ in range(100)]
            end = time.monotonic() + HOLD_SECONDS
            while time.monotonic() < end:
                connection.send(random.choice(streams), bytes(4 * MIB), end=False)
        return "left"


class Malformed(Attack):
    """Bytes that are almost HTTP."""

    seed = (
        http_head(model("half_plus_two"), 20, "Content-Type: application/json")
        + b'{"instances": [1.0]}'
    )

    def once(self) -> str:
        damaged = bytearray(self.seed)
        for _ in range(random.randint(1, 8)):
            place = random.randrange(len(damaged))
            damaged[place : place + random.randint(0, 3)] = os.urandom(random.randint(0, 3))
        with self.connect(timeout=2) as connection:
            connection.sendall(damaged)
            connection.shutdown(socket.SHUT_WR)
            return status_of(connection)


class Abandoned(Attack):
    """Connections that close within a body, or before the answer."""

    body = b'{"instances": [' + b"1.5," * 100_000 + b"1.5]}"

    def once(self) -> str:
        with self.connect() as connection:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            connection.sendall(http_head(model("half_plus_two"), len(self.body)))
            connection.sendall(self.body[: random.choice([10, 1000, len(self.body)])])
        return "left"


# The pause in seconds after each request.
ATTACKS: dict[type[Attack], float] = {
    EmptyArray: 0.1,
    DeclaredShape: 0.1,
    DeclaredShapeGrpc: 0.1,
    GzipBomb: 0.5,
    WideJson: 2,
    DeepJson: 2,
    ManyStrings: 2,
    SlowBodies: 0,
    NeverReads: 0,
    FewDimensions: 0.1,
    ImageBombs: 1,
    HealthFlood: 1,
    Malformed: 0.05,
    Abandoned: 0.1,
}
# The attacks that the soak mixes into its traffic.
DISTURBANCES: dict[type[Attack], float] = {
    SlowBodies: 0,
    NeverReads: 5,
    FewDimensions: 1,
    Malformed: 0.2,
    Abandoned: 0.5,
}


class Attackers:
    """Processes that repeat attacks, and count what became of each request."""

    def __init__(self, http, grpc, attacks: dict[type[Attack], float]):
        self.queue = multiprocessing.Queue()
        self.ended = multiprocessing.Event()
        self.processes = [
            multiprocessing.Process(
                target=repeat, args=(kind, http, grpc, pause, self.ended, self.queue), daemon=True
            )
            for kind, pause in attacks.items()
        ]
        for process in self.processes:
            process.start()

    def stop(self) -> dict[str, dict[str, int]]:
        self.ended.set()
        results = dict(self.queue.get(timeout=120) for _ in self.processes)
        for process in self.processes:
            process.join()
        return results


def repeat(kind: type[Attack], http, grpc, pause: float, ended, queue) -> None:
    # Attackers have machines of their own: here they shall not take the honest clients' processor.
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    attack = kind(http, grpc)
    counts = collections.Counter()
    while not ended.is_set():
        try:
            counts[attack.once()] += 1
        except TimeoutError:
            counts["no answer in time"] += 1
        except ConnectionRefusedError:
            counts["refused"] += 1
            time.sleep(1)
        except OSError:
            counts["disconnected"] += 1
        ended.wait(pause)
    queue.put((kind.__name__, dict(counts)))


def table(results: dict[str, dict[str, int]], order: Callable = sorted) -> str:
    lines = []
    for name in order(results):
        counts = ", ".join(f"{count} × {what}" for what, count in sorted(results[name].items()))
        lines.append(f"  {name:<18} {counts}")
    return "\n".join(lines)
