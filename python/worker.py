"""The loop of a worker process: takes calls from the server, one at a time, and answers them.

This module owns the process and the wire; it knows nothing of what is called. The server's side
of both is src/worker. Plain Python without a compiled part, from version 3.8 on.

A process starts with three descriptors: 0 is a socket to the server, 1 a file in memory that large
bodies cross in, 2 the log.
"""

import faulthandler
import os
import socket
import struct
import sys
import traceback

# A frame: kind, where its body is, number of fields, size of the head (the fields' lengths and
# the fields), size of the body.
PREFIX = struct.Struct("<BBHIQ")
IN_FRAME, IN_MEMORY = 0, 1

# Kinds of frames to the server; to us, they are numbers of functions.
READY, BROKEN, ANSWER, RAISED = 1, 2, 3, 4

# Larger bodies go through the file in memory.
LARGEST_IN_FRAME = 64 << 10

# The most that one call to the system is asked to move.
CHUNK = 1 << 30


class SocketClosedError(Exception):
    """The server has closed the socket."""


class Channel:
    """The server."""

    def __init__(self):
        # Numbers that no child gets, and that no print() reaches.
        self.socket = socket.socket(fileno=os.dup(0))
        self.socket.setblocking(True)
        self.memory = os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        self.buffer = bytearray(80 << 10)
        self.lengths = [struct.Struct(f"<{count}i") for count in range(32)]

    def close(self):
        self.socket.close()
        os.close(self.memory)

    def receive(self):
        """The next frame: its kind, its fields (text or None), its body."""
        buffer = self.buffer
        have = self.fill(buffer, 0, PREFIX.size)
        kind, where, count, head, size = PREFIX.unpack_from(buffer)
        whole = PREFIX.size + head + (size if where == IN_FRAME else 0)
        if whole > len(buffer):
            buffer = buffer + bytearray(whole - len(buffer))
        if have < whole:
            self.fill(buffer, have, whole)
        fields = []
        lengths = self.lengths[count]
        at = PREFIX.size + lengths.size
        for length in lengths.unpack_from(buffer, PREFIX.size):
            if length < 0:
                fields.append(None)
            else:
                fields.append(buffer[at : at + length].decode())
                at += length
        if where == IN_FRAME:
            return kind, fields, bytes(memoryview(buffer)[at:whole])
        return kind, fields, self.read_memory(size)

    def fill(self, buffer, have, want):
        """Reads until there are `want` bytes in `buffer`, where there are `have`."""
        view = memoryview(buffer)
        while have < want:
            count = self.socket.recv_into(view[have:])
            if count == 0:
                raise SocketClosedError
            have += count
        return have

    def read_memory(self, size):
        body = os.pread(self.memory, min(size, CHUNK), 0)
        if len(body) == size:
            return body
        parts = [body]
        have = len(body)
        while have < size:
            part = os.pread(self.memory, min(size - have, CHUNK), have)
            if not part:
                raise SocketClosedError
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def send(self, kind, fields=(), body=b""):
        """Sends a frame with these fields (text or None) and this body (bytes-like)."""
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
        size = len(body)
        where = IN_FRAME
        if size > LARGEST_IN_FRAME:
            where = IN_MEMORY
            view = memoryview(body)
            done = 0
            while done < size:
                done += os.pwrite(self.memory, view[done : done + CHUNK], done)
            body = b""
        lengths = self.lengths[count].pack(*lengths)
        texts = b"".join(texts)
        prefix = PREFIX.pack(kind, where, count, len(lengths) + len(texts), size)
        self.socket.sendall(b"".join((prefix, lengths, texts, body)))


# Set in processes that were forked from this one.
forked = False


def guard_forks(channel):
    """Keeps what is ours from processes that a handler forks, and ends them with this one."""

    def in_child():
        global forked  # noqa: PLW0603 - one flag for the process
        forked = True
        channel.close()
        end_with_parent(None)

    os.register_at_fork(after_in_child=in_child)


def end_with_parent(parent):
    """Has the kernel kill this process when its parent ends."""
    try:
        import ctypes

        set_death_signal, kill = 1, 9
        ctypes.CDLL(None).prctl(set_death_signal, kill, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        # It still ends when the socket is closed.
        return
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def go_first_when_memory_ends():
    """If the kernel must kill a process for its memory, then this one and not the server."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def run(settings):
    """Sets the module up that the settings name, and serves its functions."""
    channel = Channel()
    faulthandler.enable()
    end_with_parent(settings["parent"])
    go_first_when_memory_ends()
    guard_forks(channel)
    sys.argv = [settings["name"]]
    # It was made for a file, and is a pipe now.
    sys.stdout = open(  # noqa: SIM115 - open for as long as the process runs
        1, "w", buffering=1, errors="backslashreplace", closefd=False
    )
    sys.__stdout__ = sys.stdout
    module = sys.modules[settings["module"]]
    try:
        functions, about = module.set_up(settings)
    except Exception:
        channel.send(BROKEN, [traceback.format_exc()])
        sys.exit(1)
    channel.send(READY, about)
    try:
        serve(channel, functions, module.describe)
    except (SocketClosedError, ConnectionError):
        pass


def serve(channel, functions, describe):
    """Answers calls until the server has gone."""
    while True:
        kind, fields, body = channel.receive()
        try:
            fields, body = functions[kind](fields, body)
            kind = ANSWER
        except Exception as error:
            kind, body = RAISED, b""
            fields = describe(error)
        if forked:
            # A child has come back from a handler that forked. The answer is the parent's.
            os._exit(0)
        flush()
        channel.send(kind, fields, body)


def flush():
    """What was printed without an end of line goes out, too."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError, AttributeError):
        # Scripts close it, or put something else in its place.
        pass
