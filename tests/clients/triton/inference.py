"""The server, and tensors as Triton's clients take them."""

import logging
import os
import sys

import ml_dtypes
import numpy as np
from tritonclient.utils import np_to_triton_dtype

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import open_inference
from open_inference import (  # noqa: F401
    DIFFERENCE,
    FIRST,
    MODELS,
    OPTIONS,
    RAW_ONLY,
    SECOND,
    SUM,
    encoded,
    same,
)
from running import Running, environment  # noqa: F401

BF16 = np.array([[-1.5, 0.1, 3e38]], ml_dtypes.bfloat16)
VALUES = {**open_inference.VALUES, "BF16": BF16}

# asyncio warns of what takes long.
logging.disable()


def server():
    return open_inference.server("--shared-memory")


def http_address():
    return server().url.removeprefix("http://")


def grpc_address():
    return server().grpc


def tensor(client, name, values, datatype=None, **how):
    """An input of the client module `client`; `how` goes to set_data_from_numpy()."""
    datatype = datatype or np_to_triton_dtype(values.dtype)
    made = client.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, **how)
    return made


def pair(client, first=FIRST, second=SECOND, **how):
    """Both inputs of the models `simple`, `simple_int8` and `simple_string`."""
    return [tensor(client, "INPUT0", first, **how), tensor(client, "INPUT1", second, **how)]


def text(numbers):
    """Integers as the text that `simple_string` takes and returns."""
    return encoded(numbers.astype(str))
