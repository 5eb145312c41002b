"""Compares SavedModels as they are loaded with the form that `optimize` finds for them, and writes a table.

    scripts/compare_forms.py FOLDER exact      each FOLDER/NAME has versions; 1,000 inputs for each signature
    scripts/compare_forms.py FOLDER fast NAME…
    scripts/compare_forms.py FOLDER openvino   the same for the setting `engine`: openvino or auto

Serves each model twice, with `optimize` off and with the mode, waits until the server has decided, and sends both the
same requests: 1 to 32 rows, and among the values NaN, infinities, the greatest and smallest numbers, ids out of range
and no rows at all. The answers are compared as texts: the server writes numbers such that other bits are another text.
A model whose own answers differ from run to run is told apart by asking twice. The exit status is 1 if a mode other
than `fast` changes an answer, `fast` changes one by more than a thousandth of the largest magnitude, or a request is
lost; engines are held to what `fast` is. TENSORSERVE names the binary, SECONDS the most that the requests to a
signature take (60).
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import json
import math
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

# Requests to a signature, the most seconds that they take, and the most elements of an input.
REQUESTS = 1000
SECONDS = int(os.environ.get("SECONDS", "60"))
ELEMENTS = 1 << 20
# The share of the largest magnitude by which `fast` may differ, as its documentation says.
FAST = 1e-3
# The options of each mode, and where the server says what it has decided.
MODES = {
    "off": ([], "optimization"),
    "exact": (["--optimize", "exact"], "optimization"),
    "fast": (["--optimize", "fast"], "optimization"),
    "openvino": (["--engine", "openvino"], "other_engine"),
    "auto": (["--optimize", "exact", "--engine", "auto"], "other_engine"),
}
# Seconds that a server may take until it has decided.
PATIENCE = 600

EXTREMES = [0.0, -0.0, 1e-45, 1e-38, 3.4e38, -3.4e38, 1e30, -1e30, 65504.0]
UNUSUAL = ["NaN", "Infinity", "-Infinity"]
IDS = [-1, 2**31 - 1, -(2**31), 10**6, 4999, 5000, 99, 100]
WORDS = ["", "a", "the movie was great", "7", "%$", "\u00e9\u4e2d", "x" * 300]


@dataclasses.dataclass
class Compared:
    """What the requests to a model have shown."""

    outputs: int = 0
    errors: int = 0
    lost: int = 0
    # Answers that differ from run to run by themselves, and because of the other form.
    unsteady: int = 0
    different: int = 0
    greatest: float = 0.0
    first: str = ""


class Server:
    """A server of one model."""

    def __init__(self, model: pathlib.Path, mode: str) -> None:
        options, self.key = MODES[mode]
        command = [os.environ.get("TENSORSERVE", "tensorserve"), "serve", *options]
        command += ["--http-port", "0", "--grpc-port", "off", "--log-level", "info"]
        self.folder = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.folder.name, "log")
        with self.log.open("w") as log:
            command += ["--model-name", "m", str(model)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.port = self.wait_for_port()
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def wait_for_port(self) -> int:
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            for word in self.log.read_text().split():
                if word.startswith("http://127.0.0.1:"):
                    return int(word.removeprefix("http://127.0.0.1:").split("/")[0].rstrip(".,;"))
            time.sleep(0.05)
        raise SystemExit(f"the server does not start:\n{self.log.read_text()}")

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        try:
            self.connection.request(method, path, body)
            answer = self.connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return 0, str(error)

    def state(self) -> tuple[str, dict]:
        shown = json.loads(self.ask("GET", "/api/v1/models/m")[1])
        # Right after its start, the server does not know the model yet.
        version = (shown.get("versions") or [{}])[0]
        return version.get("state", ""), version.get(self.key) or {}

    def wait(self, mode: str) -> dict:
        """Waits until the version serves and, where a mode is on, its form is decided."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            state, found = self.state()
            if state == "END":
                return {"state": "failed", "text": "the version cannot be loaded"}
            decided = mode == "off" or found.get("state") in ("optimized", "unchanged")
            if state == "AVAILABLE" and decided:
                return found
            time.sleep(0.1)
        return {"state": "undecided", "text": f"after {PATIENCE} s"}

    def end(self) -> int:
        """Whether it was still there, and its exit status."""
        self.process.terminate()
        return self.process.wait()


def number(chance: random.Random, kind: float) -> float | str:
    """`kind` tells how unusual the numbers of a request are."""
    if kind > 0.9 and chance.random() < 0.05:
        return chance.choice(UNUSUAL)
    if kind > 0.7 and chance.random() < 0.1:
        return chance.choice(EXTREMES)
    return round(chance.gauss(0, 10 ** chance.choice([0, 0, 1])), 4)


def value(chance: random.Random, dtype: str, kind: float) -> object:
    if dtype == "DT_STRING":
        return chance.choice(WORDS)
    if dtype == "DT_BOOL":
        return chance.random() < 0.5
    if dtype in ("DT_FLOAT", "DT_DOUBLE", "DT_HALF", "DT_BFLOAT16"):
        return number(chance, kind)
    if kind > 0.7 and chance.random() < 0.2:
        return chance.choice(IDS)
    return chance.randrange(0, 50)


def tensor(values, dims: list[int]):
    """A nested list as JSON. NaN and the infinities are written without quotes."""
    if not dims:
        one = next(values)
        return one if one in UNUSUAL else json.dumps(one)
    return "[" + ",".join(tensor(values, dims[1:]) for _ in range(dims[0])) + "]"


def request(chance: random.Random, signature: str, inputs: dict) -> str:
    rows, kind = chance.choice([1, 1, 1, 2, 3, 5, 8, 32]), chance.random()
    if chance.random() < 0.02:
        rows = 0
    open_size = chance.choice([1, 2, 4, 7])
    parts = []
    for alias, spec in sorted(inputs.items()):
        sizes = [int(dim["size"]) for dim in spec["tensor_shape"]["dim"]]
        if spec["tensor_shape"].get("unknown_rank"):
            sizes = [-1]
        dims = [size if size >= 0 else open_size for size in sizes]
        if sizes and sizes[0] < 0:
            dims[0] = rows
        while len(dims) > 1 and product(dims) > ELEMENTS and dims[0] > 1:
            dims[0] //= 2
        made = iter(lambda spec=spec: value(chance, spec["dtype"], kind), None)
        parts.append(f"{json.dumps(alias)}: {tensor(made, dims)}")
    inputs_text = "{" + ", ".join(parts) + "}"
    return f'{{"signature_name": {json.dumps(signature)}, "inputs": {inputs_text}}}'


def product(dims: list[int]) -> int:
    count = 1
    for dim in dims:
        count *= dim
    return count


def flat(value: object) -> list:
    if isinstance(value, dict):
        return [one for key in sorted(value) for one in flat(value[key])]
    if isinstance(value, list):
        return [one for part in value for one in flat(part)]
    return [value]


def difference(one: str, other: str) -> float:
    """The greatest difference of two answers, as a share of the largest magnitude."""
    first, second = flat(json.loads(one)), flat(json.loads(other))
    if len(first) != len(second):
        return math.inf
    numbers = [abs(x) for x in first if isinstance(x, (int, float)) and math.isfinite(x)]
    largest, greatest = max(numbers, default=0.0), 0.0
    for x, y in zip(first, second):
        if x == y or str(x) == str(y):
            continue
        if isinstance(x, str) or isinstance(y, str) or not math.isfinite(x - y):
            return math.inf
        greatest = max(greatest, abs(x - y) / largest if largest else math.inf)
    return greatest


def compare(plain: Server, other: Server, signature: str, inputs: dict, found: Compared) -> None:
    chance, end = random.Random(7), time.monotonic() + SECONDS
    for _ in range(REQUESTS):
        if time.monotonic() > end:
            return
        body = request(chance, signature, inputs)
        path = "/v1/models/m:predict"
        (status, text), (other_status, other_text) = (
            server.ask("POST", path, body) for server in (plain, other)
        )
        found.lost += (status == 0) + (other_status == 0)
        found.outputs += status == 200
        found.errors += status not in (0, 200)
        if status == other_status and (status != 200 or text == other_text):
            continue
        again = plain.ask("POST", path, body)
        if again != (status, text):
            found.unsteady += 1
            continue
        found.different += 1
        both = status == other_status == 200
        by = difference(text, other_text) if both else math.inf
        if by > found.greatest:
            found.greatest = by
            found.first = (
                f"{status} {text[:200]} / {other_status} {other_text[:200]} for {body[:300]}"
            )


def examine(model: pathlib.Path, mode: str) -> tuple[dict, Compared]:
    """What the server decides for a model, and how answers compare."""
    found = Compared()
    other = Server(model, mode)
    verdict = other.wait(mode)
    plain = Server(model, "off")
    plain.wait("off")
    if verdict.get("state") == "optimized":
        metadata = json.loads(plain.ask("GET", "/v1/models/m/metadata")[1])
        signatures = metadata["metadata"]["signature_def"]["signature_def"]
        for name, signature in sorted(signatures.items()):
            if name != "__saved_model_init_op":
                compare(plain, other, name, signature.get("inputs") or {}, found)
    if other.process.poll() is not None or plain.process.poll() is not None:
        found.lost += 1
        found.first = "a server has ended"
    other.end()
    plain.end()
    return verdict, found


def row(name: str, verdict: dict, found: Compared) -> str:
    text = verdict.get("text", "").replace("|", "\\|").replace("\n", " ")
    if verdict.get("state") != "optimized":
        return f"| {name} | as it is | {text} | | | |"
    greatest = "equal" if not found.different else f"{found.greatest:.1e} in {found.different}"
    unsteady = f", {found.unsteady} unsteady" if found.unsteady else ""
    cpu = verdict.get("cpu", 0.0)
    return (
        f"| {name} | {text} | {cpu:.2f} | {found.outputs} | {found.errors} | {greatest}{unsteady} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("mode", choices=sorted(MODES.keys() - {"off"}))
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    names = arguments.names or sorted(path.name for path in arguments.folder.iterdir())
    allowed = 0.0 if arguments.mode == "exact" else FAST
    wrong = 0
    print(
        "| model | form | CPU | outputs | errors | difference |\n| --- | --- | --- | --- | --- | --- |"
    )
    for name in names:
        verdict, found = examine(arguments.folder / name, arguments.mode)
        print(row(name, verdict, found), flush=True)
        if found.lost or found.greatest > allowed:
            wrong += 1
            print(f"{name}: {found.lost} lost; {found.first}", file=sys.stderr, flush=True)
    print(f"{len(names)} models, {wrong} wrong", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
