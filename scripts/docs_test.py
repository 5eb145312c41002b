#!/usr/bin/env python3
"""Runs what README.md and docs/ show: scripts/docs_test.py [PAGE…]

Every fenced block names a language, and what is done with it follows from that:

    sh          its commands run, in the order of the page, each with `set -euo pipefail`. A command that serves
                (`tensorserve serve …`, `tensorflow_model_server …`, `stfs …`) runs on in the background once it
                is ready, and ends with the page or when the next one starts; its exit status must be 0
    python      runs; the blocks of a page share one interpreter. If the comment behind an expression is an
                expression itself, it is what repr() of the value must be
    toml        settings of the server, which its own check of a configuration must accept
    json, yaml, ini
                must be valid; in JSON, several values may follow each other
    text, http, pbtxt, dockerfile
                nothing runs

Any other language, or none, is an error. Words behind the language, which no rendered page shows, say more:

    output      of `text` and `json`: what the block before it printed. `…` stands for any characters of a line,
                and for any number of lines where it is alone on one
    file=NAME   the block becomes this file. As all blocks, it is checked before; `…` is left as it is
    fragment    of `python` and `toml`: a part of something else, such as the file beside a model. Its syntax alone is
                checked
    needs=WHAT  of `sh` and `python`: not run, because it needs what this test has not (NEEDS, below). Its syntax is
                checked, and the block is listed

A comment runs commands that no reader needs, such as those that make the files which a page is about:

    <!-- docs-test: cp models/half_plus_two/1/saved_model.pb . -->

(or with one command on each line between `<!-- docs-test` and `-->`). Each page runs in a folder of its own with
copies of models/, examples/, benches/ and deploy/, links to other folders of the repository, and an empty home.
Where the system lets it, it also has a network of its own, so that every page has ports 8500 and 8501, and nobody
else's. Elsewhere pages run one after another, on the ports that they name.

Needs TENSORSERVE_BINARY, and the packages of tests/clients/docs/requirements.txt: `make docs-test` has both.
"""

import argparse
import ast
import concurrent.futures
import configparser
import contextlib
import ctypes
import fcntl
import http.client
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import tokenize
import traceback
import urllib.error
import urllib.request

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))

#: What a block may need, and what the list of blocks that did not run says about it.
NEEDS = {
    "build": "compiles tensorserve, for minutes",
    "release": "a release of tensorserve on a package index",
    "network": "downloads from the internet",
    "cloud": "an account, a bucket or a registry",
    "docker": "a container engine",
    "cluster": "a cluster: Kubernetes, Ray or Spark",
    "root": "an installation as root",
    "gpu": "a GPU",
    "terminal": "somebody who types a password",
    "github": "a repository and a release on GitHub",
    "tensorflow": "TensorFlow's Python package, 1 GB, or a library built with it",
    "sagemaker": "version 2 of SageMaker's SDK; tests/clients/sagemaker/v2 has the same calls",
    "pytorch": "PyTorch's Python package, 1 GB",
    "openvino": "OpenVINO's Python package, 180 MB",
}
INERT = {"text", "http", "pbtxt", "dockerfile"}
MARKS = {
    "sh": {"needs"},
    "python": {"needs", "fragment", "file"},
    "toml": {"fragment", "file"},
    "json": {"output", "file"},
    "yaml": {"file"},
    "ini": {"file"},
    "text": {"output", "file"},
    "http": set(),
    "pbtxt": {"file"},
    "dockerfile": {"file"},
}
#: Links to the binary with these names are on the PATH, as installations have them.
FRONTS = ("tensorserve", "tensorflow_model_server", "stfs", "simple_tensorflow_serving")
ASSIGNMENTS = r"(?:[A-Za-z_]\w*=\S*\s+)*"
SERVES = re.compile(
    rf"({ASSIGNMENTS})((?:tensorserve\s+(?:serve|stfs|simple_tensorflow_serving|tensorflow_model_server)"
    r"|stfs|simple_tensorflow_serving|tensorflow_model_server)\b.*)",
    re.DOTALL,
)
COPIED = ("models", "examples", "benches", "deploy")
# The longest time for one command, and for a server to be ready.
PATIENCE = 120


class PageError(Exception):
    """What is wrong with a page, at a line of it."""

    def __init__(self, line, message):
        super().__init__(message)
        self.line = line


class Block:
    """A fenced block, or the commands of a comment, whose language is `hidden`."""

    def __init__(self, line, info, text):
        self.line, self.text = line, text
        words = info.split()
        self.language = words[0] if words else ""
        self.marks = dict(word.partition("=")[::2] for word in words[1:])

    def check_marks(self):
        if not self.language:
            raise PageError(
                self.line, "the block names no language; `text` is for what nothing runs"
            )
        if self.language not in MARKS:
            raise PageError(
                self.line,
                f"`{self.language}` is not a language of this test: {', '.join(MARKS)}",
            )
        for mark, value in self.marks.items():
            if mark not in MARKS[self.language]:
                raise PageError(self.line, f"`{mark}` is not a mark of `{self.language}`")
            if bool(value) != (mark in ("needs", "file")):
                raise PageError(
                    self.line, f"`{mark}` has the form {mark}=…, or the other way round"
                )
        if self.marks.get("needs", "build") not in NEEDS:
            raise PageError(self.line, f"needs={self.marks['needs']} is none of {', '.join(NEEDS)}")


def parse(text):
    """The blocks of a page, and the commands in its comments, in their order."""
    lines = text.split("\n")
    blocks, at = [], 0
    while at < len(lines):
        line = lines[at]
        fence = re.match(r"(\s*)(`{3,}|~{3,})(.*)$", line)
        comment = re.match(r"\s*<!-- docs-test\b:?(.*)$", line)
        start = at
        if fence:
            indent, mark, info = fence.groups()
            at += 1
            while at < len(lines) and lines[at].strip() != mark:
                at += 1
            if at == len(lines):
                raise PageError(start + 1, "the block does not end")
            body = [each.removeprefix(indent) for each in lines[start + 1 : at]]
            blocks.append(Block(start + 1, info, "\n".join(body)))
        elif comment:
            body = [comment[1]]
            while "-->" not in body[-1]:
                at += 1
                if at == len(lines):
                    raise PageError(start + 1, "the comment does not end")
                body.append(lines[at])
            body[-1] = body[-1].partition("-->")[0]
            blocks.append(Block(start + 1, "", "\n".join(body)))
            blocks[-1].language = "hidden"
        at += 1
    return blocks


def commands(block):
    """The commands of a block, each with its line: what bash accepts as a whole, from the first line on."""
    lines = block.text.split("\n")
    found, pending = [], []
    first = block.line + (block.language != "hidden")
    for number, line in enumerate(lines, first):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        pending.append(line)
        if line.endswith("\\"):
            continue
        check = subprocess.run(
            ["bash", "-n", "-c", "\n".join(pending)], capture_output=True, text=True, check=False
        )
        # An unfinished here-document is only a warning.
        if check.returncode == 0 and not check.stderr:
            found.append((number - len(pending) + 1, "\n".join(pending)))
            pending = []
    if pending:
        raise PageError(block.line, f"bash cannot read this: {check.stderr.strip()}")
    return found


def matches(expected, shown):
    """Whether `shown` is the text `expected`, whose `…` stands for anything."""
    pattern = []
    for line in expected.rstrip().split("\n"):
        if line.strip() == "…":
            pattern.append(r"(?:[^\n]*\n)*?")
        else:
            parts = (
                re.escape(part.rstrip()) if last else re.escape(part)
                for part, last in parts_of(line)
            )
            pattern.append("[^\n]*?".join(parts) + "[ \t]*\n")
    return re.fullmatch("".join(pattern), shown.rstrip() + "\n") is not None


def parts_of(line):
    parts = line.split("…")
    return [(part, number == len(parts) - 1) for number, part in enumerate(parts)]


def with_checks(source, name):
    """The program, in which the value of each expression with a value behind it as a comment is compared."""
    tree = ast.parse(source, name)
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.lstrip("# ")
    for node in ast.walk(tree):
        comment = comments.get(node.end_lineno) if isinstance(node, ast.Expr) else None
        if comment is None:
            continue
        with contextlib.suppress(SyntaxError):
            ast.parse(comment.replace("…", "0"), mode="eval")
            if not comment.isidentifier():
                shown = ast.Call(
                    ast.Name("__shown__", ast.Load()), [node.value, ast.Constant(comment)], []
                )
                node.value = ast.copy_location(shown, node.value)
    return compile(ast.fix_missing_locations(tree), name, "exec")


def interpreter():
    """Runs the blocks that stdin has, a line of JSON for each, in one namespace. An interpreter of its own."""

    def shown(value, expected):
        text = repr(value)
        if isinstance(value, tuple) and not expected.startswith("("):
            text = text[1:-1]
        if not matches(" ".join(expected.split()), " ".join(text.split())):
            raise AssertionError(f"the page says {expected}, and the value is {text}")

    # What programs print that a block starts is no reply.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    space = {"__name__": "__main__", "__shown__": shown}
    for line in sys.stdin:
        job = json.loads(line)
        os.environ.update(job["environment"])
        os.chdir(job["folder"])
        printed, error = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            try:
                exec(with_checks(job["source"], job["name"]), space)
            except BaseException:  # noqa: BLE001
                error = traceback.format_exc()
        replies.write(json.dumps({"printed": printed.getvalue(), "error": error}) + "\n")
        replies.flush()


class Server:
    """A command that serves, in a process group of its own."""

    def __init__(self, command, line, log, **options):
        self.line, self.log = line, log
        self.process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )

    def wait_until_ready(self):
        """Returns when a port of the process says that all models are ready."""
        deadline = time.monotonic() + PATIENCE
        reason = "it listens on no port"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise PageError(self.line, f"the server ended\n{self.logged()}")
            for port in ports_of_group(self.process.pid):
                for scheme in ("http", "https"):
                    status, body = get(f"{scheme}://127.0.0.1:{port}/readyz")
                    if status == 200:
                        return
                    if status is not None:
                        reason = body
            # Asks again soon: there is nothing to wait on that every front of the server has.
            time.sleep(0.02)
        raise PageError(self.line, f"the server is not ready: {reason}\n{self.logged()}")

    def stop(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            status = self.process.wait(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise PageError(self.line, f"the server does not stop\n{self.logged()}") from None
        if status != 0:
            raise PageError(self.line, f"the server ended with {status}\n{self.logged()}")

    def logged(self):
        with open(self.log, errors="replace") as file:
            return tail(file.read())


def tail(text):
    return "\n".join(text.rstrip().split("\n")[-25:])


def ports_of_group(group):
    """The TCP ports that processes of a group listen on."""
    sockets = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as file:
                if int(file.read().rpartition(")")[2].split()[2]) != group:
                    continue
            for handle in os.listdir(f"/proc/{process}/fd"):
                sockets.add(os.readlink(f"/proc/{process}/fd/{handle}"))
        except OSError:
            # It has ended meanwhile.
            continue
    ports = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(table) as file:
            for fields in map(str.split, file):
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def get(url):
    """Status and text of a response; (None, None) without one."""
    unchecked = ssl.create_default_context()
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=5, context=unchecked) as response:
            return response.status, response.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except (OSError, ValueError, http.client.HTTPException):
        return None, None


class Page:
    """A page while it runs."""

    def __init__(self, path, work):
        self.path = path
        self.folder = os.path.join(work, "project")
        self.home = os.path.join(work, "home")
        self.state = os.path.join(work, "state")
        self.work = work
        self.python_log = os.path.join(work, "python.log")
        self.server = self.python = None
        self.servers = 0
        self.printed = {"stdout": "", "stderr": ""}
        self.not_run, self.ran = [], 0
        self.prepare()

    def prepare(self):
        # As `pip install --target` does it.
        site = os.path.join(self.work, "site")
        shutil.copytree(os.path.join(ROOT, "python/tensorserve"), os.path.join(site, "tensorserve"))
        tools = os.path.join(site, "bin")
        for folder in (self.folder, self.home, tools):
            os.makedirs(folder)
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", *COPIED],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        for name in filter(None, listed.stdout.split("\0")):
            if os.path.exists(os.path.join(ROOT, name)):
                target = os.path.join(self.folder, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy(os.path.join(ROOT, name), target)
        for name in os.listdir(ROOT):
            if name not in (*COPIED, ".git", "target"):
                os.symlink(os.path.join(ROOT, name), os.path.join(self.folder, name))
        self.binary = os.path.abspath(os.environ["TENSORSERVE_BINARY"])
        for name in FRONTS:
            os.symlink(self.binary, os.path.join(tools, name))
        foreign = ("TENSORSERVE_", "AWS_", "SAGEMAKER_", "AIP_", "OTEL_", "TF_", "STFS_", "PYTHON")
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(foreign)
        }
        self.environment.update(
            HOME=self.home,
            PATH=os.pathsep.join((tools, os.path.dirname(sys.executable), os.environ["PATH"])),
            PYTHONPATH=site,
            TENSORSERVE_LIB_DIR=os.environ.get("TENSORSERVE_LIB_DIR", os.path.join(ROOT, "lib")),
            TF_CPP_MIN_LOG_LEVEL="3",
            # Logs and responses without colours.
            NO_COLOR="1",
        )
        for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "VIRTUAL_ENV"):
            self.environment.pop(name, None)

    def run(self, blocks):
        try:
            for block in blocks:
                if block.language != "hidden":
                    block.check_marks()
                self.run_block(block)
        finally:
            self.end_python()
            self.end_server(quietly=sys.exc_info()[0] is not None)

    def run_block(self, block):
        if "needs" in block.marks:
            self.check_syntax(block)
            self.not_run.append((block.line, block.marks["needs"]))
            return
        if "output" in block.marks:
            if not matches(block.text, self.printed["stdout"]):
                raise PageError(
                    block.line,
                    f"the page shows\n{block.text}\nand the command printed\n{self.printed['stdout']}",
                )
            self.ran += 1
            return
        self.check_syntax(block)
        if "file" in block.marks:
            name = os.path.join(self.folder, block.marks["file"])
            os.makedirs(os.path.dirname(name), exist_ok=True)
            with open(name, "w") as file:
                file.write(block.text + "\n")
        if block.language in ("sh", "hidden"):
            self.printed = {"stdout": "", "stderr": ""}
            for line, command in commands(block):
                self.run_command(line, command)
        elif block.language == "python" and not {"fragment", "file"} & set(block.marks):
            self.run_python(block)
        if block.language not in INERT | {"hidden"}:
            self.ran += 1

    def check_syntax(self, block):
        """What can be said about a block without running it."""
        try:
            if block.language in ("sh", "hidden"):
                commands(block)
            elif block.language == "python":
                with_checks(block.text, f"{self.path}:{block.line}")
            elif block.language == "json":
                check_json(block.text)
            elif block.language == "toml":
                import tomllib  # noqa: PLC0415

                tomllib.loads(block.text)
                if "fragment" not in block.marks:
                    self.check_settings(block)
            elif block.language == "yaml":
                import yaml  # noqa: PLC0415

                list(yaml.safe_load_all(block.text))
            elif block.language == "ini":
                configparser.RawConfigParser(strict=False).read_string(block.text)
        except PageError:
            raise
        except Exception as error:
            raise PageError(block.line, f"is not valid {block.language}: {error}") from error

    def check_settings(self, block):
        """Lets the server check its settings. Two mistakes that it finds, too, keep it from starting. Paths that only
        readers have are no mistakes of the page."""
        path = os.path.join(self.work, "settings.toml")
        with open(path, "w") as file:
            file.write(block.text)
        nowhere = os.path.join(self.work, "nowhere")
        done = subprocess.run(
            [self.binary, "serve", "--config", path, "--http-port=off", "--grpc-port=off", nowhere],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        first, *mistakes = done.stderr.splitlines() or [""]
        expected = re.compile(
            r": there is no such file or directory$|: no lib\w+ at |http_port and grpc_port are both off"
        )
        mistakes = [line for line in mistakes if not expected.search(line)]
        wrong = mistakes or not re.fullmatch(r"error: \d+ configuration mistakes:", first)
        if done.returncode != 1 or wrong or nowhere not in done.stderr:
            raise PageError(block.line, f"the server refuses these settings:\n{done.stderr}")

    def run_command(self, line, command):
        saved = f"{self.state}.environment"
        # The state that one command leaves to the next: its folder, and what it has exported.
        before = f"cd {self.folder}\n"
        if os.path.exists(saved):
            before = f'. {saved}\ncd "$(cat {self.state}.folder)"\n'
        before += "set -euo pipefail\n"
        serves = SERVES.fullmatch(command.strip())
        if serves and not re.search(r"\s(--help|-h|--version)(\s|$)", command):
            self.end_server()
            self.servers += 1
            log = os.path.join(self.work, f"server-{self.servers}.log")
            with open(log, "wb") as out:
                self.server = Server(
                    f"{before}{serves[1]} exec {serves[2]}",
                    line,
                    log,
                    env=self.environment,
                    stdout=out,
                )
            self.server.wait_until_ready()
            return
        after = f"\nset +u; export -p > {saved}; env -0 > {self.state}.variables; pwd > {self.state}.folder"
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                ["bash", "-c", before + command + after],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self.environment,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                status = f"nothing within {PATIENCE} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            for name, file in (("stdout", out), ("stderr", err)):
                file.seek(0)
                text = file.read().decode(errors="replace")
                self.printed[name] += text
        # curl reports no errors by itself, and a page does not say `--fail`.
        refused = re.match(rf"{ASSIGNMENTS}curl\b", command) and re.match(
            r'\s*\{\s*"error', self.printed["stdout"]
        )
        if status != 0 or refused:
            log = f"\nserver:\n{self.server.logged()}" if self.server else ""
            raise PageError(
                line,
                f"{command}\nended with {status}\n{tail(self.printed['stdout'])}\n"
                f"{tail(self.printed['stderr'])}{log}",
            )

    def exported(self):
        """The environment that the commands so far have left."""
        try:
            with open(f"{self.state}.variables") as file:
                return dict(each.split("=", 1) for each in file.read().split("\0") if "=" in each)
        except FileNotFoundError:
            return {}

    def run_python(self, block):
        if self.python is None:
            with open(self.python_log, "wb") as log:
                self.python = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "--interpreter"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=self.environment,
                    cwd=self.folder,
                )
        job = {
            "source": block.text,
            "name": f"{self.path}:{block.line}",
            "environment": self.exported(),
            "folder": self.folder,
        }
        self.python.stdin.write(json.dumps(job) + "\n")
        self.python.stdin.flush()
        if not select.select([self.python.stdout], [], [], PATIENCE)[0]:
            self.python.kill()
            raise PageError(block.line, f"does not end within {PATIENCE} s")
        reply = self.python.stdout.readline()
        with open(self.python_log, errors="replace") as file:
            log = tail(file.read())
        if not reply:
            raise PageError(block.line, f"ends its interpreter\n{log}")
        reply = json.loads(reply)
        if reply["error"]:
            raise PageError(block.line, f"{reply['error']}{log}")
        self.printed = {"stdout": reply["printed"], "stderr": ""}

    def end_python(self):
        if self.python is not None:
            self.python.stdin.close()
            self.python.wait(timeout=PATIENCE)

    def end_server(self, quietly=False):
        server, self.server = self.server, None
        if server is not None:
            with contextlib.suppress(*([PageError] if quietly else [])):
                server.stop()


def check_json(text):
    """One value, or several."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text.rstrip()):
        at += len(text[at:]) - len(text[at:].lstrip())
        _, at = decoder.raw_decode(text, at)


def enter_network():
    """Gives this process a network of its own, with a loopback device; False where the system refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, network = 0x10000000, 0x40000000
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(network if uid == 0 else user | network) != 0:
        return False
    try:
        if uid != 0:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{uid} {uid} 1"),
                ("gid_map", f"{gid} {gid} 1"),
            ):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        # SIOCSIFFLAGS, IFF_UP
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))
    except OSError:
        return False
    return True


def run_page(path):
    """Runs a page in this process; what came of it."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="docs-test-") as work:
        page = Page(path, work)
        error = None
        try:
            with open(path, encoding="utf-8") as file:
                page.run(parse(file.read()))
        except PageError as failure:
            error = f"{path}:{failure.line}: {failure}"
    return {
        "error": error,
        "ran": page.ran,
        "servers": page.servers,
        "not_run": page.not_run,
        "seconds": time.monotonic() - started,
    }


def run_apart(path):
    """The same in a process of its own, with a network of its own where that is possible."""
    done = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--alone", path],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        error = f"{path}:1: {done.stdout}{done.stderr}"
        return {"error": error, "ran": 0, "servers": 0, "not_run": [], "seconds": 0}


def can_enter_network():
    probe = subprocess.run(
        [sys.executable, os.path.abspath(__file__), "--can-enter-network"], check=False
    )
    return probe.returncode == 0


def pages():
    """README.md and every page below docs/ that has a block."""
    found = [os.path.join(ROOT, "README.md")]
    for folder, _, names in sorted(os.walk(os.path.join(ROOT, "docs"))):
        found += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".md")]
    return [path for path in found if "```" in read(path)]


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def counted(number, noun):
    return f"{number} {noun}" + ("" if number == 1 else "s")


def main(paths, jobs=2):
    """Runs pages, and prints what came of them; whether all is right."""
    paths = paths or pages()
    if not can_enter_network():
        print(
            "pages run one after another, because this system gives them no networks of their own"
        )
        jobs = 1
    not_run, failed, ran, servers = [], [], 0, 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for path, result in zip(paths, pool.map(run_apart, paths)):
            name = os.path.relpath(path, ROOT) if path.startswith(ROOT) else path
            not_run += [(name, *each) for each in result["not_run"]]
            ran, servers = ran + result["ran"], servers + result["servers"]
            print(
                f"{name}: {counted(result['ran'], 'block')}, {result['seconds']:.1f} s"
                + (" FAILED" if result["error"] else ""),
                flush=True,
            )
            if result["error"]:
                failed.append(result["error"])
    if not_run:
        print(f"{counted(len(not_run), 'block')} did not run, because of what is needed:")
        for need, what_it_is in NEEDS.items():
            places = [f"{name}:{line}" for name, line, what in not_run if what == need]
            if places:
                print(f"  {need}, {what_it_is}: {', '.join(places)}")
    for error in failed:
        print(f"\n{error}")
    print(
        f"\n{counted(ran, 'block')} of {counted(len(paths), 'page')}, {counted(servers, 'server')}: "
        f"{counted(len(failed), 'page')} failed"
    )
    return not failed


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("pages", nargs="*", metavar="PAGE", help="default: README.md and docs/")
    arguments.add_argument("--jobs", type=int, default=2, help="pages at a time (2)")
    for private in ("--alone", "--interpreter", "--can-enter-network"):
        arguments.add_argument(private, action="store_true", help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.can_enter_network:
        sys.exit(not enter_network())
    if given.interpreter:
        interpreter()
    elif given.alone:
        enter_network()
        print(json.dumps(run_page(given.pages[0])))
    elif "TENSORSERVE_BINARY" not in os.environ:
        sys.exit("error: TENSORSERVE_BINARY has to name the program; `make docs-test` builds it")
    else:
        sys.exit(not main([os.path.abspath(page) for page in given.pages], given.jobs))
