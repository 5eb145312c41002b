"""A server of the built binary, for tests."""

import os
import subprocess
import sys
import tempfile

import grpc

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from running import BINARY, ROOT, Running, environment, free_port  # noqa: F401

DATA = os.path.join(ROOT, "tests/data/tensorflow-serving")

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


class Server:
    """Serves models, given as {name: folder}, until closed."""

    def __init__(self, models, *options):
        self.folder = tempfile.TemporaryDirectory()
        config = os.path.join(self.folder.name, "tensorserve.toml")
        with open(config, "w", encoding="utf-8") as file:
            for name, model in models.items():
                path = os.path.join(ROOT, model)
                file.write(f'[[models]]\nname = "{name}"\npath = "{path}"\n')
        command = ["serve", "--config", config, "--http-port", "0", "--grpc-port", "0"]
        self.running = Running([*command, "--log-level", "warn", *options], environment())
        self.address = self.running.grpc
        self.http = self.running.url.removeprefix("http://")

    def channel(self, target=None):
        return grpc.insecure_channel(target or self.address, options=UNLIMITED)

    def close(self):
        self.running.stop()
        self.folder.cleanup()


class ModelServer:
    """The server as tensorflow_model_server, until closed. Files are given as {flag: text}."""

    def __init__(self, *flags, files=None):
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        command = ["tensorflow_model_server", f"--port={self.port}", *flags]
        for flag, text in (files or {}).items():
            path = os.path.join(self.folder.name, flag)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            command.append(f"--{flag}={path}")
        self.running = Running(command, environment(), stderr=subprocess.DEVNULL)

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def close(self):
        self.running.stop()
        self.folder.cleanup()
