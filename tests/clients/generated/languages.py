"""How to run the generated client of each language and variant: programs and commands."""

import os
import shutil
import subprocess
import sys

# The directory of the virtual environments of all clients.
HOME = os.environ.get("CLIENTS_HOME", "")

CARGO_TOML = """\
[package]
name = "client"
version = "0.0.0"
edition = "2024"

[dependencies]
base64 = "0.23.1"
ureq = "3.5.1"

[profile.dev]
debug = false

[workspace]
"""


class Language:
    """A kind of client: its name, the programs it needs, and the commands that run `file`."""

    def __init__(self, language, variant, programs, command):
        self.id, self.variant = language, variant
        self.programs, self.command = programs, command

    @property
    def name(self):
        return f"{self.id} ({self.variant})"

    def missing(self):
        """Its programs that are not installed."""
        return [program for program in self.programs if not shutil.which(program)]

    def run(self, folder, file, environment):
        """Runs the client; returns its exit code, output and errors."""
        for step in self.command(folder, file):
            done = subprocess.run(
                step,
                capture_output=True,
                check=False,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                text=True,
                timeout=300,
            )
            if done.returncode:
                break
        return done.returncode, done.stdout, done.stderr


def interpreted(*command):
    return lambda _folder, file: [[*command, file]]


def mono(_folder, file):
    return [["mcs", "-out:client.exe", "-r:System.Net.Http.dll", file], ["mono", "client.exe"]]


def cargo(folder, file):
    """Runs it as a crate; all crates share their built dependencies."""
    os.makedirs(os.path.join(folder, "src"), exist_ok=True)
    shutil.copy(os.path.join(folder, file), os.path.join(folder, "src/main.rs"))
    with open(os.path.join(folder, "Cargo.toml"), "w", encoding="utf-8") as manifest:
        manifest.write(CARGO_TOML)
    target = os.path.join(HOME or folder, "generated/rust")
    command = ["cargo", "--quiet", "run", "--target-dir", target]
    lock = os.path.join(target, "Cargo.lock")
    if os.path.exists(lock):
        shutil.copy(lock, folder)
    yield ["cargo", "--quiet", "build", "--target-dir", target]
    shutil.copy(os.path.join(folder, "Cargo.lock"), lock)
    yield command


PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page.js")
GRPC_PYTHON = os.path.join(HOME, "tensorflow_serving/venv/bin/python")

LANGUAGES = [
    Language("bash", "curl", ["bash", "curl"], interpreted("bash")),
    Language("python", "requests", [sys.executable], interpreted(sys.executable)),
    Language("python", "rest", [sys.executable], interpreted(sys.executable)),
    Language("python", "grpc", [GRPC_PYTHON], interpreted(GRPC_PYTHON)),
    Language("python", "boto3", [sys.executable], interpreted(sys.executable)),
    Language("javascript", "node", ["node"], interpreted("node")),
    Language("javascript", "browser", ["node"], interpreted("node", PAGE)),
    Language("golang", "net/http", ["go"], interpreted("go", "run")),
    Language("ruby", "net/http", ["ruby"], interpreted("ruby")),
    Language("php", "curl", ["php"], interpreted("php")),
    Language("perl", "http-tiny", ["perl"], interpreted("perl")),
    Language("lua", "lua-http", ["lua5.1"], interpreted("lua5.1")),
    Language("erlang", "httpc", ["escript"], interpreted("escript")),
    Language("r", "httr2", ["Rscript"], interpreted("Rscript")),
    Language("java", "java.net.http", ["java"], interpreted("java")),
    Language("csharp", "httpclient", ["mcs", "mono"], mono),
    Language("rust", "ureq", ["cargo"], cargo),
    # Debian 12 has no Swift.
    Language("swift", "urlsession", ["swift"], interpreted("swift")),
]

# Languages that CI may lack.
MAY_BE_MISSING = {"swift"}
