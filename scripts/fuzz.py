"""Runs fuzz targets under libFuzzer. CONTRIBUTING.md describes the targets and the corpora.

    scripts/fuzz.py                     every target for 5 seconds (`make fuzz`)
    scripts/fuzz.py npy pmml 4h         these targets for 4 hours each
    scripts/fuzz.py 10m                 every target for 10 minutes
    scripts/fuzz.py npy minimize        rewrites fuzz/corpus/npy: the inputs that reach different code

Prints a line for each target. An input that fails is written to fuzz/target/findings; the exit status
is then 1. Needs a C++ compiler, to build libFuzzer, and stable Rust.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
FUZZ = ROOT / "fuzz"
TARGET = FUZZ / "target"
CORPUS = FUZZ / "corpus"
# Inputs that runs have found, besides those of the repository.
FOUND = TARGET / "corpus"
FINDINGS = TARGET / "findings"

DEFAULT_SECONDS = 5
# The most memory of the process, and the most time for one input on a busy machine.
MAX_MEMORY_MB = 2048
MAX_SECONDS = 20

# What cargo-fuzz passes: coverage for libFuzzer, without a sanitizer, which needs nightly Rust.
COVERAGE = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
]

# Where the words are that a decoder looks for.
WORDS = {
    "json": ["crates/codec/src/json"],
    "json_tensor": ["crates/codec/src/json"],
    "npy": ["crates/codec/src/npy"],
    "predict": ["crates/protocols/src/tfs/predict.rs"],
    "open_inference": ["crates/protocols/src/open_inference"],
    "infer_messages": ["crates/protocols/src/open_inference/grpc.rs"],
    "classify": ["crates/protocols/src/tfs/examples.rs", "crates/protocols/src/tfs/classify.rs"],
    "invocations": ["crates/protocols/src/sagemaker", "crates/protocol/src/media.rs"],
    "simple": ["crates/protocols/src/simple/data.rs", "crates/protocols/src/simple/request.rs"],
    "routes": ["crates/protocols/src/simple", "crates/protocols/src/tfs/mod.rs"],
    "multipart": ["crates/protocols/src/simple/form.rs"],
    "pickle": ["crates/pickle/src"],
    "sklearn": ["crates/sklearn/src", "crates/pickle/src"],
    "xgboost": ["crates/boosters/src/xgboost"],
    "lightgbm": ["crates/boosters/src/lightgbm"],
    "catboost": ["crates/boosters/src/catboost"],
    "pmml": ["crates/pmml/src"],
    "spark": ["crates/spark/src"],
    "h2o": ["crates/h2o/src", "crates/codec/src/zip.rs"],
    "torch": ["crates/torch/src"],
    "executorch": ["crates/torch/src/executorch", "crates/codec/src/flatbuffer.rs"],
    "foreign": ["crates/platform/src/foreign"],
    "tflite": ["crates/litert/src", "crates/codec/src/flatbuffer.rs"],
    "openvino": ["crates/openvino/src", "crates/codec/src/xml.rs"],
    "onnx": ["crates/onnx/src"],
    "mxnet": ["crates/onnx/src/mxnet"],
    "saved_model": ["crates/tensorflow/src/saved_model.rs", "crates/tensorflow/src/graph.rs"],
    "steps": ["crates/preprocessing/src"],
    "mlmodel": ["crates/mlflow/src"],
    "scoring": ["crates/protocols/src/mlflow"],
    "settings": ["src/config"],
    "model_list": ["src/config/simple"],
    "users": ["crates/auth/src"],
}


def all_targets() -> list[str]:
    return sorted(path.stem for path in (FUZZ / "fuzz_targets").glob("*.rs"))


def host() -> str:
    version = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return re.search(r"^host: (.*)$", version, re.MULTILINE)[1]


def build(targets: list[str]) -> pathlib.Path:
    """Builds the targets, and returns the folder of their binaries."""
    # With --target, build scripts and macros are not instrumented.
    triple = host()
    command = ["cargo", "build", "--release", "--locked", "--target", triple]
    for target in targets:
        command += ["--bin", target]
    environment = {
        **os.environ,
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(COVERAGE),
        "CARGO_TARGET_DIR": str(TARGET),
    }
    subprocess.run(command, check=True, cwd=FUZZ, env=environment)
    return TARGET / triple / "release"


def dictionary(target: str, folder: pathlib.Path) -> list[str]:
    """The option that names a file with the words in the decoder's code."""
    words: set[str] = set()
    for source in WORDS.get(target, []):
        path = ROOT / source
        files = [path] if path.is_file() else path.rglob("*.rs")
        for file in files:
            code = file.read_text().partition("#[cfg(test)]")[0]
            # libFuzzer reads ASCII only.
            words |= set(re.findall(r'b?"([\w./:=+\- ]{2,40})"', code, re.ASCII))
    if not words:
        return []
    path = folder / f"{target}.dict"
    path.write_text("".join(f'"{word}"\n' for word in sorted(words)))
    return [f"-dict={path}"]


def run(binary: pathlib.Path, options: list[str], folder: pathlib.Path) -> tuple[int, str]:
    """Runs libFuzzer with temporary files below `folder`; returns its status and what it printed."""
    environment = {**os.environ, "TMPDIR": str(folder), "RUST_BACKTRACE": "0"}
    log = TARGET / f"{binary.name}.log"
    with log.open("w") as output:
        status = subprocess.run(
            [binary, *options],
            check=False,
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
        ).returncode
    return status, log.read_text(errors="replace")


def memory_folder() -> str | None:
    """A folder in memory, where the system has one: decoders read files from it."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def fuzz(binary: pathlib.Path, seconds: int) -> bool:
    """Fuzzes a target, and prints a line. Returns whether nothing was found."""
    target = binary.name
    found = FOUND / target
    found.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = pathlib.Path(name)
        options = [
            f"-max_total_time={seconds}",
            f"-timeout={MAX_SECONDS}",
            f"-rss_limit_mb={MAX_MEMORY_MB}",
            f"-artifact_prefix={FINDINGS}/{target}-",
            "-print_final_stats=1",
            *dictionary(target, folder),
            str(found),
            str(CORPUS / target),
        ]
        status, printed = run(binary, options, folder)
    executions = re.search(r"number_of_executed_units: (\d+)", printed)
    coverage = re.findall(r"cov: (\d+)", printed)
    count = int(executions[1]) if executions else 0
    outcome = "no findings" if status == 0 else f"FAILED, see {TARGET / target}.log"
    if status != 0:
        written = re.search(r"Test unit written to (.*)", printed)
        outcome += f" and {written[1]}" if written else ""
    rate = count // max(seconds, 1)
    reached = coverage[-1] if coverage else "?"
    print(f"{target}: {count} executions, {rate}/s, {reached} edges, {outcome}", flush=True)
    return status == 0


def minimize(binary: pathlib.Path) -> bool:
    """Replaces the corpus in the repository with the inputs that reach different code."""
    target = binary.name
    kept = TARGET / "minimized" / target
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    (FOUND / target).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=memory_folder()) as name:
        folder = pathlib.Path(name)
        options = ["-merge=1", str(kept), str(CORPUS / target)]
        status, _ = run(binary, options, folder)
    if status != 0:
        print(f"{target}: FAILED, see {TARGET / target}.log")
        return False
    # Inputs with names of their own are findings, which stay.
    for path in (CORPUS / target).iterdir():
        if re.fullmatch(r"[0-9a-f]{40}", path.name):
            path.unlink()
    for path in kept.iterdir():
        shutil.copy(path, CORPUS / target / path.name)
    files = list((CORPUS / target).iterdir())
    size = sum(path.stat().st_size for path in files)
    print(f"{target}: {len(files)} inputs, {size} bytes")
    return True


def seconds_of(word: str) -> int | None:
    match = re.fullmatch(r"(\d+)([smh])", word)
    return int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else None


def main() -> None:
    seconds, targets, minimizes = DEFAULT_SECONDS, [], False
    for word in sys.argv[1:]:
        if word == "minimize":
            minimizes = True
        elif (time := seconds_of(word)) is not None:
            seconds = time
        elif word in all_targets():
            targets.append(word)
        else:
            sys.exit(f"{word!r} is neither a target nor a time.\n{__doc__}")
    targets = targets or all_targets()
    compiler = os.environ.get("CXX", "c++")
    if shutil.which(compiler) is None:
        print(
            f"Fuzzing is skipped: libFuzzer needs a C++ compiler, and {compiler!r} was not found. "
            "`cargo test --test fuzz_corpus` runs the corpora without one."
        )
        return
    folder = build(targets)
    passed = True
    for target in targets:
        binary = folder / target
        passed &= minimize(binary) if minimizes else fuzz(binary, seconds)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
