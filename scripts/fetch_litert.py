#!/usr/bin/env python3
"""Fetches LiteRT, the C library that tensorserve runs TensorFlow Lite models with.

It is part of Google's Python package. This script downloads that package with pip, checks it against the
SHA-256 in runtimes.json (wheels.py describes how), and unpacks only the library:

    DEST/ai_edge_litert/libLiteRt.so
    DEST/licenses/
    DEST/FETCHED.json

A server without such models does not load it.
"""

from wheels import main

if __name__ == "__main__":
    main("litert")
