#!/usr/bin/env python3
"""Gets libtensorflow, the C library of TensorFlow that tensorserve loads at run time.

TensorFlow publishes a current libtensorflow only inside its Python package. This script
downloads that package (a "wheel", a zip file) with pip, so that your pip mirror and proxy
settings are used, checks it against the SHA-256 below and unpacks only the libraries:

    DEST/tensorflow/libtensorflow_cc.so.2         the library, with the whole TF_* C API
    DEST/tensorflow/libtensorflow_framework.so.2  which it needs, and finds beside itself
    DEST/nvidia/*/lib/*.so*                       with --device gpu: the CUDA libraries
    DEST/licenses/                                their licence texts
    DEST/FETCHED.json                             what was unpacked, written last

The folders lie as they do in Python's site-packages, because the GPU build looks for the CUDA
libraries at ../nvidia relative to its own place. Needs Python 3.8 or later and pip, nothing
else; the version of this Python does not matter, no Python code of the wheel is used.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections import namedtuple

# The heavier modules (hashlib, zipfile, subprocess, ...) are imported where they are used: most
# runs find everything in place and should end at once.

VERSION = "2.21.0"
LIBRARY = "tensorflow/libtensorflow_cc.so.2"
FRAMEWORK = "tensorflow/libtensorflow_framework.so.2"
STAMP = "FETCHED.json"
MACHINES = ("x86_64", "aarch64")

Wheel = namedtuple("Wheel", "file size sha256")

# To move to another version: take file name, size and SHA-256 from https://pypi.org/simple/NAME/.
# Any Python version's wheel would do; cp312 is taken for all.
TENSORFLOW_CPU_X86_64 = Wheel(
    "tensorflow_cpu-2.21.0-cp312-cp312-manylinux_2_27_x86_64.whl",
    274000871,
    "dcc8afd32930e42d5296b6ee19078b773706830af4ea97fbe503b9f5e0f820cb",
)
TENSORFLOW_CPU_AARCH64 = Wheel(
    "tensorflow-2.21.0-cp312-cp312-manylinux_2_27_aarch64.whl",
    281946471,
    "b07d15737406533898e36c7ef7944b1be18e9028dc521b9229952c537bbc5552",
)
TENSORFLOW_GPU_X86_64 = Wheel(
    "tensorflow-2.21.0-cp312-cp312-manylinux_2_27_x86_64.whl",
    572611111,
    "b3b95643c4e70eb925839938fb35cbe142f317ec84af6844ee61513713bb13c0",
)
# The packages of TensorFlow's own extra, tensorflow[and-cuda]==2.21.0. Versions: CUDA 12.9.1,
# with the newest cuDNN and NCCL that had been built when TensorFlow 2.21.0 was (5 March 2026).
CUDA_X86_64 = (
    Wheel(
        "nvidia_cublas_cu12-12.9.1.4-py3-none-manylinux_2_27_x86_64.whl",
        581242350,
        "453611eb21a7c1f2c2156ed9f3a45b691deda0440ec550860290dc901af5b4c2",
    ),
    Wheel(
        "nvidia_cuda_cupti_cu12-12.9.79-py3-none-manylinux_2_25_x86_64.whl",
        10814997,
        "096bcf334f13e1984ba36685ad4c1d6347db214de03dbb6eebb237b41d9d934f",
    ),
    Wheel(
        "nvidia_cuda_nvcc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        40546229,
        "5d6a0d32fdc7ea39917c20065614ae93add6f577d840233237ff08e9a38f58f0",
    ),
    Wheel(
        "nvidia_cuda_nvrtc_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        89568129,
        "210cf05005a447e29214e9ce50851e83fc5f4358df8b453155d5e1918094dcb4",
    ),
    Wheel(
        "nvidia_cuda_runtime_cu12-12.9.79-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        3493179,
        "25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3",
    ),
    Wheel(
        "nvidia_cudnn_cu12-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl",
        657906812,
        "ac6ad90a075bb33a94f2b4cf4622eac13dd4dc65cf6dd9c7572a318516a36625",
    ),
    Wheel(
        "nvidia_cufft_cu12-11.4.1.4-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        200877592,
        "c67884f2a7d276b4b80eb56a79322a95df592ae5e765cf1243693365ccab4e28",
    ),
    Wheel(
        "nvidia_curand_cu12-10.3.10.19-py3-none-manylinux_2_27_x86_64.whl",
        68295626,
        "49b274db4780d421bd2ccd362e1415c13887c53c214f0d4b761752b8f9f6aa1e",
    ),
    Wheel(
        "nvidia_cusolver_cu12-11.7.5.82-py3-none-manylinux_2_27_x86_64.whl",
        338117415,
        "15da72d1340d29b5b3cf3fd100e3cd53421dde36002eda6ed93811af63c40d88",
    ),
    Wheel(
        "nvidia_cusparse_cu12-12.5.10.65-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        366465088,
        "73060ce019ac064a057267c585bf1fd5a353734151f87472ff02b2c5c9984e78",
    ),
    Wheel(
        "nvidia_nccl_cu12-2.29.7-py3-none-manylinux_2_18_x86_64.whl",
        293633942,
        "ecd0a012051abc20c1aa87328841efa8cade3ced65803046e38c2f03c0891fea",
    ),
    Wheel(
        "nvidia_nvjitlink_cu12-12.9.86-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
        39748338,
        "e3f1171dbdc83c5932a45f0f4c99180a70de9bd2718c1ab77d14104f6d7147f9",
    ),
)

# What each choice downloads, and how many bytes it takes unpacked (for the free-space check).
Choice = namedtuple("Choice", "wheels unpacked")
CHOICES = {
    ("cpu", "x86_64"): Choice((TENSORFLOW_CPU_X86_64,), 854000000),
    ("cpu", "aarch64"): Choice((TENSORFLOW_CPU_AARCH64,), 884000000),
    ("gpu", "x86_64"): Choice((TENSORFLOW_GPU_X86_64, *CUDA_X86_64), 5358000000),
}

# ptxas and libdevice are no libraries, but models compiled with XLA (jit_compile=True) need them.
LIBRARIES = re.compile(
    r"tensorflow/libtensorflow_(cc|framework)\.so\.2"
    r"|nvidia/\w+/lib/[^/]+\.so[^/]*"
    r"|nvidia/cuda_nvcc/bin/ptxas"
    r"|nvidia/cuda_nvcc/nvvm/libdevice/libdevice\.10\.bc"
)
# TensorFlow opens every CUDA library from libtensorflow_framework, whose own search path (RUNPATH)
# lacks the folder of cuSOLVER; without it TensorFlow registers no GPU at all and only logs
# "Cannot dlopen some GPU libraries". So it is linked into a folder that is searched.
LINKS = {"nvidia/cusparse/lib/libcusolver.so.11": "nvidia/cusolver/lib/libcusolver.so.11"}
LICENCES = re.compile(
    r"tensorflow/include/LICENSE"
    r"|tensorflow/THIRD_PARTY_NOTICES\.txt"
    r"|[^/]+\.dist-info/(licenses/)?(LICENSE|NOTICE)[^/]*",
    re.IGNORECASE,
)

CHUNK = 1 << 20


class Failure(Exception):
    """Something the user has to know; printed without a traceback."""


def main():
    args = arguments()
    machine = args.machine or this_machine()
    choice = choose(args.device, machine)
    dest = destination(args.dest, args.device, machine)
    what = f"libtensorflow {VERSION} ({args.device}, {machine})"
    if args.print_dest:
        print(dest)
        return
    if args.verify:
        verify(dest, what)
        return
    if shortcoming(dest, choice.wheels) is None:
        say(f"{what} is already in {dest}")
        return
    on_termination_clean_up()
    with only_run_for(dest):
        # Another run may have finished the work while this one waited.
        problem = shortcoming(dest, choice.wheels)
        if problem is None:
            say(f"{what} is now in {dest}")
            return
        if os.path.exists(os.path.join(dest, STAMP)):
            say(f"Fetching again: {problem}")
        fetch(dest, choice, what, args)


def arguments():
    parser = argparse.ArgumentParser(
        description=f"Gets libtensorflow {VERSION} from TensorFlow's Python wheel, through pip.",
        epilog="TENSORSERVE_LIB_DIR=DIR puts the default folder below DIR instead of lib/, so "
        "that several checkouts can share one copy. pip's own settings (PIP_INDEX_URL, "
        "PIP_PROXY, pip.conf, ...) and HTTPS_PROXY are honoured.",
    )
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--machine", choices=MACHINES, help="default: this machine's")
    parser.add_argument(
        "--dest",
        metavar="DIR",
        help=f"where to unpack; default: lib/tensorflow-{VERSION}-DEVICE-MACHINE in the repository",
    )
    parser.add_argument("--print-dest", action="store_true", help="print that folder and exit")
    parser.add_argument("--verify", action="store_true", help="check the unpacked files by hash")
    parser.add_argument(
        "--wheel-dir", metavar="DIR", help="take the wheels from DIR; no network is used"
    )
    parser.add_argument("--keep-wheel", action="store_true", help="keep the wheels in DEST/wheels")
    return parser.parse_args()


def this_machine():
    machine = os.uname().machine
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


def choose(device, machine):
    choice = CHOICES.get((device, machine))
    if choice:
        return choice
    if machine in MACHINES:
        raise Failure(
            f"TensorFlow {VERSION} has no {device.upper()} wheel for {machine}: the wheels with "
            "CUDA are for x86_64 only. Use --device cpu, or build TensorFlow from source and "
            "point TENSORSERVE_LIBTENSORFLOW at it."
        )
    raise Failure(
        f"TensorFlow {VERSION} has no Linux wheel for {machine}. "
        f"To fetch for another machine use --machine {{{','.join(MACHINES)}}}."
    )


def destination(dest, device, machine):
    if not dest:
        repository = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        shared = os.environ.get("TENSORSERVE_LIB_DIR") or os.path.join(repository, "lib")
        dest = os.path.join(shared, f"tensorflow-{VERSION}-{device}-{machine}")
    # A link is followed, so that a shared folder is filled and not replaced by a copy.
    return os.path.realpath(os.path.expanduser(dest))


# --- what is there already -------------------------------------------------------------------


def shortcoming(dest, wheels):
    """Says what is wrong with the files in dest; None if they are all there, by size."""
    try:
        unpacked_from, files = read_stamp(dest)
    except FileNotFoundError:
        return "nothing was fetched yet"
    except ValueError:
        return f"{STAMP} is damaged"
    if unpacked_from != {wheel.file: wheel.sha256 for wheel in wheels}:
        return "these files are not from the wheels that this version of the script asks for"
    for name, (expected, _) in files.items():
        try:
            size = os.stat(os.path.join(dest, name)).st_size
        except OSError:
            return f"{name} is missing"
        if size != expected:
            return f"{name} has {size} bytes, expected {expected}"
    return None


def read_stamp(dest):
    """The wheels {file: sha256} and the files {name: (size, sha256)}; ValueError if damaged."""
    with open(os.path.join(dest, STAMP), encoding="utf-8") as file:
        try:
            stamp = json.load(file)
            files = stamp["files"].items()
            return stamp["wheels"], {name: (e["size"], e["sha256"]) for name, e in files}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError from error


def verify(dest, what):
    try:
        _, files = read_stamp(dest)
    except FileNotFoundError:
        raise Failure(f"{what} is not in {dest}: run this script without --verify.") from None
    except ValueError:
        raise Failure(f"{dest}/{STAMP} is damaged: delete {dest} and fetch again.") from None
    bad = []
    for name, (_, expected) in files.items():
        path = os.path.join(dest, name)
        got = sha256_of(path) if os.path.isfile(path) else "no such file"
        if got != expected:
            bad.append(f"  {name}\n    expected {expected}\n    got      {got}")
    if bad:
        raise Failure(
            "these files have changed since they were unpacked:\n"
            + "\n".join(bad)
            + f"\nDelete {dest} and fetch again."
        )
    say(f"{what} in {dest}: {len(files)} files match their SHA-256.")


# --- fetching ----------------------------------------------------------------------------------


def fetch(dest, choice, what, args):
    begun = time.monotonic()
    refuse_foreign_folder(dest)
    if args.wheel_dir:
        require_all(choice.wheels, args.wheel_dir)
    announce(dest, choice, what, args.wheel_dir)
    # Everything, pip's temporary files too, goes into one folder beside dest: on the same disk,
    # so that the last step is a rename, and easy to remove whatever happens. A fixed name (only
    # the holder of the lock uses it) lets this run clear what a killed one left.
    work = beside(dest, "part")
    shutil.rmtree(work, ignore_errors=True)
    tree = os.path.join(work, "tree")
    os.makedirs(tree)
    try:
        check_space(work, choice, args.wheel_dir)
        files = {}
        for number, wheel in enumerate(choice.wheels, 1):
            say(f"[{number}/{len(choice.wheels)}] {wheel.file} ({megabytes(wheel.size)})")
            path = obtain(wheel, work, args.wheel_dir)
            check_wheel(path, wheel)
            files.update(unpack(path, wheel, tree))
            if not args.wheel_dir:
                dispose(path, tree, args.keep_wheel)
        files.update(make_links(tree, files))
        missing = [name for name in (LIBRARY, FRAMEWORK) if name not in files]
        if missing:
            raise Failure(f"the wheel does not contain {' and '.join(missing)}.")
        write_stamp(tree, choice.wheels, files)
        put_in_place(tree, dest, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"Done in {time.monotonic() - begun:.0f} s. The library is {os.path.join(dest, LIBRARY)}")


def announce(dest, choice, what, wheel_dir):
    size = sum(wheel.size for wheel in choice.wheels)
    count = len(choice.wheels)
    files = "1 file" if count == 1 else f"{count} files"
    say(f"Fetching {what} into {dest}")
    if wheel_dir:
        say(f"Taking {files}, {megabytes(size)}, from {wheel_dir}")
    else:
        minutes = max(1, round(size / 12.5e6 / 60))
        say(
            f"Downloading {files}, {megabytes(size)}: about {minutes} min at 100 Mbit/s. "
            f"Unpacked: {megabytes(choice.unpacked)}."
        )
    if not sys.platform.startswith("linux"):
        say("Note: these libraries run on Linux only.")


def refuse_foreign_folder(dest):
    """dest is going to be replaced as a whole, so it has to be ours, or empty, or absent."""
    if not os.path.lexists(dest) or os.path.exists(os.path.join(dest, STAMP)):
        return
    if not os.path.isdir(dest) or os.listdir(dest):
        raise Failure(f"{dest} exists and was not made by this script: choose another --dest.")
    if os.path.ismount(dest):
        raise Failure(f"{dest} is a mount point, which cannot be replaced: add a folder to --dest.")


def check_space(work, choice, wheel_dir):
    # pip holds a wheel twice for a moment: as downloaded, and as saved.
    largest = 0 if wheel_dir else 2 * max(wheel.size for wheel in choice.wheels)
    needed = choice.unpacked + largest
    free = shutil.disk_usage(work).free
    if free < needed:
        raise Failure(
            f"the disk of {os.path.dirname(work)} has {megabytes(free)} free; this needs "
            f"{megabytes(needed)}. Free some space or choose another --dest."
        )


def obtain(wheel, work, wheel_dir):
    return os.path.join(wheel_dir, wheel.file) if wheel_dir else download(wheel, work)


def require_all(wheels, wheel_dir):
    """Says at once what is not in wheel_dir, before minutes go into unpacking the rest."""
    files = [wheel.file for wheel in wheels]
    missing = [file for file in files if not os.path.isfile(os.path.join(wheel_dir, file))]
    if missing:
        raise Failure(
            f"not in {wheel_dir}:\n  " + "\n  ".join(missing) + "\n"
            "To get them, run this script with the same --device and --machine, and with "
            "--keep-wheel, on a machine with network: they are then in DEST/wheels."
        )


def pip_command(wheel, folder):
    """Names the wheel fully, so that neither this Python nor this machine decides which one."""
    name, version, tag, abi, platforms = wheel.file[: -len(".whl")].split("-")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", "3.12", "--implementation", "cp"]
    command += ["--abi", "cp312" if abi == "none" else abi]
    for platform in platforms.split("."):
        command += ["--platform", platform]
    return [*command, "--dest", folder, f"{name.replace('_', '-')}=={version}"]


def download(wheel, work):
    import importlib.util
    import subprocess

    if importlib.util.find_spec("pip") is None:
        raise Failure(
            f"{sys.executable} has no pip. Install it (on Debian and Ubuntu: apt install "
            "python3-pip), or run this script with a Python that has it, or get the wheels in "
            "some other way and pass --wheel-dir DIR."
        )
    folder = os.path.join(work, "wheels")
    temporary = os.path.join(work, "tmp")
    os.makedirs(temporary, exist_ok=True)
    command = pip_command(wheel, folder)
    # pip's cache would keep a second copy of every wheel, and older pips read a file into
    # memory to cache it.
    command += ["--no-cache-dir", "--disable-pip-version-check"]
    if not sys.stdout.isatty():
        command.append("--quiet")  # a progress bar is of use only on a terminal
    pip = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": temporary},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        # Shown as it comes: pip tells here that it cannot connect, and then tries for minutes.
        for line in pip.stderr:
            sys.stderr.write(f"  pip: {line}")
        status = pip.wait()
    except BaseException:
        pip.kill()
        pip.wait()
        raise
    path = os.path.join(folder, wheel.file)
    if status != 0 or not os.path.isfile(path):
        raise Failure(why_pip_failed(wheel, status, folder))
    return path


def why_pip_failed(wheel, status, folder):
    if status == 0:
        found = ", ".join(os.listdir(folder)) if os.path.isdir(folder) else "nothing"
        happened = f"pip was asked for {wheel.file} and brought {found}."
    else:
        happened = (
            f"pip could not get {wheel.file} (exit status {status}); its last words are above."
        )
    return (
        f"{happened}\n"
        "What may help:\n"
        "  behind a proxy:  HTTPS_PROXY=http://HOST:PORT, or pip config set global.proxy URL\n"
        "  with a mirror:   PIP_INDEX_URL=URL, or pip config set global.index-url URL\n"
        "  slow network:    PIP_DEFAULT_TIMEOUT=120 PIP_RETRIES=10\n"
        "  no network:      run this script with --keep-wheel on another machine, bring the\n"
        "                   folder DEST/wheels here and pass it as --wheel-dir"
    )


def check_wheel(path, wheel):
    got = sha256_of(path)
    if got != wheel.sha256:
        raise Failure(
            f"{path} is not the file this script expects; nothing of it was unpacked.\n"
            f"  expected {wheel.sha256} ({wheel.size} bytes)\n"
            f"  got      {got} ({os.stat(path).st_size} bytes)\n"
            "The download may be damaged (try again), or a mirror serves another file."
        )


def unpack(path, wheel, tree):
    """Unpacks the libraries and licences; returns {name: {size, sha256}}."""
    import zipfile

    files = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = name_in_tree(member.filename, wheel)
            if name:
                files[name] = copy_member(archive, member, os.path.join(tree, name))
    return files


def name_in_tree(name, wheel):
    if LIBRARIES.fullmatch(name):
        return name
    if LICENCES.fullmatch(name):
        return f"licenses/{wheel.file.split('-')[0]}/{os.path.basename(name)}"
    return None


def copy_member(archive, member, path):
    import hashlib

    digest = hashlib.sha256()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with archive.open(member) as source, open(path, "wb") as target:
        for block in iter(lambda: source.read(CHUNK), b""):
            digest.update(block)
            target.write(block)
    if os.path.basename(path) == "ptxas":
        os.chmod(path, 0o755)  # the one program; zipfile does not keep permissions
    return {"size": member.file_size, "sha256": digest.hexdigest()}


def make_links(tree, files):
    made = {}
    for link, target in LINKS.items():
        if target in files:
            path = os.path.join(tree, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.relpath(target, os.path.dirname(link)), path)
            made[link] = files[target]
    return made


def dispose(path, tree, keep):
    if not keep:
        os.remove(path)  # at once: the next wheel can use the space
        return
    kept = os.path.join(tree, "wheels")
    os.makedirs(kept, exist_ok=True)
    os.rename(path, os.path.join(kept, os.path.basename(path)))


def write_stamp(tree, wheels, files):
    stamp = {
        "tensorflow": VERSION,
        "library": LIBRARY,
        "wheels": {wheel.file: wheel.sha256 for wheel in wheels},
        "files": files,
    }
    with open(os.path.join(tree, STAMP), "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
        file.write("\n")


def put_in_place(tree, dest, work):
    old = os.path.join(work, "old")
    if os.path.isdir(dest):
        os.rename(dest, old)
    try:
        os.rename(tree, dest)
    except OSError:
        if os.path.isdir(old):
            os.rename(old, dest)
        raise


# --- small tools -------------------------------------------------------------------------------


def beside(dest, suffix):
    return os.path.join(os.path.dirname(dest), f".{os.path.basename(dest)}.{suffix}")


@contextlib.contextmanager
def only_run_for(dest):
    """Lets one run at a time work on dest. The lock ends with the process, however it ends."""
    import fcntl

    path = beside(dest, "lock")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The file stays: removing it would let a third run lock a new one beside a waiting run.
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another run is fetching the same files; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def on_termination_clean_up():
    """Makes a CI timeout or a closed terminal end the run as Ctrl-C does, through `finally`."""
    import signal

    def stop(_signal, _frame):
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGHUP, stop)


def sha256_of(path):
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(CHUNK), b""):
            digest.update(block)
    return digest.hexdigest()


def megabytes(size):
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (Failure, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted; nothing half-made was left.")
