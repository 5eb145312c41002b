"""Compares tensorserve with scikit-learn 0.19 to 1.9, and writes docs/scikit-learn-versions.md.

    cargo build && python tests/data/platforms/matrix.py

It makes a virtual environment with each version (--venvs, by default below target/), in which matrix_models.py fits
the models of matrix_options.py, serves all of them, and compares the answers to 200 rows each. It needs the Pythons of
PYTHONS on the path, or as pyenv installs them. --only takes some versions, --keep the models that were fitted before.
"""

import argparse
import http.client
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
PROJECT = HERE.parents[2]
# The Python and the packages of the time of each version.
PYTHONS = {
    "0.19.2": ("3.6", []), "0.20.4": ("3.6", []), "0.21.3": ("3.6", []), "0.22.2.post1": ("3.7", []),
    "0.23.2": ("3.7", []), "0.24.2": ("3.7", []), "1.0.2": ("3.7", []),
    "1.1.3": ("3.9", ["numpy<1.24", "scipy<1.10", "pandas<2"]), "1.2.2": ("3.9", ["numpy<2", "pandas<2.4"]),
    "1.3.2": ("3.11", ["numpy<2"]), "1.4.2": ("3.11", []), "1.5.2": ("3.11", []), "1.6.1": ("3.9", []),
    "1.7.2": ("3.12", []), "1.8.0": ("3.12", []), "1.9.1": ("3.12", []),
}  # fmt: skip
TOLERANCE = 1e-9
# The number of rows of each model that are asked for one by one, of those that scikit-learn
# refuses.
REFUSED_ROWS = 12
HUGE = 1e15
# Where rows may differ: expressions of cases, which of their rows, and the words of the table.
LIMITS = [
    (
        r"Neighbors|LabelSpreading|LabelPropagation|LocalOutlierFactor|KMeans|MeanShift|Affinity|Birch",
        "huge",
        (
            "for values above 1e15 all distances are equal in 64 bits, and which of the neighbors or centers is "
            "taken depends on rounding"
        ),
    ),
    (
        r"ComplementNB|RBFSampler|SplineTransformer",
        "huge",
        (
            "for values above 1e15 the result is that of rounding, or of overflow, in an order of summation "
            "that differs between processors"
        ),
    ),
    (
        r"ColumnTransformer.*(OneHot|Ordinal)Encoder",
        "empty",
        "an empty text is a missing value here (see Tables)",
    ),
]


def python_of(version, venvs):
    folder = venvs / version
    if not (folder / "bin/python").exists():
        minor, packages = PYTHONS[version]
        found = shutil.which(f"python{minor}") or next(
            pathlib.Path.home().glob(f".pyenv/versions/{minor}.*/bin/python"), None
        )
        if not found:
            sys.exit(f"scikit-learn {version} needs Python {minor}, which is not installed")
        subprocess.run([found, "-m", "venv", folder], check=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        subprocess.run([*pip, f"scikit-learn=={version}", "pandas", *packages], check=True)
    return folder / "bin/python"


def fitted(version, arguments):
    """The cases of a version, with its models in a folder."""
    folder = arguments.work / ".".join(version.split(".")[:2])
    if not (arguments.keep and (folder / "cases.jsonl").exists()):
        (folder / "models").mkdir(parents=True, exist_ok=True)
        python = python_of(version, arguments.venvs)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([python, HERE / "matrix_models.py", folder], check=True, env=environment)
    lines = (folder / "cases.jsonl").read_text().splitlines()
    return folder, [json.loads(line) for line in lines]


class Server:
    """A server of all models of a folder that it can load."""

    def __init__(self, program, folder):
        self.refusals = {}
        models = sorted((folder / "models").glob("*.pkl"))
        listed = folder / "models.toml"
        entries = [f'[[models]]\nname = "{m.stem}"\npath = "{m}"\n' for m in models]
        listed.write_text("\n".join(entries))
        self.log = open(folder / "server.log", "w+")  # noqa: SIM115 - open while the server runs
        command = [program, "serve", "--config", listed, "--http-port", "0", "--grpc-port", "off"]
        command += ["--poll-interval", "1h", "--load-probe", "false"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port(folder), timeout=120)

    def port(self, folder):
        for _ in range(600):
            text = (folder / "server.log").read_text()
            if found := re.search(r"(?:127\.0\.0\.1|localhost):(\d+)", text):
                return int(found[1])
            if self.process.poll() is not None:
                sys.exit(text[-2000:])
            time.sleep(0.2)
        sys.exit("the server did not start")

    def ask(self, path, body=None):
        for _ in range(600):
            self.connection.request("POST" if body else "GET", path, body)
            answer = self.connection.getresponse()
            text = answer.read().decode()
            if answer.status != 503:
                return answer.status, text
            time.sleep(0.2)
        return 503, text

    def refusal(self, name):
        """Why a model is not served, once the server has tried."""
        for _ in range(600):
            status, text = self.ask(f"/v1/models/{name}")
            state = json.loads(text).get("model_version_status", [{}])[0]
            if state.get("state") == "AVAILABLE":
                return None
            if state.get("status", {}).get("error_message"):
                return state["status"]["error_message"]
            time.sleep(0.2)
        return f"not loaded: {status} {text}"

    def stop(self):
        self.connection.close()
        self.process.terminate()
        self.process.wait()
        self.log.close()


def number(value):
    if isinstance(value, bool):
        return float(value)
    return float(value) if isinstance(value, str) and value in ("nan", "inf", "-inf") else value


def same(got, want, scale=1e-3):
    got, want = number(got), number(want)
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return False
        sizes = [
            abs(w) for w in map(number, want) if isinstance(w, (int, float)) and math.isfinite(w)
        ]
        scale = max([scale, *sizes])
        return all(same(g, w, scale) for g, w in zip(got, want, strict=True))
    if isinstance(want, str) or isinstance(got, (str, list)):
        return got == want
    if got is None or want is None:
        return got is None and (want is None or math.isnan(want))
    if math.isnan(want) or math.isinf(want):
        return math.isnan(got) == math.isnan(want) and (math.isnan(got) or got == want)
    return abs(got - want) <= TOLERANCE * max(abs(want), scale)


def request(inputs, rows):
    text = json.dumps(
        {"inputs": {k: [values[row] for row in rows] for k, values in inputs.items()}}
    )
    return re.sub(
        r'"(nan|inf|-inf)"',
        lambda m: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[m[1]],
        text,
    )


def answers(server, case, rows):
    """Outputs of each row by name, or the error."""
    status, text = server.ask(f"/v1/models/{case['name']}:predict", request(case["inputs"], rows))
    if status != 200:
        return status, text
    outputs = json.loads(text)["outputs"]
    return status, outputs if isinstance(outputs, dict) else {None: outputs}


def row_differs(case, row, place, outputs):
    for name, want in case["right"][row].items():
        got = outputs.get(name, outputs.get(None))
        if got is None or not same(got[place : place + 1], want):
            return f"{name} of row {row} {brief(case, row)} is {got and got[place]}, not {want[0]}"
    return None


def brief(case, row):
    return {name: values[row] for name, values in case["inputs"].items()}


def compared(server, case):
    """Differences of a case as (row, words)."""
    served = [row for row, right in enumerate(case["right"]) if right is not None]
    found = []
    status, outputs = answers(server, case, served) if served else (200, {})
    if status == 200:
        for place, row in enumerate(served):
            if words := row_differs(case, row, place, outputs):
                found.append((row, words))
    else:
        for row in served:
            status, outputs = answers(server, case, [row])
            words = outputs if status != 200 else row_differs(case, row, 0, outputs)
            if words:
                found.append((row, f"{status} {words} row {brief(case, row)}"))
    refused = [row for row, right in enumerate(case["right"]) if right is None]
    for row in refused[:: max(1, len(refused) // REFUSED_ROWS)]:
        status, outputs = answers(server, case, [row])
        if status == 200:
            found.append(
                (
                    row,
                    f"answered {outputs}, refused there: {case['reasons'][row]} row {brief(case, row)}",
                )
            )
        elif status >= 500 and status != 501:
            found.append((row, f"status {status}: {outputs}"))
    return found


def is_of_kind(case, row, kind):
    values = brief(case, row)
    if kind == "empty":
        return "" in values.values()
    numbers = map(number, values.get("data", []) if isinstance(values.get("data"), list) else [])
    return any(isinstance(value, float) and abs(value) > HUGE for value in numbers)


def cell(server, case):
    if "name" not in case:
        return {"cell": "absent", "why": case["absent"]}
    if why := server.refusal(case["name"]):
        return {"cell": "refused", "why": why}
    if '"x0"' in server.ask(f"/v1/models/{case['name']}/metadata")[1]:
        # A version that does not record the names of columns.
        case["inputs"] = {f"x{n}": values for n, values in enumerate(case["inputs"].values())}
    found = compared(server, case)
    if not found:
        return {"cell": "equal"}
    for pattern, kind, words in LIMITS:
        is_limited = re.search(pattern, case["case"])
        if is_limited and all(is_of_kind(case, row, kind) for row, _ in found):
            return {"cell": "limit", "why": words, "rows": len(found)}
    return {"cell": "differs", "rows": len(found), "why": [words for _, words in found[:6]]}


def estimator_of(case):
    """The estimator that a line of the table is about: of a composition, all of its parts."""
    expression = case.split(" | ")[0].split(" || ")[0]
    names = re.findall(r"\b([A-Z][A-Za-z]+)\(", expression)
    if expression.startswith(("make_pipeline", "ColumnTransformer", "FeatureUnion")):
        head = re.match(r"\w+", expression)[0].replace("make_pipeline", "Pipeline")
        return head + " of " + ", ".join(dict.fromkeys(n for n in names if n != head))
    return names[0]


def reason(text):
    """A refusal without the path of the model and the advice."""
    text = re.sub(r"^\S+\.pkl: ", "", text)
    return re.sub(r" is not supported; convert the model.*", " is not supported", text)


def table(results):
    """Lines of the table, and the notes that they refer to."""
    notes, lines = {}, {}
    for version, cells in results.items():
        for case, one in cells.items():
            mark = {"equal": "=", "absent": "", "differs": "**differs**"}.get(one["cell"])
            if mark is None:
                words = f"{one['cell']}: " + (
                    reason(one["why"]) if one["cell"] == "refused" else one["why"]
                )
                mark = str(notes.setdefault(words, len(notes) + 1))
            line = lines.setdefault(estimator_of(case), {name: {} for name in results})
            counts = line[version]
            counts[mark] = counts.get(mark, 0) + 1
    return lines, notes


def shown(counts):
    """A cell: how many options are equal, and the notes of the others."""
    equal = f"= {counts['=']}" if "=" in counts else ""
    others = [mark for mark in counts if mark not in ("=", "")]
    return " ".join([part for part in [equal, ", ".join(others)] if part]) or "-"


def write_table(results, path):
    lines, notes = table(results)
    cases = [one["cell"] for cells in results.values() for one in cells.values()]
    counted = {kind: cases.count(kind) for kind in ["equal", "refused", "limit", "differs"]}
    minors = [".".join(version.split(".")[:2]) for version in results]
    text = HEAD.format(versions=", ".join(results), **counted)
    text += "| estimator | " + " | ".join(minors) + " |\n|" + " --- |" * (len(minors) + 1) + "\n"
    for name, line in sorted(lines.items()):
        text += f"| {name} | " + " | ".join(shown(counts) for counts in line.values()) + " |\n"
    text += "\n## Notes\n\n" + "".join(f"{place}. {words}\n" for words, place in notes.items())
    path.write_text(text)


HEAD = """# Versions of scikit-learn

Written by [`matrix.py`](../tests/data/platforms/matrix.py). Each estimator is fitted with each of the options in
[`matrix_options.py`](../tests/data/platforms/matrix_options.py) by scikit-learn {versions}, and asked for 200 rows:
those of the training, others near and far, with ±1e30, ±1e300, ±1e-300, missing and infinite values, unseen categories.
Every output is within 1e-9 of the largest number of its row, and the rows that scikit-learn refuses are refused.

`= 3`: three options are equal. A number without `=` is that of a note below: a model that is refused by name,
or a limit. `-`: the version does not have the estimator, or cannot fit it with these options. In all, {equal} models are
equal, {refused} are refused, {limit} are equal but for a stated limit, and {differs} differ.

"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=pathlib.Path, default=PROJECT / "target/matrix")
    parser.add_argument("--venvs", type=pathlib.Path, default=PROJECT / "target/matrix-venvs")
    parser.add_argument("--program", default=PROJECT / "target/debug/tensorserve")
    parser.add_argument("--only", nargs="*", default=list(PYTHONS))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--table", type=pathlib.Path, help="the file to write the table to")
    arguments = parser.parse_args()
    results = {}
    for version in arguments.only:
        folder, cases = fitted(version, arguments)
        server = Server(arguments.program, folder)
        try:
            cells = {case["case"]: cell(server, case) for case in cases}
        finally:
            server.stop()
        results[version] = cells
        (folder / "cells.json").write_text(json.dumps(cells, indent=1))
        kinds = [one["cell"] for one in cells.values()]
        print(version, {kind: kinds.count(kind) for kind in sorted(set(kinds))}, flush=True)
    if arguments.table:
        write_table(results, arguments.table)


if __name__ == "__main__":
    main()
