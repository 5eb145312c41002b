#!/usr/bin/env python3
"""Installs the wheel in an empty Debian 12 as users do, and times the way to the first answer.

    scripts/try_install.py WHEEL FOLDER [WAY...]        ways: pip system pipx uvx; default: all

FOLDER becomes the root of that system, 4 GB; delete it afterwards. Requires root and debootstrap. The
time is from the command, which installs and serves, to the answer to the request of README.md; of the
second of two runs, the first of which has filled the cache of pip or uv. The second run finds the
libraries in the environment of the program alone: nothing is activated, and no variable is set.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PORT = 18500
# Found with this process's PATH: the one inside has no /usr/sbin.
CHROOT = shutil.which("chroot") or "/usr/sbin/chroot"
SERVE = f"serve models/ --http-port {PORT} --grpc-port off"
PACKAGES = "python3,python3-pip,python3-venv"

# What installs the tool of each way, what removes the last run, and the command that is timed.
WAYS = {
    "pip": (
        "true",
        "rm -rf env; python3 -m venv env",
        f"env/bin/pip install -q '{{spec}}' && exec env/bin/tensorserve {SERVE}",
    ),
    "system": (
        "true",
        "pip uninstall -q -y --break-system-packages tensorserve tensorflow-cpu",
        f"pip install -q --break-system-packages '{{spec}}' && exec tensorserve {SERVE}",
    ),
    "pipx": (
        "python3 -m venv tools && tools/bin/pip install -q pipx",
        "tools/bin/pipx uninstall tensorserve || true",
        f"tools/bin/pipx install -q '{{spec}}' && exec /root/.local/bin/tensorserve {SERVE}",
    ),
    "uvx": (
        "python3 -m venv tools && tools/bin/pip install -q uv",
        # The environment, but not the packages.
        "rm -rf /root/.cache/uv/archive-v0/*/bin/tensorserve /root/.cache/uv/environments-v*",
        f"exec tools/bin/uvx --from '{{spec}}' tensorserve {SERVE}",
    ),
}


class System:
    """The Debian in a folder."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        if not os.path.exists(os.path.join(self.folder, "usr/bin/python3")):
            command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm"]
            subprocess.run([*command, self.folder], check=True, stdout=subprocess.DEVNULL)
        self.env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root"}
        # The network as this machine has it.
        shutil.copy("/etc/resolv.conf", os.path.join(self.folder, "etc/resolv.conf"))
        for name in ("PIP_CERT", "PIP_INDEX_URL", "HTTPS_PROXY"):
            if name in os.environ:
                self.env[name] = os.environ[name]
        if "PIP_CERT" in os.environ:
            self.env["SSL_CERT_FILE"] = os.environ["PIP_CERT"]
            self.copy(os.environ["PIP_CERT"], os.environ["PIP_CERT"])
        self.mounts = [os.path.join(self.folder, name) for name in ("proc", "dev")]
        for mount in self.mounts:
            if not os.path.ismount(mount):
                source = "/" + os.path.basename(mount)
                subprocess.run(["mount", "--bind", source, mount], check=True)

    def copy(self, source, dest):
        dest = self.folder + dest
        os.makedirs(os.path.dirname(dest), exist_ok=True)
        copy = shutil.copytree if os.path.isdir(source) else shutil.copy
        if not os.path.isdir(dest):
            copy(source, dest)

    def start(self, script):
        command = [CHROOT, self.folder, "sh", "-euc", f"cd /work; {script}"]
        return subprocess.Popen(command, env=self.env)

    def run(self, script):
        if self.start(script).wait() != 0:
            sys.exit(f"error: this failed in {self.folder}: {script}")

    def close(self):
        # A process that checks models may end a moment after its server.
        deadline = time.monotonic() + 60
        for mount in self.mounts:
            while subprocess.run(["umount", mount], check=False).returncode != 0:
                if time.monotonic() > deadline:
                    sys.exit(f"error: {mount} stays mounted: something in {self.folder} still runs")
                time.sleep(0.5)


def answer():
    """The answer to the request of README.md; None while there is none."""
    url = f"http://127.0.0.1:{PORT}/v1/models/half_plus_two:predict"
    try:
        with urllib.request.urlopen(url, b'{"instances": [1.0, 2.0, 5.0]}') as response:
            return json.load(response)
    except (urllib.error.URLError, ConnectionError):
        return None


def cpu_seconds():
    """The CPU time of processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def time_to_answer(system, script):
    """The seconds until the answer, and the CPU seconds, which other work on the machine leaves alone."""
    start, cpu = time.monotonic(), cpu_seconds()
    process = system.start(script)
    while (found := answer()) is None:
        if process.poll() is not None:
            sys.exit(f"error: status {process.returncode}: {script}")
        time.sleep(0.05)
    took = time.monotonic() - start
    process.terminate()
    process.wait()
    if found != {"predictions": [2.5, 3.0, 4.5]}:
        sys.exit(f"error: a wrong answer: {found}")
    return f"{took:.1f} s ({cpu_seconds() - cpu:.1f} s of CPU)"


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    wheel, folder, *ways = sys.argv[1:]
    system = System(folder)
    try:
        place = "/work/" + os.path.basename(wheel)
        system.copy(wheel, place)
        system.copy(os.path.join(ROOT, "models"), "/work/models")
        for way in ways or WAYS:
            install_tool, remove, command = WAYS[way]
            command = command.format(spec=f".{place[len('/work') :]}[tensorflow]")
            system.run(install_tool)
            took = []
            for _ in range(2):
                system.run(remove)
                took.append(time_to_answer(system, command))
            print(f"{way}: first {took[0]}, with a warm cache {took[1]}", flush=True)
    finally:
        system.close()


if __name__ == "__main__":
    main()
