"""Writes pickles.json: values as Python and NumPy pickle them, and the text of each value.

Run with NumPy 2; the pickles of Python 2 and of joblib in tests/data are real files.
"""

import base64
import collections
import json
import os
import pickle
import sys

import numpy as np


class Point:
    def __init__(self):
        self.x = 1
        self.name = "p"


class Slotted:
    __slots__ = ("y",)

    def __init__(self):
        self.y = 2


class Made:
    def __reduce__(self):
        return os.path.join, ("a", 1), {"z": 0}, iter([7]), iter([("k", 8)])


for kind in (Point, Slotted, Made):
    kind.__module__ = "shapes"
shapes = type(sys)("shapes")
shapes.Point, shapes.Slotted, shapes.Made = Point, Slotted, Made
sys.modules["shapes"] = shapes


def number(x):
    return repr(float(x)) if isinstance(x, (float, np.floating)) else str(int(x))


def shown(v):
    if v is None or isinstance(v, (bool, np.bool_)):
        return str(v)
    if isinstance(v, (int, np.integer)):
        return str(int(v)) if -(2**63) <= v < 2**63 else "huge"
    if isinstance(v, (float, np.floating)):
        return number(v)
    if isinstance(v, str):
        return json.dumps(str(v), ensure_ascii=False)
    if isinstance(v, (bytes, bytearray)):
        return "b" + v.hex()
    if isinstance(v, list):
        return "[" + ",".join(map(shown, v)) + "]"
    if isinstance(v, tuple):
        return "(" + ",".join(map(shown, v)) + ")"
    if isinstance(v, (set, frozenset)):
        return "set(" + ",".join(map(shown, v)) + ")"
    if isinstance(v, dict):
        return "{" + ",".join(shown(k) + ":" + shown(x) for k, x in v.items()) + "}"
    if isinstance(v, np.ndarray):
        shape = ",".join(map(str, v.shape))
        if v.dtype.names:
            parts = [f"{n}={shown(np.ascontiguousarray(v[n]))}" for n in v.dtype.names]
            return "array[" + shape + "](" + ",".join(parts) + ")"
        return "array[" + shape + "](" + ",".join(shown(x) for x in v.ravel().tolist()) + ")"
    raise TypeError(type(v))


node = np.dtype(
    {
        "names": ["left", "threshold", "flag"],
        "formats": ["<i8", "<f8", "u1"],
        "offsets": [0, 8, 16],
        "itemsize": 24,
    }
)
nodes = np.zeros(3, node)
nodes["left"] = [1, -1, -2]
nodes["threshold"] = [0.5, float("inf"), -2.0]
nodes["flag"] = [0, 1, 255]
shared = [1, 2]
objects = np.empty((2, 2), object)
objects[0, 0], objects[0, 1], objects[1, 0], objects[1, 1] = 1, "two", [3.5], None

VALUES = {
    "constants": [None, True, False, 0, 1, 255, 256, 65535, 65536, -1, -128, -129, 2**31, -(2**31)],
    "long": [2**40, -(2**40), 2**63 - 1, -(2**63), 2**63, 2**70, -(2**70), 0.1, -1e300],
    "text": ["", "plain", "q'\"\\\n\t", "é€😀", "\\u0041", "x" * 300],
    "bytes": [b"", b"\x00\xff'\\\n", b"y" * 300, bytearray(b"abc")],
    "containers": [[], [1], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": 1, 2: [3]}, {5}],
    "sets": [set(), {1}, frozenset(["a"])],
    "shared": [shared, shared, {"s": shared}],
    "ordered": collections.OrderedDict([("b", 1), ("a", 2)]),
    "default": collections.defaultdict(list, {"k": [1]}),
    "floats": np.array([[1.5, -2.0, 3.25], [0.0, 1e-300, 6.0]]),
    "columns": np.asfortranarray(np.arange(12, dtype="<f4").reshape(3, 4)),
    "cube": np.asfortranarray(np.arange(24, dtype="<i2").reshape(2, 3, 4)),
    "turned": np.arange(6, dtype="<i4").reshape(2, 3).T,
    "big": np.arange(4, dtype=">f8") / 4,
    "bigint": np.arange(4, dtype=">i4"),
    "half": np.arange(4, dtype="<f2") / 4,
    "whole": [np.array([-1, 2], "i1"), np.array([200, 2], "u1"), np.array([2**63 - 1], "u8")],
    "bools": np.array([True, False, True]),
    "narrow": np.array([b"ab", b"c", b""]),
    "wide": np.array(["abc", "é", ""]),
    "wide_big": np.array(["abc", "é", ""], ">U4"),
    "none": [np.zeros((0,)), np.zeros((0, 3)), np.zeros((2, 0))],
    "scalars": [np.float64(1.5), np.float32(0.25), np.int64(-3), np.bool_(True), np.str_("s")],
    "zero_rank": np.array(2.5),
    "objects": objects,
    "structured": nodes,
}

OBJECTS = {
    "point": (Point(), 'shapes.Point(){"x":1,"name":"p"}'),
    "slotted": (Slotted(), 'shapes.Slotted()(None,{"y":2})'),
    "made": (Made(), 'posixpath.join("a",1){"z":0}+[7]+{"k":8}'),
    "function": (len, "builtins.len"),
}

if __name__ == "__main__":
    cases = []
    for protocol in range(6):
        for name, value in VALUES.items():
            pickled = pickle.dumps(value, protocol)
            cases.append([f"{name} {protocol}", pickled, shown(value)])
        for name, (value, text) in OBJECTS.items():
            if name == "slotted" and protocol < 2:
                continue
            # Python 2's name of the module.
            is_old = name == "function" and protocol < 3
            expected = text.replace("builtins", "__builtin__") if is_old else text
            cases.append([f"{name} {protocol}", pickle.dumps(value, protocol), expected])
    cases = [{"name": n, "file": base64.b64encode(f).decode(), "shown": s} for n, f, s in cases]
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "pickles.json"), "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n")
