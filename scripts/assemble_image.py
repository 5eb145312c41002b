#!/usr/bin/env python3
"""Assembles the files of an image by the steps of its Dockerfile, without a container engine.

Each stage is an overlay on the files of its base, and RUN happens in it after chroot. Requires root, and
the files of the base images as directories, for example from debootstrap:

    debootstrap --variant=minbase bookworm work/bookworm
    scripts/assemble_image.py Dockerfile.cpu --target slim --base debian=work/bookworm \\
        --stage build=work/build --work work

A stage that is given with --stage is not run; `build` must then have /out/tensorserve and
/out/cargo.json. The result is WORK/NAME, with the configuration of the image in WORK/NAME.json; NAME is
the target. Stages whose steps and files have not changed are kept in WORK/layers.

Supported is what the Dockerfiles of this project use, not all of Docker's language.
"""

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys

from check_dockerfiles import ROOT, instructions

INSIDE = "ASSEMBLE_IMAGE_INSIDE"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main():
    args = arguments()
    if INSIDE not in os.environ:
        # The mounts end with the process.
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        sys.exit(subprocess.call(command, env={**os.environ, INSIDE: "1"}))
    with open(args.dockerfile, encoding="utf-8") as file:
        stages = split_stages(instructions(file.read()))
    target = args.target or stages[-1].name
    assembly = Assembly(args, {stage.name: stage for stage in stages})
    built = assembly.stage(target)
    result = os.path.join(args.work, target)
    shutil.rmtree(result, ignore_errors=True)
    subprocess.check_call(["cp", "-a", built.root, result])
    with open(f"{result}.json", "w", encoding="utf-8") as file:
        json.dump(built.config, file, indent=1)
    print(f"{result}: {size_of(result) / 1e6:.1f} MB in files")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dockerfile")
    parser.add_argument("--target", help="the stage to assemble; default: the last one")
    parser.add_argument("--work", required=True, help="directory for results and kept stages")
    pairs = {"action": "append", "default": [], "type": lambda text: text.split("=", 1)}
    parser.add_argument("--base", metavar="IMAGE=DIR", help="files of a base image", **pairs)
    parser.add_argument("--stage", metavar="NAME=DIR", help="files of a stage", **pairs)
    parser.add_argument("--env", metavar="NAME=VALUE", help="variable for RUN", **pairs)
    parser.add_argument("--bind", metavar="FILE=PATH", help="file of this machine for RUN", **pairs)
    args = parser.parse_args()
    args.work = os.path.abspath(args.work)
    args.dockerfile = os.path.abspath(args.dockerfile)
    os.chdir(ROOT)
    return args


class Stage:
    """The steps of a stage, and once it is assembled its files and its configuration."""

    def __init__(self, name, base):
        self.name = name
        self.base = base
        self.steps = []
        self.root = None
        self.key = None
        self.config = None


def split_stages(lines):
    stages = []
    for _, word, rest in lines:
        if word == "FROM":
            words = rest.split()
            stages.append(Stage(words[2] if len(words) == 3 else "image", words[0]))
        elif stages:
            stages[-1].steps.append((word, rest))
    return stages


class Assembly:
    def __init__(self, args, stages):
        self.args = args
        self.stages = stages
        self.given = {name: os.path.abspath(folder) for name, folder in args.stage}

    def stage(self, name):
        """The stage `name`, assembled with those that it needs."""
        if name in self.given and self.stages[name].root is None:
            stage = self.stages[name]
            stage.root, stage.key, stage.config = self.given[name], digest([name]), new_config()
        if self.stages[name].root is None:
            self.assemble(self.stages[name])
        return self.stages[name]

    def base(self, stage):
        """The files, the key and the configuration that a stage begins with."""
        if stage.base in self.stages:
            base = self.stage(stage.base)
            return base.root, base.key, base.config
        if stage.base == "scratch":
            empty = os.path.join(self.args.work, "empty")
            os.makedirs(empty, exist_ok=True)
            return empty, "scratch", new_config()
        for image, folder in self.args.base:
            if stage.base.split(":")[0] == image:
                return os.path.abspath(folder), stage.base, new_config()
        sys.exit(f"error: the files of {stage.base} are missing; name them with --base")

    def assemble(self, stage):
        lower, base_key, config = self.base(stage)
        stage.config = json.loads(json.dumps(config))
        stage.key = digest([base_key, *(self.step_key(*step) for step in stage.steps)])
        layer = os.path.join(self.args.work, "layers", stage.key)
        upper, merged = os.path.join(layer, "files"), os.path.join(layer, "merged")
        done = os.path.join(layer, "done")
        if not os.path.exists(done):
            shutil.rmtree(layer, ignore_errors=True)
        for folder in (upper, merged, os.path.join(layer, "overlay")):
            os.makedirs(folder, exist_ok=True)
        options = f"lowerdir={lower},upperdir={upper},workdir={layer}/overlay"
        mount("-t", "overlay", "-o", options, "overlay", merged)
        stage.root = merged
        steps = Steps(self, stage, is_kept=os.path.exists(done))
        print(f"{stage.name}: {'kept' if steps.is_kept else 'assembling'}", flush=True)
        for word, rest in stage.steps:
            steps.step(word, rest)
        with open(done, "w", encoding="utf-8"):
            pass

    def step_key(self, word, rest):
        """What a step depends on: its text, and the stages and files that it names."""
        parts = [word, rest]
        if word == "RUN":
            mounts, _ = options_of(rest)
            named = [fields(text).get("from") for name, text in mounts if name == "mount"]
            parts += [self.stage(name).key for name in named if name]
        if word == "COPY":
            options, words = options_of(rest)
            origin = dict(options).get("from")
            if origin:
                parts.append(self.stage(origin).key)
            else:
                parts += [file_digest(name) for name in shlex.split(words)[:-1]]
        if word == "COPY" and dict(options_of(rest)[0]).get("from") in self.given:
            for name in shlex.split(options_of(rest)[1])[:-1]:
                given = self.given[dict(options_of(rest)[0])["from"]]
                parts.append(file_digest(given + name))
        return digest(parts)


class Steps:
    """Takes the steps of a stage, one after the other."""

    def __init__(self, assembly, stage, is_kept):
        self.assembly = assembly
        self.root = stage.root
        self.config = stage.config
        self.is_kept = is_kept
        self.arguments = {}

    def step(self, word, rest):
        config = self.config
        if word == "RUN" and not self.is_kept:
            self.run(rest)
        elif word == "COPY" and not self.is_kept:
            self.copy(rest)
        elif word == "WORKDIR":
            config["WorkingDir"] = rest
            os.makedirs(self.inside(rest), exist_ok=True)
        elif word == "ARG":
            name, _, default = rest.partition("=")
            self.arguments[name] = default
        elif word in ("ENV", "LABEL"):
            pairs = (pair.split("=", 1) for pair in shlex.split(rest))
            config["Env" if word == "ENV" else "Labels"].update(pairs)
        elif word in ("ENTRYPOINT", "CMD"):
            config[word.capitalize()] = json.loads(rest)
        elif word == "HEALTHCHECK":
            config["Healthcheck"] = json.loads(rest.partition("CMD")[2])
        elif word in ("USER", "EXPOSE", "STOPSIGNAL"):
            config[word.capitalize()] = rest
        elif word not in ("RUN", "COPY"):
            sys.exit(f"error: {word} is not supported")

    def inside(self, path):
        return os.path.join(self.root, path.lstrip("/"))

    def run(self, rest):
        options, command = options_of(rest)
        variables = {"PATH": PATH, "DEBIAN_FRONTEND": "noninteractive", **self.config["Env"]}
        variables.update({name: value for name, value in self.arguments.items() if value})
        variables.update(self.assembly.args.env)
        with contextlib.ExitStack() as mounts:
            for name, text in options:
                if name == "mount":
                    self.mount(mounts, fields(text))
            for source, target in (("/proc", "/proc"), ("/dev", "/dev")):
                self.bind(mounts, source, target)
            for source, target in [
                ("/etc/resolv.conf", "/etc/resolv.conf"),
                *self.assembly.args.bind,
            ]:
                self.bind(mounts, source, target)
            status = subprocess.call(
                ["/bin/sh", "-c", command], env=variables, preexec_fn=self.enter
            )
        if status != 0:
            sys.exit(f"error: status {status}: {command}")

    def enter(self):
        os.chroot(self.root)
        os.chdir(self.config["WorkingDir"])

    def mount(self, mounts, options):
        if options["type"] == "cache":
            source = os.path.join(self.assembly.args.work, "cache", digest([options["target"]]))
            os.makedirs(source, exist_ok=True)
        else:
            source = self.assembly.stage(options["from"]).root + options.get("source", "/")
        self.bind(mounts, source, options["target"])

    def bind(self, mounts, source, target):
        place = self.inside(target)
        is_new = not os.path.lexists(place)
        if is_new and os.path.isdir(source):
            os.makedirs(place)
        elif is_new:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            with open(place, "w", encoding="utf-8"):
                pass
        mount("--bind", source, place)
        if is_new:
            mounts.callback(os.rmdir if os.path.isdir(source) else os.remove, place)
        mounts.callback(subprocess.check_call, ["umount", place])

    def copy(self, rest):
        options, words = options_of(rest)
        options = dict(options)
        *sources, target = shlex.split(words)
        origin = options.get("from")
        place = os.path.normpath(os.path.join(self.config["WorkingDir"], target))
        place = self.inside(place) + ("/" if target.endswith("/") else "")
        folder = place if target.endswith("/") or len(sources) > 1 else os.path.dirname(place)
        os.makedirs(folder, exist_ok=True)
        root = self.assembly.stage(origin).root if origin else ""
        for name in sources:
            source = root + name
            if os.path.isdir(source):
                os.makedirs(place, exist_ok=True)
                source = f"{source}/."
            subprocess.check_call(["cp", "-a", "--no-preserve=ownership", source, place])
            if "chmod" in options:
                os.chmod(place, int(options["chmod"], 8))


def new_config():
    return {"Env": {}, "Labels": {}, "WorkingDir": "/", "User": "0:0", "Entrypoint": [], "Cmd": []}


def options_of(rest):
    """The leading --name=value options of an instruction, and the rest."""
    options = []
    while rest.startswith("--"):
        option, _, rest = rest.partition(" ")
        name, _, value = option[2:].partition("=")
        options.append((name, value))
        rest = rest.lstrip()
    return options, rest


def fields(text):
    return dict(field.split("=", 1) for field in text.split(","))


def digest(parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def file_digest(path):
    if os.path.isdir(path):
        return path
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def size_of(folder):
    total = 0
    for parent, _, files in os.walk(folder):
        total += sum(os.lstat(os.path.join(parent, name)).st_size for name in files)
    return total


def mount(*words):
    subprocess.check_call(["mount", *words])


if __name__ == "__main__":
    main()
