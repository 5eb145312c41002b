"""Requests at a fixed rate, whatever the server does with them, and what became of each.

Five kinds of client send at the same time: versions 1 and 2 of the REST protocol, each on connections that
are kept and on a new connection for each request, and version 2 over gRPC.
"""

import http.client
import itertools
import json
import queue
import struct
import threading
import time
import urllib.parse
from collections import Counter

import grpc

# Requests in a second by each kind of client, and the connections that it may need at the same time: a
# server that ends leaves new connections waiting for about a second.
RATE = 20
CONNECTIONS = 60
TIMEOUT = 15


class RefusedError(Exception):
    """There is no listener any more: nothing was sent."""


def post(connection, path, body):
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read().decode()
    if answer.status != 200:
        raise AssertionError(f"{answer.status} {text}")
    return json.loads(text), answer.will_close


def connected(address):
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT)
    try:
        connection.connect()
    except ConnectionRefusedError as error:
        raise RefusedError from error
    return connection


def delimited(number, content):
    """A field of a protocol buffer with a length, which is less than 128 here."""
    return bytes([number << 3 | 2, len(content)]) + content


class Rest:
    """A client over REST, for one thread."""

    def __init__(self, address, path, body, read, is_kept):
        self.address, self.path, self.body, self.read = address, path, json.dumps(body), read
        self.is_kept, self.connection = is_kept, None

    def __call__(self):
        connection = self.connection or connected(self.address)
        answer, will_close = post(connection, self.path, self.body)
        self.connection = connection if self.is_kept and not will_close else None
        if not self.connection:
            connection.close()
        if self.read(answer) != [2.5, 3.0]:
            raise AssertionError(answer)


class Grpc:
    """A client over gRPC, for one thread."""

    def __init__(self, address, model):
        # A channel for each, because those with the same options share connections.
        self.channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.infer = self.channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        tensor = delimited(1, b"x") + delimited(2, b"FP32") + delimited(3, bytes([2]))
        raw = struct.pack("<2f", 1, 2)
        self.request = delimited(1, model.encode()) + delimited(5, tensor) + delimited(7, raw)

    def __call__(self):
        try:
            answer = self.infer(self.request, timeout=TIMEOUT)
        except grpc.RpcError as error:
            is_refused = "onnection refused" in error.details()
            if error.code() == grpc.StatusCode.UNAVAILABLE and is_refused:
                raise RefusedError from error
            raise
        if struct.pack("<2f", 2.5, 3.0) not in answer:
            raise AssertionError(answer)


def clients(url, grpc_address, model):
    """What makes a client of each kind, by its name."""
    address = urllib.parse.urlsplit(url).netloc
    first = f"/v1/models/{model}:predict", {"instances": [1.0, 2.0]}
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1.0, 2.0]}
    second = f"/v2/models/{model}/infer", {"inputs": [tensor]}
    kinds = {}
    for version, (path, body), read in (
        ("v1", first, lambda answer: answer["predictions"]),
        ("v2", second, lambda answer: answer["outputs"][0]["data"]),
    ):
        for name, is_kept in (("kept", True), ("new", False)):
            kinds[f"{version} {name}"] = lambda path=path, body=body, read=read, is_kept=is_kept: (
                Rest(address, path, body, read, is_kept)
            )
    kinds["v2 gRPC"] = lambda: Grpc(grpc_address, model)
    return kinds


class Load:
    """The load, from the start until stop()."""

    def __init__(self, kinds):
        self.lock = threading.Lock()
        # The kind, when it was due, how long it took from then, and the error.
        self.outcomes = []
        self.stopping = threading.Event()
        self.threads = []
        for name, make in kinds.items():
            due = queue.SimpleQueue()
            self.run(self.schedule, due)
            # A kept connection is used again after a few requests; a new one is waited for.
            count = CONNECTIONS if name.endswith("new") else RATE // 2
            for _ in range(count):
                self.run(self.work, name, make(), due)

    def run(self, *call):
        thread = threading.Thread(target=call[0], args=call[1:], daemon=True)
        thread.start()
        self.threads.append(thread)

    def schedule(self, due):
        begun = time.monotonic()
        for number in itertools.count():
            at = begun + number / RATE
            if self.stopping.wait(max(at - time.monotonic(), 0)):
                break
            due.put(at)
        for _ in range(CONNECTIONS):
            due.put(None)

    def work(self, name, client, due):
        while (at := due.get()) is not None:
            error = None
            try:
                client()
            except Exception as failure:  # noqa: BLE001 - what became of it is what is asked
                error = failure
            with self.lock:
                self.outcomes.append((name, at, time.monotonic() - at, error))
            if isinstance(error, RefusedError):
                # A thread that goes leaves the next request to another one.
                return

    def answered(self):
        with self.lock:
            return Counter(name for name, _, _, error in self.outcomes if error is None)

    def stop(self):
        """Ends it, and returns what became of all requests."""
        self.stopping.set()
        for thread in self.threads:
            thread.join(TIMEOUT * 2)
            assert not thread.is_alive(), "a request has no end"
        return self.outcomes
