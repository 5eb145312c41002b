"""The protobuf messages of TensorFlow Serving's Predict, with NumPy arrays as their tensors.

Only the few messages of one call, so that the package needs no protobuf library, whose versions
conflict between TensorFlow's and other packages. Names and numbers of fields are those of
`tensorflow_serving/apis/predict.proto` and `tensorflow/core/framework/tensor.proto`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

# The numbers of `DataType`. Quantized types are plain integers.
_DTYPES = {
    1: "float32",
    2: "float64",
    3: "int32",
    4: "uint8",
    5: "int16",
    6: "int8",
    7: "object",
    8: "complex64",
    9: "int64",
    10: "bool",
    11: "int8",
    12: "uint8",
    13: "int32",
    14: "bfloat16",
    15: "int16",
    16: "uint16",
    17: "uint16",
    18: "complex128",
    19: "float16",
    22: "uint32",
    23: "uint64",
}
_STRING = 7
_BFLOAT16 = 14
_NUMBERS = {
    name: number
    for number, name in reversed(list(_DTYPES.items()))
    if number not in (11, 12, 13, 15, 16)
}
# Names of `DataType`, as the metadata of a model has them.
_NAMES = {
    "DT_FLOAT": 1,
    "DT_DOUBLE": 2,
    "DT_INT32": 3,
    "DT_UINT8": 4,
    "DT_INT16": 5,
    "DT_INT8": 6,
    "DT_STRING": _STRING,
    "DT_COMPLEX64": 8,
    "DT_INT64": 9,
    "DT_BOOL": 10,
    "DT_QINT8": 11,
    "DT_QUINT8": 12,
    "DT_QINT32": 13,
    "DT_BFLOAT16": _BFLOAT16,
    "DT_QINT16": 15,
    "DT_QUINT16": 16,
    "DT_UINT16": 17,
    "DT_COMPLEX128": 18,
    "DT_HALF": 19,
    "DT_UINT32": 22,
    "DT_UINT64": 23,
}

# The fields of `TensorProto` with values: how each one is written.
_FIXED_FIELDS = {5: "<f4", 6: "<f8", 9: "<c8", 12: "<c16"}
_VARINT_FIELDS = (7, 10, 11, 13, 16, 17)

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of arrays for a `DataType` such as ``DT_FLOAT``; `None` if NumPy has none."""
    number = _NAMES.get(name)
    return None if number is None else _dtype(number)


def _dtype(number: int) -> np.dtype[Any]:
    if number not in _DTYPES:
        raise ValueError(f"tensors of type {number} cannot be converted to an array")
    if number != _BFLOAT16:
        return np.dtype(_DTYPES[number])
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError("bfloat16 tensors require the package ml_dtypes") from None
    return np.dtype(ml_dtypes.bfloat16)


# --- writing -----------------------------------------------------------------------------------


def predict_request(signature: str, inputs: Mapping[str, np.ndarray[Any, Any]]) -> list[bytes]:
    """A `PredictRequest` in parts. Large arrays are not copied."""
    parts = [_field(1, _field(3, signature.encode()))]
    for name, array in inputs.items():
        tensor = _tensor(array)
        alias = _field(1, name.encode())
        size = sum(map(_length, tensor))
        head = alias + _key(2, _BYTES) + _varint(size)
        parts.append(_key(2, _BYTES) + _varint(len(head) + size) + head)
        parts.extend(tensor)
    return parts


def _tensor(array: np.ndarray[Any, Any]) -> list[Any]:
    """A `TensorProto` in parts."""
    kind = array.dtype.kind
    number = _STRING if kind in "OSU" else _NUMBERS.get(array.dtype.name)
    if number is None:
        raise ValueError(f"arrays of type {array.dtype} cannot be sent")
    sizes = b"".join(_field(2, _key(1, _VARINT) + _varint(size)) for size in array.shape)
    head = _key(1, _VARINT) + _varint(number) + _field(2, sizes)
    if number == _STRING:
        return [head + b"".join(_field(8, _string(value)) for value in array.flat)]
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    # The bytes of the array itself, without a copy if it is contiguous.
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    return [head + _key(4, _BYTES) + _varint(content.nbytes), content]


def _string(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise ValueError(
        f"an array of objects has to contain str or bytes, not {type(value).__name__}: columns "
        "with missing values are passed as lists, or as a data frame"
    )


def _length(part: Any) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


# --- reading -----------------------------------------------------------------------------------


def predict_response(body: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of a `PredictResponse`. Arrays of numbers are read-only views of `body`."""
    outputs = {}
    for number, value in _fields(memoryview(body)):
        if number == 1:
            entry = dict(_fields(value))
            outputs[bytes(entry.get(1, b"")).decode()] = _array(entry.get(2, memoryview(b"")))
    return outputs


def _array(message: memoryview) -> np.ndarray[Any, Any]:
    number, shape, strings = 0, [], []
    values: list[np.ndarray[Any, Any]] = []
    content = None
    for field, value in _fields(message):
        if field == 1:
            number = value
        elif field == 2:
            shape = [dict(_fields(size)).get(1, 0) for at, size in _fields(value) if at == 2]
        elif field == 4:
            content = value
        elif field == 8:
            strings.append(bytes(value))
        elif field in _FIXED_FIELDS:
            values.append(np.frombuffer(value, _FIXED_FIELDS[field]))
        elif field in _VARINT_FIELDS:
            values.append(_varints(value))
    dtype = _dtype(number)
    if number == _STRING:
        array = np.empty(len(strings), object)
        array[:] = strings
        return array.reshape(shape)
    if content is not None:
        return np.frombuffer(content, dtype).reshape(shape)
    listed = np.concatenate(values) if values else np.empty(0, dtype)
    if dtype.name in ("float16", "bfloat16"):
        # Their bits, as numbers.
        return listed.astype(np.uint16).view(dtype).reshape(shape)
    return listed.astype(dtype).reshape(shape)


def _varints(packed: memoryview) -> np.ndarray[Any, Any]:
    values, at = [], 0
    while at < len(packed):
        value, at = _read_varint(packed, at)
        values.append(value)
    # Negative numbers are written as 64 bits.
    return np.array(values, np.uint64).view(np.int64)


def _fields(message: memoryview) -> Iterator[tuple[int, Any]]:
    """The fields of a message: their numbers, and their values as numbers or bytes."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, at = _read_varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"the response is not a PredictResponse: it has wire type {wire}")
        if at + size > len(message):
            raise ValueError("the response is not a PredictResponse: it ends early")
        yield key >> 3, message[at : at + size]
        at += size


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number at a position, and the position after it."""
    value = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise ValueError("the response is not a PredictResponse: a number is damaged")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
