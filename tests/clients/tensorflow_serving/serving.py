"""A server of the built binary, for tests."""

import os
import socket
import subprocess
import tempfile

import grpc

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))
DATA = os.path.join(ROOT, "tests/data/tensorflow-serving")
BINARY = os.environ.get("TENSORSERVE_BINARY", os.path.join(ROOT, "target/debug/tensorserve"))

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def environment():
    """Ours without settings of whoever runs the tests."""
    return {
        name: value for name, value in os.environ.items()
        if not name.startswith(("TENSORSERVE_", "TF_"))
    }


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """Serves models, given as {name: folder}, until closed."""

    def __init__(self, models, *options):
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "tensorserve.toml")
        with open(config, "w", encoding="utf-8") as file:
            for name, path in models.items():
                path = os.path.join(ROOT, path)
                file.write(f'[[models]]\nname = "{name}"\npath = "{path}"\n')
        command = [BINARY, "serve", "--config", config, "--http-port", "0", "--grpc-port", "0"]
        self.process = subprocess.Popen(
            command + ["--log-level", "warn", *options],
            stdout=subprocess.PIPE, text=True, env=environment(),
        )
        self.address = self.http = None
        for line in self.process.stdout:
            if line.startswith("listening on http://"):
                self.http = line.strip().removeprefix("listening on http://")
            if line.startswith("listening on grpc://"):
                self.address = line.strip().removeprefix("listening on grpc://")
            if line.startswith("ready after"):
                break
            if line.startswith("not ready"):
                raise RuntimeError(line)

    def channel(self, target=None):
        return grpc.insecure_channel(target or self.address, options=UNLIMITED)

    def close(self):
        stop(self.process)
        self.folder.cleanup()


class ModelServer:
    """The same binary as tensorflow_model_server, until closed. Files are given as {flag: text}."""

    def __init__(self, *flags, files=None):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        command = [BINARY, "tensorflow_model_server", f"--port={self.port}", *flags]
        for flag, text in (files or {}).items():
            path = os.path.join(self.folder.name, flag)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            command.append(f"--{flag}={path}")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=environment(),
        )
        for line in self.process.stdout:
            if line.startswith("ready after"):
                break

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def close(self):
        stop(self.process)
        self.folder.cleanup()


def stop(process):
    process.terminate()
    assert process.wait(timeout=60) == 0
    process.stdout.close()
