#!/bin/sh
# Runs real clients against the server: tests/clients/run.sh BINARY [FOLDER…]
#
# Each folder of tests has a virtual environment of its own below target/, with what its
# requirements.txt says; it is made once, all of them at a time.
set -eu
binary=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
home=${CARGO_TARGET_DIR:-$here/../../target}/clients
[ $# -gt 0 ] || set -- tensorflow_serving custom_ops sagemaker/v2 sagemaker/v3 openapi generated browser

# What a folder's tests run in: of its own, unless they need the same as another's.
environment_of() {
    case $1 in
        custom_ops) echo tensorflow_serving ;;
        *) echo "$1" ;;
    esac
}

install() {
    wanted=$here/$1/requirements.txt
    place=$home/$1
    cmp -s "$wanted" "$place/installed.txt" && return
    echo "installing the clients of $1 into $place"
    mkdir -p "$place"
    "${PYTHON:-python3}" -m venv --clear "$place/venv"
    pip="$place/venv/bin/pip --quiet --disable-pip-version-check"
    $pip install -r "$wanted"
    # Without their dependencies, which would bring a second TensorFlow.
    [ "$1" != tensorflow_serving ] ||
        $pip install --no-deps tensorflow-serving-api==2.21.0 tensorflow-text==2.21.1
    cp "$wanted" "$place/installed.txt"
}

# Not in a virtual environment: languages.
case " $* " in
*" generated "*) "$here/generated/packages.sh" & languages=$! ;;
*) languages= ;;
esac

running=$languages
for folder in $(for folder; do environment_of "$folder"; done | sort -u); do
    install "$folder" &
    running="$running $!"
done
for process in $running; do
    wait "$process"
done

export TENSORSERVE_BINARY="$binary" CLIENTS_HOME="$home" TF_CPP_MIN_LOG_LEVEL=3 PYTHONWARNINGS=ignore
for folder; do
    "$home/$(environment_of "$folder")/venv/bin/python" -m unittest discover --start-directory "$here/$folder"
done
