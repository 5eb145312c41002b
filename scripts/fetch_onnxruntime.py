#!/usr/bin/env python3
"""Fetches ONNX Runtime, the C library that tensorserve runs ONNX and MXNet models with.

It is part of Microsoft's Python package. This script downloads that package with pip, checks it
against the SHA-256 in runtimes.json (wheels.py describes how), and unpacks only the library:

    DEST/onnxruntime/capi/libonnxruntime.so.VERSION
    DEST/licenses/
    DEST/FETCHED.json

A server without such models does not load it.
"""

from wheels import main

if __name__ == "__main__":
    main("onnxruntime")
