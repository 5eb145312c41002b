"""Makes the virtual environment that a requirements.txt asks for, once.

Called as a script with the file and a folder for environments. Prints what goes on, and as its last
line the path of the environment's interpreter.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv


def key_of(requirements):
    """Names the environment: another one for another interpreter or other requirements."""
    digest = hashlib.sha256()
    for text in (sys.version, sys.executable, sys.prefix):
        digest.update(text.encode() + b"\0")
    folder = os.path.dirname(requirements)
    # It may name files beside it.
    names = [name for name in os.listdir(folder) if name.endswith((".txt", ".whl", ".gz", ".zip"))]
    for name in sorted(names):
        digest.update(name.encode("utf-8", "replace") + b"\0")
        with open(os.path.join(folder, name), "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()[:32]


def main(requirements, environments):
    requirements = os.path.abspath(requirements)
    home = os.path.join(os.path.abspath(environments), key_of(requirements))
    python = os.path.join(home, "bin", "python")
    done = os.path.join(home, "complete")
    os.makedirs(environments, exist_ok=True)
    # Another server may want the same one at the same time.
    with open(home + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(done):
            shutil.rmtree(home, ignore_errors=True)
            # What is installed already stays in reach, as it is in the container, and so is pip.
            venv.create(home, system_site_packages=True, symlinks=True, with_pip=False)
            install = [python, "-m", "pip", "install", "--disable-pip-version-check"]
            install += ["--no-input", "--progress-bar", "off", "-r", requirements]
            status = subprocess.call(install, cwd=os.path.dirname(requirements))
            if status != 0:
                sys.exit(status)
            with open(done, "w"):
                pass
        else:
            print("found what was installed before, in", home)
    sys.stdout.flush()
    print(python)


if __name__ == "__main__":
    main(*sys.argv[1:])
