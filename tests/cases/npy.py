"""Writes npy.json: arrays as NumPy saves them, and their values.

pip install numpy ml_dtypes; python tests/cases/npy.py > tests/cases/npy.json
"""

import base64
import io
import json
import sys

import ml_dtypes
import numpy as np


def text(value):
    return (value if isinstance(value, bytes) else value.encode()).hex()


def case(name, array, dtype, version=None, same=True):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, allow_pickle=False)
    rows = np.ascontiguousarray(array)
    if array.dtype.kind in "SU":
        values = [text(value) for value in rows.ravel()]
    else:
        native = rows.astype(rows.dtype.newbyteorder("="))
        values = native.tobytes().hex()
    return {
        "name": name,
        "file": base64.b64encode(file.getvalue()).decode(),
        "dtype": dtype,
        "shape": list(array.shape),
        # Hexadecimal, in row-major order: each string, or all numbers in little endian.
        "values": values,
        # Whether writing the array again gives the same file.
        "same": same,
    }


def cases():
    numbers = {
        "f2": "half",
        "f4": "float",
        "f8": "double",
        "i1": "int8",
        "i2": "int16",
        "i4": "int32",
        "i8": "int64",
        "u1": "uint8",
        "u2": "uint16",
        "u4": "uint32",
        "u8": "uint64",
        "c8": "complex64",
        "c16": "complex128",
    }
    for code, dtype in numbers.items():
        values = np.arange(-3 if code[0] in "ifc" else 250, 256)[:6].reshape(2, 3)
        if code[0] == "c":
            values = values * (1 + 0.5j)
        for order in "<>" if code[1:] != "1" else "|":
            array = values.astype(order + code)
            yield case(f"{order}{code}", array, dtype, same=order != ">")
            by_columns = np.asfortranarray(array)
            yield case(f"{order}{code} by columns", by_columns, dtype, same=False)
    yield case("bool", np.array([[True, False, True]]), "bool")
    yield case("scalar", np.float32(2.5) * np.ones(()), "double")
    yield case("empty", np.zeros((0, 3), np.float32), "float")
    yield case("special", np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324]), "double")
    cube = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    yield case("cube", cube, "int32")
    yield case("cube by columns", np.asfortranarray(cube), "int32", same=False)
    yield case("cube turned", cube.transpose(2, 0, 1), "int32", same=False)
    yield case("version 2", cube, "int32", version=(2, 0), same=False)
    yield case("version 3", cube, "int32", version=(3, 0), same=False)
    yield case("bytes", np.array([b"a", b"", b"a\0b", b"\xff\xfe"]), "string")
    pairs = np.asfortranarray([[b"a", b"bc"], [b"d", b"e"]])
    yield case("bytes by columns", pairs, "string", same=False)
    words = np.array([["a", "h\u00e9", ""], ["\u20ac", "\U0001f600x", "z"]])
    yield case("text", words, "string", same=False)
    swapped = words.astype(words.dtype.newbyteorder(">"))
    yield case("text in the other order", swapped, "string", same=False)
    yield case("text by columns", np.asfortranarray(words), "string", same=False)
    brain = np.array([1.5, -2.0, 3e38], ml_dtypes.bfloat16)
    yield case("bfloat16 of ml_dtypes", brain, "bfloat16", same=False)


json.dump(list(cases()), sys.stdout, indent=1)
