"""What is done to the server from its own machine: files of models, processes, signals and settings."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from messages import GrpcConnection
from server import ROOT, Server, reached

# How long an isolated model may be away after the process that it is forked from was killed, in seconds.
RETURN_SECONDS = 30


class Disturber(threading.Thread):
    """Repeats a change until `stop` is called, and counts. What goes wrong is in `failures`."""

    def __init__(self, server: Server, change: Callable[[Server, int], None], pause: float):
        super().__init__(daemon=True)
        self.server, self.change, self.pause = server, change, pause
        self.done, self.failures = 0, []
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(self.pause) and self.server.alive():
            try:
                self.change(self.server, self.done)
            except (AssertionError, OSError) as error:
                self.failures.append(f"{self.change.__name__}: {error}")
            self.done += 1

    def stop(self) -> None:
        self.ended.set()
        self.join()


def delete_during_load(server: Server, done: int) -> None:
    """A version whose folder goes away a moment after it came."""
    model = server.models["vanishing"]
    version = model / str(done + 2)
    copied = server.folder / "vanishing"
    shutil.copytree(ROOT / "models/half_plus_two/1", copied)
    copied.rename(version)
    time.sleep(random.uniform(0, 0.5))
    # Deleted as `rm -r` deletes: in no order that keeps a version whole.
    part = random.choice(["variables", "saved_model.pb", ""])
    shutil.rmtree(version / part) if part != "saved_model.pb" else (version / part).unlink()
    shutil.rmtree(version, ignore_errors=True)


def put_what_is_no_file(server: Server, done: int) -> None:
    """A FIFO, a device and a link in the place of a model's file, below a name with line breaks."""
    folder = server.folder / "strange" / f"model\r\n\x1b[31m{done % 3}"
    (folder / "1").mkdir(parents=True)
    file = folder / "1/saved_model.pb"
    [os.mkfifo, lambda at: at.symlink_to("/dev/zero"), lambda at: at.symlink_to("/etc/passwd")][
        done % 3
    ](file)
    time.sleep(1)
    shutil.rmtree(folder)


def hang_up(server: Server, done: int) -> None:
    """SIGHUP, many times, while the settings change: whole, half written, and with mistakes. What is half written ends
    in a string: a file that ends behind a model would be an order to remove the models that follow."""
    settings = server.folder / "models.toml"
    whole = server.settings
    extra = f'\n[[models]]\nname = "extra"\npath = "{ROOT}/models/half_plus_two"\n'
    in_strings = [at for at in range(len(whole)) if whole[:at].count('"') % 2]
    half = whole[: random.choice(in_strings)]
    texts = [whole, whole + extra, half, whole + "\nlimit = -1\n"]
    with_one = texts[done % len(texts)]
    settings.write_text(with_one)
    for _ in range(20):
        os.kill(server.pid, signal.SIGHUP)
        time.sleep(0.005)


def kill_the_origin_of_isolated_models(server: Server, _done: int) -> None:
    """SIGKILL to the process that load probes and isolated models are forked from: they come back."""
    for child in server.children(are_python=False):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    returned = reached(lambda: answers(server, "loop_isolated"), RETURN_SECONDS)
    assert returned, f"no answer of loop_isolated for {RETURN_SECONDS} s"


def answers(server: Server, model: str) -> bool:
    """Whether an endless model answers a request of three iterations."""
    url = f"{server.running.url}/v1/models/{model}:predict"
    try:
        with urllib.request.urlopen(url, b'{"inputs": 3}', timeout=10) as response:
            return "outputs" in json.load(response)
    except OSError:
        return False


# The pause in seconds after each change.
CHANGES: dict[Callable[[Server, int], None], float] = {
    delete_during_load: 0.5,
    put_what_is_no_file: 1,
    hang_up: 3,
    kill_the_origin_of_isolated_models: 5,
}


class OpenStreams:
    """Streams of gRPC that stay open, with and without an answered request: a stop does not wait for them."""

    METHODS = (
        "/inference.GRPCInferenceService/ModelStreamInfer",
        "/grpc.health.v1.Health/Watch",
        "/tensorflow.serving.PredictionService/Predict",
    )

    def __init__(self, server: Server):
        self.connections = []
        for _ in range(10):
            connection = GrpcConnection(server.grpc)
            connection.__enter__()
            self.connections.append(connection)
            for method in self.METHODS:
                connection.open_stream(method)

    def close(self) -> None:
        for connection in self.connections:
            connection.__exit__(None, None, None)


class Health(threading.Thread):
    """Asks whether the server is healthy, ten times a second."""

    def __init__(self, server: Server):
        super().__init__(daemon=True)
        self.url = f"{server.running.url}/healthz"
        self.ended = threading.Event()
        self.longest, self.failures = 0.0, 0

    def run(self) -> None:
        while not self.ended.wait(0.1):
            begin = time.monotonic()
            try:
                urllib.request.urlopen(self.url, timeout=30).close()
            except (OSError, urllib.error.HTTPError):
                self.failures += 1
            self.longest = max(self.longest, time.monotonic() - begin)

    def stop(self) -> None:
        self.ended.set()
        self.join()
