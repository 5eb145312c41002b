"""Honest clients: requests of every protocol at a fixed rate, whose answers are checked."""

from __future__ import annotations

import http.client
import json
import struct
import threading
import time
from collections.abc import Callable

from messages import FLOAT, GrpcConnection, form, image_instances, npy, one_bit_png, predict_request
from server import ROOT, Server

# The response of half_plus_two to 1, 2 and 5.
NUMBERS, HALVES = [1.0, 2.0, 5.0], [2.5, 3.0, 4.5]
DIGIT = ROOT / "examples/images/digits/4_24.png"
CLIENTS = 8
TIMEOUT = 60


class RefusedError(Exception):
    """A response with status 503, or RESOURCE_EXHAUSTED or UNAVAILABLE over gRPC."""


class Client:
    """One honest client with a connection that it keeps."""

    def __init__(self, server: Server):
        self.server = server
        self.connection = http.client.HTTPConnection(*server.http, timeout=TIMEOUT)

    def post(self, path: str, body: bytes, kind: str = "application/json", **headers) -> bytes:
        try:
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            self.connection.request("POST", path, body, {"Content-Type": kind, **sent})
            response = self.connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            raise
        if response.status == 503:
            raise RefusedError
        if response.status != 200:
            raise ValueError(f"status {response.status}: {content[:200]!r}")
        return content

    def rest(self) -> None:
        body = json.dumps({"instances": NUMBERS}).encode()
        expect(json.loads(self.post("/v1/models/half_plus_two:predict", body))["predictions"])

    def vanishing(self) -> None:
        body = json.dumps({"instances": NUMBERS}).encode()
        expect(json.loads(self.post("/v1/models/vanishing:predict", body))["predictions"])

    def sagemaker(self) -> None:
        body = json.dumps({"instances": NUMBERS}).encode()
        expect(json.loads(self.post("/invocations", body))["predictions"])

    def simple(self) -> None:
        body = json.dumps({"model_name": "half_plus_two", "data": {"x": NUMBERS}}).encode()
        expect(json.loads(self.post("/", body))["y"])

    def numpy(self) -> None:
        body = npy("(3,)", struct.pack("<3f", *NUMBERS))
        answer = self.post(
            "/v1/models/half_plus_two:predict",
            body,
            "application/x-npy",
            Accept="application/x-npy",
        )
        expect(list(struct.unpack("<3f", answer[-12:])))

    def protobuf(self) -> None:
        body = predict_request("half_plus_two", "x", FLOAT, [3], struct.pack("<3f", *NUMBERS))
        answer = self.post("/v1/models/half_plus_two:predict", body, "application/x-protobuf")
        if struct.pack("<3f", *HALVES) not in answer:
            raise ValueError(f"wrong response: {answer!r}")

    def grpc(self) -> None:
        message = predict_request("half_plus_two", "x", FLOAT, [3], struct.pack("<3f", *NUMBERS))
        with GrpcConnection(self.server.grpc, TIMEOUT) as connection:
            status, answer = connection.call(
                "/tensorflow.serving.PredictionService/Predict", message
            )
        if status in (8, 14):
            raise RefusedError
        if status or struct.pack("<3f", *HALVES) not in answer:
            raise ValueError(f"gRPC status {status}: {answer!r}")

    def digits(self) -> None:
        body = image_instances([DIGIT.read_bytes()])
        answer = json.loads(self.post("/v1/models/digits:predict", body))["predictions"]
        if answer[0]["classes"] != 4:
            raise ValueError(f"wrong response: {answer}")

    def multipart(self) -> None:
        body, kind = form(DIGIT.read_bytes(), "digits")
        answer = json.loads(self.post("/", body, kind))
        if answer["classes"] != [4]:
            raise ValueError(f"wrong response: {answer}")

    def image_step(self) -> None:
        body = image_instances([one_bit_png(16)])
        self.post("/v1/models/pictures:predict", body)

    def text(self) -> None:
        self.post("/v1/models/text_normalizer:predict", b'{"instances": ["Some Text"]}')

    def scripted(self) -> None:
        body = json.dumps({"instances": NUMBERS}).encode()
        attributes = {"X-Amzn-SageMaker-Custom-Attributes": "tfs-model-name=scripted"}
        expect(json.loads(self.post("/invocations", body, **attributes))["predictions"])


# What the clients of the attack send, and those of the soak.
SIMPLE_MIX = [Client.rest, Client.digits]
ATTACKED_MIX = [*SIMPLE_MIX, Client.vanishing]
EVERY_PROTOCOL = [
    Client.rest,
    Client.grpc,
    Client.sagemaker,
    Client.simple,
    Client.numpy,
    Client.protobuf,
    Client.digits,
    Client.multipart,
    Client.image_step,
    Client.text,
    Client.scripted,
]


def expect(values: list[float]) -> None:
    if values != HALVES:
        raise ValueError(f"wrong response: {values}")


class Traffic:
    """Honest clients that run in threads until `stop`. Each sends `rate` requests per second."""

    def __init__(self, server: Server, mix: list[Callable[[Client], None]], rate: float):
        self.server, self.mix, self.interval = server, mix, 1 / rate
        self.ended = threading.Event()
        self.lock = threading.Lock()
        self.seconds: list[float] = []
        self.refused = 0
        self.interrupted = 0
        self.failures: list[str] = []
        # When Python workers were killed: calls of that moment may fail.
        self.kills: list[float] = []
        self.threads = [
            threading.Thread(target=self.run, args=(number,), daemon=True)
            for number in range(CLIENTS)
        ]
        for thread in self.threads:
            thread.start()

    def run(self, number: int) -> None:
        client = Client(self.server)
        due = time.monotonic() + number * self.interval / CLIENTS
        turn = number
        while not self.ended.wait(max(0, due - time.monotonic())):
            # A client that is late does not make up for it.
            due = max(due, time.monotonic() - self.interval) + self.interval
            self.send(client, self.mix[turn % len(self.mix)])
            turn += 1

    def send(self, client: Client, request: Callable[[Client], None]) -> None:
        begin = time.monotonic()
        try:
            request(client)
        except RefusedError:
            with self.lock:
                self.refused += 1
            return
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
            self.failed(request, begin, error)
            return
        with self.lock:
            self.seconds.append(time.monotonic() - begin)

    def failed(self, request: Callable[[Client], None], begin: float, error: Exception) -> None:
        killed = any(begin - 1 <= kill <= time.monotonic() for kill in self.kills)
        with self.lock:
            if request is Client.scripted and killed:
                self.interrupted += 1
                return
            after = time.monotonic() - begin
            self.failures.append(f"{request.__name__} after {after:.2f} s: {error!r}"[:300])

    def stop(self) -> Traffic:
        self.ended.set()
        for thread in self.threads:
            thread.join()
        return self

    def percentile(self, part: float) -> float:
        """Milliseconds."""
        ordered = sorted(self.seconds)
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0

    def total(self) -> int:
        return len(self.seconds) + self.refused + self.interrupted + len(self.failures)
