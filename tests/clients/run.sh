#!/bin/sh
# Runs real clients against the server: tests/clients/run.sh BINARY [FOLDER…]
#
# Without FOLDERs the variable CLIENTS selects them:
#   core  the default: the clients that pip installs from PyPI, and the commands of the documentation; nothing is
#         installed on the system
#   all   also the generated clients, the dashboard in a browser, models in stores, and Spark. These
#         need Debian packages, which packages.sh installs if this runs as root. And traces and logs,
#         models in Python, MLflow, PyTorch (which fetches libtorch and libexecutorch, 560 MB), Triton's and KServe's clients, Ray, the files of deploy/, and the Python wheel, with the profile of
#         the tests
#
# Each folder has its own virtual environment below target/, with the packages of its
# requirements.txt. They are created once, by uv, which pip installs: it takes a fifth of the time of pip, and the
# environments share their files. uv reads UV_DEFAULT_INDEX, not pip's settings.
set -eu
binary=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
home=${CARGO_TARGET_DIR:-$root/target}/clients
export TENSORSERVE_LIB_DIR="${TENSORSERVE_LIB_DIR:-$root/lib}"
if [ $# -eq 0 ]; then
    set -- tensorflow_serving custom_ops sagemaker/v2 sagemaker/v3 openapi docs
    case ${CLIENTS:-core} in
    core) echo "CLIENTS=core: leaves out traces and logs, models in Python, MLflow, PyTorch, Triton's and KServe's clients, the wheel, the generated clients, the browser, the stores, Ray, Spark and deploy/; CLIENTS=all tests them" ;;
    all) set -- "$@" telemetry python_runner mlflow_models pytorch triton kserve wheel generated browser stores ray_transform spark deploy ;;
    *)
        echo "CLIENTS=$CLIENTS is not valid; use core or all" >&2
        exit 2
        ;;
    esac
fi

# The folder whose virtual environment a folder's tests run in: its own, unless it needs the same.
environment_of() {
    case $1 in
    custom_ops) echo tensorflow_serving ;;
    *) echo "$1" ;;
    esac
}

# Creates the environment of a folder if it is not there.
install() {
    requirements=$here/$1/requirements.txt
    place=$home/$1
    cmp -s "$requirements" "$place/installed.txt" && return
    echo "Installing the Python packages of tests/clients/$1 into $place"
    mkdir -p "$place"
    install_uv
    # With pip, which some tests run.
    "$uv" venv --quiet --clear --seed --python "${PYTHON:-python3}" "$place/venv"
    uv_install "$1" -r "$requirements"
    # Without their dependencies, which would bring a second TensorFlow.
    [ "$1" != tensorflow_serving ] ||
        uv_install "$1" --no-deps tensorflow-serving-api==2.21.0 tensorflow-text==2.21.1
    # Azurite comes from npm.
    [ ! -e "$here/$1/package.json" ] || {
        cp "$here/$1/package.json" "$place"
        npm install --prefix "$place" --silent --no-fund --no-audit --no-package-lock
    }
    # helm, kubectl and Prometheus.
    [ "$1" != deploy ] || "$place/venv/bin/python" "$here/deploy/tools.py" "$place/bin"
    cp "$requirements" "$place/installed.txt"
}

uv=$home/uv/bin/uv
# Beside the environments, whose files are links into it.
export UV_CACHE_DIR="$home/uv/cache"

install_uv() {
    [ -x "$uv" ] && return
    "${PYTHON:-python3}" -m venv --clear "$home/uv"
    "$home/uv/bin/pip" --quiet --disable-pip-version-check install uv==0.13.9
}

# Installs packages in the environment of a folder: uv_install FOLDER PACKAGE…
uv_install() {
    environment=$home/$1/venv
    shift
    "$uv" pip install --quiet --python "$environment/bin/python" "$@"
}

"$here/packages.sh" "$@" &
packages=$!
for environment in $(for folder; do environment_of "$folder"; done | sort -u); do
    install "$environment"
done
wait "$packages"

# The wheel is not in the requirements, because each run tests a new one. `make client-test` has built it.
# Its variable does not begin with TENSORSERVE_: a server refuses those it does not know.
install_wheel() {
    wheels=${CLIENT_WHEELS:-}
    if [ -z "$wheels" ]; then
        make --no-print-directory -C "$root" wheel WHEEL_PROFILE=dev
        wheels=${CARGO_TARGET_DIR:-$root/target}/wheels/dev
    fi
    CLIENT_WHEEL=$(echo "$wheels"/*.whl)
    export CLIENT_WHEEL
    install_uv
    uv_install wheel --no-index --no-deps --reinstall "$CLIENT_WHEEL"
}

export TENSORSERVE_BINARY="$binary" CLIENTS_HOME="$home" TF_CPP_MIN_LOG_LEVEL=3 PYTHONWARNINGS=ignore
for folder; do
    [ "$folder" != wheel ] || install_wheel
    "$home/$(environment_of "$folder")/venv/bin/python" -m unittest discover --start-directory "$here/$folder"
done
