"""Compares SavedModels as they are loaded with the form that `optimize` finds for them, and writes a table.

    scripts/compare_forms.py FOLDER exact      each FOLDER/NAME has versions; 1,000 inputs for each signature
    scripts/compare_forms.py FOLDER fast NAME…
    scripts/compare_forms.py FOLDER openvino   the same for the setting `engine`: openvino or auto

Serves each model twice, with `optimize` off and with the mode, waits until the server has decided, and sends both the
same requests: 1 to 32 rows, and among the values NaN, infinities, the greatest and smallest numbers, ids out of range
and no rows at all. Requests and answers are raw tensors, and answers are compared byte by byte. A model whose own
answers differ from run to run is told apart by asking twice. The exit status is 1 if a mode other than `fast` changes
an answer, `fast` changes one by more than a thousandth of the largest magnitude, or a request is lost; engines are held
to what `fast` is. TENSORSERVE names the binary. A signature gets 1,000 requests or, where these take longer than
SECONDS (60), requests of 1,000 rows together. SIGNATURE names the only signature that gets any. PATIENCE is how many
seconds (600) a server may take to decide; then its row says "undecided".
"""

from __future__ import annotations

import argparse
import array
import dataclasses
import http.client
import json
import math
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

# Requests to a signature; the rows that are enough after SECONDS; and the most elements of an input.
REQUESTS = 1000
ROWS = 1000
SECONDS = int(os.environ.get("SECONDS", "60"))
SIGNATURE = os.environ.get("SIGNATURE")
ELEMENTS = 1 << 20
# The share of the largest magnitude by which `fast` may differ, as its documentation says. Numbers below the smallest
# normal one are 0 in some operations and not in others.
FAST = 1e-3
SMALLEST = 2.0**-126
# The options of each mode, and where the server says what it has decided.
MODES = {
    "off": ([], "optimization"),
    "exact": (["--optimize", "exact"], "optimization"),
    "fast": (["--optimize", "fast"], "optimization"),
    "openvino": (["--engine", "openvino"], "other_engine"),
    "auto": (["--optimize", "exact", "--engine", "auto"], "other_engine"),
}
# Seconds that a server may take until it has decided: large networks compute thousands of images.
PATIENCE = int(os.environ.get("PATIENCE", "600"))

EXTREMES = [0.0, -0.0, 1e-45, 1e-38, 3.4e38, -3.4e38, 1e30, -1e30, 65504.0]
UNUSUAL = [math.nan, math.inf, -math.inf]
USUAL = [random.Random(1).gauss(0, 10 ** (n % 3 // 2)) for n in range(4096)]
IDS = [-1, 2**31 - 1, -(2**31), 10**6, 4999, 5000, 99, 100]
WORDS = ["", "a", "the movie was great", "7", "%$", "\u00e9\u4e2d", "x" * 300]
# The types of tensors: their names in requests, and their letters in the module `struct`.
TYPES = {
    "DT_FLOAT": ("FP32", "f"),
    "DT_DOUBLE": ("FP64", "d"),
    "DT_HALF": ("FP16", "e"),
    "DT_BFLOAT16": ("BF16", ""),
    "DT_INT8": ("INT8", "b"),
    "DT_INT16": ("INT16", "h"),
    "DT_INT32": ("INT32", "i"),
    "DT_INT64": ("INT64", "q"),
    "DT_UINT8": ("UINT8", "B"),
    "DT_UINT16": ("UINT16", "H"),
    "DT_UINT32": ("UINT32", "I"),
    "DT_UINT64": ("UINT64", "Q"),
    "DT_BOOL": ("BOOL", "?"),
    "DT_STRING": ("BYTES", ""),
}
LETTERS = dict(TYPES.values())


@dataclasses.dataclass
class Compared:
    """What the requests to a model have shown."""

    outputs: int = 0
    errors: int = 0
    rows: int = 0
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

    def ask(
        self, method: str, path: str, body: bytes | None = None, header: int | None = None
    ) -> tuple[int, bytes, int]:
        """The status, the body, and how many bytes of it are JSON where raw tensors follow."""
        length = "Inference-Header-Content-Length"
        try:
            headers = {} if header is None else {length: str(header)}
            self.connection.request(method, path, body, headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read(), int(answer.getheader(length, 0))
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return 0, str(error).encode(), 0

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


def floats(chance: random.Random, count: int, kind: float) -> list[float]:
    """`kind` tells how unusual the numbers of a request are."""
    scale = chance.choice([0.01, 1, 1, 100])
    made = [scale * one for one in chance.choices(USUAL, k=count)]
    if kind > 0.7:
        for place in chance.choices(range(count), k=(count + 9) // 10):
            made[place] = chance.choice(EXTREMES)
    if kind > 0.9:
        for place in chance.choices(range(count), k=(count + 19) // 20):
            made[place] = chance.choice(UNUSUAL)
    return made


def integers(chance: random.Random, count: int, kind: float, letter: str) -> list[int]:
    bits = 8 * struct.calcsize(f"<{letter}")
    least, most = (0, 2**bits) if letter.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1))
    ids = [one for one in IDS if least <= one < most]
    made = chance.choices(range(50), k=count)
    if kind > 0.7:
        for place in chance.choices(range(count), k=(count + 4) // 5):
            made[place] = chance.choice(ids)
    return made


def raw(chance: random.Random, dtype: str, count: int, kind: float) -> bytes:
    """The bytes of a tensor."""
    letter = TYPES[dtype][1]
    if count == 0:
        return b""
    if dtype == "DT_STRING":
        words = (word.encode() for word in chance.choices(WORDS, k=count))
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    if dtype == "DT_BOOL":
        return bytes(chance.choices([0, 1], k=count))
    if dtype == "DT_BFLOAT16":
        wide = array.array("f", floats(chance, count, kind)).tobytes()
        return b"".join(wide[place : place + 2] for place in range(2, len(wide), 4))
    if dtype == "DT_HALF":
        return struct.pack(f"<{count}e", *(half(one) for one in floats(chance, count, kind)))
    if letter in "fd":
        return array.array(letter, floats(chance, count, kind)).tobytes()
    return array.array(letter, integers(chance, count, kind, letter)).tobytes()


def half(one: float) -> float:
    """What fits into 16 bits."""
    return math.copysign(min(abs(one), 65504.0), one) if math.isfinite(one) else one


def request(chance: random.Random, signature: str, inputs: dict) -> tuple[int, bytes, bytes]:
    """The rows, and the JSON and the raw tensors of a request."""
    rows, kind = chance.choice([1, 1, 1, 2, 3, 5, 8, 32]), chance.random()
    if chance.random() < 0.02:
        rows = 0
    open_size = chance.choice([1, 2, 4, 7])
    described, parts, count = [], [], 1
    for alias, spec in sorted(inputs.items()):
        sizes = [int(dim["size"]) for dim in spec["tensor_shape"].get("dim", [])]
        if spec["tensor_shape"].get("unknown_rank"):
            sizes = [-1]
        dims = [size if size >= 0 else open_size for size in sizes]
        if sizes and sizes[0] < 0:
            dims[0] = rows
        while len(dims) > 1 and math.prod(dims) > ELEMENTS and dims[0] > 1:
            dims[0] //= 2
        if sizes and sizes[0] < 0:
            count = dims[0]
        part = raw(chance, spec["dtype"], math.prod(dims), kind)
        size = {"binary_data_size": len(part)}
        datatype = TYPES[spec["dtype"]][0]
        described.append({"name": alias, "shape": dims, "datatype": datatype, "parameters": size})
        parts.append(part)
    parameters = {"signature_name": signature, "binary_data_output": True}
    head = {"id": "1", "inputs": described, "parameters": parameters}
    return count, json.dumps(head).encode(), b"".join(parts)


def flat(body: bytes, header: int) -> list:
    """The numbers of all outputs; bytes where they are none."""
    place, found = header, []
    for output in json.loads(body[:header])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        part, letter = body[place : place + size], LETTERS[output["datatype"]]
        place += size
        if output["datatype"] == "BF16":
            pairs = (part[at : at + 2] for at in range(0, size, 2))
            found += array.array("f", b"".join(b"\0\0" + pair for pair in pairs))
        elif letter:
            found += struct.unpack(f"<{size // struct.calcsize('<' + letter)}{letter}", part)
        else:
            found.append(part)
    return found


def difference(one: list, other: list) -> float:
    """The greatest difference of two answers, as a share of the largest magnitude."""
    if len(one) != len(other):
        return math.inf
    numbers = [abs(x) for x in one if not isinstance(x, bytes) and math.isfinite(x)]
    largest, greatest = max(numbers, default=0.0), 0.0
    for x, y in zip(one, other):
        if x == y or str(x) == str(y):
            continue
        if isinstance(x, bytes) or isinstance(y, bytes) or not math.isfinite(x - y):
            return math.inf
        if abs(x - y) >= SMALLEST:
            greatest = max(greatest, abs(x - y) / largest if largest else math.inf)
    return greatest


def compare(plain: Server, other: Server, signature: str, inputs: dict, found: Compared) -> None:
    chance, end, before = random.Random(7), time.monotonic() + SECONDS, found.rows
    path = "/v2/models/m/infer"
    for _ in range(REQUESTS):
        if time.monotonic() > end and found.rows - before >= ROWS:
            return
        rows, head, tensors = request(chance, signature, inputs)
        one, two = (
            server.ask("POST", path, head + tensors, len(head)) for server in (plain, other)
        )
        found.rows += rows
        found.lost += (one[0] == 0) + (two[0] == 0)
        found.outputs += one[0] == 200
        found.errors += one[0] not in (0, 200)
        if one[0] == two[0] and (one[0] != 200 or one == two):
            continue
        if plain.ask("POST", path, head + tensors, len(head)) != one:
            found.unsteady += 1
            continue
        by, shown = math.inf, f"{one[0]} {one[1][:200]!r} / {two[0]} {two[1][:200]!r}"
        if one[0] == two[0] == 200:
            first, second = flat(*one[1:]), flat(*two[1:])
            by, shown = difference(first, second), f"{first[:10]} / {second[:10]}"
        found.different += by > 0
        if by > found.greatest:
            found.greatest, found.first = by, f"{shown} for {head.decode()}"


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
            if name == SIGNATURE or (SIGNATURE is None and name != "__saved_model_init_op"):
                compare(plain, other, name, signature.get("inputs") or {}, found)
    if other.process.poll() is not None or plain.process.poll() is not None:
        found.lost += 1
        found.first = "a server has ended"
    other.end()
    plain.end()
    return verdict, found


def row(name: str, verdict: dict, found: Compared) -> str:
    text = verdict.get("text", "").replace("|", "\\|").replace("\n", " ")
    state = verdict.get("state", "undecided")
    if state != "optimized":
        form = "as it is" if state == "unchanged" else state
        return f"| {name} | {form} | {text} | | | | |"
    greatest = "equal" if not found.different else f"{found.greatest:.1e} in {found.different}"
    unsteady = f", {found.unsteady} unsteady" if found.unsteady else ""
    cpu = verdict.get("cpu", 0.0)
    return (
        f"| {name} | {text} | {cpu:.2f} | {found.outputs} | {found.errors} | {found.rows} "
        f"| {greatest}{unsteady} |"
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
        "| model | form | CPU | outputs | errors | rows | difference |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
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
