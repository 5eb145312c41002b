#!/usr/bin/env python3
"""Fetches ONNX Runtime, the C library that tensorserve runs ONNX and MXNet models with.

It is part of Microsoft's Python package. This script downloads that package with pip, checks it
against the SHA-256 below (wheels.py describes how), and unpacks only the library:

    DEST/onnxruntime/capi/libonnxruntime.so.VERSION
    DEST/licenses/
    DEST/FETCHED.json

A server without such models does not load it.
"""

import re

from wheels import Choice, Package, Wheel, main

VERSION = "1.31.1"
LIBRARY = f"onnxruntime/capi/libonnxruntime.so.{VERSION}"

# wheels.py describes how to update these. Any Python version's wheel works; these are cp312.
X86_64 = Wheel(
    "onnxruntime-1.31.1-cp312-cp312-manylinux_2_28_x86_64.whl",
    23760988,
    "1f3dea47f2f0e5117c2404cea7d21fd253ae7836a3bf167a501cdfbb2600d536",
)
AARCH64 = Wheel(
    "onnxruntime-1.31.1-cp312-cp312-manylinux_2_28_aarch64.whl",
    21420803,
    "0b9a492176886992e0e875f06bc0367e333f5fff11711a2d642e18b02f3009cc",
)

PACKAGE = Package(
    name="libonnxruntime",
    maker="ONNX Runtime",
    version=VERSION,
    folder="onnxruntime",
    variable="TENSORSERVE_LIBONNXRUNTIME",
    needed=(LIBRARY,),
    choices={
        ("cpu", "x86_64"): Choice((X86_64,), 29700000),
        ("cpu", "aarch64"): Choice((AARCH64,), 25700000),
    },
    libraries=re.compile(re.escape(LIBRARY)),
    links={},
)

if __name__ == "__main__":
    main(PACKAGE)
