#!/bin/sh
# Installs the Debian packages that the tests of a folder need: tests/clients/packages.sh FOLDER…
#
# Prints what it installs and why. Only root can install; for other users it prints what is missing.
# The tests then report every program that they do not find.
set -eu

# Sets $missing to the packages that are not installed.
find_missing() {
    missing=
    for package; do
        dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null |
            grep -q '^installed$' || missing="$missing $package"
    done
}

# Adds PACKAGE to $missing if PROGRAM is not in PATH, whatever installed it: need PROGRAM PACKAGE
need() {
    command -v "$1" > /dev/null || missing="$missing $2"
}

# The languages of the generated clients. Debian 12 has no Swift.
find_missing_generated() {
    find_missing erlang-base erlang-inets erlang-ssl \
        golang-go \
        libhttp-tiny-perl libio-socket-ssl-perl \
        libmono-system-core4.0-cil libmono-system-net-http4.0-cil mono-mcs \
        lua5.1 lua-http \
        php-cli php-curl \
        r-base-core r-cran-httr2 \
        ruby
    need java default-jdk-headless
    need node nodejs
    need curl curl
}

# Chromium, with the fonts that the dashboard prefers.
find_missing_browser() {
    missing=
    for name in "${CHROMIUM:-chromium}" chromium chromium-browser google-chrome; do
        command -v "$name" > /dev/null && return
    done
    missing=" chromium fonts-inter fonts-jetbrains-mono"
}

# Installs $missing: install_missing PURPOSE
install_missing() {
    [ -n "$missing" ] || return 0
    echo "$1 need these Debian packages, which are not installed:"
    echo "   $missing"
    if ! command -v apt-get > /dev/null || [ "$(id -u)" != 0 ]; then
        echo "They are left out: apt-get install --no-install-recommends needs root."
        return 0
    fi
    echo "Installing them on this system with apt-get. CLIENTS=core leaves these tests out."
    # Installs from the package lists that are there, and updates the lists only if that fails.
    # shellcheck disable=SC2086
    apt_install $missing > /dev/null 2>&1 || {
        apt-get update --quiet=2
        apt_install $missing > /dev/null
    } || echo "apt-get failed; the tests report what is missing"
}

apt_install() {
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends \
        -o DPkg::Lock::Timeout=300 "$@"
}

for folder; do
    case $folder in
    generated)
        find_missing_generated
        install_missing "The generated clients, which run in the languages they are written in,"
        ;;
    stores)
        missing=
        need node nodejs
        need npm npm
        install_missing "The tests of stores, which run Azurite,"
        ;;
    spark)
        missing=
        need java default-jre-headless
        install_missing "The tests of Spark"
        ;;
    pytorch)
        missing=
        need "${CXX:-c++}" g++
        install_missing "The tests of PyTorch, which compile the shim for libtorch,"
        ;;
    browser)
        find_missing_browser
        install_missing "The tests of the dashboard, which run in Chromium,"
        ;;
    esac
done
