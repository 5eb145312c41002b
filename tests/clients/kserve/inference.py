"""The server, and requests as KServe's SDK builds them."""

import logging
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import open_inference
from kserve import InferInput, InferRequest
from open_inference import (  # noqa: F401
    DIFFERENCE,
    FIRST,
    OPTIONS,
    RAW_ONLY,
    SECOND,
    SUM,
    VALUES,
    encoded,
    same,
)
from running import Running, environment  # noqa: F401

# The SDK logs every error, and asyncio what takes long.
logging.disable()


def server():
    return open_inference.server("--kserve-v1")


def pair(binary=True):
    """Both inputs of the model `simple`, for request()."""
    return [("INPUT0", FIRST, binary), ("INPUT1", SECOND, binary)]


def request(model, *tensors, **options):
    """A request of tensors, each given as its name, its values, and whether they are raw bytes."""
    inputs = []
    for name, values, binary in tensors:
        datatype = DATATYPES[values.dtype]
        inputs.append(InferInput(name, list(values.shape), datatype))
        inputs[-1].set_data_from_numpy(values, binary_data=binary)
    return InferRequest(model, inputs, **options)


DATATYPES = {values.dtype: datatype for datatype, values in VALUES.items()}
