"""The main loop of a worker process: receives calls from the server and replies, one at a time on
each connection.

This module handles the process and the wire format, independently of the functions that are called.
The server's side of both is crates/workers. It needs nothing but the standard library of Python 3.8
or later.

A process starts with three descriptors: 0 is the control socket, 1 the program, 2 the log. Through
the control socket the server sends connections: a socket for calls, and a file in memory for large bodies.
The main thread serves the first connection; each further connection gets a thread.
"""

import array
import faulthandler
import os
import signal
import socket
import struct
import sys
import threading
import traceback

# The prefix of a frame: its kind, the location of its body, the number of fields, the size of the
# header (the fields' lengths and the fields), the size of the body.
PREFIX = struct.Struct("<BBHIQ")
IN_FRAME, IN_MEMORY = 0, 1

# The kinds of replies. In calls, the kind is the number of the function.
READY, SETUP_FAILED, REPLY, RAISED = 1, 2, 3, 4

# The message that all calls wait.
OFFER = b"W"

# The largest body inside a frame, in bytes; larger ones go through the memory file.
MAX_BODY_IN_FRAME = 64 << 10

# The initial size of the receive buffer in bytes: room for most frames.
RECEIVE_BUFFER = 80 << 10

# More fields than any call or reply has.
MAX_FIELDS = 32

# The most bytes that one system call transfers.
CHUNK = 1 << 30


class SocketClosedError(Exception):
    """The server has closed the socket."""


# The first byte of a line that the server logs as one event, an error, and what stands for its line breaks.
EVENT, LINE_BREAK = b"\x1e", b"\x1f"

# The most bytes of such a line, which a pipe takes whole, and how many of them are its beginning if it is too long.
LONGEST_EVENT, BEGINNING = 4000, 1000

# How long a thread runs Python code before another one may interrupt it, in seconds. Handlers that
# compute for less take turns where they wait, as in the container, whose service switches only there.
SWITCH_INTERVAL = 0.5


class Control:
    """The socket through which the server sends connections."""

    def __init__(self):
        # Child processes do not inherit these descriptors, and print() does not write to them.
        self.socket = socket.socket(fileno=os.dup(0))
        self.socket.setblocking(True)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)
        self.connections = []

    def receive(self):
        """The next connection; None once the server has closed the socket."""
        descriptors = array.array("i")
        space = socket.CMSG_SPACE(2 * descriptors.itemsize)
        data, messages, _, _ = self.socket.recvmsg(1, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in messages:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(content)
        if not data or len(descriptors) != 2:
            return None
        connection = Connection(*descriptors)
        self.connections.append(connection)
        return connection

    def offer(self):
        """Tells the server that all calls wait, and that it may send another one."""
        try:
            self.socket.send(OFFER)
        except OSError:
            # A handler has closed the socket; the server sees that, too.
            pass

    def close(self):
        self.socket.close()
        for connection in self.connections:
            connection.close()


class Connection:
    """A socket for calls, and the file in memory for their large bodies."""

    def __init__(self, descriptor, memory):
        self.socket = socket.socket(fileno=descriptor)
        self.socket.setblocking(True)
        self.memory = memory
        self.buffer = bytearray(RECEIVE_BUFFER)
        self.lengths = [struct.Struct(f"<{count}i") for count in range(MAX_FIELDS)]

    def close(self):
        self.socket.close()
        os.close(self.memory)

    def receive(self):
        """The next frame: its kind, its fields (str or None), its body."""
        buffer = self.buffer
        received = self.fill(buffer, 0, PREFIX.size)
        kind, location, count, header, body_size = PREFIX.unpack_from(buffer)
        frame_size = PREFIX.size + header + (body_size if location == IN_FRAME else 0)
        if frame_size > len(buffer):
            buffer = buffer + bytearray(frame_size - len(buffer))
        if received < frame_size:
            self.fill(buffer, received, frame_size)
        fields = []
        lengths = self.lengths[count]
        at = PREFIX.size + lengths.size
        for length in lengths.unpack_from(buffer, PREFIX.size):
            if length < 0:
                fields.append(None)
            else:
                fields.append(buffer[at : at + length].decode())
                at += length
        if location == IN_FRAME:
            return kind, fields, bytes(memoryview(buffer)[at:frame_size])
        return kind, fields, self.read_memory(body_size)

    def fill(self, buffer, received, size):
        """Receives into `buffer`, which has `received` bytes, until it has `size` or more."""
        view = memoryview(buffer)
        while received < size:
            count = self.socket.recv_into(view[received:])
            if count == 0:
                raise SocketClosedError
            received += count
        return received

    def read_memory(self, size):
        """Reads a body of `size` bytes from the memory file."""
        body = os.pread(self.memory, min(size, CHUNK), 0)
        if len(body) == size:
            return body
        parts = [body]
        read = len(body)
        while read < size:
            part = os.pread(self.memory, min(size - read, CHUNK), read)
            if not part:
                raise SocketClosedError
            parts.append(part)
            read += len(part)
        return b"".join(parts)

    def send(self, kind, fields=(), body=b""):
        """Sends a frame with these fields (str or None) and this body (bytes-like)."""
        lengths = []
        texts = []
        for field in fields:
            if field is None:
                lengths.append(-1)
            else:
                text = field.encode("utf-8", "replace")
                lengths.append(len(text))
                texts.append(text)
        count = len(lengths)
        body_size = len(body)
        location = IN_FRAME
        if body_size > MAX_BODY_IN_FRAME:
            location = IN_MEMORY
            view = memoryview(body)
            written = 0
            while written < body_size:
                written += os.pwrite(self.memory, view[written : written + CHUNK], written)
            body = b""
        lengths = self.lengths[count].pack(*lengths)
        texts = b"".join(texts)
        prefix = PREFIX.pack(kind, location, count, len(lengths) + len(texts), body_size)
        self.socket.sendall(b"".join((prefix, lengths, texts, body)))


# Whether this process was forked from a worker process by a handler.
is_forked = False


def guard_forks(control, waits):
    """Closes the sockets in processes that a handler forks, and ends them with this one."""

    def in_child():
        global is_forked  # noqa: PLW0603 - one flag for the process
        is_forked = True
        control.close()
        if waits is not None:
            waits.forget()
        end_with_parent(None)

    os.register_at_fork(after_in_child=in_child)


# An option of prctl(2): the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

# Added to the score by which the kernel selects a process to kill; 1000 is the maximum.
OOM_SCORE = 500


def end_with_parent(parent):
    """Has the kernel kill this process when its parent ends.

    If the parent has ended already, so that its ID is not `parent`, exits at once."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        # The process still ends when the socket is closed.
        return
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def become_oom_victim():
    """Has the kernel kill this process rather than the server when memory is exhausted."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(str(OOM_SCORE))
    except OSError:
        pass


def run(settings):
    """Sets up the module that the settings name, and serves its functions."""
    control = Control()
    # Of the other threads, there would be too many lines for the log.
    faulthandler.enable(all_threads=False)
    end_with_parent(settings["parent"])
    become_oom_victim()
    waits = None
    if settings["threads"] != "1":
        waits = sys.modules["tensorserve_waits"].Waits(control.offer)
    guard_forks(control, waits)
    sys.argv = [settings["name"]]
    # Python has configured its buffering for the memory file, and the descriptor is a pipe now.
    sys.stdout = open(  # noqa: SIM115 - open for as long as the process runs
        1, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    sys.__stdout__ = sys.stdout
    threading.excepthook = report_of_thread
    connection = control.receive()
    if connection is None:
        return
    module = sys.modules[settings["module"]]
    try:
        functions, about = module.set_up(settings)
    except Exception as error:
        summary = traceback.format_exception_only(type(error), error)[-1].strip()
        connection.send(SETUP_FAILED, [summary, traceback.format_exc()])
        sys.exit(1)
    calls = functions, module.describe, waits
    more = threading.Thread(target=start_threads, args=(control, calls), daemon=True)
    more.start()
    connection.send(READY, about)
    serve(connection, *calls)


def report(error, before=""):
    """Has the server log an exception with its traceback, as one event."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        text = (before + "".join(lines)).rstrip("\n").encode("utf-8", "backslashreplace")
        if len(text) > LONGEST_EVENT:
            # The end says what went wrong.
            text = text[:BEGINNING] + b"\n...\n" + text[BEGINNING - LONGEST_EVENT :]
        flush()
        os.write(2, EVENT + text.replace(b"\n", LINE_BREAK) + b"\n")
    except Exception:
        # An exception may be one that cannot be shown, and the log may be closed.
        pass


def report_of_thread(ended):
    """Reports the exception that has ended a thread of a script."""
    if ended.exc_value is not None and not isinstance(ended.exc_value, SystemExit):
        name = ended.thread.name if ended.thread is not None else ""
        report(ended.exc_value, f"Exception in thread {name}:\n")


def start_threads(control, calls):
    """Starts a thread for each further connection, until the server closes the control socket."""
    try:
        while True:
            connection = control.receive()
            if connection is None:
                return
            sys.setswitchinterval(SWITCH_INTERVAL)
            threading.Thread(target=serve_in_thread, args=(connection, *calls), daemon=True).start()
    except OSError:
        # A handler has closed the socket; the server sees that, too.
        return


def serve_in_thread(connection, *calls):
    """Serves a connection. A handler that exits ends the process, as it does on the main thread."""
    # As on the main thread, asyncio.get_event_loop() finds one.
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None:
        asyncio.set_event_loop(asyncio.new_event_loop())
    try:
        serve(connection, *calls)
    except SystemExit as error:
        flush()
        os._exit(exit_status(error.code))


def exit_status(code):
    """The exit status of sys.exit(code)."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def serve(connection, *calls):
    """Serves calls until the server closes the socket."""
    try:
        while True:
            serve_call(connection, *calls)
    except (SocketClosedError, ConnectionError):
        pass


def serve_call(connection, functions, describe, waits):
    kind, fields, body = connection.receive()
    if waits is not None:
        waits.begin()
    try:
        fields, body = functions[kind](fields, body)
        kind = REPLY
    except Exception as error:
        kind, body = RAISED, b""
        fields = describe(error)
    if waits is not None:
        waits.end()
    if is_forked:
        # A forked child has returned from the handler; its parent sends the reply.
        os._exit(0)
    flush()
    connection.send(kind, fields, body)


def flush():
    """Writes out text that a handler has printed without a line break."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        # Scripts may close or replace sys.stdout.
        pass
