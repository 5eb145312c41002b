"""Runs the server as a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Union

from tensorserve.binary import VARIABLE, find_binary
from tensorserve.client import Client
from tensorserve.errors import Error, StartError

if TYPE_CHECKING:
    from types import TracebackType

#: A path.
AnyPath = Union[str, "os.PathLike[str]"]
#: Models as `Server` takes them.
Models = Union[AnyPath, Sequence[AnyPath], Mapping[str, AnyPath]]

# How many lines of the log an error shows, and how many bytes of it are kept for `Server.log`.
_SHOWN_LINES = 20
_KEPT_BYTES = 1 << 20
# Seconds between two looks at what the server has printed.
_LOOK_EVERY = 0.01
# Seconds beyond the server's own limit (`shutdown_timeout`, 30 s) before it is killed.
_STOP_TIMEOUT = 40.0


class Server:
    """A tensorserve server, in a process that ends with this one.

    ::

        with tensorserve.Server("models/") as server:
            server.client().predict("half_plus_two", [1.0, 2.0, 5.0])

        server = tensorserve.Server({"ranker": "/srv/ranker"}, max_batch_size=128).start()
        ...
        server.stop()

    It runs the program that was installed with this package, on free ports of 127.0.0.1 unless told
    otherwise, and takes part in no job control: Ctrl-C in a terminal or an interrupted notebook cell
    does not stop it. It stops at the end of the ``with`` block, on :meth:`stop`, when the object and
    its clients are collected, and when this process ends in any way, also by SIGKILL.

    :param models: a directory of models, of versions, or one model; several of these; or a mapping
        from names to paths.
    :param config: a configuration file (TOML), with or in place of ``models``.
    :param port: HTTP port; 0 selects a free one.
    :param grpc_port: gRPC port; 0 selects a free one, ``None`` disables it.
    :param host: IP address to listen on.
    :param timeout: how many seconds :meth:`start` waits until all models are ready.
    :param env: variables to add to the environment of the server.
    :param settings: any setting of ``docs/configuration.md`` by its name, such as
        ``max_batch_size=128`` or ``load_probe=False``; see ``tensorserve serve --help``.
    """

    def __init__(
        self,
        models: Models | None = None,
        *,
        config: AnyPath | None = None,
        port: int = 0,
        grpc_port: int | None = 0,
        host: str = "127.0.0.1",
        timeout: float = 300.0,
        env: Mapping[str, str] | None = None,
        **settings: str | int | float | bool | AnyPath | Sequence[Any],
    ) -> None:
        if models is None and config is None:
            raise ValueError("nothing to serve: pass models or config")
        if isinstance(models, Mapping) and config is not None:
            raise ValueError(
                "pass models with names in the configuration file, or without a config"
            )
        self._models = models
        self._timeout = timeout
        self._env = dict(env or {})
        self._options = {
            "host": host,
            "http_port": port,
            "grpc_port": "off" if grpc_port is None else grpc_port,
            "config": config,
            **settings,
        }
        self._process: _Process | None = None
        self._url = ""
        self._grpc_address: str | None = None

    @property
    def url(self) -> str:
        """The base URL, such as ``http://127.0.0.1:41233``."""
        self._running()
        return self._url

    @property
    def grpc_address(self) -> str | None:
        """The address for gRPC, such as ``127.0.0.1:41234``; ``None`` if gRPC is off."""
        self._running()
        return self._grpc_address

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._running().popen.pid

    @property
    def is_running(self) -> bool:
        """Whether the server has been started and its process has not ended."""
        return self._process is not None and self._process.popen.poll() is None

    @property
    def log(self) -> str:
        """What the server has printed and logged, the last mebibyte of it."""
        return self._process.log() if self._process else ""

    def client(self, **options: Any) -> Client:
        """Returns a :class:`Client` of this server, with the options of its constructor.

        The server runs as long as one of its clients is in use, unless it is stopped.
        """
        return _ClientOfServer(self, **options)

    def start(self) -> Server:
        """Starts the server, and waits until all its models are ready. Returns the server itself.

        Raises :class:`StartError` if the server ends, if a model cannot be loaded, or if it takes
        longer than ``timeout``; then nothing keeps running.
        """
        if self.is_running:
            raise Error("the server is running already")
        self._process = _Process(self._models, self._options, self._env)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self._process.end(timeout=0)
            raise
        return self

    def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Stops the server: it finishes the requests in flight, for at most ``shutdown_timeout``.

        After ``timeout`` seconds the process is killed. Does nothing if the server does not run.
        """
        if self._process is not None:
            self._process.end(timeout)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"{self._url}, process {self._process.popen.pid}" if self.is_running else "stopped"
        return f"<tensorserve.Server {state}>"

    def _running(self) -> _Process:
        if self._process is None or not self.is_running:
            raise Error("the server does not run: use `with Server(...) as server:` or start()")
        return self._process

    def _wait_until_ready(self, process: _Process) -> None:
        deadline = time.monotonic() + self._timeout
        while True:
            # Before the log is read: what a process has printed before its end is then complete.
            status = process.popen.poll()
            printed = process.log()
            state = _Printed(printed)
            if state.is_ready:
                self._url, self._grpc_address = state.url, state.grpc_address
                return
            if status is not None:
                raise _start_error(f"the server ended with {_exit_status(status)}", printed)
            if state.obstacle:
                raise _start_error(f"the server is {state.obstacle}", printed)
            if time.monotonic() > deadline:
                why = f"the server was not ready within {self._timeout:g} s"
                raise _start_error(why, printed)
            time.sleep(_LOOK_EVERY)


class _Printed:
    """What the server reports while it starts; `src/cli/serve.rs` writes it."""

    def __init__(self, text: str) -> None:
        self.url = ""
        self.grpc_address: str | None = None
        self.is_ready = False
        self.obstacle = ""
        for line in map(_said, text.splitlines()):
            if line.startswith("listening on grpc://"):
                self.grpc_address = line[len("listening on grpc://") :]
            elif line.startswith("listening on http"):
                self.url = line[len("listening on ") :]
            elif line.startswith("ready after "):
                self.is_ready = True
            elif line.startswith("not ready: "):
                self.obstacle = line


def _said(line: str) -> str:
    """What a line says. It is an event if `log_format` is json."""
    if not line.startswith("{"):
        return line
    try:
        return str(json.loads(line)["message"])
    except (ValueError, KeyError):
        # The line may be half written.
        return ""


class _ClientOfServer(Client):
    """A client that keeps its server: it ends with its last reference, as in `Server(…).start().client()`."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server.url, **options)
        self._server = server


class _Process:
    """A process of the server, with what it needs."""

    def __init__(self, models: Models | None, options: Mapping[str, Any], env: Mapping[str, str]):
        self._folder = tempfile.mkdtemp(prefix="tensorserve-")
        try:
            # A file never blocks the server, as a pipe does that nobody reads.
            self._log = open(Path(self._folder) / "log", "w+b")  # noqa: SIM115
            command = [find_binary(), "serve", *_arguments(models, options, Path(self._folder))]
            self.popen = _popen(command, self._log, env)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._kept_log = ""
        self._owner = os.getpid()
        # Also runs when this object is collected, and when the interpreter exits.
        self._end = weakref.finalize(
            self, _abandon, self.popen, self._log, self._folder, self._owner
        )

    def log(self) -> str:
        """The end of what the server has written."""
        if self._log.closed:
            return self._kept_log
        size = os.fstat(self._log.fileno()).st_size
        kept = os.pread(self._log.fileno(), _KEPT_BYTES, max(0, size - _KEPT_BYTES))
        return kept.decode("utf-8", "replace")

    def end(self, timeout: float) -> None:
        """Ends the process, if it still runs, and removes its files.

        A fork of the process that has started the server leaves it alone.
        """
        if os.getpid() == self._owner and self._end.detach() is not None:
            _end(self.popen, timeout)
            self._kept_log = self.log()
            _remove(self.popen, self._log, self._folder)


def _popen(command: list[str], log: BinaryIO, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    # The server stops when the pipe on its standard input is closed, and the kernel does that when
    # this process ends, however it ends. A session of its own keeps Ctrl-C away.
    variables = {**os.environ, **env}
    # It is for this package.
    variables.pop(VARIABLE, None)
    popen = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=variables,
        start_new_session=True,
    )
    _started.add(popen)
    return popen


def _abandon(popen: subprocess.Popen[bytes], log: BinaryIO, folder: str, owner: int) -> None:
    """Ends a process that nobody will stop any more."""
    if os.getpid() == owner:
        _end(popen, _STOP_TIMEOUT)
        _remove(popen, log, folder)


def _end(popen: subprocess.Popen[bytes], timeout: float) -> None:
    """Ends a process: SIGTERM, and after `timeout` seconds SIGKILL."""
    try:
        if timeout > 0 and popen.poll() is None:
            popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                popen.wait(timeout)
    finally:
        if popen.poll() is None:
            # With the processes that it has started.
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()


def _remove(popen: subprocess.Popen[bytes], log: BinaryIO, folder: str) -> None:
    _close_stdin(popen)
    log.close()
    shutil.rmtree(folder, ignore_errors=True)


def _close_stdin(popen: subprocess.Popen[bytes]) -> None:
    if popen.stdin is not None:
        popen.stdin.close()


_started: weakref.WeakSet[subprocess.Popen[bytes]] = weakref.WeakSet()


def _close_pipes() -> None:
    """In a fork of this process: the servers are not its own, and must not wait for its end."""
    for popen in _started:
        _close_stdin(popen)


os.register_at_fork(after_in_child=_close_pipes)


def _arguments(models: Models | None, options: Mapping[str, Any], folder: Path) -> list[str]:
    """The arguments of `tensorserve serve`."""
    options = {"stop_with_stdin": True, **options}
    paths: list[str] = []
    if isinstance(models, Mapping):
        options["config"] = folder / "tensorserve.toml"
        options["config"].write_text(_toml(models), encoding="utf-8")
    elif isinstance(models, (str, os.PathLike)):
        paths = [os.fspath(models)]
    elif models is not None:
        paths = [os.fspath(path) for path in models]
    given = [(name, value) for name, value in options.items() if value is not None]
    written = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in given]
    return [*written, "--", *paths]


def _toml(models: Mapping[str, AnyPath]) -> str:
    """A configuration file with these models. A JSON string is a TOML string."""
    tables = []
    for name, path in models.items():
        # Paths in a file are relative to it. URLs of stores stay as they are.
        text = os.fspath(path)
        place = text if "://" in text else os.path.abspath(text)
        quoted = [json.dumps(text, ensure_ascii=False) for text in (name, place)]
        tables.append(f"[[models]]\nname = {quoted[0]}\npath = {quoted[1]}\n")
    return "\n".join(tables)


def _text(value: Any) -> str:
    """The value of a setting as an option has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _exit_status(status: int) -> str:
    if status >= 0:
        return f"status {status}"
    return f"signal {signal.Signals(-status).name}"


def _start_error(why: str, log: str) -> StartError:
    lines = log.strip().splitlines()[-_SHOWN_LINES:]
    return StartError("\n  ".join([f"{why}:" if lines else why, *lines]), log)
