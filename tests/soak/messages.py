"""Requests and responses as bytes: protobuf messages, NumPy files, images, forms, and gRPC's HTTP/2."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import zlib

FLOAT, COMPLEX128 = 1, 18
MIB = 1024 * 1024


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def predict_request(model: str, name: str, dtype: int, shape: list[int], content: bytes) -> bytes:
    """A tensorflow.serving.PredictRequest with one input."""
    dimensions = b"".join(field(2, field(1, size)) for size in shape)
    tensor = field(1, dtype) + field(2, dimensions) + (field(4, content) if content else b"")
    return field(1, field(1, model.encode())) + field(2, field(1, name.encode()) + field(2, tensor))


def npy(shape: str, content: bytes) -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def one_bit_png(side: int) -> bytes:
    """A white square of side × side pixels: a file of a few hundred bytes to 50 KB."""
    rows = (b"\0" + b"\xff" * ((side + 7) // 8)) * side
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def image_instances(files: list[bytes]) -> bytes:
    texts = [{"b64": base64.b64encode(file).decode()} for file in files]
    return json.dumps({"instances": texts}).encode()


def form(image: bytes, model: str) -> tuple[bytes, str]:
    """A multipart form with a file; also its content type."""
    boundary = "boundary-of-soak"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="model_name"\r\n\r\n{model}\r\n'
    head += (
        f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    )
    body = head.encode() + image + f"\r\n--{boundary}--\r\n".encode()
    return body, f"multipart/form-data; boundary={boundary}"


def gzip_bomb(text: bytes, size: int) -> bytes:
    return gzip.compress(text * (size // len(text)), 9)


def http_head(path: str, length: int, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


# HPACK's code of "grpc-status", and of the digits: as the server sends the status of a call.
HUFFMAN = {
    "g": "100110",
    "r": "101100",
    "p": "101011",
    "c": "00100",
    "-": "010110",
    "s": "01000",
    "t": "01001",
    "a": "00011",
    "u": "101101",
    "0": "00000",
    "1": "00001",
    "2": "00010",
    "3": "011001",
    "4": "011010",
    "5": "011011",
    "6": "011100",
    "7": "011101",
    "8": "011110",
    "9": "011111",
}


def huffman(text: str) -> bytes:
    bits = "".join(HUFFMAN[character] for character in text)
    bits += "1" * (-len(bits) % 8)
    code = int(bits, 2).to_bytes(len(bits) // 8, "big")
    return bytes([0x80 | len(code)]) + code


STATUS_NAME = huffman("grpc-status")
STATUS_CODES = {huffman(str(code)): code for code in range(17)}
DATA, HEADERS, RESET, SETTINGS, GOAWAY, WINDOW = 0, 1, 3, 4, 7, 8


class GrpcConnection:
    """A connection for one call at a time, without TLS. Its first call reports a status."""

    def __init__(self, address: tuple[str, int], timeout: float = 60):
        self.socket = socket.create_connection(address, timeout=timeout)
        self.stream = -1
        self.window = 65535
        self.stream_windows: dict[int, int] = {}
        self.initial_window = 65535
        self.unread = b""
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b""))

    def __enter__(self) -> GrpcConnection:
        return self

    def __exit__(self, *_) -> None:
        self.socket.close()

    def open_stream(self, path: str) -> int:
        self.stream += 2
        self.stream_windows[self.stream] = self.initial_window
        names = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "localhost"}
        names |= {"content-type": "application/grpc", "te": "trailers"}
        block = b"".join(
            b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
            for name, value in names.items()
        )
        self.socket.sendall(frame(HEADERS, 0x4, self.stream, block))
        return self.stream

    def send(self, stream: int, message: bytes, *, end: bool) -> None:
        """Sends a message as the server's windows permit."""
        content = memoryview(b"\0" + struct.pack(">I", len(message)) + message)
        while content:
            room = min(len(content), 16384, self.window, self.stream_windows[stream])
            if room <= 0:
                self.receive()
                continue
            last = end and room == len(content)
            self.socket.sendall(frame(DATA, int(last), stream, bytes(content[:room])))
            self.window -= room
            self.stream_windows[stream] -= room
            content = content[room:]

    def receive(self) -> tuple[int, int, int, bytes]:
        """The next frame: type, flags, stream, payload."""
        head = self.exactly(9)
        kind, flags = head[3], head[4]
        stream = struct.unpack(">I", head[5:])[0]
        payload = self.exactly(int.from_bytes(head[:3], "big"))
        if kind == WINDOW:
            growth = struct.unpack(">I", payload)[0]
            if stream == 0:
                self.window += growth
            elif stream in self.stream_windows:
                self.stream_windows[stream] += growth
        if kind == SETTINGS and not flags:
            self.apply(payload)
        if kind in (RESET, GOAWAY):
            raise ConnectionError("the server reset the call")
        return kind, flags, stream, payload

    def apply(self, settings: bytes) -> None:
        for number, value in struct.iter_unpack(">HI", settings):
            if number == 4:
                grown = value - self.initial_window
                self.initial_window = value
                self.stream_windows = {
                    key: window + grown for key, window in self.stream_windows.items()
                }
        self.socket.sendall(frame(SETTINGS, 1, 0, b""))

    def exactly(self, size: int) -> bytes:
        while len(self.unread) < size:
            received = self.socket.recv(65536)
            if not received:
                raise ConnectionError("the server closed the connection")
            self.unread += received
        taken, self.unread = self.unread[:size], self.unread[size:]
        return taken

    def call(self, path: str, message: bytes) -> tuple[int, bytes]:
        """The status code and the response message of a unary call."""
        stream = self.open_stream(path)
        self.send(stream, message, end=True)
        answer, status = b"", None
        while True:
            kind, flags, _, payload = self.receive()
            if kind == DATA:
                answer += payload
                grown = struct.pack(">I", max(len(payload), 1))
                self.socket.sendall(frame(WINDOW, 0, 0, grown) + frame(WINDOW, 0, stream, grown))
            if kind == HEADERS and STATUS_NAME in payload:
                code = payload.split(STATUS_NAME, 1)[1]
                status = STATUS_CODES.get(code[: 1 + (code[0] & 0x7F)])
            if kind in (DATA, HEADERS) and flags & 1:
                if status is None:
                    raise ConnectionError("a response without grpc-status")
                return status, answer[5:]


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload
