#!/usr/bin/env python3
"""Serves the sample models with each version of TensorFlow that the wheel accepts.

    scripts/try_tensorflow_versions.py WHEEL [VERSION...]      such as 2.16 2.21; default: all

For each version it creates a virtual environment, installs the wheel and the newest tensorflow-cpu of
that version from PyPI (250 MB to download, 1 GB on the disk), serves models/, compares predictions, and
deletes the environment. `make tensorflow-versions` builds the wheel first. A version that PyPI does not
have for this Python is an error.
"""

import os
import subprocess
import sys
import tempfile
import time

VERSIONS = ["2.16", "2.17", "2.18", "2.19", "2.20", "2.21"]
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Runs in the new environment: its arguments are the sample models and an image of a 3.
TRY = """
import sys, time
import tensorserve
models, image = sys.argv[1:]
start = time.monotonic()
with tensorserve.Server(models, version_policy="all") as server, open(image, "rb") as file:
    ready = time.monotonic() - start
    predict = server.client().predict
    assert predict("half_plus_two", [1.0, 2.0, 5.0]) == [2.5, 3.0, 4.5]
    for version in (1, 2):
        assert predict("digits", [file.read()], version=version)["classes"] == [3]
        file.seek(0)
    score = predict("recommender", {"user_id": [1], "item_id": [2], "features": [[0.0] * 13]})
    assert 0 < score[0] < 1, score
    found = predict("text_normalizer", ["  Hello  WORLD "])
    assert found["normalized"] == ["hello world"] and found["token_count"] == [2], found
    rows = predict("wide_mlp", [[0.0] * 784] * 3)
    assert all(abs(sum(row) - 1) < 1e-5 for row in rows), rows
    print(next(line for line in server.log.splitlines() if "libtensorflow" in line))
    print(f"ready after {ready:.1f} s, {len(server.client().models())} models")
"""


def try_version(wheel, version):
    """Returns whether the sample models give the right predictions."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        # Only the libraries are used, so that nothing else of TensorFlow is needed.
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "--no-compile", wheel], check=True)
        package = f"tensorflow-cpu=={version}.*"
        subprocess.run([*pip, "--no-deps", "--no-compile", package], check=True)
        image = os.path.join(ROOT, "examples/images/digits/3_45.png")
        command = [python, "-c", TRY, os.path.join(ROOT, "models"), image]
        env = {
            name: text for name, text in os.environ.items() if not name.startswith("TENSORSERVE")
        }
        output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        tried = subprocess.run(command, check=False, env=env, text=True, **output)
    print(tried.stdout.strip(), flush=True)
    return tried.returncode == 0


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    wheel, *versions = sys.argv[1:]
    failed = 0
    for version in versions or VERSIONS:
        start = time.monotonic()
        print(f"--- TensorFlow {version}", flush=True)
        passed = try_version(wheel, version)
        failed += not passed
        print("passed" if passed else "FAILED", f"in {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
