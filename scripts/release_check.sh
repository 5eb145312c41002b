#!/bin/sh
# All of a release but the upload, on this machine: scripts/release_check.sh [OPTION…]
#
#   --unreleased   a rehearsal before CHANGELOG.md has a section for the version: takes `Unreleased`
#   --tag vX.Y.Z   compares the tag with the version, too
#   --image        also assembles the image `slim` and runs its tests; as root, with debootstrap, 3 min
#
# The files of the release are in target/release-check. The workflow of releases runs this on a machine of
# each kind, so that what fails there fails here. What this machine cannot do is left out, and named at the
# end. docs/releasing.md describes all of a release.
set -eu
cd "$(dirname "$0")/.."

unreleased=
tag=
image=
while [ $# -gt 0 ]; do
    case $1 in
    --unreleased) unreleased=--unreleased ;;
    --tag)
        tag=${2:?--tag needs the tag}
        shift
        ;;
    --image) image=yes ;;
    --help)
        sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
        exit
        ;;
    *)
        echo "error: $1 is not an option; scripts/release_check.sh --help lists them" >&2
        exit 2
        ;;
    esac
    shift
done

python=${PYTHON:-python3}
make="${MAKE:-make} --no-print-directory"
target=${CARGO_TARGET_DIR:-target}
out=target/release-check
work=target/release-check-work
machine=$(uname -m)
is_root() { [ "$(id -u)" = 0 ] && command -v debootstrap > /dev/null; }
left_out=
leave_out() {
    left_out="$left_out
  * $1"
}
step() { echo "== $1"; }

if [ -n "$image" ] && ! is_root; then
    echo "error: --image needs root and debootstrap" >&2
    exit 2
fi
# What an interrupted run has mounted there is not deleted.
rm -rf --one-file-system "$out" "$work"
mkdir -p "$out" "$work"

step "Version and notes"
$python -m doctest scripts/release_notes.py
# shellcheck disable=SC2086 # An option or nothing.
$python scripts/release_notes.py check $unreleased ${tag:+--tag "$tag"}
version=$($python scripts/release_notes.py version)
# shellcheck disable=SC2086
$python scripts/release_notes.py notes $unreleased > "$out/NOTES.md"

step "Dockerfiles"
$make dockerfiles

step "The wheel for $machine"
$make wheel
cp "$target"/wheels/release/*.whl "$out"
wheel=$(echo "$out"/tensorserve-*.whl)
# The machine that the files are made for, and the other one.
case $machine in
x86_64) other=aarch64 ;;
*) other=x86_64 ;;
esac
if rustup target list --installed 2> /dev/null | grep -q "^$other-unknown-linux-gnu$"; then
    step "The wheel for $other"
    $make wheel WHEEL_MACHINE=$other
    cp "$target"/wheels/release/*.whl "$out"
else
    leave_out "the wheel for $other: rustup target add $other-unknown-linux-gnu"
fi

step "The program, with its debug information"
$make build PORTABLE=1
program=$target/release/tensorserve
"$program" --version | grep -qxF "tensorserve $version" || {
    echo "error: $program is not version $version" >&2
    exit 1
}
glibc=$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
if [ "$(printf '%s\n' "$glibc" GLIBC_2.28 | sort -V | tail -n 1)" != GLIBC_2.28 ]; then
    echo "error: $program needs $glibc; docs/install.md promises 2.28" >&2
    exit 1
fi
name=tensorserve-$version-$machine-linux
mkdir "$work/$name"
cp "$program" "$program.debug" LICENSE README.md "$work/$name"
# The same files give the same archive.
time=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || date +%s)}
tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" "$name" |
    gzip -9 --no-name > "$out/$name.tar.gz"

step "The list of its components (SBOM)"
cargo metadata --locked --format-version 1 --filter-platform "$machine-unknown-linux-gnu" > "$work/cargo.json"
$python scripts/sbom.py --cargo "$work/cargo.json" --output "$out/$name.cdx.json"

if is_root; then
    step "The wheel in an empty Debian"
    $python scripts/try_install.py "$wheel" "$work/debian" pip
else
    step "The wheel in a virtual environment"
    leave_out "the wheel with TensorFlow in an empty Debian: needs root and debootstrap"
    $python -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check "$wheel"
    "$work/venv/bin/tensorserve" --version | head -n 1
fi

if [ -n "$image" ]; then
    step "The image slim"
    debootstrap --variant=minbase bookworm "$work/bookworm" > /dev/null
    mkdir -p "$work/build/out"
    cp "$program" "$work/cargo.json" "$work/build/out"
    # The network as this machine has it, also in the image's steps.
    set --
    for variable in PIP_CERT PIP_INDEX_URL HTTPS_PROXY; do
        value=$(printenv "$variable" || true)
        [ -z "$value" ] || set -- "$@" --env "$variable=$value"
    done
    [ -z "${PIP_CERT:-}" ] || set -- "$@" --bind "$PIP_CERT=$PIP_CERT"
    $python scripts/assemble_image.py Dockerfile.cpu --target slim --base "debian=$work/bookworm" \
        --stage "build=$work/build" --work "$work" "$@"
    IMAGE=$work/slim $python -m unittest discover tests/image
else
    leave_out "the images: --image assembles one, and the workflow builds all"
fi

step "Checksums"
(cd "$out" && sha256sum tensorserve-* > SHA256SUMS && sha256sum --check --quiet SHA256SUMS)
rm -rf --one-file-system "$work"

echo
echo "tensorserve $version, in $out:"
(cd "$out" && du --apparent-size --human-readable -- *)
[ -z "$left_out" ] || echo "Left out:$left_out"
