"""The built binary as a process, for tests."""

import json
import os
import socket
import subprocess
import time

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BINARY = os.environ.get("TENSORSERVE_BINARY", os.path.join(ROOT, "target/debug/tensorserve"))


def environment():
    """The environment without the settings of the user who runs the tests, except library paths."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TENSORSERVE_", "TF_")) or name.startswith("TENSORSERVE_LIB")
    }
    kept.setdefault("TENSORSERVE_LIB_DIR", os.path.join(ROOT, "lib"))
    return kept


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what, seconds=300, pause=0.02):
    """Waits until a condition holds, and returns its value. A function may tell what was waited for."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what() if callable(what) else what}")
        time.sleep(pause)
    return value


def said(line):
    """What a line on stdout says. It is an event if the log is JSON."""
    return json.loads(line)["message"] if line.startswith("{") else line


class Running:
    """A started server. `url` is its base URL, `grpc` its address for gRPC.

    `prefix` is a command that starts the server in its own place."""

    def __init__(self, arguments, env, may_be_unready=False, prefix=(), **options):
        self.url = self.grpc = None
        self.process = subprocess.Popen(
            [*prefix, BINARY, *arguments], stdout=subprocess.PIPE, text=True, env=env, **options
        )
        for line in map(said, self.process.stdout):
            text = line.strip().removeprefix("listening on ")
            if text.startswith("http"):
                self.url = text
            if text.startswith("grpc://"):
                self.grpc = text.removeprefix("grpc://")
            if line.startswith("ready after") or (may_be_unready and line.startswith("not ready")):
                return
            if line.startswith("not ready"):
                raise RuntimeError(line)
        raise RuntimeError("the server ended")

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=300) == 0
        self.process.stdout.close()
