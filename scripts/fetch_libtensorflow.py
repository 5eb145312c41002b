#!/usr/bin/env python3
"""Fetches libtensorflow, the C library of TensorFlow that tensorserve loads at run time.

TensorFlow publishes a current libtensorflow only inside its Python package. This script
downloads that package with pip, checks it against the SHA-256 in runtimes.json and unpacks only the
libraries (wheels.py describes how):

    DEST/tensorflow/libtensorflow_cc.so.2         the library, with the whole TF_* C API
    DEST/tensorflow/libtensorflow_framework.so.2  its dependency, which it finds beside itself
    DEST/nvidia/*/lib/*.so*                       with --device gpu: the CUDA libraries
    DEST/tensorflow/**/*_pb2.py                   messages that Python's tensorflow-serving-api imports
    DEST/licenses/                                their licence texts
    DEST/FETCHED.json                             what was unpacked, written last

The layout is that of Python's site-packages, because the GPU build looks for the CUDA libraries in
../nvidia, relative to its own directory.
"""

from wheels import main

if __name__ == "__main__":
    main("tensorflow")
