"""Fetches the native libraries that tensorserve loads at run time from Python packages.

Their publishers ship them only inside Python packages. This module downloads such a package (a
"wheel", a zip file) with pip, so that your pip mirror and proxy settings apply, checks it against a
SHA-256 and unpacks only the libraries:

    DEST/PACKAGE/...      the libraries, laid out as in Python's site-packages
    DEST/licenses/        their licence texts
    DEST/FETCHED.json     what was unpacked, written last

runtimes.json declares the packages and the libraries, also for `tensorserve fetch`. Requires Python 3.8
or later and pip, nothing else: no Python code of a wheel is used, so that its Python version does not
matter.

To move to another version, let pip download each wheel, and take its file name, size and SHA-256 for
runtimes.json from the file. pip checks the file against the hash that the package index publishes for it:

    pip download --no-deps --only-binary=:all: --python-version 3.12 --platform TAG NAME==VERSION
    wc -c *.whl && sha256sum *.whl

TAG is the last part of the wheel's file name, such as manylinux_2_28_x86_64.
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
# runs find everything in place and must end at once.

STAMP = "FETCHED.json"
MACHINES = ("x86_64", "aarch64")

Wheel = namedtuple("Wheel", "file size sha256")

# The wheels of a device and machine, and their unpacked size in bytes, for the free-space check.
Choice = namedtuple("Choice", "wheels unpacked")

# name: the library's, for messages; maker: the publisher of its wheels, for messages; folder: the
# prefix of its directory in lib/; variable: the environment variable that names another library;
# needed: required files, the library first; choices: {(device, machine): Choice}; libraries and
# licences: the files to unpack, as regular expressions; links: {link: target}.
Package = namedtuple(
    "Package", "name maker version folder variable needed choices libraries licences links"
)

CHUNK = 1 << 20


class FetchError(Exception):
    """An error for the user, printed without a traceback."""


def main(runtime):
    try:
        run(declared(runtime))
    except (FetchError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("error: interrupted; no partial files remain.")


def declared(runtime):
    """The package of this runtime in runtimes.json."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "runtimes.json")
    with open(path, encoding="utf-8") as file:
        pins = json.load(file)
    entry = pins["runtimes"][runtime]
    choices = {
        (build["device"], build["machine"]): Choice(
            tuple(Wheel(**wheel) for wheel in build["wheels"]), build["unpacked"]
        )
        for build in entry["builds"]
    }
    return Package(
        name=entry["library"],
        maker=entry["maker"],
        version=entry["version"],
        folder=entry["folder"],
        variable=entry["variable"],
        needed=entry["needed"],
        choices=choices,
        libraries=re.compile("|".join(entry["libraries"])),
        licences=re.compile("|".join(pins["licences"]), re.IGNORECASE),
        links=entry["links"],
    )


def run(package):
    args = arguments(package)
    machine = args.machine or this_machine()
    choice = choose(package, args.device, machine)
    dest = destination(package, args.dest, args.device, machine)
    what = f"{package.name} {package.version} ({args.device}, {machine})"
    if args.print_dest:
        print(dest)
        return
    if args.verify:
        verify(dest, what)
        return
    if shortcoming(package, dest, choice.wheels) is None:
        say(f"{what} is already in {dest}")
        return
    on_termination_clean_up()
    with only_run_for(dest):
        # Another run may have fetched the files while this one waited.
        problem = shortcoming(package, dest, choice.wheels)
        if problem is None:
            say(f"{what} is now in {dest}")
            return
        if os.path.exists(os.path.join(dest, STAMP)):
            say(f"Fetching again: {problem}")
        fetch(package, dest, choice, what, args)


def arguments(package):
    parser = argparse.ArgumentParser(
        description=f"Fetches {package.name} {package.version} from its Python wheel with pip.",
        epilog="TENSORSERVE_LIB_DIR=DIR moves the default directory below DIR instead of lib/, so "
        "that several checkouts can share one copy. pip's own settings (PIP_INDEX_URL, "
        "PIP_PROXY, pip.conf, ...) and HTTPS_PROXY apply.",
    )
    devices = sorted({device for device, _ in package.choices})
    parser.add_argument("--device", choices=devices, default="cpu")
    parser.add_argument("--machine", choices=MACHINES, help="default: this machine's")
    parser.add_argument(
        "--dest",
        metavar="DIR",
        help="where to unpack; default: "
        f"lib/{package.folder}-{package.version}-DEVICE-MACHINE in the repository",
    )
    parser.add_argument("--print-dest", action="store_true", help="print that directory and exit")
    parser.add_argument("--verify", action="store_true", help="check the unpacked files by hash")
    parser.add_argument(
        "--wheel-dir", metavar="DIR", help="read the wheels from DIR instead of the network"
    )
    parser.add_argument("--keep-wheel", action="store_true", help="keep the wheels in DEST/wheels")
    return parser.parse_args()


def this_machine():
    machine = os.uname().machine
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


def choose(package, device, machine):
    choice = package.choices.get((device, machine))
    if choice:
        return choice
    if machine in MACHINES:
        raise FetchError(
            f"{package.maker} {package.version} has no {device.upper()} wheel for {machine}: the "
            "wheels with CUDA are for x86_64 only. Use --device cpu, or build "
            f"{package.maker} from source and point {package.variable} at it."
        )
    raise FetchError(
        f"{package.maker} {package.version} has no Linux wheel for {machine}. "
        f"To fetch for another machine use --machine {{{','.join(MACHINES)}}}."
    )


def destination(package, dest, device, machine):
    if not dest:
        repository = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        shared = os.environ.get("TENSORSERVE_LIB_DIR") or os.path.join(repository, "lib")
        dest = os.path.join(shared, f"{package.folder}-{package.version}-{device}-{machine}")
    # Follow links, so that a shared directory is filled and not replaced by a copy.
    return os.path.realpath(os.path.expanduser(dest))


# --- what is already fetched -------------------------------------------------------------------


def shortcoming(package, dest, wheels):
    """The problem with the files in dest; None if all are present, with the right size."""
    try:
        unpacked_from, files = read_stamp(dest)
    except FileNotFoundError:
        return "no files were fetched yet"
    except ValueError:
        return f"{STAMP} is damaged"
    if unpacked_from != {wheel.file: wheel.sha256 for wheel in wheels}:
        return "the files are from other wheels than this version of the script requires"
    for name in package.needed:
        if name not in files:
            return f"{name} was not fetched, which this version of the script requires"
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
        raise FetchError(f"{what} is not in {dest}: run this script without --verify.") from None
    except ValueError:
        raise FetchError(f"{dest}/{STAMP} is damaged: delete {dest} and fetch again.") from None
    bad = []
    for name, (_, expected) in files.items():
        path = os.path.join(dest, name)
        got = sha256_of(path) if os.path.isfile(path) else "no such file"
        if got != expected:
            bad.append(f"  {name}\n    expected {expected}\n    got      {got}")
    if bad:
        raise FetchError(
            "these files have changed since they were unpacked:\n"
            + "\n".join(bad)
            + f"\nDelete {dest} and fetch again."
        )
    say(f"{what} in {dest}: {len(files)} files match their SHA-256.")


# --- fetching ----------------------------------------------------------------------------------


def fetch(package, dest, choice, what, args):
    begun = time.monotonic()
    refuse_foreign_folder(dest)
    if args.wheel_dir:
        require_all(choice.wheels, args.wheel_dir)
    announce(dest, choice, what, args.wheel_dir)
    # Everything, including pip's temporary files, goes into one directory beside dest: on the same
    # disk, so that the last step is a rename, and easy to remove after any failure. Its name is fixed
    # (only the holder of the lock uses it), so that this run clears what a killed one left.
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
            files.update(unpack(package, path, wheel, tree))
            if not args.wheel_dir:
                dispose(path, tree, args.keep_wheel)
        files.update(make_links(package, tree, files))
        missing = [name for name in package.needed if name not in files]
        if missing:
            raise FetchError(f"the wheel does not contain {' and '.join(missing)}.")
        write_stamp(package, tree, choice.wheels, files)
        put_in_place(tree, dest, work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    library = os.path.join(dest, package.needed[0])
    say(f"Done in {time.monotonic() - begun:.0f} s. The library is {library}")


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
    """Replacing dest as a whole requires that this script created it, or that it is empty or absent."""
    if not os.path.lexists(dest) or os.path.exists(os.path.join(dest, STAMP)):
        return
    if not os.path.isdir(dest) or os.listdir(dest):
        raise FetchError(
            f"{dest} exists and was not created by this script: choose another --dest."
        )
    if os.path.ismount(dest):
        raise FetchError(
            f"{dest} is a mount point, which cannot be replaced: append a directory to --dest."
        )


def check_space(work, choice, wheel_dir):
    # pip holds a wheel twice for a moment: as downloaded, and as saved.
    largest = 0 if wheel_dir else 2 * max(wheel.size for wheel in choice.wheels)
    needed = choice.unpacked + largest
    free = shutil.disk_usage(work).free
    if free < needed:
        raise FetchError(
            f"the disk of {os.path.dirname(work)} has {megabytes(free)} free; this requires "
            f"{megabytes(needed)}. Free some space or choose another --dest."
        )


def obtain(wheel, work, wheel_dir):
    return os.path.join(wheel_dir, wheel.file) if wheel_dir else download(wheel, work)


def require_all(wheels, wheel_dir):
    """Reports every file that wheel_dir lacks, before anything is unpacked."""
    files = [wheel.file for wheel in wheels]
    missing = [file for file in files if not os.path.isfile(os.path.join(wheel_dir, file))]
    if missing:
        raise FetchError(
            f"not in {wheel_dir}:\n  " + "\n  ".join(missing) + "\n"
            "To obtain them, run this script with the same --device and --machine, and with "
            "--keep-wheel, on a machine with a network: it keeps them in DEST/wheels."
        )


def pip_command(wheel, folder):
    """The command for exactly this wheel, independent of this Python and this machine."""
    # A build number may follow the version.
    name, version, *_, abi, platforms = wheel.file[: -len(".whl")].split("-")
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
        raise FetchError(
            f"{sys.executable} has no pip. Install it (on Debian and Ubuntu: apt install "
            "python3-pip), or run this script with a Python that has it, or obtain the wheels in "
            "another way and pass --wheel-dir DIR."
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
        # Shown at once: pip reports here that it cannot connect, and then retries for minutes.
        for line in pip.stderr:
            sys.stderr.write(f"  pip: {line}")
        status = pip.wait()
    except BaseException:
        pip.kill()
        pip.wait()
        raise
    path = os.path.join(folder, wheel.file)
    if status != 0 or not os.path.isfile(path):
        raise FetchError(why_pip_failed(wheel, status, folder))
    return path


def why_pip_failed(wheel, status, folder):
    if status == 0:
        found = ", ".join(os.listdir(folder)) if os.path.isdir(folder) else "nothing"
        happened = f"pip was asked for {wheel.file} and downloaded {found}."
    else:
        happened = (
            f"pip could not download {wheel.file} (exit status {status}); its messages are above."
        )
    return (
        f"{happened}\n"
        "Possible fixes:\n"
        "  behind a proxy:  HTTPS_PROXY=http://HOST:PORT, or pip config set global.proxy URL\n"
        "  with a mirror:   PIP_INDEX_URL=URL, or pip config set global.index-url URL\n"
        "  slow network:    PIP_DEFAULT_TIMEOUT=120 PIP_RETRIES=10\n"
        "  no network:      run this script with --keep-wheel on another machine, copy its\n"
        "                   directory DEST/wheels here and pass it as --wheel-dir"
    )


def check_wheel(path, wheel):
    got = sha256_of(path)
    if got != wheel.sha256:
        raise FetchError(
            f"{path} is not the file that this script expects; it was not unpacked.\n"
            f"  expected {wheel.sha256} ({wheel.size} bytes)\n"
            f"  got      {got} ({os.stat(path).st_size} bytes)\n"
            "The download may be damaged (retry), or a mirror serves another file."
        )


def unpack(package, path, wheel, tree):
    """Unpacks the libraries and licences; returns {name: {size, sha256}}."""
    import zipfile

    files = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = name_in_tree(package, member.filename, wheel)
            if name:
                files[name] = copy_member(archive, member, os.path.join(tree, name))
    return files


def name_in_tree(package, name, wheel):
    if package.libraries.fullmatch(name):
        return name
    if package.licences.fullmatch(name):
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
        os.chmod(path, 0o755)  # the only program; zipfile does not keep permissions
    return {"size": member.file_size, "sha256": digest.hexdigest()}


def make_links(package, tree, files):
    made = {}
    for link, target in package.links.items():
        if target in files:
            path = os.path.join(tree, link)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(os.path.relpath(target, os.path.dirname(link)), path)
            made[link] = files[target]
    return made


def dispose(path, tree, keep):
    if not keep:
        os.remove(path)  # now, so that the next wheel can use the space
        return
    kept = os.path.join(tree, "wheels")
    os.makedirs(kept, exist_ok=True)
    os.rename(path, os.path.join(kept, os.path.basename(path)))


def write_stamp(package, tree, wheels, files):
    stamp = {
        package.folder: package.version,
        "library": package.needed[0],
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
    """Lets one run at a time change dest. The lock ends with the process."""
    import fcntl

    path = beside(dest, "lock")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # The file stays: if it were removed, a third run could lock a new one while another waits.
    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another run is fetching the same files; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def on_termination_clean_up():
    """Makes SIGTERM and SIGHUP end the run as Ctrl-C does, through `finally`."""
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
