"""What Ray costs for each object: tensorserve-ray transform against tensorserve transform.

    TENSORSERVE_BINARY=target/release/tensorserve PYTHONPATH=python \
        python benches/transform_ray/overhead.py

Needs `pip install ray` in the environment. Each object is one small JSON request and an entry of its
own (--batch-rows 1): the smallest that a plan has, so the cost is the highest. Two sizes are run, and
the difference is divided by that of their objects, so that starts do not count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/half_plus_two"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--objects", type=int, default=4000, help="of the larger size [%(default)s]"
    )
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--runs", type=int, default=3, help="the fastest counts [%(default)s]")
    options = parser.parse_args()
    sizes = (options.objects // 10, options.objects)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for size in sizes:
            write_objects(place / f"in-{size}", size)
        # The actor that starts last decides about a short run; a long one evens it out.
        plain = per_object(place, sizes, options.runs, alone)
        print(f"{'':>10} {'ms/object':>10} {'overhead':>10} {'driver CPU, ms/entry':>21}")
        print(f"{'alone':>10} {plain[0]:10.3f} {'':>10} {'':>21}")
        for actors in options.actors:
            seconds, cpu = per_object(place, sizes, options.runs, on_ray, actors)
            over = seconds - plain[0]
            print(f"{actors:>3} actors {seconds:10.3f} {over:+10.3f} {cpu:21.3f}", flush=True)


def write_objects(folder, count):
    folder.mkdir()
    for index in range(count):
        (folder / f"{index:06}.json").write_text(json.dumps({"instances": [index]}))


def per_object(place, sizes, runs, run, *more):
    """Milliseconds of time, and of the driver's CPU, for each object between the two sizes."""
    fastest = [
        [
            min(column)
            for column in zip(*(run(place, size, *more) for _ in range(runs)), strict=True)
        ]
        for size in sizes
    ]
    added = sizes[1] - sizes[0]
    return [1000 * (large - small) / added for small, large in zip(*fastest, strict=True)]


def arguments(place, size, output):
    return [
        str(MODEL),
        f"--input={place}/in-{size}",
        f"--output={output}",
        "--batch-rows=1",
        "--concurrency=1",
        "--progress=json",
    ]


def alone(place, size):
    with tempfile.TemporaryDirectory(dir=place) as output:
        binary = os.environ.get("TENSORSERVE_BINARY", str(ROOT / "target/release/tensorserve"))
        variables = {k: v for k, v in os.environ.items() if k != "TENSORSERVE_BINARY"}
        last = run_to_end([binary, "transform", *arguments(place, size, output)], variables, size)
    return last["seconds"], 0.0


def on_ray(place, size, actors):
    with tempfile.TemporaryDirectory(dir=place) as output:
        command = [sys.executable, "-m", "tensorserve.ray", "transform", "--address=local"]
        # More actors than cores, too.
        command += [f"--actors={actors}", "--cpus-per-actor=0.25"]
        last = run_to_end([*command, *arguments(place, size, output)], os.environ, size)
    return last["seconds"], last["driver_cpu_seconds"]


def run_to_end(command, variables, size):
    ended = subprocess.run(command, env=variables, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{ended.stderr}")
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["objects"] == size, last
    return last


if __name__ == "__main__":
    main()
