"""Makes reads_file: a model that maps the name of a file to its content.

Run from the root of the project. It needs no TensorFlow: it encodes the messages itself.
"""

import os

STRING = 7


def varint(number):
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(key, value):
    return field(1, key) + field(2, value)


def node(name, op, inputs=(), **attrs):
    lists = [field(3, name) for name in inputs]
    lists += [field(5, entry(key, value)) for key, value in attrs.items()]
    return field(1, name) + field(2, op) + b"".join(lists)


def scalar(tensor):
    return field(1, tensor) + field(2, STRING) + field(3, b"")


placeholder = node("x", "Placeholder", dtype=field(6, STRING), shape=field(7, b""))
reader = node("read", "ReadFile", ["x"])
graph = field(1, placeholder) + field(1, reader) + field(4, field(1, 1500))
signature = (
    field(1, entry("x", scalar("x:0")))
    + field(2, entry("y", scalar("read:0")))
    + field(3, "tensorflow/serving/predict")
)
meta = (
    field(1, field(4, "serve") + field(5, "2.21.0"))
    + field(2, graph)
    + field(5, entry("serving_default", signature))
)
folder = "tests/data/clients/reads_file/1"
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "saved_model.pb"), "wb") as file:
    file.write(field(1, 1) + field(2, meta))
