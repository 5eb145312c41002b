"""Finds out when all calls of a worker process wait, so that the server sends it another one.

Functions that wait are replaced, as gevent replaces them in SageMaker's container: while a call is in
one of them, other calls can use the process. A call that only computes has the process to itself.
"""

import functools
import select
import socket
import sys
import threading
import time

# Methods that wait, by module and class. These modules are wrapped once a script has imported them.
METHODS = {
    "selectors": dict.fromkeys(("SelectSelector", "PollSelector", "EpollSelector"), ("select",)),
    "socket": {
        "socket": (
            *("accept", "connect", "recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg"),
            *("send", "sendall", "sendto"),
        )
    },
    "ssl": {"SSLSocket": ("do_handshake", "read", "write", "sendall")},
    "subprocess": {"Popen": ("communicate", "wait")},
    "threading": {"Condition": ("wait",), "Thread": ("join",)},
}


class Waits:
    """Counts the calls, and those that wait. `offer` is called when no call computes."""

    def __init__(self, offer):
        self.offer = offer
        self.lock = threading.Lock()
        self.thread = threading.local()
        self.calls = 0
        self.waiting = 0
        # Whether the server knows that it may send another call.
        self.has_offered = False
        self.unwrapped = dict(METHODS)
        time.sleep = self.wrap(time.sleep)
        select.select = self.wrap(select.select)
        socket.getaddrinfo = self.wrap(socket.getaddrinfo)

    def forget(self):
        """Stops counting, in a process that was forked from this one."""
        self.lock = threading.Lock()
        self.thread = threading.local()

    def begin(self):
        """A call begins on this thread."""
        for name in [name for name in self.unwrapped if name in sys.modules]:
            self.wrap_methods(sys.modules[name], self.unwrapped.pop(name))
        with self.lock:
            self.calls += 1
            self.has_offered = False
        self.thread.computes = True

    def end(self):
        """The call of this thread has ended."""
        self.thread.computes = False
        with self.lock:
            self.calls -= 1
            offers = self.may_offer()
        if offers:
            self.offer()

    def may_offer(self):
        if self.calls == 0 or self.calls > self.waiting or self.has_offered:
            return False
        self.has_offered = True
        return True

    def wrap(self, function, returns_at_once=None):
        """The function, which is known to wait unless `returns_at_once` of its first argument."""

        @functools.wraps(function)
        def waiting(*args, **options):
            thread = self.thread
            # It is not the thread of a call, or is in another function that waits.
            if not getattr(thread, "computes", False) or (
                returns_at_once and returns_at_once(args[0])
            ):
                return function(*args, **options)
            thread.computes = False
            with self.lock:
                self.waiting += 1
                offers = self.may_offer()
            if offers:
                self.offer()
            try:
                return function(*args, **options)
            finally:
                with self.lock:
                    self.waiting -= 1
                thread.computes = True

        return waiting

    def wrap_methods(self, module, classes):
        for class_name, methods in classes.items():
            kind = getattr(module, class_name, None)
            is_socket = isinstance(kind, type) and issubclass(kind, socket.socket)
            returns_at_once = is_non_blocking if is_socket else None
            for method in methods:
                if hasattr(kind, method):
                    setattr(kind, method, self.wrap(getattr(kind, method), returns_at_once))


def is_non_blocking(connection):
    return connection.gettimeout() == 0
