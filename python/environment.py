"""Creates the virtual environment for a requirements.txt, once.

Run as a script with the file and the directory of environments. Prints its progress, and as the last
line the path of the environment's interpreter.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv

# Requirements may refer to files beside them with these extensions.
REFERENCED_FILES = (".txt", ".whl", ".gz", ".zip")

# The size of the blocks in which files are hashed, in bytes.
BLOCK = 1 << 20

# Runs pip as `python -m pip` does, but without the modules of the working directory.
RUN_PIP = (
    "import sys; sys.path[:1] = [p for p in sys.path[:1] if p]; "
    "import runpy; runpy.run_module('pip', run_name='__main__', alter_sys=True)"
)

# The length of an environment's name, in hexadecimal digits.
NAME_DIGITS = 32


def environment_name(requirements):
    """A name that depends on the interpreter and on the requirements."""
    digest = hashlib.sha256()
    for text in (sys.version, sys.executable, sys.prefix):
        digest.update(text.encode() + b"\0")
    folder = os.path.dirname(requirements)
    names = [name for name in os.listdir(folder) if name.endswith(REFERENCED_FILES)]
    for name in sorted(names):
        digest.update(name.encode("utf-8", "replace") + b"\0")
        with open(os.path.join(folder, name), "rb") as file:
            for block in iter(lambda: file.read(BLOCK), b""):
                digest.update(block)
    return digest.hexdigest()[:NAME_DIGITS]


def main(requirements, environments):
    requirements = os.path.abspath(requirements)
    home = os.path.join(os.path.abspath(environments), environment_name(requirements))
    python = os.path.join(home, "bin", "python")
    marker = os.path.join(home, "complete")
    os.makedirs(environments, exist_ok=True)
    # Another server may be creating the same environment.
    with open(home + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.exists(marker):
            print("using the environment in", home)
        else:
            shutil.rmtree(home, ignore_errors=True)
            create(home, python, requirements)
            with open(marker, "w"):
                pass
    sys.stdout.flush()
    print(python)


def create(home, python, requirements):
    """Creates the environment in `home` and installs the requirements."""
    # The system's packages, and pip among them, stay available, as in SageMaker's container.
    venv.create(home, system_site_packages=True, symlinks=True, with_pip=False)
    install = [python, "-c", RUN_PIP, "install", "--disable-pip-version-check"]
    install += ["--no-input", "--progress-bar", "off", "-r", requirements]
    status = subprocess.call(install, cwd=os.path.dirname(requirements))
    if status != 0:
        sys.exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
