#!/bin/sh
# Runs real clients against the server: tests/clients/run.sh BINARY
#
# What they need is installed once, into a virtual environment below target/.
set -eu
binary=$1
here=$(dirname "$0")
home=${CARGO_TARGET_DIR:-$here/../../target}/clients
wanted=$here/tensorflow_serving/requirements.txt
mkdir -p "$home"
if ! cmp -s "$wanted" "$home/installed.txt"; then
    echo "installing the clients into $home"
    "${PYTHON:-python3}" -m venv --clear "$home/venv"
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check -r "$wanted"
    # Without its dependencies, which would bring a second TensorFlow.
    "$home/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
        tensorflow-serving-api==2.21.0
    cp "$wanted" "$home/installed.txt"
fi
export TENSORSERVE_BINARY="$binary" TF_CPP_MIN_LOG_LEVEL=3 PYTHONWARNINGS=ignore
exec "$home/venv/bin/python" -m unittest discover --start-directory "$here/tensorflow_serving"
