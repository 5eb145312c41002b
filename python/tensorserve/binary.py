"""Finds the program that was installed with this package."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from tensorserve.errors import Error

#: The variable that names a program to use in place of the installed one.
VARIABLE = "TENSORSERVE_BINARY"

_NAME = "tensorserve"


def find_binary() -> str:
    """Returns the path of the program ``tensorserve`` that was installed with this package.

    The environment variable ``TENSORSERVE_BINARY`` names another one, such as a build of one's own.
    Raises :class:`Error` if there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if os.access(named, os.X_OK) and os.path.isfile(named):
            return named
        raise Error(f"{VARIABLE}={named} is not a program: correct the variable, or unset it")
    candidates = _installed() + _in_target_folder()
    for file in candidates:
        if os.access(file, os.X_OK) and file.is_file():
            return str(file)
    looked = ", ".join(map(str, candidates))
    raise Error(
        f"the program {_NAME} was not found (looked for {looked}). Install its wheel again with "
        "`pip install --force-reinstall WHEEL`"
    )


def _installed() -> list[Path]:
    """Where pip has recorded the program: in the bin/ of a virtual environment, of ~/.local, ..."""
    try:
        files = metadata.files(_NAME) or []
    except metadata.PackageNotFoundError:
        return []
    programs = [file for file in files if file.name == _NAME and file.parent.name == "bin"]
    return [Path(os.path.normpath(str(file.locate()))) for file in programs]


def _in_target_folder() -> list[Path]:
    """Where `pip install --target` moves the program to: its record still names the old place."""
    return [Path(__file__).resolve().parent.parent / "bin" / _NAME]
