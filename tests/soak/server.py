"""The server under load: its start under limits, its memory, descriptors, threads and metrics."""

from __future__ import annotations

import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "clients"))
from running import ROOT as ROOT_PATH
from running import Running, environment

ROOT = pathlib.Path(ROOT_PATH)
GENERATED = ROOT / "tests/data/tensorflow-serving/generated"


# Models whose input is a number of iterations, below tests/data/platforms/endless, and whether they are isolated.
LOOPS = {
    "loop_onnx": ("adding.onnx", False),
    "loop_idle": ("idle.onnx", False),
    "loop_tensorflow": ("saved_model", False),
    "loop_tflite": ("adding.tflite", False),
    "loop_isolated": ("adding.onnx", True),
    "loop_tensorflow_isolated": ("saved_model", True),
}
# Where libtorch is.
if "TENSORSERVE_LIBTORCH" in os.environ:
    LOOPS |= {"loop_torch": ("adding.pt", False), "loop_torch_isolated": ("adding.pt", True)}

# What TorchScript does not say.
TORCH_INPUTS = '[[signature.inputs]]\nname = "n"\ndtype = "int64"\nshape = []\n'

# Calls half_plus_two through its handlers, in a Python worker.
INFERENCE = """def input_handler(data, context):
    return data.read()


def output_handler(response, context):
    return response.content, context.accept_header
"""

# Files become the input of echo_float32: numbers of 16 × 16 pixels.
IMAGE_STEP = """[[preprocess]]
step = "image"
name = "photo"
height = 16
width = 16
"""


class Server:
    """A started server with its models in a directory of their own, which `stop` removes."""

    def __init__(
        self,
        *arguments: str,
        limits: dict[int, int] | None = None,
        variables: dict[str, str] | None = None,
        folder: pathlib.Path | None = None,
        loops: bool = False,
    ):
        self.folder = folder or new_folder()
        self.log = self.folder / "server.log"
        self.models = lay_out_models(self.folder)
        config = self.folder / "models.toml"
        self.settings = model_list(self.models, self.folder)
        self.settings += loop_list(self.folder) if loops else ""
        config.write_text(self.settings)
        command = ["serve", "--http-port", "0", "--grpc-port", "0", "--config", str(config)]
        command += ["--load-probe-cache", str(self.folder / "probes"), *arguments]
        # A directory of models, for folders beside it that are none.
        shutil.copytree(ROOT / "models/half_plus_two", self.folder / "strange/steady")
        command.append(str(self.folder / "strange"))
        with self.log.open("wb") as log:
            self.running = Running(
                command,
                environment() | (variables or {}),
                stderr=log,
                preexec_fn=lambda: set_limits(limits or {}),
            )
        self.process = self.running.process
        self.pid = self.process.pid
        host, port = self.running.url.removeprefix("http://").split(":")
        self.http = (host, int(port))
        host, port = self.running.grpc.split(":")
        self.grpc = (host, int(port))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def alive(self) -> bool:
        return self.process.poll() is None

    def status(self, field: str) -> int:
        """A number of /proc/PID/status: bytes for sizes."""
        text = pathlib.Path(f"/proc/{self.pid}/status").read_text()
        number, unit = re.search(rf"^{field}:\s+(\d+)( kB)?", text, re.MULTILINE).groups()
        return int(number) * (1024 if unit else 1)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def workers(self) -> list[int]:
        """The Python workers."""
        return self.children(are_python=True)

    def children(self, *, are_python: bool) -> list[int]:
        """The processes of the server that run Python, or the others: the probe host."""
        found = []
        for place in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = re.search(r"^PPid:\s+(\d+)", (place / "status").read_text(), re.MULTILINE)
                command = (place / "cmdline").read_bytes()
            except OSError:
                continue
            is_python = b"python" in command.split(b"\0")[0]
            if int(parent[1]) == self.pid and is_python == are_python:
                found.append(int(place.name))
        return found

    def metric(self, name: str, timeout: float = 10) -> float:
        """The sum of a metric's series; `name` is a regular expression, which may include labels."""
        with urllib.request.urlopen(f"{self.running.url}/metrics", timeout=timeout) as response:
            lines = response.read().decode().splitlines()
        series = [line for line in lines if re.match(rf"{name}[ {{]", line)]
        return sum(float(line.rsplit(" ", 1)[1]) for line in series)

    def stop(self) -> str:
        """Stops the server; returns the end of its log if it did not stop cleanly, else ""."""
        self.process.terminate()
        try:
            status = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        tail = self.log_tail() if status else ""
        shutil.rmtree(self.folder, ignore_errors=True)
        return f"exit status {status}\n{tail}" if status else ""

    def log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def reached(holds: Callable[[], bool], seconds: float) -> bool:
    """Waits until it holds, at most so long; whether it does."""
    finish = time.monotonic() + seconds
    while time.monotonic() < finish:
        if holds():
            return True
        time.sleep(0.2)
    return False


def new_folder() -> pathlib.Path:
    return pathlib.Path(tempfile.mkdtemp(prefix="tensorserve-soak-"))


def set_limits(limits: dict[int, int]) -> None:
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))


def lay_out_models(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Copies of the models that are changed, the others where they are."""
    swapped = folder / "models/half_plus_two"
    shutil.copytree(ROOT / "models/half_plus_two", swapped)
    vanishing = folder / "models/vanishing"
    shutil.copytree(ROOT / "models/half_plus_two", vanishing)
    scripted = folder / "models/scripted"
    shutil.copytree(ROOT / "models/half_plus_two", scripted)
    (folder / "code").mkdir()
    (folder / "code/inference.py").write_text(INFERENCE)
    pictures = folder / "models/pictures"
    shutil.copytree(GENERATED / "echo_float32", pictures)
    (pictures / "tensorserve.toml").write_text(IMAGE_STEP)
    return {
        "half_plus_two": swapped,
        "vanishing": vanishing,
        "scripted": scripted,
        "pictures": pictures,
        "digits": ROOT / "models/digits",
        "text_normalizer": ROOT / "models/text_normalizer",
        "echo_float32": GENERATED / "echo_float32",
        "conv1d": ROOT / "tests/data/probe/conv1d",
    }


def model_list(models: dict[str, pathlib.Path], folder: pathlib.Path) -> str:
    tables = []
    for name, path in models.items():
        code = f'code = "{folder}/code"\n' if name == "scripted" else ""
        tables.append(f'[[models]]\nname = "{name}"\npath = "{path}"\n{code}')
    return 'sagemaker_default_model = "half_plus_two"\nhandler_workers = 2\n' + "\n".join(tables)


def loop_list(folder: pathlib.Path) -> str:
    tables = []
    for name, (file, is_isolated) in LOOPS.items():
        path = ROOT / "tests/data/platforms/endless" / file
        if file == "adding.pt":
            version = folder / name / "1"
            version.mkdir(parents=True)
            shutil.copy(path, version)
            path = version.parent
            (path / "tensorserve.toml").write_text(TORCH_INPUTS)
        isolation = 'isolation = "process"\n' if is_isolated else ""
        tables.append(f'\n[[models]]\nname = "{name}"\npath = "{path}"\n{isolation}')
    return "".join(tables)


class Sampler(threading.Thread):
    """Samples the memory, descriptors and threads of a server until `stop` is called."""

    def __init__(self, server: Server, interval: float):
        super().__init__(daemon=True)
        self.server, self.interval = server, interval
        self.ended = threading.Event()
        self.started_at = time.monotonic()
        # Seconds since the start, resident bytes, descriptors, threads.
        self.samples: list[tuple[float, int, int, int]] = []
        self.peak_request_memory = 0.0

    def run(self) -> None:
        while not self.ended.wait(self.interval) and self.server.alive():
            try:
                held = self.server.metric("tensorserve_request_memory_bytes")
                self.peak_request_memory = max(self.peak_request_memory, held)
            except OSError:
                pass
            try:
                at = time.monotonic() - self.started_at
                memory, threads = self.server.status("VmRSS"), self.server.status("Threads")
                self.samples.append((at, memory, self.server.descriptors(), threads))
            except (OSError, TypeError):
                return

    def stop(self) -> None:
        self.ended.set()
        self.join()

    def slope(self) -> float:
        """Growth of the resident memory over the last three quarters, in bytes per minute."""
        samples = self.samples[len(self.samples) // 4 :]
        if len(samples) < 2:
            return 0.0
        mean_x = sum(sample[0] for sample in samples) / len(samples)
        mean_y = sum(sample[1] for sample in samples) / len(samples)
        above = sum((sample[0] - mean_x) * (sample[1] - mean_y) for sample in samples)
        return 60 * above / sum((sample[0] - mean_x) ** 2 for sample in samples)
