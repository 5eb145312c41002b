"""Scores the MOJOs of a folder with H2O's own `PredictCsv` on 1000 random rows each, with missing, unknown
and extreme values: for files of other people, such as the test data of h2o-3.

    pip install h2o==3.46.0.6               # and Java 8 to 17
    score_h2o.py FOLDER

Writes `NAME.rows.csv` and `NAME.csv.gz` beside each `NAME.zip`. The test `predictions_in_other_folders`
of crates/h2o compares with them.
"""

import csv
import gzip
import random
import re
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(sys.argv[1])
JAR = Path(find_spec("h2o").origin).parent / "backend/bin/h2o.jar"
EXTREME = [0, -0.0, 1e300, -1e300, 1e-300, 3.4e38, 1e19, 2**31, 709, -745, 1, -1, 100, 1e6]


def unescaped(level):
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r"}.get(found[1], found[1]), level)


def columns(archive):
    """The features with their levels, the offset, and whether the model is calibrated."""
    section, names, domains, info = "", [], {}, {}
    for line in map(str.strip, archive.read("model.ini").decode().splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[info]" and "=" in line:
            key, value = re.split(r"\s*=\s*", line, maxsplit=1)
            info[key] = value
        elif section == "[columns]" and line:
            names.append(line)
        elif section == "[domains]" and line:
            column, _, file = re.match(r"(\d+): (\d+) (.*)", line).groups()
            levels = archive.read(f"domains/{file}").decode().splitlines()
            if info.get("escape_domain_values") == "true":
                levels = [unescaped(level) for level in levels]
            domains[int(column)] = levels
    features = int(info["n_features"])
    found = {name: domains.get(index) for index, name in enumerate(names[:features])}
    return found, info.get("offset_column", "null"), "calib_method" in info


def cell(levels):
    chance = random.random()
    if chance < 0.1:
        return ""
    if levels is not None:
        return random.choice(["nowhere", "-1"]) if chance < 0.15 else random.choice(levels)
    if chance < 0.2:
        return random.choice(EXTREME)
    return round(random.gauss(0, 1) * random.choice([1, 10, 100, 2000]), random.randrange(3))


for path in sorted(FOLDER.glob("*.zip")):
    random.seed(path.name)
    try:
        with zipfile.ZipFile(path) as archive:
            levels, offset, is_calibrated = columns(archive)
    except KeyError as error:
        print(path.stem, "is not complete:", error)
        continue
    rows = FOLDER / f"{path.stem}.rows.csv"
    out = FOLDER / f"{path.stem}.csv"
    with rows.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n", escapechar="\\")
        writer.writerow([*levels, offset] if offset != "null" else levels)
        for _ in range(1000):
            row = [cell(levels[name]) for name in levels]
            writer.writerow([*row, random.random()] if offset != "null" else row)
    command = ["java", "-Dfile.encoding=UTF-8", "-cp", JAR, "hex.genmodel.tools.PredictCsv"]
    command += ["--mojo", path, "--input", rows, "--output", out, "--decimal"]
    if is_calibrated:
        command.append("--predictCalibrated")
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        print(path.stem, "is not scored:", run.stderr.splitlines()[:1], run.stdout.splitlines()[:1])
        out.unlink(missing_ok=True)
        continue
    with gzip.GzipFile(FOLDER / f"{path.stem}.csv.gz", "wb", 9, mtime=0) as file:
        file.write(out.read_bytes())
    out.unlink()
    print(path.stem, flush=True)
