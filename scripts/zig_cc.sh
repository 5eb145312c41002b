#!/bin/sh
# The linker of `make wheel`: Zig's, with the symbols of glibc 2.28 only, so that the program runs on every
# system with that version or a later one, whatever this one has. For another machine than this one
# (WHEEL_MACHINE) it is also the C compiler.
set -eu
tools=$(cd "$(dirname "$0")/.." && pwd)/target/tools/wheel
for argument; do
    shift
    case $argument in
    # Zig does not know it. Its linker exports `pread` anyway, because the C library has it, too.
    -Wl,--export-dynamic-symbol=*) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
export CARGO_ZIGBUILD_ZIG_PATH="$tools/ziglang/zig" ZIG_GLOBAL_CACHE_DIR="$tools/cache"
exec "$tools/bin/maturin" zig cc -- -target "${WHEEL_MACHINE:-$(uname -m)}-linux-gnu.2.28" "$@"
