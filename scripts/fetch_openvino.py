#!/usr/bin/env python3
"""Fetches OpenVINO, the libraries that tensorserve runs models in OpenVINO's format with.

It is part of Intel's Python package. This script downloads that package with pip, checks it against the
SHA-256 in runtimes.json (wheels.py describes how), and unpacks only the libraries:

    DEST/openvino/libs/libopenvino_c.so.2641 and those that it needs on a CPU
    DEST/licenses/
    DEST/FETCHED.json

A server without such models does not load it.
"""

from wheels import main

if __name__ == "__main__":
    main("openvino")
