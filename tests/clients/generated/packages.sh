#!/bin/sh
# Installs the languages that clients are generated in, from Debian; as root only. What is missing
# afterwards is told by the tests.
set -eu
packages="
    erlang-base erlang-inets erlang-ssl
    golang-go
    libhttp-tiny-perl libio-socket-ssl-perl
    libmono-system-core4.0-cil libmono-system-net-http4.0-cil mono-mcs
    lua5.1 lua-http
    php-cli php-curl
    r-base-core r-cran-httr2
    ruby
"
missing=
for package in $packages; do
    dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null |
        grep -q '^installed$' || missing="$missing $package"
done
for program in "java default-jdk-headless" "node nodejs" "curl curl"; do
    command -v "${program%% *}" > /dev/null || missing="$missing ${program#* }"
done
[ -n "$missing" ] || exit 0
command -v apt-get > /dev/null || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "not root, and so not installed: apt-get install --no-install-recommends$missing"
    exit 0
fi
echo "installing$missing"
export DEBIAN_FRONTEND=noninteractive
# Without what writes manuals and menus, and with the lists of packages that there are, if they do.
options="--yes --quiet=2 --no-install-recommends -o DPkg::Lock::Timeout=300"
# shellcheck disable=SC2086
apt-get install $options $missing > /dev/null 2>&1 ||
    { apt-get update --quiet=2 && apt-get install $options $missing > /dev/null; } ||
    echo "not everything could be installed"
