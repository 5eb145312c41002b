"""The built binary as a process, for tests."""

import os
import socket
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BINARY = os.environ.get("TENSORSERVE_BINARY", os.path.join(ROOT, "target/debug/tensorserve"))


def environment():
    """Ours without settings of whoever runs the tests."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TENSORSERVE_", "TF_"))
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Running:
    """A server that has started. `url` is where its HTTP is, `grpc` its address for gRPC."""

    def __init__(self, arguments, env, may_be_unready=False, **options):
        self.url = self.grpc = None
        self.process = subprocess.Popen(
            [BINARY, *arguments], stdout=subprocess.PIPE, text=True, env=env, **options
        )
        for line in self.process.stdout:
            said = line.strip().removeprefix("listening on ")
            if said.startswith("http"):
                self.url = said
            if said.startswith("grpc://"):
                self.grpc = said.removeprefix("grpc://")
            if line.startswith("ready after") or (may_be_unready and line.startswith("not ready")):
                return
            if line.startswith("not ready"):
                raise RuntimeError(line)
        raise RuntimeError("the server ended")

    def stop(self):
        self.process.terminate()
        assert self.process.wait(timeout=60) == 0
        self.process.stdout.close()
