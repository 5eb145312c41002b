"""Tensors between the server and a model: NumPy arrays, or nested lists where NumPy is not installed.

A frame has the dtypes and the shapes in a field, as JSON: [["float64", [2, 3]], …]. Its body has the
elements, one tensor after the other: numbers in the order of the machine; of strings first where each
one ends (64 bits, counted from the first byte of the first string), and then their bytes. The server's
side is crates/python/src/tensors.rs.
"""

import array
import json
import math
import os
import struct

# One thread for each process: the processes are what runs at the same time.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

try:
    import numpy
except ImportError:
    numpy = None

# The dtypes of the wire, and the codes of the module array.
CODES = {
    "float32": "f",
    "float64": "d",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "bool": "B",
}
NUMPY_ONLY = ("float16", "complex64", "complex128")

# The kinds of NumPy's dtypes whose elements are texts, or may be.
TEXT_KINDS = "OUST"


def decode(header, body):
    """The tensors of a frame."""
    tensors = []
    at = 0
    for dtype, shape in json.loads(header):
        count = math.prod(shape)
        if dtype == "string":
            ends = struct.unpack_from(f"<{count}Q", body, at)
            at += 8 * count
            tensors.append(shaped_texts(decode_texts(body, at, ends), shape))
            at += ends[-1] if ends else 0
        else:
            tensor, size = decode_numbers(dtype, count, shape, body, at)
            tensors.append(tensor)
            at += size
    return tensors


def decode_texts(body, at, ends):
    texts = []
    start = at
    for end in ends:
        # Bytes that are not UTF-8 come back as they were.
        texts.append(body[start : at + end].decode("utf-8", "surrogateescape"))
        start = at + end
    return texts


def shaped_texts(texts, shape):
    if numpy is None:
        return nested(texts, shape)
    flat = numpy.empty(len(texts), dtype=object)
    flat[:] = texts
    return flat.reshape(shape)


def decode_numbers(dtype, count, shape, body, at):
    """A tensor of numbers, which the model may change, and its size in bytes."""
    if numpy is not None:
        try:
            kind = numpy.dtype(dtype)
        except TypeError:
            raise TypeError(f"NumPy has no dtype {dtype}") from None
        return numpy.frombuffer(body, kind, count, at).reshape(shape).copy(), count * kind.itemsize
    if dtype not in CODES:
        raise TypeError(f"values of dtype {dtype} need NumPy in the environment of the model")
    flat = array.array(CODES[dtype])
    size = count * flat.itemsize
    flat.frombytes(body[at : at + size])
    values = list(flat)
    return nested([value != 0 for value in values] if dtype == "bool" else values, shape), size


def nested(flat, shape):
    """Nested lists of this shape."""
    if not shape:
        return flat[0]
    for size in reversed(shape[1:]):
        flat = [flat[at : at + size] for at in range(0, len(flat), size)] if size else []
    return flat


def encode(values, dtypes):
    """The header and the body of a frame with these values, as those dtypes."""
    header = []
    parts = []
    for value, wanted in zip(values, dtypes):
        shape, content = encode_one(value, wanted)
        header.append([wanted, shape])
        parts.extend(content)
    return json.dumps(header), b"".join(parts)


def encode_one(value, wanted):
    if numpy is None:
        shape, flat, dtype = flattened(value)
        if wanted == "string":
            return shape, encode_texts(flat)
        if dtype == "string" or wanted not in CODES or (dtype, wanted[:3]) == ("float64", "int"):
            raise wrong_dtype(dtype, wanted)
        return shape, [array.array(CODES[wanted], flat).tobytes()]
    value = as_array(value)
    shape = list(value.shape)
    if wanted == "string":
        return shape, encode_texts(value.ravel().tolist())
    if value.dtype.kind in TEXT_KINDS or not numpy.can_cast(value.dtype, wanted, "same_kind"):
        raise wrong_dtype(dtype_of(value), wanted)
    return shape, [value.astype(wanted, copy=False).tobytes()]


def wrong_dtype(dtype, wanted):
    return TypeError(
        f"the result has the dtype {dtype}, and the output {wanted}: name the dtype of the output in "
        "[[signature.outputs]] of a tensorserve.toml"
    )


def encode_texts(texts):
    contents = [as_bytes(text) for text in texts]
    ends = []
    end = 0
    for content in contents:
        end += len(content)
        ends.append(end)
    return [struct.pack(f"<{len(ends)}Q", *ends), *contents]


def as_bytes(text):
    if isinstance(text, bytes):
        return text
    # NaN is not equal to itself.
    if text is None or text != text:
        return b""
    return str(text).encode("utf-8", "surrogateescape")


def as_array(value):
    """What a model has returned, as an array of numbers or texts."""
    if hasattr(value, "toarray"):
        value = value.toarray()
    elif hasattr(value, "to_numpy"):
        value = value.to_numpy()
    value = numpy.asarray(value)
    if value.dtype.kind == "O":
        # Lists of numbers may be arrays of objects, too.
        plain = numpy.array(value.tolist())
        value = plain if plain.shape == value.shape else value
    return value


def dtype_of(value):
    """The dtype of `as_array(value)` on the wire."""
    if value.dtype.kind in TEXT_KINDS:
        return "string"
    return value.dtype.name


def described(value):
    """The dtype and the shape of what a model has returned."""
    if numpy is None:
        shape, _, dtype = flattened(value)
        return dtype, shape
    value = as_array(value)
    dtype = dtype_of(value)
    if dtype != "string" and dtype not in CODES and dtype not in NUMPY_ONLY:
        raise TypeError(f"results of dtype {dtype} cannot be sent")
    return dtype, list(value.shape)


def flattened(value):
    """The shape, the elements and the dtype of a value or nested lists of values."""
    shape = []
    flat = [value]
    while flat and isinstance(flat[0], (list, tuple)):
        size = len(flat[0])
        if any(not isinstance(part, (list, tuple)) or len(part) != size for part in flat):
            raise ValueError("the result is a list of lists of different lengths")
        shape.append(size)
        flat = [element for part in flat for element in part]
    kinds = {type(element) for element in flat}
    if kinds and kinds <= {bool}:
        return shape, flat, "bool"
    if kinds and kinds <= {bool, int}:
        return shape, flat, "int64"
    if kinds <= {bool, int, float}:
        return shape, flat, "float64"
    return shape, flat, "string"


def matrix(rows, dtype):
    """A matrix of numbers."""
    return rows if numpy is None else numpy.array(rows, dtype)


def column(values, has_texts):
    """One column of a table."""
    return values if numpy is None else numpy.array(values, object if has_texts else "float64")


def table(columns, rows, has_texts):
    """The matrix of these columns, of which some may be None."""
    missing = [math.nan] * rows
    columns = [missing if one is None else one for one in columns]
    if numpy is None:
        return [list(row) for row in zip(*columns)]
    made = numpy.empty((rows, len(columns)), object if has_texts else "float64")
    for place, one in enumerate(columns):
        made[:, place] = one
    return made


def replaced(values, text, by):
    """A column with `by` in place of a text."""
    if numpy is None:
        return [by if value == text else value for value in values]
    values[values == text] = by
    return values


def filled(dtype, shape):
    """A tensor of zeros, or of the text "a"."""
    count = math.prod(shape)
    if dtype == "string":
        return shaped_texts(["a"] * count, shape)
    if numpy is None:
        return nested([0.0 if dtype.startswith("float") else 0] * count, shape)
    return numpy.zeros(shape, dtype)


def are_texts(values):
    """Whether a column is one of texts."""
    return numpy is not None and values.dtype.kind == "O"
