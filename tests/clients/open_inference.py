"""The models of tests/data/open_inference served by the built binary, and tensors for them."""

import atexit
import functools
import os

import numpy as np

from running import ROOT, Running, environment

MODELS = os.path.join(ROOT, "tests/data/open_inference/models")
OPTIONS = ["--http-port", "0", "--grpc-port", "0", "--log-level", "error"]

# Values of each datatype, the limits among them, without BF16, which numpy lacks.
VALUES = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 1, 255]], np.uint8),
    "UINT16": np.array([[0, 1, 65535]], np.uint16),
    "UINT32": np.array([[0, 1, 2**32 - 1]], np.uint32),
    "UINT64": np.array([[0, 1, 2**64 - 1]], np.uint64),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-(2**15), 0, 2**15 - 1]], np.int16),
    "INT32": np.array([[-(2**31), 0, 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 0, 2**63 - 1]], np.int64),
    "FP16": np.array([[-1.5, 0.1, 65504]], np.float16),
    "FP32": np.array([[-1.5, 0.1, 3.4e38]], np.float32),
    "FP64": np.array([[-1.5, 0.1, 1.7e308]], np.float64),
    "BYTES": np.array([[b"", "grüße".encode(), b"he\0llo"]], np.object_),
}

# JSON cannot hold these.
RAW_ONLY = ("FP16", "BF16")

# Inputs of the models `simple` and `simple_int8`, and their outputs.
FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.ones((1, 16), np.int32)
SUM = FIRST + SECOND
DIFFERENCE = FIRST - SECOND


@functools.cache
def server(*options):
    """The server that all files of a folder share; it runs until the process ends."""
    paths = [MODELS, os.path.join(MODELS, "types")]
    running = Running(["serve", *paths, *OPTIONS, *options], environment())
    atexit.register(running.stop)
    return running


def same(one, other):
    """Whether two arrays have the same type, shape and elements."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()


def encoded(texts):
    """An array of text as one of bytes."""
    return np.vectorize(str.encode, otypes=[object])(texts)
