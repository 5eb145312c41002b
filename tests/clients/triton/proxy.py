"""A TCP proxy that counts connections and bytes."""

import http.client
import socket
import threading


class Proxy:
    """Forwards to `target`, host:port, while in its `with` block."""

    def __init__(self, target):
        host, port = target.split(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.connections = 0
        self.sent = 0
        self.received = 0
        self.threads = []

    def __enter__(self):
        self.start(self.accept)
        return self

    def __exit__(self, *_):
        # Closing a socket does not end the accept() of another thread.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for thread in self.threads:
            thread.join(10)

    def start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self.threads.append(thread)
        thread.start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(self.target)
            self.start(self.copy, client, server, "sent")
            self.start(self.copy, server, client, "received")

    def copy(self, source, sink, counter):
        try:
            while data := source.recv(65536):
                setattr(self, counter, getattr(self, counter) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # The other direction has ended both.
            sink.close()

    def post(self, path, body, header_length):
        """Sends a body with that length of its JSON; returns the headers and the body."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        headers = {"Inference-Header-Content-Length": str(header_length)}
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        content = answer.read()
        connection.close()
        return answer.headers, content
