"""Serve machine-learning models with tensorserve, and call them.

The package contains the program ``tensorserve``, which also runs as ``python -m tensorserve``.

    import tensorserve

    with tensorserve.Server("models/") as server:
        server.client().predict("half_plus_two", [1.0, 2.0, 5.0])     # [2.5, 3.0, 4.5]
        server.client().predict("titanic", pandas.read_csv("titanic.csv"))

:class:`Server` runs the program for the length of a ``with`` block, a test or a notebook.
:class:`Client` calls a server, this one or another. All errors are subclasses of :class:`Error`.
"""

from tensorserve.binary import find_binary
from tensorserve.client import Client, Signature, TensorSpec
from tensorserve.errors import (
    AccessError,
    DeadlineError,
    Error,
    InvalidRequestError,
    ModelError,
    NotFoundError,
    RequestError,
    StartError,
    UnavailableError,
    UnreachableError,
)
from tensorserve.server import Server

__all__ = [
    "AccessError",
    "Client",
    "DeadlineError",
    "Error",
    "InvalidRequestError",
    "ModelError",
    "NotFoundError",
    "RequestError",
    "Server",
    "Signature",
    "StartError",
    "TensorSpec",
    "UnavailableError",
    "UnreachableError",
    "find_binary",
]
