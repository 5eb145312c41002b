"""Requests whose runs do not end: 2^60 iterations of a loop, in each runtime, in the server and isolated."""

from __future__ import annotations

import random

from attacks import JSON, PREDICT, Attack, model
from messages import GrpcConnection, http_head, predict_request
from server import LOOPS

ITERATIONS = 1 << 60
INT64 = 9


class Endless(Attack):
    """One such request after a few short ones, after which the server expects a short run."""

    def once(self) -> str:
        path = model(random.choice(list(LOOPS)))
        for _ in range(10):
            self.post(path, b'{"inputs": 3}')
        return self.post(path, b'{"inputs": %d}' % ITERATIONS)


class EndlessGrpc(Attack):
    """The same over gRPC."""

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
